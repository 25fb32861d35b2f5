/* cuda.short: fused attention where whole dilation groups fit shared memory, sm_80 and later, forward and backward.
 *
 * Groups of a few tokens leave the tiles of other solvers nearly empty, and short sequences with wide windows are not worth
 * a walk. Here a block holds as many whole groups as its rows take, one after the other, and multiplies 16 queries at a time
 * with the rows that these see: see kernels/short.cuh. One launch. f16 and bf16, head dims up to 128; no bias, no extra
 * tokens, groups of at most 1024 tokens that fit shared memory with keys and values. */
#include "cuda_solvers.h"
#include "launch.h"
#include "load.h"
#include "short_backward.h"
#include "short_shape.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_DIM = 128, FORWARD_ORIGINS = 5 };
static const char *const knobs[] = {"rows", "warps", "parts", "split", NULL};

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
    int64_t shared = shared_bytes_of(problem, shape, value[NH_SHORT_PARTS]);
    if (shared > device->shared_bytes_per_block) return 0;
    return nh_min(device->shared_bytes_per_multiprocessor / (shared + RESERVED_SHARED_BYTES),
                  residents_by_registers(problem, value[NH_SHORT_WARPS]));
}

/* Warps have something to do each, and no blocks more than there are strips; no warps share one. */
static bool useful(const struct nh_short_shape *shape, const int32_t *value) {
    return 16 * value[NH_SHORT_WARPS] <= part_rows(shape, value[NH_SHORT_PARTS]) &&
           16 * value[NH_SHORT_PARTS] <= shape->rows && value[NH_SHORT_SPLIT] == 1;
}

/* ---- time ---- */

/* Nanoseconds. */
static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    const double launch_ns = 9000, latency = 2500, strip_instructions = 260, filled = 0.6;
    const struct nh_cuda_device *cuda = device->backend;
    const int32_t *value = config->value;
    struct nh_short_shape shape;
    (void)count;
    if (problem->op == NHOOD_OP_BWD) return nh_short_backward_ns(problem, cuda, value, count);
    if (!nh_short_shape_of(problem, value[NH_SHORT_ROWS], &shape)) return INFINITY;
    double residents = (double)residents_of(problem, cuda, &shape, value);
    if (residents <= 0 || !useful(&shape, value)) return INFINITY;
    double steps = (double)(nh_ceil_div(problem->dim, 16) + nh_ceil_div(problem->dim_v, 16));
    double pieces = nh_short_columns(problem, &shape) / 16;
    double strip = strip_instructions + pieces * (6 * steps + 70);
    double rows = (double)part_rows(&shape, value[NH_SHORT_PARTS]);
    double bytes = 2 * (double)(problem->dim + problem->dim_v) * ((double)shape.rows + rows);
    double copies = bytes / 512 * 26;
    double blocks =
        (double)(shape.items * value[NH_SHORT_PARTS] * (problem->heads / problem->kv_heads));
    double instructions = rows / 16 * strip + copies;
    double waves = blocks / cuda->multiprocessors;
    double turns = ceil(rows / 16 / value[NH_SHORT_WARPS]);
    double alone = latency + turns * strip * 4 + copies * 2 / value[NH_SHORT_WARPS];
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

/* What each knob may be; warps that share a strip are of use in the backward pass alone. */
enum { KNOBS = 4, MOST_CHOICES = 6 };
static const struct {
    int count;
    int32_t value[MOST_CHOICES];
} choice[KNOBS] = {[NH_SHORT_ROWS] = {4, {16, 64, 128, 256}},
                   [NH_SHORT_WARPS] = {6, {1, 2, 4, 8, 12, 16}},
                   [NH_SHORT_PARTS] = {6, {1, 2, 4, 8, 16, 32}},
                   [NH_SHORT_SPLIT] = {3, {1, 2, 4}}};
enum { MOST_COMBINATIONS = 4 * 6 * 6 * 3, MOST_CANDIDATES = 8 };

/* The n-th combination of choices. */
static struct nh_config combination(int n) {
    struct nh_config config = {{0}};
    for (int k = 0; k < KNOBS; k++) {
        config.value[k] = choice[k].value[n % choice[k].count];
        n /= choice[k].count;
    }
    return config;
}

/* Whether fewer rows hold as many groups. */
static bool oversized(const struct nh_problem *problem, int32_t rows) {
    struct nh_short_shape shape, less;
    nh_short_shape_of(problem, rows, &shape);
    for (int i = 0; choice[NH_SHORT_ROWS].value[i] < rows; i++)
        if (nh_short_shape_of(problem, choice[NH_SHORT_ROWS].value[i], &less) &&
            less.groups == shape.groups)
            return true;
    return false;
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct ranked ranked[MOST_COMBINATIONS];
    int count = 0;
    for (int n = 0; n < MOST_COMBINATIONS; n++) {
        struct ranked *next = &ranked[count];
        next->config = combination(n);
        if (oversized(problem, next->config.value[NH_SHORT_ROWS])) continue;
        next->ns = estimate(problem, device, &next->config, NULL);
        count += isfinite(next->ns);
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
    if (problem->op != NHOOD_OP_FWD && problem->op != NHOOD_OP_BWD)
        return "only the forward and the backward pass";
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
    nh_short_define(problem, value[NH_SHORT_WARPS], &spec);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS",
                     residents_by_registers(problem, value[NH_SHORT_WARPS]));
    nh_kernel_define(&spec, "NH_CONTIGUOUS", contiguous(problem, shape));
    return spec;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const int32_t *value = config->value;
    struct nh_short_shape shape;
    if (problem->op == NHOOD_OP_BWD) return nh_short_backward_add(operation, problem, value);
    if (!nh_short_shape_of(problem, value[NH_SHORT_ROWS], &shape))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the dilation groups are too long or too many");
    struct nh_kernel_spec spec = spec_of(problem, &shape, value);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_short_tiling(&shape, value[NH_SHORT_PARTS], &step.args.tiling);
    step.threads = 32 * value[NH_SHORT_WARPS];
    step.shared_bytes = shared_bytes_of(problem, &shape, value[NH_SHORT_PARTS]);
    step.grid[0] = shape.items * value[NH_SHORT_PARTS] * (problem->heads / problem->kv_heads);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, add_steps, operation);
}

const struct nh_solver nh_solver_cuda_short = {"cuda.short", NHOOD_DEVICE_CUDA, knobs, refuse,
                                               candidates,   estimate,          build};
