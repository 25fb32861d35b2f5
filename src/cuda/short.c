/* cuda.short: fused attention where whole dilation groups fit shared memory, sm_80 and later.
 *
 * Groups of a few tokens leave the tiles of other solvers nearly empty, and short sequences with wide windows are not worth
 * a walk. Here a block holds as many whole groups as its rows take, one after the other, and multiplies 16 queries at a time
 * with the rows that these see: see kernels/short.cuh. One launch. f16 and bf16, head dims up to 128; no bias, no extra
 * tokens, groups of at most 1024 tokens that fit shared memory with keys and values. */
#include "cuda_solvers.h"
#include "launch.h"
#include "load.h"
#include "short_shape.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_DIM = 128, FORWARD_ORIGINS = 5 };
enum { ROWS, WARPS, PARTS, KNOBS };
static const char *const knobs[] = {"rows", "warps", "parts", NULL};

/* ---- what a config needs ---- */

static int64_t part_rows(const struct nh_short_shape *shape, int64_t parts) {
    return 16 * nh_ceil_div(shape->rows / 16, parts);
}

static int64_t shared_bytes_of(const struct nh_problem *problem, const struct nh_short_shape *shape,
                               int64_t parts) {
    int64_t key = nh_short_row_bytes(problem->dim), value = nh_short_row_bytes(problem->dim_v);
    return shape->rows * (key + value) + part_rows(shape, parts) * nh_max(key, value) +
           nh_short_table_bytes(shape, FORWARD_ORIGINS);
}

/* Operands, scores and sums of a thread, and what addresses and masks take. */
static int64_t registers_of(const struct nh_problem *problem) {
    int64_t steps = nh_ceil_div(problem->dim, 16), steps_v = nh_ceil_div(problem->dim_v, 16);
    return nh_ceil_div(4 * steps + 8 * steps_v + 72, 8) * 8;
}

static int64_t residents_by_registers(const struct nh_problem *problem, int64_t warps) {
    enum { REGISTERS = 65536, MOST_WARPS = 48 };
    return nh_max(1, nh_min(REGISTERS / (32 * warps * registers_of(problem)), MOST_WARPS / warps));
}

static int64_t residents_of(const struct nh_problem *problem, const struct nh_cuda_device *device,
                            const struct nh_short_shape *shape, const int32_t *value) {
    enum { RESERVED_SHARED_BYTES = 1024 };
    int64_t shared = shared_bytes_of(problem, shape, value[PARTS]);
    if (shared > device->shared_bytes_per_block) return 0;
    return nh_min(device->shared_bytes_per_multiprocessor / (shared + RESERVED_SHARED_BYTES),
                  residents_by_registers(problem, value[WARPS]));
}

/* ---- time ---- */

/* Rows that 16 queries meet, on average over the strips of an item: by what their first and last sees. */
static double columns_of(const struct nh_problem *problem, const struct nh_short_shape *shape) {
    double columns = 0;
    for (int64_t strip = 0; strip < shape->rows; strip += 16) {
        int64_t edge[2] = {0, 0};
        for (int side = 0; side < 2; side++) {
            int64_t row = nh_min(strip + 15 * side, shape->groups * shape->group_tokens - 1);
            int64_t slot = row / shape->group_tokens, rest = row % shape->group_tokens;
            int64_t size = shape->group_tokens;
            for (int a = 0; a < NH_AXES; a++) {
                const struct nh_axis *axis = &problem->axis[a];
                size /= shape->extent[a];
                struct nh_range range = nh_window_range(shape->extent[a], axis->window,
                                                        axis->stride, axis->causal, rest / size);
                rest %= size;
                edge[side] += size * (side ? range.end - 1 : range.begin);
            }
            edge[side] += slot * shape->group_tokens;
        }
        columns += (double)(nh_ceil_div(edge[1] + 1, 16) - edge[0] / 16) * 16;
    }
    return columns / ((double)shape->rows / 16);
}

/* Nanoseconds. */
static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    const double launch_ns = 9000, latency = 2500, strip_instructions = 260, filled = 0.6;
    const struct nh_cuda_device *cuda = device->backend;
    const int32_t *value = config->value;
    struct nh_short_shape shape;
    (void)count;
    if (!nh_short_shape_of(problem, value[ROWS], &shape)) return 1e18;
    double residents = (double)residents_of(problem, cuda, &shape, value);
    if (residents <= 0) return 1e18;
    double steps = (double)(nh_ceil_div(problem->dim, 16) + nh_ceil_div(problem->dim_v, 16));
    double pieces = columns_of(problem, &shape) / 16;
    double strip = strip_instructions + pieces * (6 * steps + 70);
    double rows = (double)part_rows(&shape, value[PARTS]);
    double bytes = 2 * (double)(problem->dim + problem->dim_v) * ((double)shape.rows + rows);
    double copies = bytes / 512 * 26;
    double blocks = (double)(shape.items * value[PARTS] * (problem->heads / problem->kv_heads));
    double instructions = rows / 16 * strip + copies;
    double waves = blocks / cuda->multiprocessors;
    double turns = ceil(rows / 16 / value[WARPS]);
    double alone = latency + turns * strip * 4 + copies * 2 / value[WARPS];
    double busy = fmax(ceil(waves / residents) * alone, waves * instructions / 4 / filled);
    double memory = nh_cuda_memory_ns(problem, cuda) / 0.75;
    return launch_ns + fmax(nh_cuda_clocks_ns(cuda, busy), memory);
}

/* ---- candidates ---- */

struct ranked {
    struct nh_config config;
    double ns;
};

static int by_time(const void *left, const void *right) {
    const struct ranked *a = left, *b = right;
    return (a->ns > b->ns) - (a->ns < b->ns);
}

/* Every item size once: of sizes that hold as many groups, the first. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    static const int32_t sizes[] = {16, 64, 128, 256}, warps[] = {1, 2, 4, 8, 16},
                         parts[] = {1, 2, 4, 8, 16};
    enum { SIZES = 4, WARP_COUNTS = 5, PART_COUNTS = 5, MOST_CANDIDATES = 8 };
    struct ranked ranked[SIZES * WARP_COUNTS * PART_COUNTS];
    int count = 0;
    int64_t groups = 0;
    for (int s = 0; s < SIZES; s++) {
        struct nh_short_shape shape;
        if (!nh_short_shape_of(problem, sizes[s], &shape) || shape.groups == groups) continue;
        groups = shape.groups;
        for (int w = 0; w < WARP_COUNTS; w++)
            for (int p = 0; p < PART_COUNTS; p++) {
                struct ranked *next = &ranked[count];
                *next = (struct ranked){.config = {{sizes[s], warps[w], parts[p]}}};
                if (16 * warps[w] > part_rows(&shape, parts[p]) || 16 * parts[p] > shape.rows ||
                    !residents_of(problem, device->backend, &shape, next->config.value))
                    continue;
                next->ns = estimate(problem, device, &next->config, NULL);
                count++;
            }
    }
    qsort(ranked, (size_t)count, sizeof *ranked, by_time);
    count = (int)nh_min(nh_min(count, capacity), MOST_CANDIDATES);
    for (int i = 0; i < count; i++)
        config[i] = ranked[i].config;
    return count;
}

/* ---- refusal ---- */

static bool dim_fits(int64_t dim) {
    return dim % 8 == 0 && dim <= MOST_DIM;
}

/* Offsets of tokens inside a batch entry are 32 bits. */
static bool offsets_fit(const struct nh_problem *problem) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        int64_t span = 0;
        for (int a = 0; a < NH_AXES && nh_problem_role(problem, t) != NH_UNUSED; a++) {
            int64_t axis;
            if (!nh_multiply(problem->axis[a].length - 1, llabs(problem->strides[t].axis[a]),
                             &axis) ||
                axis > INT32_MAX)
                return false;
            span += axis;
        }
        if (span > INT32_MAX) return false;
    }
    return true;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    struct nh_config config;
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    if (problem->dtype != NHOOD_DTYPE_F16 && problem->dtype != NHOOD_DTYPE_BF16)
        return "only f16 and bf16";
    if (!dim_fits(problem->dim) || !dim_fits(problem->dim_v))
        return "head dims must be multiples of 8 up to 128";
    if (problem->has_bias) return "no relative bias";
    if (problem->extra_tokens) return "no extra tokens";
    if (nh_cuda_vector(problem, UINT32_MAX) < 8) return "a stride is no multiple of 16 bytes";
    if (nh_short_group_tokens(problem) > NH_SHORT_MOST_ROWS)
        return "a dilation group has more than 1024 tokens";
    if (!offsets_fit(problem)) return "a batch entry spans more than 2^31 elements";
    if (!candidates(problem, device, &config, 1))
        return "a dilation group exceeds shared memory, or there are more than 2^30";
    return NULL;
}

/* ---- plan ---- */

/* Whether what a query sees are consecutive rows: on all axes after the first that is longer than one token windows are whole,
 * and groups are equally long. */
static bool contiguous(const struct nh_problem *problem, const struct nh_short_shape *shape) {
    bool inside = false;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (inside &&
            (axis->causal || axis->window != shape->extent[a] || axis->length % axis->dilation))
            return false;
        inside = inside || shape->extent[a] > 1;
    }
    return true;
}

static struct nh_kernel_spec spec_of(const struct nh_problem *problem,
                                     const struct nh_short_shape *shape, const int32_t *value) {
    struct nh_kernel_spec spec = {.source = "short_forward.cu"};
    bool strided = false, dilated = false;
    for (int a = 0; a < NH_AXES; a++) {
        strided = strided || problem->axis[a].stride > 1;
        dilated = dilated || problem->axis[a].dilation > 1;
    }
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_RANK", problem->rank);
    nh_kernel_define(&spec, "NH_DIM", problem->dim);
    nh_kernel_define(&spec, "NH_DIM_V", problem->dim_v);
    nh_kernel_define(&spec, "NH_WARPS", value[WARPS]);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS", residents_by_registers(problem, value[WARPS]));
    nh_kernel_define(&spec, "NH_STRIDED", strided);
    nh_kernel_define(&spec, "NH_DILATED", dilated);
    nh_kernel_define(&spec, "NH_CONTIGUOUS", contiguous(problem, shape));
    return spec;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const int32_t *value = config->value;
    struct nh_short_shape shape;
    if (!nh_short_shape_of(problem, value[ROWS], &shape))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the dilation groups are too long or too many");
    struct nh_kernel_spec spec = spec_of(problem, &shape, value);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_short_tiling(&shape, value[PARTS], &step.args.tiling);
    step.threads = 32 * value[WARPS];
    step.shared_bytes = shared_bytes_of(problem, &shape, value[PARTS]);
    step.grid[0] = shape.items * value[PARTS] * (problem->heads / problem->kv_heads);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, add_steps, operation);
}

const struct nh_solver nh_solver_cuda_short = {"cuda.short", NHOOD_DEVICE_CUDA, knobs, refuse,
                                               candidates,   estimate,          build};
