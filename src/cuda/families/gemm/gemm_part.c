#include "gemm.h"

#include "dtype.h"
#include "rates.h"

enum { WARP_ROWS = 16, MOST_HELD = 16, LEAST_LANES = 8, LANES = 32, MOST_PLACE = 1 << 16 };

static int64_t first_axis(const struct nh_problem *problem, bool planes) {
    return planes ? 1 : NH_AXES - problem->rank;
}

int64_t nh_gemm_part_slots(const struct nh_problem *problem, bool planes) {
    int64_t slots = 1;
    for (int64_t a = first_axis(problem, planes); a < NH_AXES; a++)
        slots *= problem->axis[a].window;
    return slots;
}

int64_t nh_gemm_part_lanes(int64_t slots) {
    int64_t lanes = LEAST_LANES;
    while (lanes < LANES && lanes * MOST_HELD < slots)
        lanes *= 2;
    return lanes;
}

static int64_t part_row(const struct nh_problem *problem, bool planes) {
    int64_t piece = 16 / (int64_t)nh_dtype_bytes(problem->dtype);
    return nh_ceil_div(nh_gemm_part_slots(problem, planes), piece) * piece;
}

int64_t nh_gemm_part_row(const struct nh_problem *problem, bool planes) {
    return part_row(problem, planes) * (planes ? problem->axis[0].window : 1);
}

/* The same as struct nh_part_bounds of gemm_part.cuh, and the columns of a part without padding. */
struct bounds {
    int64_t rows, columns, box;
};

static int64_t most_reach(const struct nh_axis *axis, int64_t extent) {
    return nh_min(nh_longest_group(axis), extent + axis->window + axis->stride - 2);
}

static struct bounds bounds_of(const struct nh_problem *problem, const struct nh_config *config) {
    int64_t box = 1, columns = 1, rows = WARP_ROWS;
    for (int64_t a = NH_AXES - 1; a >= first_axis(problem, config->value[GEMM_PLANES]); a--) {
        int64_t extent = nh_min(config->value[GEMM_TILE + a], rows);
        columns += (most_reach(&problem->axis[a], extent) - 1) * box;
        box *= most_reach(&problem->axis[a], config->value[GEMM_TILE + a]);
        rows /= extent;
    }
    return (struct bounds){nh_ceil_div(box, 16) * 16 + 16, nh_ceil_div(columns, 16) * 16, box};
}

/* The more shared memory 16 rows take, the fewer blocks are resident, and the more warps should share the rows; warps
 * of nn share the columns of V. The limits, in bytes of a row's columns, were measured on an H200. */
int64_t nh_gemm_part_team(const struct nh_problem *problem, const struct nh_config *config,
                          enum nh_gemm_part part) {
    enum { FOR_TWO = 200, FOR_FOUR = 800, MOST_THREADS = 512 };
    int64_t row = bounds_of(problem, config).columns * (int64_t)nh_dtype_bytes(problem->dtype);
    int64_t width = nh_gemm_width(problem->dim_v), team = row > FOR_FOUR  ? 4
                                                          : row > FOR_TWO ? 2
                                                                          : 1;
    while (2 * nh_gemm_rows(config) * team > MOST_THREADS)
        team /= 2;
    while (part == NH_GEMM_PART_NN && width % (16 * team))
        team /= 2;
    return team;
}

/* Bytes of the rows of a part, twice if there are several parts, and of their offsets. */
static int64_t staged_bytes(const struct nh_config *config, int64_t rows, int64_t row_bytes) {
    return rows * (8 + (config->value[GEMM_PLANES] ? 2 : 1) * row_bytes);
}

int64_t nh_gemm_part_pn_bytes(const struct nh_problem *problem, const struct nh_config *config) {
    struct bounds bounds = bounds_of(problem, config);
    int64_t row = nh_gemm_width(problem->dim) * (int64_t)nh_dtype_bytes(problem->dtype) + 16;
    return staged_bytes(config, bounds.rows, row) +
           nh_gemm_rows(config) * (row + (bounds.columns + 8) * (int64_t)sizeof(float));
}

int64_t nh_gemm_part_nn_bytes(const struct nh_problem *problem, const struct nh_config *config) {
    struct bounds bounds = bounds_of(problem, config);
    int64_t size = (int64_t)nh_dtype_bytes(problem->dtype),
            row = (nh_gemm_width(problem->dim_v) + 8) * size;
    int64_t sums = bounds.rows * 8 + nh_gemm_rows(config) * row;
    return nh_max(sums, staged_bytes(config, bounds.rows, row) +
                            nh_gemm_rows(config) *
                                (bounds.columns * size + 16 +
                                 part_row(problem, config->value[GEMM_PLANES]) * size));
}

/* Bytes of static shared memory: a table entry per query, and two per slot. */
static int64_t tables_bytes(const struct nh_problem *problem, const struct nh_config *config) {
    return 256 + 72 * nh_gemm_rows(config) +
           4 * nh_gemm_part_slots(problem, config->value[GEMM_PLANES]);
}

bool nh_gemm_part_takes(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        const struct nh_config *config) {
    if (problem->op != NHOOD_OP_FWD) return false;
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].causal) return false;
    if (config->value[GEMM_PLANES] && problem->rank < NH_AXES) return false;
    /* In 3-D, the rows of a whole box leave room for one block of few warps per multiprocessor: planes took half the
     * time. */
    int64_t most =
        problem->rank == NH_AXES && !config->value[GEMM_PLANES] ? 256 : LANES * MOST_HELD;
    if (nh_gemm_part_slots(problem, config->value[GEMM_PLANES]) > most) return false;
    struct bounds bounds = bounds_of(problem, config);
    if (bounds.box > MOST_PLACE || problem->bias_count > MOST_PLACE) return false;
    return nh_max(nh_gemm_part_pn_bytes(problem, config), nh_gemm_part_nn_bytes(problem, config)) +
               tables_bytes(problem, config) <=
           cuda->shared_bytes_per_block;
}

int32_t nh_gemm_part_heads(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           const struct nh_config *config) {
    enum { MOST_HEADS = 8, WARPS_PER_MULTIPROCESSOR = 16 };
    int64_t warps = problem->batch * problem->heads * nh_gemm_tiles(problem, config) *
                    nh_gemm_rows(config) / WARP_ROWS;
    int64_t most = warps / (WARPS_PER_MULTIPROCESSOR * (int64_t)cuda->multiprocessors);
    int32_t heads = (int32_t)nh_max(1, nh_min(most, nh_min(MOST_HEADS, problem->heads)));
    while (problem->heads % heads)
        heads--;
    return heads;
}

/* One of the two launches. sweeps: how often it goes over the parts. */
struct launch {
    enum nh_kernel_kind kernel;
    int64_t dim, shared_bytes, lanes, team;
    int sweeps;
};

static double residents_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           const struct nh_config *config, const struct launch *launch) {
    enum { PER_THREAD = 80, THREADS = 2048 };
    int64_t threads = 2 * nh_gemm_rows(config) * launch->team;
    int64_t shared = launch->shared_bytes + tables_bytes(problem, config);
    return (double)nh_max(1, nh_min(nh_cuda_residents_by_shared(cuda, shared),
                                    nh_min(NH_CUDA_REGISTERS / PER_THREAD, THREADS) / threads));
}

/* Adds a launch. A block computes several heads, one after the other, with one table. */
static void add_launch(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                       const struct nh_config *config, const struct launch *of,
                       struct nh_work *work) {
    struct bounds bounds = bounds_of(problem, config);
    bool planes = config->value[GEMM_PLANES];
    double parts = 1, own_parts = 1, heads = nh_gemm_part_heads(problem, cuda, config);
    if (planes) {
        int64_t plane = config->value[GEMM_TILE + 1] * config->value[GEMM_TILE + 2];
        parts = (double)most_reach(&problem->axis[0], config->value[GEMM_TILE]);
        own_parts = (double)most_reach(&problem->axis[0], nh_max(1, WARP_ROWS / plane));
    }
    double rows = (double)nh_gemm_rows(config), width = (double)nh_gemm_width(of->dim);
    double scores = heads * of->sweeps * own_parts * rows * (double)bounds.columns;
    double lots = (double)nh_ceil_div(nh_gemm_part_slots(problem, planes), of->lanes);
    struct nh_launch_work *launch = nh_work_add(work, of->kernel);
    launch->blocks =
        (double)(problem->batch * problem->heads * nh_gemm_tiles(problem, config)) / heads;
    launch->residents = launch->in_flight = residents_of(problem, cuda, config, of);
    launch->warps = rows / WARP_ROWS * (double)of->team;
    launch->serial = 1 / launch->warps;
    launch->steps = heads * of->sweeps * parts;
    launch->unit[NH_WORK_TENSOR] =
        scores * width / nh_cuda_products_per_clock(problem, cuda, false);
    launch->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(scores);
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(launch->steps * (double)bounds.rows * width *
                                                     (double)nh_dtype_bytes(problem->dtype) / 16);
    launch->unit[NH_WORK_TILE] = heads * of->sweeps * own_parts * rows * (double)of->lanes / LANES;
    launch->unit[NH_WORK_INDEX] = launch->unit[NH_WORK_TILE] * lots;
}

void nh_gemm_part_add_work(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           const struct nh_config *config, struct nh_work *work) {
    bool planes = config->value[GEMM_PLANES];
    const struct launch pn = {.kernel = NH_KERNEL_GEMM_PART_PN,
                              .dim = problem->dim,
                              .shared_bytes = nh_gemm_part_pn_bytes(problem, config),
                              .lanes = nh_gemm_part_lanes(nh_gemm_part_slots(problem, planes)),
                              .team = nh_gemm_part_team(problem, config, NH_GEMM_PART_PN),
                              .sweeps = planes ? 2 : 1},
                        nn = {.kernel = NH_KERNEL_GEMM_PART_NN,
                              .dim = problem->dim_v,
                              .shared_bytes = nh_gemm_part_nn_bytes(problem, config),
                              .lanes = LANES,
                              .team = nh_gemm_part_team(problem, config, NH_GEMM_PART_NN),
                              .sweeps = 1};
    double weights = (double)(problem->batch * problem->heads * problem->query_tokens) *
                     (double)nh_gemm_part_row(problem, planes);
    work->helper_bytes = 2 * weights * (double)nh_dtype_bytes(problem->dtype);
    add_launch(problem, cuda, config, &pn, work);
    add_launch(problem, cuda, config, &nn, work);
}
