/* cuda.gemm: the operators as products of tiles on tensor cores (mma.sync), with attention weights in memory, and
 * attention as a sequence of them. The GEMM-based method of "Faster Neighborhood Attention" (Hassani, Hwu, Shi
 * 2024), for 3-D grids, too, and with a tile's keys gathered as one box: no tile pairs that share nothing.
 * Needs memory for the weights of attention; cannot take extra tokens, f64 or heads wider than its registers. */
#include "gemm.h"

#include "cuda_solvers.h"
#include "dtype.h"

#include <string.h>

enum { WIDEST_ROW = 256, MOST_SHAPES = 6, MOST_CANDIDATES = 3 };
#define MOST_TOKENS ((int64_t)1 << 30)
#define MOST_SLOTS ((int64_t)1 << 27)
#define MOST_SLAB_BYTES ((int64_t)16 << 30)

/* Tile shapes by rank, of 128 to 16 tokens. */
static const int shapes[3][MOST_SHAPES][NH_AXES] = {
    {{1, 1, 128}, {1, 1, 64}, {1, 1, 32}, {1, 1, 16}},
    {{1, 8, 16}, {1, 8, 8}, {1, 4, 16}, {1, 4, 8}, {1, 4, 4}, {1, 1, 64}},
    {{4, 4, 8}, {4, 4, 4}, {2, 4, 8}, {2, 4, 4}, {2, 2, 4}, {1, 1, 64}},
};

static int64_t group_length(const struct nh_axis *axis) {
    return nh_axis_group_length(axis->length, axis->dilation, 0);
}

int64_t nh_gemm_tiles(const struct nh_problem *problem, const struct nh_config *config) {
    int64_t tiles = 1;
    for (int a = 0; a < NH_AXES; a++)
        tiles *= nh_ceil_div(group_length(&problem->axis[a]), config->value[GEMM_TILE + a]) *
                 nh_min(problem->axis[a].dilation, problem->axis[a].length);
    return tiles;
}

/* The layouts of kernels/gemm_pn.cu and kernels/gemm_band.cu; what pads rows is in gemm_fragment.cuh. */
int64_t nh_gemm_pn_bytes(const struct nh_problem *problem, const struct nh_config *config,
                         int64_t dim) {
    int64_t size = (int64_t)nh_dtype_bytes(problem->dtype), rows = nh_gemm_rows(config);
    int64_t columns = config->value[GEMM_COLUMNS];
    return (rows + 2 * columns) * (nh_gemm_width(dim) * size + 16) + rows * (columns + 8) * 4;
}

int64_t nh_gemm_band_bytes(const struct nh_problem *problem, const struct nh_config *config,
                           int64_t dim) {
    int64_t size = (int64_t)nh_dtype_bytes(problem->dtype), rows = nh_gemm_rows(config);
    int64_t columns = config->value[GEMM_COLUMNS], row = (nh_gemm_width(dim) + 8) * size;
    return nh_max(2 * columns * row + rows * (columns * size + 16), rows * row);
}

static int64_t widest_row(const struct nh_problem *problem) {
    if (problem->op == NHOOD_OP_PN) return problem->dim;
    if (problem->op == NHOOD_OP_NN || problem->op == NHOOD_OP_IN) return problem->dim_v;
    return nh_max(problem->dim, problem->dim_v);
}

/* Static shared memory is tables of 64-byte entries at most: one a row, and two or three a column. */
static bool fits(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                 const struct nh_config *config) {
    int64_t dim = widest_row(problem);
    int64_t tables = 64 * (nh_gemm_rows(config) + 3 * config->value[GEMM_COLUMNS]) + 256;
    return nh_max(nh_gemm_pn_bytes(problem, config, dim),
                  nh_gemm_band_bytes(problem, config, dim)) +
               tables <=
           cuda->shared_bytes_per_block;
}

/* The shape with the most columns that fits. */
static bool complete(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                     const int shape[NH_AXES], struct nh_config *config) {
    if (!shape[0]) return false;
    memset(config, 0, sizeof *config);
    for (int a = 0; a < NH_AXES; a++)
        config->value[GEMM_TILE + a] = shape[a];
    for (int columns = 64; columns >= 32; columns /= 2) {
        config->value[GEMM_COLUMNS] = columns;
        if (fits(problem, cuda, config)) return true;
    }
    return false;
}

/* Clocks of one multiprocessor for the products of tiles with chunks of their boxes: about 12 instructions per
 * weight moved on 128 lanes, tensor cores at the rate of mma.sync, and what every tile costs before and after. */
static double product_clocks(const struct nh_problem *problem, const struct nh_config *config,
                             int64_t dim) {
    double columns = 1, rows = (double)nh_gemm_rows(config);
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        columns *= (double)nh_min(group_length(axis),
                                  config->value[GEMM_TILE + a] + axis->window + axis->stride - 2);
    }
    double chunks = (double)nh_ceil_div((int64_t)columns, config->value[GEMM_COLUMNS]);
    bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    double flops_per_clock = !f32 ? 2048 : problem->flags & NHOOD_FLAG_ALLOW_TF32 ? 1024 : 341;
    double weights = chunks * config->value[GEMM_COLUMNS] * rows;
    double flops = 2 * weights * (double)nh_gemm_width(dim);
    double tiles = (double)(problem->batch * problem->heads * nh_gemm_tiles(problem, config));
    return tiles * (weights * 12 / 128 + flops / flops_per_clock + 800);
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config) {
    const struct nh_cuda_device *cuda = device->backend;
    double rows = (double)(problem->batch * problem->heads * problem->tokens);
    double weights = rows * (double)problem->window_count, clocks = 0, traffic = 0, launches = 1;
    double qk = product_clocks(problem, config, problem->dim);
    double pv = product_clocks(problem, config, problem->dim_v);
    switch (problem->op) {
    case NHOOD_OP_FWD:
        clocks = qk + pv + 0.1 * weights;
        traffic = 4 * weights * 4;
        launches = 3;
        break;
    case NHOOD_OP_BWD:
        clocks = 3 * qk + 2 * pv;
        traffic = 6 * weights * (double)nh_dtype_bytes(problem->dtype);
        launches = 6;
        break;
    case NHOOD_OP_PN: clocks = qk; break;
    default: clocks = pv;
    }
    const double measured = 2.2; /* over these counts, median on an H200 */
    double arithmetic = measured * clocks / (cuda->multiprocessors * cuda->clock_hz);
    double memory = (nh_problem_bytes(problem) + traffic) / cuda->memory_bytes_per_s;
    return 1e9 * (arithmetic > memory ? arithmetic : memory) + 4000 * launches;
}

int64_t nh_gemm_slab_bytes(const struct nh_problem *problem) {
    bool forward = problem->op == NHOOD_OP_FWD; /* keeps scores in f32 */
    int64_t bytes = forward ? 4 : (int64_t)nh_dtype_bytes(problem->dtype);
    if (!nh_multiply(bytes, problem->window_count, &bytes) ||
        !nh_multiply(bytes, problem->heads / problem->kv_heads, &bytes) ||
        !nh_multiply(bytes, problem->tokens, &bytes))
        return INT64_MAX;
    return bytes;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    const struct nh_cuda_device *cuda = device->backend;
    struct nh_config config;
    if (cuda->arch < 80) return "needs compute capability 8.0";
    if (problem->dtype == NHOOD_DTYPE_F64)
        return "no f64: tensor cores are used for f32, f16 and bf16";
    if (problem->extra_tokens) return "no extra tokens";
    if (widest_row(problem) > WIDEST_ROW) return "head dims above 256";
    if (problem->tokens > MOST_TOKENS) return "more than 2^30 tokens per batch entry";
    if (problem->bias_count > MOST_SLOTS || problem->window_count > MOST_SLOTS)
        return "windows or bias tables of more than 2^27 entries";
    if (problem->op < NHOOD_OP_PN && nh_gemm_slab_bytes(problem) > MOST_SLAB_BYTES)
        return "attention weights of one key head would take more than 16 GiB of workspace";
    const int *smallest = shapes[problem->rank - 1][problem->rank == 1 ? 3 : 4];
    if (!complete(problem, cuda, smallest, &config))
        return "not even the smallest tile fits the device's shared memory";
    if (problem->batch > INT32_MAX / problem->heads ||
        nh_gemm_tiles(problem, &config) > INT32_MAX / (problem->batch * problem->heads))
        return "more than 2^31 tiles";
    return NULL;
}

/* The shapes expected within half again of the best, best first. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    double ns[MOST_CANDIDATES];
    int count = 0;
    if (capacity > MOST_CANDIDATES) capacity = MOST_CANDIDATES;
    for (int i = 0; i < MOST_SHAPES; i++) {
        struct nh_config next;
        if (!complete(problem, device->backend, shapes[problem->rank - 1][i], &next)) continue;
        double next_ns = estimate(problem, device, &next);
        int at = count < capacity ? count++ : capacity;
        for (; at > 0 && ns[at - 1] > next_ns; at--) {
            if (at == capacity) continue;
            ns[at] = ns[at - 1];
            config[at] = config[at - 1];
        }
        if (at == capacity) continue;
        ns[at] = next_ns;
        config[at] = next;
    }
    while (count > 1 && ns[count - 1] > 1.5 * ns[0])
        count--;
    return count;
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    struct nh_cuda_operation *created = NULL;
    nhood_status status = nh_cuda_operation_create(problem, device, &created);
    if (status) return status;
    status = nh_gemm_add_steps(created, problem, config);
    if (status) {
        created->base.destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}

static const char *const knobs[] = {"t0", "t1", "t2", "columns", NULL};

const struct nh_solver nh_solver_cuda_gemm = {"cuda.gemm", NHOOD_DEVICE_CUDA, knobs, refuse,
                                              candidates,  estimate,          build};
