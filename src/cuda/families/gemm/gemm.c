/* cuda.gemm: the unfused operators pn, nn and in as products of tiles on tensor cores (mma.sync). These are the products of
 * the GEMM-based method of "Faster Neighborhood Attention" (Hassani, Hwu, Shi 2024), extended to 3-D grids, and with a
 * tile's keys gathered as one box, so that no pair of tiles is multiplied that shares nothing. No f64, no heads wider than
 * its registers. */
#include "gemm.h"
#include "rates.h"

#include "top_n.h"
#include "cuda_family.h"
#include "dtype.h"

const struct nh_knob nh_gemm_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "gemm_knobs.def"
#undef KNOB
    {NULL, NULL}};

enum { WIDEST_ROW = 256, MOST_SHAPES = 6, MOST_CANDIDATES = 3 };
#define MOST_TOKENS ((int64_t)1 << 30)
#define MOST_SLOTS ((int64_t)1 << 27)

/* Tile shapes by rank, of 128 to 16 tokens. */
static const int shapes[3][MOST_SHAPES][NH_AXES] = {
    {{1, 1, 128}, {1, 1, 64}, {1, 1, 32}, {1, 1, 16}},
    {{1, 8, 16}, {1, 8, 8}, {1, 4, 16}, {1, 4, 8}, {1, 4, 4}, {1, 1, 64}},
    {{4, 4, 8}, {4, 4, 4}, {2, 4, 8}, {2, 4, 4}, {2, 2, 4}, {1, 1, 64}},
};

/* ---- what a config needs ---- */

int64_t nh_gemm_tiles(const struct nh_gemm *of) {
    int64_t tiles = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &of->problem->axis[a];
        tiles *= nh_ceil_div(nh_longest_group(axis), of->config->value[GEMM_TILE + a]) *
                 nh_min(axis->dilation, axis->length);
    }
    return tiles;
}

static int64_t widest_row(const struct nh_problem *problem) {
    return problem->op == NHOOD_OP_PN ? problem->dim : problem->dim_v;
}

struct gemm_config nh_gemm_config(const struct nh_gemm *of) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->config->value;
    const int pass = problem->op == NHOOD_OP_PN   ? GEMM_PN
                     : problem->op == NHOOD_OP_NN ? GEMM_NN
                                                  : GEMM_IN;
    return (struct gemm_config){.pass = pass,
                                .rank = problem->rank,
                                .element_bytes = (int)nh_dtype_bytes(problem->dtype),
                                .tile = {value[GEMM_TILE], value[GEMM_TILE_1], value[GEMM_TILE_2]},
                                .columns = value[GEMM_COLUMNS],
                                .width = gemm_width((int)widest_row(problem)),
                                .vector = nh_cuda_vector(problem, UINT32_MAX),
                                .causal = nh_problem_causal(problem),
                                .strided = nh_problem_strided(problem),
                                .biased = pass == GEMM_PN && problem->has_bias};
}

/* An upper bound of static shared memory per table entry: tables have one per row, and two or three per column. */
enum { TABLE_BYTES = 64 };

/* The most keys along an axis that queries in a row of `extent` attend. */
static int64_t most_reach(const struct nh_axis *axis, int64_t extent) {
    return nh_min(nh_longest_group(axis), extent + axis->window + axis->stride - 2);
}

/* ---- configs ---- */

/* Sets a config; false if it does not run. */
static bool complete(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                     const int shape[NH_AXES], int columns, struct nh_config *config) {
    const struct nh_gemm of = {problem, cuda, config};
    if (!shape[0]) return false;
    *config = (struct nh_config){{shape[0], shape[1], shape[2], columns}};
    const struct gemm_config kernel = nh_gemm_config(&of);
    int64_t tables = TABLE_BYTES * (gemm_rows(&kernel) + 3 * columns) + 256;
    return nh_max(gemm_pn_bytes(&kernel), gemm_band_bytes(&kernel)) + tables <=
           cuda->shared_bytes_per_block;
}

/* ---- work ---- */

/* The chunks of a tile's box, and those of them in which one warp's 16 rows have keys. */
struct chunks {
    double all, own;
};

static struct chunks chunks_of(const struct nh_gemm *of) {
    const int32_t *value = of->config->value;
    double box = 1, reach = 0; /* columns of the box; range from the warp's first key to its last */
    int rows = 16;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        const struct nh_axis *axis = &of->problem->axis[a];
        int extent = (int)nh_min(value[GEMM_TILE + a], rows);
        double own = (double)most_reach(axis, extent);
        reach += (a == NH_AXES - 1 ? own : own - 1) * box;
        box *= (double)most_reach(axis, value[GEMM_TILE + a]);
        rows /= extent;
    }
    double all = (double)nh_ceil_div((int64_t)box, value[GEMM_COLUMNS]);
    /* A range that begins anywhere touches up to one chunk more than its length: 0.7 on average, by the timings that the
     * kernels' coefficients are fitted to (docs/model.md). */
    double touched = reach / value[GEMM_COLUMNS] + 0.7;
    return (struct chunks){all, touched < all ? touched : all};
}

/* The blocks that a multiprocessor holds. shared_bytes: of a block, static ones included. */
static int64_t residents_of(const struct nh_gemm *of, int64_t threads, int64_t registers,
                            int64_t shared_bytes) {
    enum { THREADS = 2048, BLOCKS = 32 }; /* of a multiprocessor */
    int64_t by_shared = nh_cuda_residents_by_shared(of->cuda, shared_bytes),
            by_registers = NH_CUDA_REGISTERS / (threads * registers),
            by_threads = nh_min(THREADS / threads, BLOCKS);
    return nh_max(1, nh_min(nh_min(by_shared, by_registers), by_threads));
}

/* The operator's kernel, and what it needs beside dynamic shared memory. */
struct kernel {
    enum nh_kernel_kind kind;
    int64_t registers, shared_bytes;
};

static struct kernel kernel_of(const struct gemm_config *config) {
    int64_t columns = config->columns;
    int64_t own = TABLE_BYTES * gemm_rows(config), band = gemm_band_bytes(config);
    int64_t registers = nh_min(nh_ceil_div(48 + columns / 2 + config->width / 2, 8) * 8, 255);
    switch (config->pass) {
    /* NVRTC 13.0 takes 56 to 70 registers for sm_80 and sm_90, in five problems of f16, bf16 and f32 */
    case GEMM_PN:
        return (struct kernel){NH_KERNEL_GEMM_PN, 80,
                               own + TABLE_BYTES / 4 * columns + gemm_pn_bytes(config)};
    case GEMM_NN:
        return (struct kernel){NH_KERNEL_GEMM_NN, registers,
                               own + TABLE_BYTES / 4 * columns + band};
    default:
        return (struct kernel){NH_KERNEL_GEMM_IN, registers,
                               own + 2 * TABLE_BYTES * columns + band};
    }
}

/* A block copies the chunks of its tile's box, and its warps multiply those in which their rows have keys. */
static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const struct nh_gemm of = {problem, device->backend, config};
    const struct chunks chunks = chunks_of(&of);
    const struct gemm_config made = nh_gemm_config(&of);
    const struct kernel kernel = kernel_of(&made);
    int64_t threads = 2 * gemm_rows(&made);
    double width = made.width, size = made.element_bytes;
    double members = problem->op == NHOOD_OP_IN ? (double)(problem->heads / problem->kv_heads) : 1;
    double columns = (double)config->value[GEMM_COLUMNS];
    double scores = members * (double)gemm_rows(&made) * chunks.own * columns;
    nh_work_start(work, NH_OPERATION_GEMM, problem);
    struct nh_launch_work *added = nh_work_add(work, kernel.kind);
    added->blocks =
        (double)problem->batch * (double)problem->heads / members * (double)nh_gemm_tiles(&of);
    added->residents = added->in_flight =
        (double)residents_of(&of, threads, kernel.registers, kernel.shared_bytes);
    added->warps = (double)(threads / 32);
    added->serial = 1 / added->warps;
    added->steps = members * chunks.all;
    added->unit[NH_WORK_TENSOR] =
        scores * width / nh_cuda_products_per_clock(problem, of.cuda, false);
    added->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(scores);
    added->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(added->steps * columns * width * size / 16);
    added->unit[NH_WORK_STEP] = added->steps;
    added->unit[NH_WORK_TILE] = members * added->warps;
    return true;
}

/* ---- solver ---- */

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    const struct nh_cuda_device *cuda = device->backend;
    struct nh_config config;
    const struct nh_gemm of = {problem, cuda, &config};
    if (cuda->arch < 80) return "needs compute capability 8.0";
    if (problem->op < NHOOD_OP_PN) return "no attention: only the operators pn, nn and in";
    if (problem->dtype == NHOOD_DTYPE_F64)
        return "no f64: tensor cores are used for f32, f16 and bf16";
    if (widest_row(problem) > WIDEST_ROW) return "head dims above 256";
    if (problem->query_tokens > MOST_TOKENS) return "more than 2^30 tokens per batch entry";
    if (problem->bias_count > MOST_SLOTS || problem->window_count > MOST_SLOTS)
        return "windows or bias tables of more than 2^27 entries";
    const int *smallest = shapes[problem->rank - 1][problem->rank == 1 ? 3 : 4];
    if (!complete(problem, cuda, smallest, 32, &config))
        return "not even the smallest tile fits the device's shared memory";
    if (problem->batch > INT32_MAX / problem->heads ||
        nh_gemm_tiles(&of) > INT32_MAX / (problem->batch * problem->heads))
        return "more than 2^31 tiles";
    return NULL;
}

/* Proposes the shapes whose predicted time is at most 1.5 times the best, best first. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct nh_top_n top;
    nh_top_configs_start(&top, config, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int i = 0; i < 2 * MOST_SHAPES; i++) {
        struct nh_config next;
        if (complete(problem, device->backend, shapes[problem->rank - 1][i / 2], i % 2 ? 32 : 64,
                     &next))
            nh_top_n_add(&top, &next,
                         nh_estimate(&nh_solver_cuda_gemm, problem, device, &next, NULL));
    }
    int count = top.count;
    while (count > 1 && top.ns[count - 1] > 1.5 * top.ns[0])
        count--;
    return count;
}

const struct nh_solver nh_solver_cuda_gemm = {
    NH_CUDA_SOLVER("cuda.gemm", nh_gemm_knobs, refuse, candidates, work, nh_gemm_add_steps),
};
