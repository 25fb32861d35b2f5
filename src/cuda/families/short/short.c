/* cuda.short: fused attention if whole dilation groups fit shared memory, sm_80 and later, forward and backward.
 *
 * Groups of a few tokens leave the tiles of other solvers nearly empty, and short sequences with wide windows are not
 * worth a KV loop. Here a block holds as many whole groups as its rows have room for, one after the other, and
 * multiplies 16 queries at a time with the rows that these see: see short.cuh. One launch. f32, f16 and bf16, head dims
 * up to 128; no bias, no extra tokens, groups of at most 1024 tokens that fit shared memory with keys and values. */
#include "top_n.h"
#include "rates.h"
#include "cuda_family.h"
#include "dtype.h"
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

/* Bytes for the partial sums of warps that are not the first of their warp tile: `shares` of the kernel's struct
 * nh_work. */
static int64_t share_bytes(const struct nh_problem *problem, const int32_t *value) {
    int64_t others = value[NH_SHORT_WARPS] - value[NH_SHORT_WARPS] / value[NH_SHORT_SPLIT];
    return others * 32 * 16 * (nh_short_sums(problem, problem->dim_v) + 1);
}

static int64_t shared_bytes_of(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    const int32_t *value = of->value;
    enum { WORK_TILE_BYTES = 80, WORD_BYTES = 4 };
    int64_t key = nh_short_row_bytes(problem, problem->dim);
    int64_t value_row = nh_short_row_bytes(problem, problem->dim_v);
    int64_t stages = value[NH_SHORT_STAGES], places = stages + 1;
    int64_t stage = shape->rows * (key + value_row + WORD_BYTES) +
                    part_rows(shape, value[NH_SHORT_PARTS]) * nh_max(key, value_row);
    return stages * stage + share_bytes(problem, value) +
           places * (WORK_TILE_BYTES + nh_short_group_bytes(shape, FORWARD_ORIGINS));
}

/* An estimate of a thread's registers: operands, scores and sums, and a constant for addresses and masks. Operands of
 * f32 are mostly read and split where they are needed. */
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

static int64_t residents_of(const struct nh_short_launch *of) {
    return nh_min(nh_cuda_residents_by_shared(of->cuda, shared_bytes_of(of)),
                  residents_by_registers(of->problem, of->value[NH_SHORT_WARPS]));
}

static bool fits(const struct nh_short_launch *of) {
    return 16 * of->value[NH_SHORT_PARTS] <= of->shape->rows &&
           shared_bytes_of(of) <= of->cuda->shared_bytes_per_block;
}

/* Whether a config is worth predicting. At most two warps are without a warp tile or, where warps share warp tiles, the
 * warps of one; no warp has more than four warp tiles. Work tiles are divided into parts only if multiprocessors would
 * idle or shared memory does not suffice. Warps that share warp tiles have one each, and there are at most two work
 * tiles per multiprocessor. A second stage needs blocks with a second work tile. */
static bool useful(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    const int32_t *value = of->value;
    const int32_t alone[] = {value[NH_SHORT_ROWS], value[NH_SHORT_WARPS], 1, 1, 1};
    const struct nh_short_launch whole = {problem, of->cuda, shape, alone};
    int64_t parts = value[NH_SHORT_PARTS], split = value[NH_SHORT_SPLIT];
    int64_t rows = part_rows(shape, parts), least_rows = 16 * value[NH_SHORT_WARPS] / split;
    int64_t blocks = nh_short_forward_work_tiles(problem, shape, parts);
    bool idle = blocks < 8 * (int64_t)of->cuda->multiprocessors;
    if (value[NH_SHORT_WARPS] % split || !fits(of)) return false;
    if (split > 1 && (rows > least_rows || blocks > 2 * (int64_t)of->cuda->multiprocessors))
        return false;
    if (value[NH_SHORT_STAGES] > 1 &&
        (split > 1 || parts > 1 || blocks <= of->cuda->multiprocessors * residents_of(of)))
        return false;
    return least_rows <= rows + (split > 1 ? 16 : 32) && rows <= 4 * least_rows &&
           (parts == 1 || idle || !fits(&whole));
}

/* ---- work ---- */

/* The share of a thread's registers that are lacking and spilled. The compiler takes a few more than registers_of
 * counts, and warps that share queries need some for the sums that they add up. */
static double lacking(const struct nh_problem *problem, const int32_t *value) {
    const double margin = 1.125;
    double had = NH_CUDA_REGISTERS / 32.0 / value[NH_SHORT_WARPS];
    double sums =
        value[NH_SHORT_SPLIT] > 1 ? 4 * (double)nh_short_sums(problem, problem->dim_v) : 0;
    return fmax(0, 1 - had / (margin * (double)registers_of(problem) + sums));
}

/* The model's work tile is a part of a work tile of short.cuh; a block with two stages copies the next one
 * meanwhile. */
static bool forward_work(const struct nh_short_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    const int32_t *value = of->value;
    const double ahead = 1.5; /* work tiles in flight of the two that a block holds */
    if (!useful(of)) return false;
    double split = value[NH_SHORT_SPLIT], stages = value[NH_SHORT_STAGES];
    double rows = (double)part_rows(shape, value[NH_SHORT_PARTS]), tiles = rows / 16;
    double present = fmax(1, tiles * shape->rows_share), scores = 16 * present * shape->columns;
    double dims = (double)(problem->dim + problem->dim_v);
    double bytes = (double)nh_dtype_bytes(problem->dtype) * dims * ((double)shape->rows + rows) *
                   shape->tokens_share;
    double tensor = scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    nh_work_start(work, NH_OPERATION_SHORT_FORWARD, problem);
    struct nh_launch_work *launch =
        nh_work_add(work, f32 ? NH_KERNEL_SHORT_FORWARD_F32 : NH_KERNEL_SHORT_FORWARD);
    launch->blocks = (double)nh_short_forward_work_tiles(problem, shape, value[NH_SHORT_PARTS]);
    launch->residents = (double)residents_of(of);
    launch->in_flight = launch->residents * (stages > 1 ? ahead : 1);
    launch->warps = value[NH_SHORT_WARPS];
    launch->serial = ceil(tiles * split / launch->warps) / (tiles * split);
    launch->unit[NH_WORK_TENSOR] = tensor;
    launch->unit[NH_WORK_SPILL] = tensor * lacking(problem, value);
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(scores);
    launch->unit[NH_WORK_MASK] = shape->contiguous ? 0 : nh_cuda_lane_clocks(scores);
    launch->unit[NH_WORK_TILE] = present * split;
    launch->unit[NH_WORK_REDUCE] = present * (split - 1);
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(bytes / 16);
    launch->unit[NH_WORK_INDEX] = log2(value[NH_SHORT_PARTS]);
    launch->unit[NH_WORK_VECTOR] = launch->warps;
    launch->unit[NH_WORK_BLOCK] = stages;
    return true;
}

static bool work_of(const struct nh_problem *problem, const struct nh_device *device,
                    const struct nh_short_shape *shape, const struct nh_config *config,
                    struct nh_work *work) {
    const struct nh_short_launch of = {problem, device->backend, shape, config->value};
    if (problem->op == NHOOD_OP_FWD) return forward_work(&of, work);
    return config->value[NH_SHORT_STAGES] == 1 && nh_short_backward_work(&of, work);
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    struct nh_short_shape shape;
    return nh_short_shape_of(problem, config->value[NH_SHORT_ROWS], &shape) &&
           work_of(problem, device, &shape, config, work);
}

/* ---- candidates ---- */

/* The values of each knob that are tried; for split and stages, pairs of values. */
enum { SIZES = 3, CHOICES = 6, PAIRS = 4 };
static const int32_t sizes[SIZES] = {16, 64, 128}, warps[CHOICES] = {1, 2, 4, 8, 12, 16},
                     parts[CHOICES] = {1, 2, 4, 8, 16, 32},
                     pair[PAIRS][2] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}};

/* Whether there are useful configs. Keeps the cheapest of all in `top` or, if that is NULL, stops at the first. Every
 * size of a work tile is tried once: of `rows` that hold as many groups, the first. */
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
            struct nh_work asked;
            if (!work_of(problem, device, &shape, &config, &asked)) continue;
            if (!top) return true;
            nh_top_n_add(top, &config, nh_predict(device->backend, &asked, NULL));
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

static struct nh_kernel_spec spec_of(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    const int32_t *value = of->value;
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
    const struct nh_short_launch of = {problem, operation->device, &shape, value};
    struct nh_kernel_spec spec = spec_of(&of);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    struct nh_short_tiling tiling;
    nhood_status status = nh_short_forward_tiling(problem, &shape, value[NH_SHORT_PARTS], &tiling);
    if (status) return status;
    nh_cuda_step_set_own(&step, &tiling, sizeof tiling);
    step.work_tiles = tiling.work_tiles;
    step.threads = 32 * value[NH_SHORT_WARPS];
    step.shared_bytes = shared_bytes_of(&of);
    step.grid[0] = nh_min(step.work_tiles, operation->device->multiprocessors * residents_of(&of));
    return nh_cuda_step_add(operation, &step, &spec);
}

const struct nh_solver nh_solver_cuda_short = {
    NH_CUDA_SOLVER,           .name = "cuda.short", .knob = nh_short_knobs, .refuse = refuse,
    .candidates = candidates, .work = work,         .add_steps = add_steps,
};
