/* cuda.split80: backward on tensor cores for sm_80 and later, in three launches without atomics: delta, then dQ by
 * blocks that own queries, then dK and dV by blocks that own keys: kernels/split80_backward.cu. Scores are computed
 * twice, and nothing but delta is stored in between; results are bit-equal every run.
 *
 * No relative bias, no extra tokens, no f64; head dim plus value dim up to 384, which is what registers hold. */
#include "cuda_solvers.h"
#include "dtype.h"
#include "launch.h"
#include "load.h"
#include "tile_count.h"

enum { MOST_DIMS = 384, MOST_LENGTH = 1 << 30, MOST_CANDIDATES = 3, STAGES = 2 };
/* config values: rows and columns of the launch for dQ, then of that for dK and dV */
enum { ROW, COLUMN = 3, SIDE = 6 };
static const char *const knobs[] = {"q0", "q1", "q2", "k0", "k1", "k2", "r0",
                                    "r1", "r2", "c0", "c1", "c2", NULL};

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    (void)device;
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    if (problem->dtype == NHOOD_DTYPE_F64) return "f64 has no tensor core products";
    if (problem->has_bias) return "no relative bias";
    if (problem->extra_tokens) return "no extra tokens";
    if (problem->dim + problem->dim_v > MOST_DIMS)
        return "head dim and value dim are together larger than 384";
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].length > MOST_LENGTH) return "an axis is longer than 2^30 tokens";
    return NULL;
}

/* ---- what one launch needs ---- */

/* Head dims as they lie in shared memory: multiples of one tensor core step, 32 bytes. */
struct widths {
    int64_t element_bytes, dim, dim_v;
};

static struct widths widths_of(const struct nh_problem *problem) {
    int64_t bytes = (int64_t)nh_dtype_bytes(problem->dtype), step = 32 / bytes;
    return (struct widths){bytes, nh_ceil_div(problem->dim, step) * step,
                           nh_ceil_div(problem->dim_v, step) * step};
}

static int64_t volume(const int32_t box[NH_AXES]) {
    return (int64_t)box[0] * box[1] * box[2];
}

/* A warp owns 16 rows. */
static int64_t warps_of(const int32_t *side) {
    return volume(side + ROW) / 16;
}

/* struct nh_shared of the kernel, which asserts that this is its size. */
static int64_t shared_bytes_of(const struct nh_problem *problem, const int32_t *side) {
    const int32_t *row = side + ROW, *column = side + COLUMN;
    struct widths w = widths_of(problem);
    int64_t pair = (w.dim + w.dim_v) * w.element_bytes + 32;
    int64_t row_tables = volume(column) * 20, scalars = STAGES * volume(column) * 8;
    int64_t masks = ((int64_t)column[0] + column[1] + column[2] + 3) * 16 +
                    ((int64_t)row[0] + row[1] + row[2]) * 8;
    int64_t bytes = (volume(row) + STAGES * volume(column)) * pair + row_tables + scalars + masks;
    return nh_ceil_div(bytes, 8) * 8;
}

/* Gradients, scores and their gradients of a thread, and what addresses and operands take. */
static int64_t registers_of(const struct nh_problem *problem, const int32_t *side, bool inverse) {
    struct widths w = widths_of(problem);
    return (w.dim + (inverse ? w.dim_v : 0)) / 2 + volume(side + COLUMN) + 64;
}

/* Blocks that share a multiprocessor; 0: not even one fits. */
static int64_t residents_of(const struct nh_problem *problem, const struct nh_cuda_device *device,
                            const int32_t *side, bool inverse) {
    enum { REGISTERS = 65536, RESERVED_SHARED_BYTES = 1024, MOST_REGISTERS = 255, SPILLED = 32 };
    int64_t shared = shared_bytes_of(problem, side);
    int64_t registers = registers_of(problem, side, inverse);
    if (shared > device->shared_bytes_per_block || registers > MOST_REGISTERS + SPILLED) return 0;
    int64_t by_shared = device->shared_bytes_per_multiprocessor / (shared + RESERVED_SHARED_BYTES);
    int64_t by_registers =
        REGISTERS / (32 * warps_of(side) * nh_ceil_div(nh_min(registers, 256), 8) * 8);
    return nh_max(1, nh_min(by_shared, by_registers));
}

/* ---- time ---- */

/* Clocks of a multiprocessor for one tile of columns: three or four products. */
static double tile_clocks(const struct nh_problem *problem, const struct nh_cuda_load *load,
                          const int32_t *side, bool inverse) {
    struct widths w = widths_of(problem);
    double rows = (double)volume(side + ROW), columns = (double)volume(side + COLUMN);
    double dims = (double)(w.dim + w.dim_v), sums = (double)(w.dim + (inverse ? w.dim_v : 0));
    double products = load->products / load->products_per_clock;
    double loads =
        (rows / 16 * columns * (dims + sums) + rows * dims) * (double)w.element_bytes / 128;
    double weights = rows * columns * 9 / 128;
    double copies = columns * dims * (double)w.element_bytes / 16 * 9 / 128;
    return 1.15 * (products > loads ? products : loads) + 0.5 * (weights + copies);
}

/* Clocks of one launch; what it asks for is added to `work`. */
static double launch_clocks(const struct nh_problem *problem, const struct nh_cuda_device *device,
                            const int32_t *side, bool inverse, struct nh_count *work) {
    enum { BLOCK_CLOCKS = 4000, TILE_LATENCY_CLOCKS = 900 };
    int64_t group = problem->heads / problem->kv_heads;
    double visits = inverse ? (double)group : 1;
    double blocks = (double)(problem->batch * (inverse ? problem->kv_heads : problem->heads));
    double tiles = (double)(problem->batch * problem->heads), dense = tiles;
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_tile_count count =
            nh_tile_count(&problem->axis[a], side[ROW + a], side[COLUMN + a], inverse);
        visits *= count.visits / (double)count.tiles;
        tiles *= count.visits;
        dense *= count.dense;
        blocks *= (double)count.tiles;
    }
    struct widths w = widths_of(problem);
    double rows = (double)volume(side + ROW), columns = (double)volume(side + COLUMN);
    double dims = (double)(2 * w.dim + w.dim_v + (inverse ? w.dim_v : 0));
    double row_bytes = (double)((w.dim + w.dim_v) * w.element_bytes);
    const struct nh_cuda_load load = {
        .tiles = tiles,
        .masked_tiles = tiles - dense,
        .scores = rows * columns,
        .products = rows * columns * dims,
        .tile_bytes = columns * row_bytes,
        .bytes = blocks * rows * row_bytes,
        .products_per_clock = nh_cuda_products_per_clock(problem, device, false),
    };
    nh_cuda_count_load(device, &load, work);
    double residents = (double)residents_of(problem, device, side, inverse);
    double tile = tile_clocks(problem, &load, side, inverse);
    double alone = TILE_LATENCY_CLOCKS > tile ? TILE_LATENCY_CLOCKS : tile;
    double waves = blocks / device->multiprocessors;
    double rounds = waves / residents > 1 ? waves / residents : 1;
    double latency = rounds * (visits * alone + BLOCK_CLOCKS);
    double throughput = waves * (visits * tile + BLOCK_CLOCKS / residents);
    return latency > throughput ? latency : throughput;
}

/* Nanoseconds. */
static double model(const struct nh_problem *problem, const struct nh_device *device,
                    const struct nh_config *config, struct nh_count *work) {
    enum { LAUNCH_NS = 3000 };
    const struct nh_cuda_device *cuda = device->backend;
    const double measured = 2.2; /* times over these counts, on an H200 */
    *work = (struct nh_count){.tiles = 0};
    work->limit_ns[NHOOD_LIMIT_MEMORY] = nh_cuda_memory_ns(problem, cuda);
    double clocks = launch_clocks(problem, cuda, config->value, false, work) +
                    launch_clocks(problem, cuda, config->value + SIDE, true, work);
    double busy = measured * nh_cuda_clocks_ns(cuda, clocks);
    double memory = work->limit_ns[NHOOD_LIMIT_MEMORY];
    return (busy > memory ? busy : memory) + 3 * LAUNCH_NS;
}

static void count_work(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *work) {
    model(problem, device, config, work);
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config) {
    struct nh_count work;
    return model(problem, device, config, &work);
}

/* ---- candidates ---- */

/* The best boxes of one launch, best first. */
struct ranking {
    int32_t side[MOST_CANDIDATES][SIDE];
    double clocks[MOST_CANDIDATES];
    int count;
};

static void rank(struct ranking *ranking, const int32_t side[SIDE], double clocks) {
    if (ranking->count == MOST_CANDIDATES && clocks >= ranking->clocks[MOST_CANDIDATES - 1]) return;
    if (ranking->count < MOST_CANDIDATES) ranking->count++;
    int place = ranking->count - 1;
    for (; place > 0 && clocks < ranking->clocks[place - 1]; place--) {
        ranking->clocks[place] = ranking->clocks[place - 1];
        for (int i = 0; i < SIDE; i++)
            ranking->side[place][i] = ranking->side[place - 1][i];
    }
    ranking->clocks[place] = clocks;
    for (int i = 0; i < SIDE; i++)
        ranking->side[place][i] = side[i];
}

static void rank_boxes(struct ranking *ranking, const struct nh_problem *problem,
                       const struct nh_cuda_device *device, bool inverse, int32_t rows,
                       int32_t columns) {
    int32_t row[NH_MOST_BOXES][3], column[NH_MOST_BOXES][3];
    struct nh_count work = {.tiles = 0};
    int row_count = nh_tile_boxes(problem, rows, row);
    int column_count = nh_tile_boxes(problem, columns, column);
    for (int i = 0; i < row_count; i++)
        for (int j = 0; j < column_count; j++) {
            const int32_t side[SIDE] = {row[i][0],    row[i][1],    row[i][2],
                                        column[j][0], column[j][1], column[j][2]};
            if (residents_of(problem, device, side, inverse))
                rank(ranking, side, launch_clocks(problem, device, side, inverse, &work));
        }
}

static void rank_all(struct ranking *ranking, const struct nh_problem *problem,
                     const struct nh_cuda_device *device, bool inverse) {
    static const int32_t sizes[][2] = {{128, 64}, {128, 32}, {64, 64},
                                       {64, 32},  {64, 16},  {32, 16}};
    ranking->count = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        rank_boxes(ranking, problem, device, inverse, sizes[i][0], sizes[i][1]);
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct ranking by_query, by_key;
    rank_all(&by_query, problem, device->backend, false);
    rank_all(&by_key, problem, device->backend, true);
    int count = (int)nh_min(capacity, nh_min(by_query.count, by_key.count));
    for (int c = 0; c < count; c++)
        for (int i = 0; i < SIDE; i++) {
            config[c].value[i] = by_query.side[c][i];
            config[c].value[SIDE + i] = by_key.side[c][i];
        }
    return count;
}

/* ---- plan ---- */

/* delta: lanes that between them hold a row of dO in registers. */
static nhood_status add_delta(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              size_t delta) {
    enum { THREADS = 128, LANES = 32 };
    int64_t vector = nh_cuda_vector(problem, 1u << NH_O | 1u << NH_D_O), lanes = 1;
    while (lanes < LANES && lanes * vector < problem->dim_v)
        lanes *= 2;
    struct nh_kernel_spec spec = {.source = "delta.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_VECTOR", vector);
    nh_kernel_define(&spec, "NH_VECTORS", nh_ceil_div(problem->dim_v, lanes * vector));
    nh_kernel_define(&spec, "NH_GROUP", lanes);
    nh_kernel_define(&spec, "NH_RESIDENT", 1);
    nh_kernel_define(&spec, "NH_BIASED", 0);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_cuda_bind_workspace(&step, problem, NH_DELTA, delta, 1);
    step.threads = THREADS;
    int64_t rows = problem->batch * problem->tokens * problem->heads;
    step.grid[0] = nh_min(nh_ceil_div(rows, THREADS / lanes), INT32_MAX);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status add_side(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             const int32_t *side, bool inverse, size_t delta) {
    static const char *const tile[SIDE] = {"NH_TILE_Q0", "NH_TILE_Q1", "NH_TILE_Q2",
                                           "NH_TILE_K0", "NH_TILE_K1", "NH_TILE_K2"};
    struct nh_kernel_spec spec = {.source = "split80_backward.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_DIM", problem->dim);
    nh_kernel_define(&spec, "NH_DIM_V", problem->dim_v);
    nh_kernel_define(&spec, "NH_VECTOR", nh_cuda_vector(problem, UINT32_MAX));
    nh_kernel_define(&spec, "NH_WARPS", warps_of(side));
    nh_kernel_define(&spec, "NH_STAGES", STAGES);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS",
                     residents_of(problem, operation->device, side, inverse));
    nh_kernel_define(&spec, "NH_INVERSE", inverse);
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_kernel_define(&spec, "NH_SHARED_BYTES", shared_bytes_of(problem, side));
    for (int i = 0; i < SIDE; i++)
        nh_kernel_define(&spec, tile[i], side[i]);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_cuda_bind_workspace(&step, problem, NH_DELTA, delta, 1);
    step.threads = (int32_t)(32 * warps_of(side));
    step.shared_bytes = shared_bytes_of(problem, side);
    step.outputs = inverse ? 1u << NH_D_K | 1u << NH_D_V : 1u << NH_D_Q;
    step.grid[0] = problem->batch * (inverse ? problem->kv_heads : problem->heads);
    for (int a = 0; a < NH_AXES; a++)
        step.grid[0] *=
            nh_tile_count(&problem->axis[a], side[ROW + a], side[COLUMN + a], inverse).tiles;
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    struct nh_cuda_operation *created = NULL;
    nhood_status status = nh_cuda_operation_create(problem, device, &created);
    if (status) return status;
    size_t delta = nh_cuda_reserve(
        created, (size_t)(problem->batch * problem->tokens * problem->heads) * sizeof(float));
    status = add_delta(created, problem, delta);
    if (!status) status = add_side(created, problem, config->value, false, delta);
    if (!status) status = add_side(created, problem, config->value + SIDE, true, delta);
    if (status) {
        created->base.destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}

const struct nh_solver nh_solver_cuda_split80 = {
    "cuda.split80", NHOOD_DEVICE_CUDA, knobs, refuse, candidates, estimate, build, count_work};
