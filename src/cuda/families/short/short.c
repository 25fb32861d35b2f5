/* cuda.short: fused attention where whole dilation groups fit shared memory, sm_80 and later, forward and backward.
 *
 * Groups of a few tokens leave the tiles of other solvers nearly empty, and short sequences with wide windows are not worth
 * a walk. Here a block holds as many whole groups as its rows take, one after the other, and multiplies 16 queries at a time
 * with the rows that these see: see short.cuh. One launch. f32, f16 and bf16, head dims up to 128; no bias, no extra
 * tokens, groups of at most 1024 tokens that fit shared memory with keys and values. */
#include "top_n.h"
#include "cuda_solvers.h"
#include "dtype.h"
#include "launch.h"
#include "load.h"
#include "short_backward.h"
#include "short_shape.h"

#include <math.h>

enum { MOST_DIM = 128, FORWARD_ORIGINS = 5 };
const struct nh_knob nh_short_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "short_knobs.def"
#undef KNOB
    {NULL, NULL}};

/* ---- what a config needs ---- */

static int64_t part_rows(const struct nh_short_shape *shape, int64_t parts) {
    return 16 * nh_ceil_div(shape->rows / 16, parts);
}

/* Sums of warps that are not the first of their strip: struct nh_work of the kernel. */
static int64_t share_bytes(const struct nh_problem *problem, const int32_t *value) {
    int64_t others = value[NH_SHORT_WARPS] - value[NH_SHORT_WARPS] / value[NH_SHORT_SPLIT];
    return others * 32 * 16 * (nh_short_sums(problem, problem->dim_v) + 1);
}

static int64_t shared_bytes_of(const struct nh_problem *problem, const struct nh_short_shape *shape,
                               const int32_t *value) {
    enum { ITEM_BYTES = 80, WORD_BYTES = 4 };
    int64_t key = nh_short_row_bytes(problem, problem->dim);
    int64_t value_row = nh_short_row_bytes(problem, problem->dim_v);
    int64_t stages = value[NH_SHORT_STAGES], places = stages + 1;
    int64_t stage = shape->rows * (key + value_row + WORD_BYTES) +
                    part_rows(shape, value[NH_SHORT_PARTS]) * nh_max(key, value_row);
    return stages * stage + share_bytes(problem, value) +
           places * (ITEM_BYTES + nh_short_group_bytes(shape, FORWARD_ORIGINS));
}

/* Operands, scores and sums of a thread, and what addresses and masks take. Operands of f32 are mostly read where they are
 * needed, and split. */
static int64_t registers_of(const struct nh_problem *problem) {
    int64_t sums = 4 * nh_short_sums(problem, problem->dim_v);
    int64_t queries = 2 * nh_short_sums(problem, problem->dim);
    return nh_ceil_div(sums + (problem->dtype == NHOOD_DTYPE_F32 ? 112 : queries + 72), 8) * 8;
}

static int64_t residents_by_registers(const struct nh_problem *problem, int64_t warps) {
    enum { MOST_WARPS = 48 };
    return nh_max(
        1, nh_min(NH_CUDA_REGISTERS / (32 * warps * registers_of(problem)), MOST_WARPS / warps));
}

static int64_t residents_of(const struct nh_problem *problem, const struct nh_cuda_device *device,
                            const struct nh_short_shape *shape, const int32_t *value) {
    return nh_min(nh_cuda_residents_by_shared(device, shared_bytes_of(problem, shape, value)),
                  residents_by_registers(problem, value[NH_SHORT_WARPS]));
}

static bool fits(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                 const struct nh_short_shape *shape, const int32_t *value) {
    return 16 * value[NH_SHORT_PARTS] <= shape->rows &&
           shared_bytes_of(problem, shape, value) <= cuda->shared_bytes_per_block;
}

/* No more than two warps without a strip or, where warps share strips, the warps of one; no warp with more than four strips,
 * and parts only where they spare idle multiprocessors or shared memory. Warps that share strips have one each, and
 * multiprocessors have a block. A second stage is of use to blocks that have a second item. */
static bool useful(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                   const struct nh_short_shape *shape, const int32_t *value) {
    const int32_t whole[] = {value[NH_SHORT_ROWS], value[NH_SHORT_WARPS], 1, 1, 1};
    int64_t parts = value[NH_SHORT_PARTS], split = value[NH_SHORT_SPLIT];
    int64_t rows = part_rows(shape, parts), least_rows = 16 * value[NH_SHORT_WARPS] / split;
    int64_t blocks = nh_short_forward_items(problem, shape, parts);
    bool idle = blocks < 8 * (int64_t)cuda->multiprocessors;
    if (value[NH_SHORT_WARPS] % split || !fits(problem, cuda, shape, value)) return false;
    if (split > 1 && (rows > least_rows || blocks > 2 * (int64_t)cuda->multiprocessors))
        return false;
    if (value[NH_SHORT_STAGES] > 1 &&
        (split > 1 || parts > 1 ||
         blocks <= cuda->multiprocessors * residents_of(problem, cuda, shape, value)))
        return false;
    return least_rows <= rows + (split > 1 ? 16 : 32) && rows <= 4 * least_rows &&
           (parts == 1 || idle || !fits(problem, cuda, shape, whole));
}

/* ---- time ---- */

/* Instructions for 16 queries, for 16 rows that they meet and for a step of products with these; clocks of a warp alone for
 * an instruction; and what share of the time for memory hides behind products, with one stage and with two. Fitted on an
 * H200. Operands of f32 are split, weights too. */
struct costs {
    double strip, piece, step, waiting, hidden[2];
};
static const struct costs costs16 = {593, 10, 7.22, 3.2, {0.833, 0.774}},
                          costs_tf32 = {681, 114, 7.53, 3.14, {0.922, 0.716}},
                          costs32 = {681, 114, 30.1, 3.14, {0.922, 0.716}};

static const struct costs *costs_of(const struct nh_problem *problem) {
    return problem->dtype != NHOOD_DTYPE_F32        ? &costs16
           : problem->flags & NHOOD_FLAG_ALLOW_TF32 ? &costs_tf32
                                                    : &costs32;
}

/* Instructions of a warp for 16 queries, or its part of these. Warps that lack registers, of which the compiler takes a few
 * more than are counted, spill; those that share queries need more. */
static double strip_instructions(const struct nh_problem *problem,
                                 const struct nh_short_shape *shape, const int32_t *value) {
    const double masks = 19.9, spilling = 2.92, margin = 1.13;
    const struct costs *costs = costs_of(problem);
    double steps =
        (double)(nh_short_sums(problem, problem->dim) + nh_short_sums(problem, problem->dim_v)) / 2;
    double split = value[NH_SHORT_SPLIT], had = NH_CUDA_REGISTERS / 32.0 / value[NH_SHORT_WARPS];
    double sums = split > 1 ? 4 * (double)nh_short_sums(problem, problem->dim_v) : 0;
    double lacking = fmax(0, 1 - had / (margin * (double)registers_of(problem) + sums));
    double of_piece = costs->step * steps + costs->piece + (shape->contiguous ? 0 : masks);
    return (1 + spilling * lacking) * (costs->strip + shape->columns / 16 * of_piece / split);
}

/* Nanoseconds, fitted on an H200. Blocks take items in rounds: a round is no shorter than an item alone, and all of them no
 * shorter than all instructions, of which warps that wait for others, in blocks that wait for each other's warps, fill a
 * share of the issue slots. Blocks load at the same time and compute at the same time, so memory hides behind products only
 * from round to round. */
static double forward_ns(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                         const struct nh_short_shape *shape, const int32_t *value) {
    const double launch_ns = 4640, parting_ns = 169, latency = 4080, bytes_per_clock = 54.5;
    const double copy = 0.0537, per_item = 308, per_warp = 120, meeting = 40.2, handing_over = 119;
    const double filled_most = 0.846, filled_half = 4.75, met = 0.423, ending = 0.0569;
    const double bandwidth = 0.751, together = 0.673;
    if (!useful(problem, cuda, shape, value)) return INFINITY;
    double warps = value[NH_SHORT_WARPS], split = value[NH_SHORT_SPLIT];
    double stages = value[NH_SHORT_STAGES], rows = (double)part_rows(shape, value[NH_SHORT_PARTS]);
    double strip = strip_instructions(problem, shape, value);
    double bytes = (double)nh_dtype_bytes(problem->dtype) *
                   (double)(problem->dim + problem->dim_v) * ((double)shape->rows + rows) *
                   shape->tokens_share;
    double load = latency + bytes / bytes_per_clock;
    double compute = costs_of(problem)->waiting *
                         (ceil(rows / 16 / warps * split) * strip * (1 + shape->rows_share) / 2 +
                          copy * bytes / warps) +
                     meeting * warps;
    double item =
        stages == 1 ? load + compute : fmax(load, compute) + together * fmin(load, compute);
    double instructions =
        fmax(1, rows / 16 * shape->rows_share) * (split * strip + handing_over * (split - 1)) +
        copy * bytes + per_warp * warps + per_item * stages;
    double items = (double)nh_short_forward_items(problem, shape, value[NH_SHORT_PARTS]);
    double waves = items / cuda->multiprocessors;
    double residents = (double)residents_of(problem, cuda, shape, value);
    double rounds = waves / residents, blocks = fmin(residents, fmax(1, waves));
    double filled = filled_most * blocks * warps / (blocks * warps + filled_half) * blocks *
                    stages / (blocks * stages + met);
    double most = fmax(waves, fmin(ceil(waves), residents)); /* of one multiprocessor */
    double busy = nh_cuda_clocks_ns(
        cuda, fmax(ceil(rounds) * item, most * instructions / 4 / filled + ending * item));
    double memory = nh_cuda_memory_ns(problem, cuda) / bandwidth;
    double hides =
        costs_of(problem)->hidden[value[NH_SHORT_STAGES] - 1] * (1 - 1 / fmax(1, rounds));
    /* parts read the same rows, and find out where they belong */
    double parted = parting_ns * log2(value[NH_SHORT_PARTS]);
    return launch_ns + parted + busy + memory - hides * fmin(busy, memory);
}

/* INFINITY for configs that do not fit, or that others replace. */
static double predict(const struct nh_problem *problem, const struct nh_device *device,
                      const struct nh_short_shape *shape, const struct nh_config *config) {
    if (problem->op == NHOOD_OP_BWD && config->value[NH_SHORT_STAGES] > 1) return INFINITY;
    return problem->op == NHOOD_OP_FWD
               ? forward_ns(problem, device->backend, shape, config->value)
               : nh_short_backward_ns(problem, device->backend, shape, config->value);
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    struct nh_short_shape shape;
    (void)count; /* no tiles are walked */
    if (!nh_short_shape_of(problem, config->value[NH_SHORT_ROWS], &shape)) return INFINITY;
    return predict(problem, device, &shape, config);
}

/* ---- candidates ---- */

/* What each knob may be; of warps that share rows and of stages, these pairs. */
enum { SIZES = 4, CHOICES = 6, PAIRS = 4 };
static const int32_t sizes[SIZES] = {16, 64, 128, 256}, warps[CHOICES] = {1, 2, 4, 8, 12, 16},
                     parts[CHOICES] = {1, 2, 4, 8, 16, 32},
                     pair[PAIRS][2] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}};

/* Whether there are useful configs; keeps the cheapest of all, or with NULL stops at the first. Every item size is tried
 * once: of sizes that hold as many groups, the first. */
static bool search(const struct nh_problem *problem, const struct nh_device *device,
                   struct nh_top_n *top) {
    int64_t groups = 0;
    for (int s = 0; s < SIZES; s++) {
        struct nh_short_shape shape;
        if (!nh_short_shape_of(problem, sizes[s], &shape) || shape.groups == groups) continue;
        groups = shape.groups;
        for (int i = 0; i < CHOICES * CHOICES * PAIRS; i++) {
            const int32_t *last = pair[i / CHOICES / CHOICES];
            const struct nh_config config = {
                {sizes[s], warps[i % CHOICES], parts[i / CHOICES % CHOICES], last[0], last[1]}};
            double ns = predict(problem, device, &shape, &config);
            if (top)
                nh_top_n_add(top, &config, ns);
            else if (isfinite(ns))
                return true;
        }
    }
    return top && top->count;
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    enum { MOST_CANDIDATES = 8 };
    struct nh_top_n top;
    nh_top_configs_start(&top, below_ns, config, (int)nh_min(capacity, MOST_CANDIDATES));
    search(problem, device, &top);
    return top.count;
}

/* ---- refusal ---- */

static bool dim_fits(int64_t dim) {
    return dim % 8 == 0 && dim <= MOST_DIM;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_FWD && problem->op != NHOOD_OP_BWD)
        return "only the forward and the backward pass";
    if (problem->dtype == NHOOD_DTYPE_F64)
        return "no f64: tensor cores are used for f32, f16 and bf16";
    if (!dim_fits(problem->dim) || !dim_fits(problem->dim_v))
        return "head dims must be multiples of 8 up to 128";
    if (problem->has_bias) return "no relative bias";
    if (problem->extra_tokens) return "no extra tokens";
    if (nh_cuda_vector(problem, UINT32_MAX) * (int64_t)nh_dtype_bytes(problem->dtype) < 16)
        return "a stride is no multiple of 16 bytes";
    if (nh_short_group_tokens(problem) > NH_SHORT_MOST_ROWS)
        return "a dilation group has more than 1024 tokens";
    if (!nh_short_offsets_fit(problem)) return "a batch entry spans more than 2^31 elements";
    if (!search(problem, device, NULL))
        return "a dilation group exceeds shared memory, or there are more than 2^30";
    return NULL;
}

/* ---- plan ---- */

static struct nh_kernel_spec spec_of(const struct nh_problem *problem,
                                     const struct nh_short_shape *shape, const int32_t *value) {
    struct nh_kernel_spec spec = {.source = "short_forward.cu"};
    nh_short_define(problem, shape, &spec);
    nh_kernel_define_knobs(&spec, nh_short_knobs, NH_CONFIG_KNOBS, value);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS",
                     residents_by_registers(problem, value[NH_SHORT_WARPS]));
    nh_kernel_define(&spec, "NH_CONTIGUOUS", shape->contiguous);
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
    struct nh_short_tiling tiling;
    nhood_status status = nh_short_forward_tiling(problem, &shape, value[NH_SHORT_PARTS], &tiling);
    if (status) return status;
    nh_cuda_step_set_own(&step, &tiling, sizeof tiling);
    step.items = tiling.items;
    step.threads = 32 * value[NH_SHORT_WARPS];
    step.shared_bytes = shared_bytes_of(problem, &shape, value);
    step.grid[0] = nh_min(step.items, operation->device->multiprocessors *
                                          residents_of(problem, operation->device, &shape, value));
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, add_steps, operation);
}

const struct nh_solver nh_solver_cuda_short = {
    .name = "cuda.short",
    .device_kind = NHOOD_DEVICE_CUDA,
    .knob = nh_short_knobs,
    .refuse = refuse,
    .candidates = candidates,
    .estimate = estimate,
    .build = build,
};
