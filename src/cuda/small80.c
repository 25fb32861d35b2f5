/* cuda.small80: forward of windows small enough for a block to keep all of its keys in shared memory; tensor cores,
 * sm_80 and later.
 *
 * Boxes of 16 queries meet little more than one window of keys, in one pass: kernels/small80_forward.cu. The windows'
 * extents are part of the kernel's key, as they shape its boxes. Large windows, wide heads, f32 and extra tokens are
 * cuda.fused80's. */
#include "cuda_solvers.h"
#include "dtype.h"
#include "launch.h"

enum { SUB_ROWS = 16, MOST_DIM = 128, MOST_BOX = 640, MOST_COLUMNS = 128, MOST_LENGTH = 1 << 30 };
enum { MOST_SUBS = 16, MOST_WARPS = 8, MOST_CANDIDATES = 4 };
enum { Q0, S0 = 3, WARPS = 6 };
static const char *const knobs[] = {"q0", "q1", "q2", "s0", "s1", "s2", "warps", NULL};

/* ---- what a config means ---- */

/* Keys between the first and the last that `queries` neighbors attend, if the first is at a multiple of their number:
 * exact inside, and at borders windows only move closer together. */
static int32_t span_of(const struct nh_axis *axis, int32_t queries) {
    int64_t most = 0, stride = axis->stride;
    for (int64_t first = 0; first < queries * stride; first += queries) {
        int64_t last = first + queries - 1;
        int64_t moved = axis->causal ? last - first / stride * stride - (stride - 1)
                                     : last / stride * stride - first / stride * stride;
        most = nh_max(most, moved);
    }
    int64_t longest = nh_axis_group_length(axis->length, axis->dilation, 0);
    return (int32_t)nh_min(nh_max(most + axis->window, 1), longest);
}

static int32_t spaced(int32_t extent, int32_t columns) {
    while ((extent - columns) % 8)
        extent++;
    return extent;
}

struct shape {
    /* keys of a box of 16 queries, and of the whole block */
    int32_t box[NH_AXES], halo[NH_AXES];
    /* rows of the halo from one position of axis 1 and axis 0 to the next: consecutive columns of a box then are
     * consecutive modulo 8 */
    int32_t line, plane, halo_rows;
    int32_t columns, chunks;
    int32_t rows, subs, threads;
    int64_t shared_bytes, registers;
};

static void arrange(struct shape *shape) {
    const int32_t *box = shape->box, *halo = shape->halo;
    int32_t keys = box[0] * box[1] * box[2];
    shape->chunks = (int32_t)nh_ceil_div(keys, MOST_COLUMNS);
    shape->columns = (int32_t)nh_ceil_div(nh_ceil_div(keys, shape->chunks), 16) * 16;
    shape->line = halo[1] > 1 ? spaced(halo[2], box[2]) : halo[2];
    shape->plane = halo[0] > 1 ? spaced((halo[1] - 1) * shape->line + halo[2], box[1] * box[2]) : 0;
    shape->halo_rows = (halo[0] - 1) * shape->plane + (halo[1] - 1) * shape->line + halo[2];
}

static struct shape shape_of(const struct nh_problem *problem, const int32_t *value) {
    struct shape shape = {.rows = 1, .threads = 32 * value[WARPS]};
    int64_t dim = nh_ceil_div(problem->dim, 16) * 16, dim_v = nh_ceil_div(problem->dim_v, 16) * 16;
    int64_t axis_rows = 0, axis_keys = 0;
    for (int a = 0; a < NH_AXES; a++) {
        shape.box[a] = span_of(&problem->axis[a], value[S0 + a]);
        shape.halo[a] = span_of(&problem->axis[a], value[Q0 + a]);
        shape.rows *= value[Q0 + a];
        axis_rows += value[Q0 + a];
        axis_keys += shape.box[a];
    }
    arrange(&shape);
    shape.subs = shape.rows / SUB_ROWS;
    /* struct nh_shared of the kernel, which asserts that this is its size */
    int64_t columns = (int64_t)shape.chunks * shape.columns;
    int64_t bytes = shape.rows * (nh_max(dim, dim_v) + 8) * 2 +
                    shape.halo_rows * (dim + dim_v + 16) * 2 + columns * 12 +
                    shape.chunks * (axis_keys + 3) * 16 + axis_rows * 8;
    shape.shared_bytes = nh_ceil_div(bytes, 8) * 8;
    shape.registers = shape.columns / 2 + dim_v / 2 + dim / 4 + shape.columns / 16 + 56;
    return shape;
}

/* Blocks that share a multiprocessor; 0: not even one fits. */
static int64_t residents_of(const struct nh_cuda_device *device, const struct shape *shape) {
    enum { REGISTERS = 65536, RESERVED_SHARED_BYTES = 1024, MOST_THREADS = 2048 };
    if (shape->shared_bytes > device->shared_bytes_per_block || shape->registers > 255) return 0;
    int64_t by_shared =
        device->shared_bytes_per_multiprocessor / (shape->shared_bytes + RESERVED_SHARED_BYTES);
    int64_t by_registers = REGISTERS / (shape->threads * nh_ceil_div(shape->registers, 8) * 8);
    return nh_max(1, nh_min(nh_min(by_shared, by_registers), MOST_THREADS / 2 / shape->threads));
}

/* ---- time ---- */

static int64_t blocks_of(const struct nh_problem *problem, const int32_t *value) {
    int64_t blocks = problem->batch * problem->heads;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        int64_t longest = nh_axis_group_length(axis->length, axis->dilation, 0);
        blocks *= axis->dilation * nh_ceil_div(longest, value[Q0 + a]);
    }
    return blocks;
}

/* Warp instructions for 16 queries: products, matrix loads, softmax. */
static double sub_instructions(const struct nh_problem *problem, const struct shape *shape) {
    double columns = shape->columns, dims = (double)(problem->dim + problem->dim_v);
    double products = columns * dims / 128, loads = columns * dims / 256, softmax = columns * 3.75;
    return shape->chunks * (products + loads + softmax + 60) + 150;
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config) {
    enum { BLOCK_INSTRUCTIONS = 300, COPY_BYTES_PER_CLOCK = 28, LATENCY_CLOCKS = 3000 };
    enum { LAUNCH_NS = 3000 };
    const struct nh_cuda_device *cuda = device->backend;
    struct shape shape = shape_of(problem, config->value);
    double waves = (double)blocks_of(problem, config->value) / cuda->multiprocessors;
    double residents = (double)residents_of(cuda, &shape), warps = (double)config->value[WARPS];
    double bytes = 2 * (double)(problem->dim + problem->dim_v) * (shape.halo_rows + shape.rows);
    double copies = bytes / 16 / 32 * 8;
    double issue =
        (shape.subs * sub_instructions(problem, &shape) + copies + warps * BLOCK_INSTRUCTIONS) / 4 /
        0.6;
    double block = (double)nh_ceil_div(shape.subs, config->value[WARPS]) *
                       sub_instructions(problem, &shape) * 4 +
                   LATENCY_CLOCKS;
    double clocks = waves * issue;
    if (waves * bytes / COPY_BYTES_PER_CLOCK > clocks)
        clocks = waves * bytes / COPY_BYTES_PER_CLOCK;
    double rounds = waves / residents > 1 ? waves / residents : 1;
    if (rounds * block > clocks) clocks = rounds * block;
    double arithmetic = clocks / cuda->clock_hz;
    double memory = nh_problem_bytes(problem) / (0.9 * cuda->memory_bytes_per_s);
    return 1e9 * (arithmetic > memory ? arithmetic : memory) + LAUNCH_NS;
}

/* ---- candidates ---- */

struct ranking {
    const struct nh_problem *problem;
    const struct nh_device *device;
    struct nh_config config[MOST_CANDIDATES];
    double ns[MOST_CANDIDATES];
    int count;
};

static void rank(struct ranking *ranking, const struct nh_config *config) {
    double ns = estimate(ranking->problem, ranking->device, config);
    if (ranking->count == MOST_CANDIDATES && ns >= ranking->ns[MOST_CANDIDATES - 1]) return;
    if (ranking->count < MOST_CANDIDATES) ranking->count++;
    int place = ranking->count - 1;
    for (; place > 0 && ns < ranking->ns[place - 1]; place--) {
        ranking->ns[place] = ranking->ns[place - 1];
        ranking->config[place] = ranking->config[place - 1];
    }
    ranking->ns[place] = ns;
    ranking->config[place] = *config;
}

static bool fits(const struct ranking *ranking, const struct nh_config *config) {
    struct shape shape = shape_of(ranking->problem, config->value);
    return (int64_t)shape.box[0] * shape.box[1] * shape.box[2] <= MOST_BOX &&
           residents_of(ranking->device->backend, &shape) > 0;
}

/* Blocks of up to MOST_SUBS boxes of 16 queries of one shape. */
static void rank_blocks(struct ranking *ranking, const int32_t sub[NH_AXES]) {
    int64_t most[NH_AXES];
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &ranking->problem->axis[a];
        most[a] = nh_ceil_div(nh_axis_group_length(axis->length, axis->dilation, 0), sub[a]);
    }
    for (int32_t x = 1; x <= nh_min(most[0], MOST_SUBS); x++)
        for (int32_t y = 1; y <= nh_min(most[1], MOST_SUBS / x); y++)
            for (int32_t z = 1; z <= nh_min(most[2], MOST_SUBS / (x * y)); z++) {
                int32_t subs = x * y * z;
                int32_t rounds = (int32_t)nh_ceil_div(subs, MOST_WARPS);
                struct nh_config config = {{x * sub[0], y * sub[1], z * sub[2], sub[0], sub[1],
                                            sub[2], (int32_t)nh_ceil_div(subs, rounds)}};
                if (fits(ranking, &config)) rank(ranking, &config);
            }
}

static void rank_all(struct ranking *ranking) {
    int64_t cover[NH_AXES];
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &ranking->problem->axis[a];
        int64_t longest = nh_axis_group_length(axis->length, axis->dilation, 0);
        for (cover[a] = 1; cover[a] < longest && cover[a] < SUB_ROWS;)
            cover[a] *= 2;
    }
    while (cover[0] * cover[1] * cover[2] < SUB_ROWS)
        cover[2] *= 2;
    for (int32_t x = 1; x <= cover[0]; x *= 2)
        for (int32_t y = 1; y <= cover[1] && x * y <= SUB_ROWS; y *= 2) {
            int32_t sub[NH_AXES] = {x, y, SUB_ROWS / (x * y)};
            if (sub[2] <= cover[2]) rank_blocks(ranking, sub);
        }
}

/* ---- the solver ---- */

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    if (nh_dtype_bytes(problem->dtype) != 2) return "only f16 and bf16";
    if (problem->dim > MOST_DIM || problem->dim_v > MOST_DIM)
        return "a head dim or value dim is larger than 128";
    if (problem->extra_tokens) return "no extra tokens";
    if (problem->window_count > MOST_BOX) return "a window has more than 640 keys";
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].length > MOST_LENGTH) return "an axis is longer than 2^30 tokens";
    struct ranking ranking = {.problem = problem, .device = device};
    rank_all(&ranking);
    return ranking.count ? NULL : "the keys of 16 queries do not fit shared memory";
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct ranking ranking = {.problem = problem, .device = device};
    rank_all(&ranking);
    int count = (int)nh_min(ranking.count, capacity);
    for (int i = 0; i < count; i++)
        config[i] = ranking.config[i];
    return count;
}

static struct nh_kernel_spec spec_of(const struct nh_problem *problem,
                                     const struct nh_cuda_device *device, const int32_t *value,
                                     const struct shape *shape) {
    static const char *const names[4][NH_AXES] = {{"NH_TILE_Q0", "NH_TILE_Q1", "NH_TILE_Q2"},
                                                  {"NH_SUB0", "NH_SUB1", "NH_SUB2"},
                                                  {"NH_TILE_K0", "NH_TILE_K1", "NH_TILE_K2"},
                                                  {"NH_HALO0", "NH_HALO1", "NH_HALO2"}};
    struct nh_kernel_spec spec = {.source = "small80_forward.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_DIM", problem->dim);
    nh_kernel_define(&spec, "NH_DIM_V", problem->dim_v);
    nh_kernel_define(&spec, "NH_VECTOR", nh_cuda_vector(problem, UINT32_MAX));
    nh_kernel_define(&spec, "NH_WARPS", value[WARPS]);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS", residents_of(device, shape));
    nh_kernel_define(&spec, "NH_BIASED", problem->has_bias);
    nh_kernel_define(&spec, "NH_PRESCALE", problem->has_bias || !(problem->scale > 0));
    nh_kernel_define(&spec, "NH_COLUMNS", shape->columns);
    nh_kernel_define(&spec, "NH_CHUNKS", shape->chunks);
    nh_kernel_define(&spec, "NH_LINE", shape->line);
    nh_kernel_define(&spec, "NH_PLANE", shape->plane);
    nh_kernel_define(&spec, "NH_SHARED_BYTES", shape->shared_bytes);
    for (int a = 0; a < NH_AXES; a++) {
        nh_kernel_define(&spec, names[0][a], value[Q0 + a]);
        nh_kernel_define(&spec, names[1][a], value[S0 + a]);
        nh_kernel_define(&spec, names[2][a], shape->box[a]);
        nh_kernel_define(&spec, names[3][a], shape->halo[a]);
    }
    return spec;
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    struct shape shape = shape_of(problem, config->value);
    struct nh_cuda_operation *created = NULL;
    nhood_status status = nh_cuda_operation_create(problem, device, &created);
    if (status) return status;
    struct nh_kernel_spec spec = spec_of(problem, device->backend, config->value, &shape);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    step.threads = shape.threads;
    step.shared_bytes = shape.shared_bytes;
    step.grid[0] = blocks_of(problem, config->value);
    status = nh_cuda_step_add(created, &step, &spec);
    if (status) {
        created->base.destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}

const struct nh_solver nh_solver_cuda_small80 = {"cuda.small80", NHOOD_DEVICE_CUDA, knobs, refuse,
                                                 candidates,     estimate,          build};
