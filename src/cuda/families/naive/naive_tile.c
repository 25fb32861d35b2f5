#include "naive_tile.h"

#include "box.h"
#include "dtype.h"
#include "launch.h"
#include "load.h"
#include "tile_count.h"

#include <math.h>
#include <string.h>

/* A thread holds a row of Q and one of O in registers, and walks its window alone. */
enum { MOST_DIM = 32, MOST_WINDOW = 13, VECTOR_BYTES = 16 };

static bool takes(const struct nh_problem *problem) {
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

/* Of a launch: blocks, rows that one stages, at most and on average. */
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

/* Of a multiprocessor; 0: not even one block fits. */
static int64_t warps_of(const struct nh_problem *problem, const struct nh_cuda_device *device,
                        const int32_t tile[NH_AXES], bool keys, const struct grid *grid) {
    int64_t by_shared = nh_cuda_residents_by_shared(device, shared_bytes(problem, tile, grid));
    if (!by_shared) return 0;
    int64_t by_registers = nh_naive_tile_resident(problem->op, tile, keys);
    return nh_max(1, nh_min(by_shared, by_registers)) * nh_box_volume(tile) / 32;
}

/* Clocks of a warp scheduler for a block's instructions: staging of rows, and multiply-adds with all that goes with them.
 * They wait for each other the more, the fewer warps there are. A launch begins and ends with waiting. Fitted to 118
 * timings on an H200. */
static double fused_clocks(const struct nh_problem *problem, double waves, double staged,
                           double pairs, double warps, bool keys) {
    const double latency = 9720, vector = 1.63, hiding_warps = 8.43, half_product = 0.0205,
                 product = 0.0151;
    double walks = keys ? (double)(problem->heads / problem->kv_heads) : 1;
    double dims = (double)(problem->dim + problem->dim_v);
    if (problem->op == NHOOD_OP_BWD) dims *= keys ? 2 : 1.5;
    double each = problem->dtype == NHOOD_DTYPE_F32 ? product : half_product;
    double clocks = walks * (vector * 2 * staged + each * dims * pairs);
    return latency + waves * clocks * (1 + hiding_warps / warps);
}

/* The same of PN and NN, with a start and the moving of A. Where one tensor is staged there is less to wait for. Fitted to 35
 * problems. */
static double unfused_clocks(const struct nh_problem *problem, double waves, double staged,
                             double pairs, double warps) {
    const double start = 753, vector = 1.1, slot = 0.469, hiding_warps = 11, one_staged = 0.75;
    const double product = problem->dtype == NHOOD_DTYPE_F32 ? 0.0182 : 0.0126;
    double dims = (double)(problem->op == NHOOD_OP_PN ? problem->dim : problem->dim_v);
    double clocks = start + vector * staged + (product * dims + slot) * pairs;
    return waves * clocks * (1 + hiding_warps / warps) * one_staged;
}

/* INFINITY: a launch does not take it. */
static double pass_clocks(const struct nh_problem *problem, const struct nh_cuda_device *device,
                          const int32_t tile[NH_AXES], bool keys) {
    const struct grid grid = grid_of(problem, tile, keys);
    double warps = (double)warps_of(problem, device, tile, keys, &grid);
    if (warps <= 0 || grid.blocks > INT32_MAX) return INFINITY;
    double queries = (double)nh_box_volume(tile), waves = grid.blocks / device->multiprocessors;
    double staged = grid.rows * (double)(row_bytes(problem) / VECTOR_BYTES);
    double pairs = queries * (double)(problem->window_count + problem->extra_tokens);
    if (problem->op == NHOOD_OP_PN || problem->op == NHOOD_OP_NN)
        return unfused_clocks(problem, fmax(waves, warps * 32 / queries), staged, pairs, warps);
    return fused_clocks(problem, waves, staged, pairs, warps, keys);
}

/* No less than `most` if it is that much: passes beyond are left out. */
static double passes_ns(const struct nh_problem *problem, const struct nh_cuda_device *device,
                        const int32_t tile[NH_AXES], double most) {
    const double launch_ns = 5970;
    double ns = 0;
    for (int pass = 0; pass < passes_of(problem) && ns < most; pass++)
        ns += nh_cuda_clocks_ns(device, pass_clocks(problem, device, tile, pass)) + launch_ns;
    return ns;
}

double nh_naive_tile_ns(const struct nh_problem *problem, const struct nh_cuda_device *device,
                        const int32_t tile[NH_AXES]) {
    return passes_ns(problem, device, tile, INFINITY);
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
            double ns = passes_ns(problem, device, box[i], least);
            if (ns >= least) continue;
            least = ns;
            memcpy(tile, box[i], sizeof box[i]);
        }
    }
    return isfinite(least);
}
