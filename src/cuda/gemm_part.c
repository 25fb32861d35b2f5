#include "gemm_part.h"

#include "dtype.h"

#include <math.h>

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

/* struct nh_part_bounds of kernels/gemm_part.cuh, and the columns without the rows past their end. */
struct bounds {
    int64_t rows, columns, box;
};

static int64_t most_reach(const struct nh_axis *axis, int64_t extent) {
    return nh_min(nh_axis_group_length(axis->length, axis->dilation, 0),
                  extent + axis->window + axis->stride - 2);
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

/* Rows of a part, two parts if there are several, and where in memory they are. */
static int64_t staged_bytes(const struct nh_problem *problem, const struct nh_config *config,
                            int64_t rows, int64_t row_bytes) {
    (void)problem;
    return rows * (8 + (config->value[GEMM_PLANES] ? 2 : 1) * row_bytes);
}

int64_t nh_gemm_part_pn_bytes(const struct nh_problem *problem, const struct nh_config *config) {
    struct bounds bounds = bounds_of(problem, config);
    int64_t row = nh_gemm_width(problem->dim) * (int64_t)nh_dtype_bytes(problem->dtype) + 16;
    return staged_bytes(problem, config, bounds.rows, row) +
           nh_gemm_rows(config) * (row + (bounds.columns + 8) * (int64_t)sizeof(float));
}

int64_t nh_gemm_part_nn_bytes(const struct nh_problem *problem, const struct nh_config *config) {
    struct bounds bounds = bounds_of(problem, config);
    int64_t size = (int64_t)nh_dtype_bytes(problem->dtype),
            row = (nh_gemm_width(problem->dim_v) + 8) * size;
    int64_t sums = bounds.rows * 8 + nh_gemm_rows(config) * row;
    return nh_max(sums, staged_bytes(problem, config, bounds.rows, row) +
                            nh_gemm_rows(config) *
                                (bounds.columns * size + 16 +
                                 part_row(problem, config->value[GEMM_PLANES]) * size));
}

/* Beside the dynamic: a table entry a query, and two a slot. */
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
    if (nh_gemm_part_slots(problem, config->value[GEMM_PLANES]) > LANES * MOST_HELD) return false;
    struct bounds bounds = bounds_of(problem, config);
    if (bounds.box > MOST_PLACE || problem->bias_count > MOST_PLACE) return false;
    return nh_max(nh_gemm_part_pn_bytes(problem, config), nh_gemm_part_nn_bytes(problem, config)) +
               tables_bytes(problem, config) <=
           cuda->shared_bytes_per_block;
}

/* Warps that share one of a multiprocessor's four schedulers. */
static double warps_per_scheduler(const struct nh_cuda_device *cuda, int64_t rows, int64_t shared,
                                  int64_t registers) {
    enum { REGISTERS = 65536, THREADS = 2048, RESERVED = 1024 };
    int64_t blocks = nh_min(cuda->shared_bytes_per_multiprocessor / (shared + RESERVED),
                            REGISTERS / (2 * rows * registers));
    return (double)(nh_max(1, nh_min(blocks, THREADS / (2 * rows))) * rows) / 64;
}

/* Instructions of a warp. */
struct work {
    double start, copy, column, product, row, slot;
};

static double launch_ns(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        const struct nh_config *config, const struct work *work, int64_t dim,
                        int64_t shared, double sweeps) {
    enum { SCHEDULERS = 4, BUSY = 6, REGISTERS = 112 };
    struct bounds bounds = bounds_of(problem, config);
    bool planes = config->value[GEMM_PLANES];
    double rows = (double)nh_gemm_rows(config), parts = 1, own_parts = 1;
    if (planes) {
        parts = (double)most_reach(&problem->axis[0], config->value[GEMM_TILE]);
        int64_t plane = config->value[GEMM_TILE + 1] * config->value[GEMM_TILE + 2];
        own_parts = (double)most_reach(&problem->axis[0], nh_max(1, WARP_ROWS / plane));
    }
    double slots = (double)nh_gemm_part_slots(problem, planes);
    double lanes = (double)nh_gemm_part_lanes((int64_t)slots);
    double width = (double)(nh_gemm_width(dim) * (int64_t)nh_dtype_bytes(problem->dtype));
    double f32 = problem->dtype != NHOOD_DTYPE_F32        ? 1
                 : problem->flags & NHOOD_FLAG_ALLOW_TF32 ? 2
                                                          : 4;
    double copies = (double)bounds.rows * width / 16 / (2 * rows);
    double products = (double)bounds.columns * (work->column + f32 * width * work->product);
    double taken = WARP_ROWS * (work->row + work->slot * ceil(slots / lanes)) * lanes / LANES;
    double instructions =
        work->start + sweeps * (parts * copies * work->copy + own_parts * (products + taken));
    double warps = (double)(problem->batch * problem->heads * nh_gemm_tiles(problem, config)) *
                   rows / WARP_ROWS;
    double rounds = fmax(1, warps / (SCHEDULERS * cuda->multiprocessors));
    double sharing =
        fmin(rounds, warps_per_scheduler(cuda, (int64_t)rows,
                                         shared + tables_bytes(problem, config), REGISTERS));
    return 1e9 * instructions * rounds / (cuda->clock_hz * pow(fmin(1, sharing / BUSY), 0.8));
}

double nh_gemm_part_ns(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                       const struct nh_config *config) {
    const struct work pn = {600, 20, 1.5, 0.04, 40, 9}, nn = {600, 20, 0.5, 0.04, 10, 12};
    bool planes = config->value[GEMM_PLANES];
    double ns = launch_ns(problem, cuda, config, &pn, problem->dim,
                          nh_gemm_part_pn_bytes(problem, config), planes ? 2 : 1) +
                launch_ns(problem, cuda, config, &nn, problem->dim_v,
                          nh_gemm_part_nn_bytes(problem, config), 1);
    double weights =
        (double)(problem->batch * problem->heads * problem->tokens) * (double)problem->window_count;
    double bytes = 2 * weights * (double)nh_dtype_bytes(problem->dtype) + problem->bytes;
    return fmax(ns, 1e9 * bytes / cuda->memory_bytes_per_s);
}
