#include "naive_tile.h"
#include "rates.h"
#include "predict.h"

#include "dtype.h"
#include "launch.h"
#include "tile_count.h"

#include <math.h>
#include <string.h>

/* Limits of the tiles: a thread holds a row of Q and one of O in registers, and goes over its whole window alone. */
enum { MOST_DIM = 32, MOST_WINDOW = 13, VECTOR_BYTES = 16 };

static bool takes(const struct nh_problem *problem) {
    if (nh_problem_partial(problem) || nh_problem_periodic(problem)) return false;
    if (problem->op == NHOOD_OP_IN || problem->dtype == NHOOD_DTYPE_F64) return false;
    if (problem->op != NHOOD_OP_NN && problem->dim > MOST_DIM) return false;
    if (problem->op != NHOOD_OP_PN && problem->dim_v > MOST_DIM) return false;
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].window > MOST_WINDOW || problem->axis[a].length > INT32_MAX)
            return false;
    return nh_cuda_vector(problem, UINT32_MAX) * (int64_t)nh_dtype_bytes(problem->dtype) ==
           VECTOR_BYTES;
}

static int64_t row_bytes(const struct nh_problem *problem) {
    int64_t dim = problem->op == NHOOD_OP_PN   ? problem->dim
                  : problem->op == NHOOD_OP_NN ? problem->dim_v
                                               : nh_max(problem->dim, problem->dim_v);
    int64_t vectors = dim * (int64_t)nh_dtype_bytes(problem->dtype) / VECTOR_BYTES;
    return (vectors | 1) * VECTOR_BYTES;
}

/* A launch: its blocks, and the rows that a block stages, at most and on average. */
struct grid {
    double blocks;
    int64_t most_rows;
    double rows;
};

static struct grid grid_of(const struct nh_problem *problem, const int32_t tile[NH_AXES],
                           bool keys) {
    struct grid grid = {
        (double)problem->batch * (double)(keys ? problem->kv_heads : problem->heads), 1, 1};
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_tile_count count = nh_tile_count(&problem->axis[a], tile[a], 1, keys);
        grid.blocks *= (double)count.tiles;
        grid.most_rows *= count.halo;
        grid.rows *= count.visits / (double)count.tiles;
    }
    return grid;
}

static int64_t shared_bytes(const struct nh_problem *problem, const int32_t tile[NH_AXES],
                            const struct grid *grid) {
    int64_t staged = grid->most_rows * row_bytes(problem);
    if (problem->op == NHOOD_OP_FWD || problem->op == NHOOD_OP_BWD) return 2 * staged;
    return staged +
           nh_box_volume(tile) * problem->window_count * (int64_t)nh_dtype_bytes(problem->dtype);
}

int64_t nh_naive_tile_shared_bytes(const struct nh_problem *problem, const int32_t tile[NH_AXES],
                                   bool keys) {
    const struct grid grid = grid_of(problem, tile, keys);
    return shared_bytes(problem, tile, &grid);
}

static int passes_of(const struct nh_problem *problem) {
    return problem->op == NHOOD_OP_BWD ? 2 : 1;
}

int64_t nh_naive_tile_resident(int32_t op, const int32_t tile[NH_AXES], bool keys) {
    int64_t per_thread = op != NHOOD_OP_BWD ? 128 : keys ? 255 : 168;
    return nh_max(1, NH_CUDA_REGISTERS / (per_thread * nh_box_volume(tile)));
}

/* Resident warps per multiprocessor; 0: not even one block fits. */
static int64_t warps_of(const struct nh_problem *problem, const struct nh_cuda_device *device,
                        const int32_t tile[NH_AXES], bool keys, const struct grid *grid) {
    int64_t by_shared = nh_cuda_residents_by_shared(device, shared_bytes(problem, tile, grid));
    if (!by_shared) return 0;
    int64_t by_registers = nh_naive_tile_resident(problem->op, tile, keys);
    return nh_max(1, nh_min(by_shared, by_registers)) * nh_box_volume(tile) / 32;
}

/* Multiply-adds per pair of rows. */
static double dims_of(const struct nh_problem *problem, bool keys) {
    double dim = (double)problem->dim, dim_v = (double)problem->dim_v;
    switch (problem->op) {
    case NHOOD_OP_PN: return dim;
    case NHOOD_OP_NN: return dim_v;
    case NHOOD_OP_BWD: return (dim + dim_v) * (keys ? 2 : 1.5);
    default: return dim + dim_v;
    }
}

static bool add_pass(const struct nh_problem *problem, const struct nh_cuda_device *device,
                     const int32_t tile[NH_AXES], bool keys, struct nh_work *work) {
    const struct grid grid = grid_of(problem, tile, keys);
    double warps = (double)warps_of(problem, device, tile, keys, &grid);
    if (warps <= 0 || grid.blocks > INT32_MAX) return false;
    double queries = (double)nh_box_volume(tile);
    double group_heads = keys ? (double)(problem->heads / problem->kv_heads) : 1;
    double tensors = problem->op == NHOOD_OP_PN || problem->op == NHOOD_OP_NN ? 1 : 2;
    double staged = tensors * grid.rows * (double)(row_bytes(problem) / VECTOR_BYTES);
    double pairs = group_heads * queries * (double)(problem->window_count + problem->extra_tokens);
    struct nh_launch_work *launch =
        nh_work_add(work, problem->dtype == NHOOD_DTYPE_F32 ? NH_KERNEL_NAIVE_TILES_F32
                                                            : NH_KERNEL_NAIVE_TILES);
    launch->blocks = grid.blocks;
    launch->warps = queries / 32;
    launch->residents = launch->in_flight = warps / launch->warps;
    launch->serial = 1 / launch->warps;
    launch->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(pairs * dims_of(problem, keys));
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(group_heads * staged);
    return true;
}

bool nh_naive_tile_work(const struct nh_problem *problem, const struct nh_cuda_device *device,
                        const int32_t tile[NH_AXES], struct nh_work *work) {
    if (nh_problem_partial(problem) || nh_problem_periodic(problem)) return false;
    nh_work_start(work, NH_OPERATION_NAIVE, problem);
    for (int pass = 0; pass < passes_of(problem); pass++)
        if (!add_pass(problem, device, tile, pass, work)) return false;
    return true;
}

bool nh_naive_tile_choose(const struct nh_problem *problem, const struct nh_cuda_device *device,
                          int32_t tile[NH_AXES]) {
    static const int32_t threads[] = {64, 128, 256};
    int32_t box[NH_MOST_BOXES][NH_AXES];
    double least = INFINITY;
    if (!takes(problem)) return false;
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        int count = nh_tile_boxes(problem, threads[t], box);
        for (int i = 0; i < count; i++) {
            struct nh_work work;
            if (!nh_naive_tile_work(problem, device, box[i], &work)) continue;
            double ns = nh_predict(device, &work, NULL);
            if (ns >= least) continue;
            least = ns;
            memcpy(tile, box[i], sizeof box[i]);
        }
    }
    return isfinite(least);
}
