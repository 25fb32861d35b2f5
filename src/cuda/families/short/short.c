/* cuda.short: fused attention if whole dilation groups fit shared memory, sm_80 and later, forward and backward.
 *
 * Groups of a few tokens leave the tiles of other solvers nearly empty, and short sequences with wide windows are not
 * worth a KV loop. Here a block holds as many whole groups as its rows have room for, one after the other, and
 * multiplies 16 rows at a time with the rows that these see: see short.cuh and short_backward.cu. One launch. f32, f16
 * and bf16, head dims up to 128; no bias, no extra tokens, groups of at most 1024 tokens that fit shared memory with
 * keys and values. */
#include "cuda_family.h"
#include "dtype.h"
#include "rates.h"
#include "short_shape.h"
#include "top_n.h"

#include <math.h>

#define NH_KNOBS "short_knobs.def"
#include "knob_table.h"

enum { MOST_DIM = 128 };

/* ---- what a config needs ---- */

/* The number of accumulators of 8 elements each for the sums of a row of `width` elements. */
static int64_t sums_of(const struct nh_problem *problem, int64_t width) {
    return problem->dtype == NHOOD_DTYPE_F32 ? 4 * nh_ceil_div(width, 32)
                                             : 2 * nh_ceil_div(width, 16);
}

/* Bytes for `sums` accumulators of each warp that is not the first of its warp tile: `shares` of the forward kernel's
 * struct nh_work. In the backward pass they reuse the memory of the tensors. */
static int64_t share_bytes(const struct nh_short_launch *of, int64_t sums) {
    enum { SUM_BYTES = 4 * 32 * 4 };
    return (of->warps - of->warps / of->split) * sums * SUM_BYTES;
}

/* Bytes of Q, dO and O, and of K and V, in the backward pass. Warp tiles of queries are multiplied with all keys, warp
 * tiles of keys with all queries. */
static int64_t backward_tensor_bytes(const struct nh_short_launch *of) {
    int64_t of_query = of->key_row + 2 * of->value_row, of_key = of->key_row + of->value_row;
    int64_t rows = of->shape->rows, own = 16 * of->tiles;
    if (of->parts == 1) return rows * (of_query + of_key);
    return nh_max(rows * of_key + own * of_query, rows * of_query + own * of_key);
}

/* Shared memory: the forward kernel's work tiles with stages, or struct nh_tile of the backward kernel. A work tile's
 * groups have offsets for each tensor. */
static int64_t shared_bytes_of(const struct nh_short_launch *of) {
    enum { WORD = 4, QUERY = 16, REACH = 8, WORK_TILE = 80, GROUP_LENGTHS = 16, ORIGIN = 8 };
    enum { FORWARD_ORIGINS = 5, BACKWARD_ORIGINS = NH_D_V + 1 };
    int64_t rows = of->shape->rows, groups = of->shape->groups;
    if (of->problem->op == NHOOD_OP_BWD)
        return backward_tensor_bytes(of) + rows * QUERY + rows / 8 * REACH + rows * WORD +
               groups * (GROUP_LENGTHS + BACKWARD_ORIGINS * ORIGIN);
    int64_t stage = rows * (of->key_row + of->value_row + WORD) +
                    16 * of->tiles * nh_max(of->key_row, of->value_row);
    return of->stages * stage + share_bytes(of, sums_of(of->problem, of->problem->dim_v) + 1) +
           (of->stages + 1) * (WORK_TILE + groups * (GROUP_LENGTHS + FORWARD_ORIGINS * ORIGIN));
}

/* A block of the backward pass computes warp tiles of 16 queries and of 16 keys: all of both kinds or, where blocks share
 * a work tile, some of one kind. One unit of 16 bytes more keeps rows that are loaded together in different banks. */
static struct nh_short_launch launch_of(const struct nh_problem *problem,
                                        const struct nh_cuda_device *cuda,
                                        const struct nh_short_shape *shape, const int32_t *value) {
    enum { MORE = 16 };
    const int64_t eight_bytes = 8 * (int64_t)nh_dtype_bytes(problem->dtype);
    const int64_t all = shape->rows / 16, parts = value[PARTS];
    const bool forward = problem->op == NHOOD_OP_FWD;
    struct nh_short_launch launch = {
        .problem = problem,
        .cuda = cuda,
        .shape = shape,
        .warps = value[WARPS],
        .parts = value[PARTS],
        .split = value[SPLIT],
        .stages = value[STAGES],
        .tiles = !forward && parts == 1 ? 2 * all : nh_ceil_div(all, forward ? parts : parts / 2),
        .key_row = eight_bytes * sums_of(problem, problem->dim) + MORE,
        .value_row = eight_bytes * sums_of(problem, problem->dim_v) + MORE};
    launch.shared_bytes = shared_bytes_of(&launch);
    return launch;
}

/* Whether a thread of the backward pass keeps the operands of its own rows in registers: NH_HELD in
 * short_warp_tile.cuh. */
static bool held(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    int64_t sums = sums_of(problem, problem->dim) + sums_of(problem, problem->dim_v);
    return problem->dtype != NHOOD_DTYPE_F32 && sums <= (of->warps > 8 ? 8 : 16);
}

/* An estimate of a thread's registers: sums, operands, scores, and a constant for addresses and masks, which is larger
 * in f32, where operands are mostly read and split where they are needed. */
static int64_t wanted_registers(const struct nh_short_launch *of) {
    enum { MOST = 248 };
    const struct nh_problem *problem = of->problem;
    bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    int64_t sums = sums_of(problem, problem->dim), sums_v = sums_of(problem, problem->dim_v);
    if (problem->op == NHOOD_OP_FWD)
        return nh_ceil_div(4 * sums_v + (f32 ? 112 : 2 * sums + 72), 8) * 8;
    return nh_min((held(of) ? 6 : 4) * (sums + sums_v) + (f32 ? 104 : 80), MOST);
}

static int64_t residents_by_registers(const struct nh_short_launch *of) {
    enum { MOST_WARPS = 48 };
    return nh_max(1, nh_min(NH_CUDA_REGISTERS / (32 * of->warps * wanted_registers(of)),
                            MOST_WARPS / of->warps));
}

static int64_t residents_of(const struct nh_short_launch *of) {
    return nh_min(nh_cuda_residents_by_shared(of->cuda, of->shared_bytes),
                  residents_by_registers(of));
}

/* ---- which configs are worth predicting ---- */

static bool fits(const struct nh_short_launch *of) {
    return 16 * of->parts <= of->shape->rows &&
           of->shared_bytes <= of->cuda->shared_bytes_per_block;
}

/* Whether a config of the forward pass is worth predicting. No warp has more than four warp tiles, and at most two warps
 * have none (where warps share warp tiles, those of one warp tile). Work tiles are divided into parts only if
 * multiprocessors would idle or shared memory does not suffice. Warps share warp tiles only if each has one, and there
 * are at most two work tiles per multiprocessor. A second stage needs blocks with a second work tile. */
static bool forward_useful(const struct nh_short_launch *of) {
    int64_t split = of->split, multiprocessors = of->cuda->multiprocessors;
    int64_t least_tiles = of->warps / split, blocks = nh_short_work_tiles(of);
    if (of->warps % split || !fits(of)) return false;
    if (split > 1 && (of->tiles > least_tiles || blocks > 2 * multiprocessors)) return false;
    if (of->stages > 1 &&
        (split > 1 || of->parts > 1 || blocks <= multiprocessors * residents_of(of)))
        return false;
    if (least_tiles > of->tiles + (split > 1 ? 1 : 2) || of->tiles > 4 * least_tiles) return false;
    if (of->parts == 1 || blocks < 8 * multiprocessors) return true;
    const int32_t undivided[] = {0, of->warps, 1, 1, 1};
    const struct nh_short_launch whole = launch_of(of->problem, of->cuda, of->shape, undivided);
    return !fits(&whole);
}

/* The same for the backward pass. Warps that share a warp tile, or that sum over the query heads of a key, have only one
 * warp tile. Warps that lack more than a fifth of their registers would spill in every step. */
static bool backward_useful(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    int64_t sums = sums_of(problem, nh_max(problem->dim, problem->dim_v));
    int64_t sharing = of->warps / of->split; /* warps, or groups of warps that share a warp tile */
    bool shared_heads = problem->heads != problem->kv_heads;
    if (5 * (NH_CUDA_REGISTERS / (32 * of->warps)) < 4 * wanted_registers(of)) return false;
    if (8 * of->parts > of->shape->rows || of->stages != 1) return false;
    if (of->warps % of->split || sharing > of->tiles || !residents_of(of)) return false;
    if (of->split == 1) return !shared_heads || sharing == of->tiles;
    return !shared_heads && share_bytes(of, sums) <= backward_tensor_bytes(of) &&
           sharing == of->tiles;
}

/* Whether every query sees its whole group, and warp tiles only meet rows of one group: NH_DENSE. */
static bool dense(const struct nh_short_launch *of) {
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &of->problem->axis[a];
        if (axis->window != of->shape->extent[a] || axis->causal) return false;
    }
    return of->shape->groups == 1 || of->shape->group_tokens % 16 == 0;
}

/* ---- work ---- */

/* Adds a launch with the units of work that both passes have. scores, tensor, bytes: logits of a block, clocks of its
 * products, and bytes that it copies. */
static struct nh_launch_work *add_launch(const struct nh_short_launch *of, double scores,
                                         double tensor, double bytes, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const bool forward = problem->op == NHOOD_OP_FWD, f32 = problem->dtype == NHOOD_DTYPE_F32;
    static const enum nh_kernel_kind kernel[2][2] = {
        {NH_KERNEL_SHORT_BACKWARD, NH_KERNEL_SHORT_BACKWARD_F32},
        {NH_KERNEL_SHORT_FORWARD, NH_KERNEL_SHORT_FORWARD_F32}};
    nh_work_start(work, forward ? NH_OPERATION_SHORT_FORWARD : NH_OPERATION_SHORT_BACKWARD,
                  problem);
    struct nh_launch_work *launch = nh_work_add(work, kernel[forward][f32]);
    launch->residents = launch->in_flight = (double)residents_of(of);
    launch->warps = of->warps;
    double tiles = (double)of->tiles * of->split;
    launch->serial = ceil(tiles / launch->warps) / tiles;
    launch->unit[NH_WORK_TENSOR] = tensor;
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(scores);
    launch->unit[NH_WORK_MASK] =
        (forward ? of->shape->contiguous : dense(of)) ? 0 : nh_cuda_lane_clocks(scores);
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(bytes / 16);
    return launch;
}

/* The share of a thread's registers that are lacking and spilled. The compiler takes a few more than are estimated, and
 * warps that share queries need some for the sums that they add up. */
static double forward_lacking(const struct nh_short_launch *of) {
    const double margin = 1.125;
    double had = NH_CUDA_REGISTERS / 32.0 / of->warps;
    double sums = of->split > 1 ? 4 * (double)sums_of(of->problem, of->problem->dim_v) : 0;
    return fmax(0, 1 - had / (margin * (double)wanted_registers(of) + sums));
}

/* The model's work tile is a part of a work tile of short.cuh; a block with two stages copies the next one
 * meanwhile. */
static bool forward_work(const struct nh_short_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    const double ahead =
        1.5; /* of two work tiles that a block holds, one is half done on average */
    if (!forward_useful(of)) return false;
    double tiles = (double)of->tiles, rows = 16 * tiles;
    double present = fmax(1, tiles * shape->rows_share), scores = 16 * present * shape->columns;
    double dims = (double)(problem->dim + problem->dim_v);
    double bytes = (double)nh_dtype_bytes(problem->dtype) * dims * ((double)shape->rows + rows) *
                   shape->tokens_share;
    double tensor = scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    struct nh_launch_work *launch = add_launch(of, scores, tensor, bytes, work);
    launch->blocks = (double)nh_short_work_tiles(of);
    if (of->stages > 1) launch->in_flight *= ahead;
    launch->unit[NH_WORK_SPILL] = tensor * forward_lacking(of);
    launch->unit[NH_WORK_TILE] = present * of->split;
    launch->unit[NH_WORK_REDUCE] = present * (of->split - 1);
    launch->unit[NH_WORK_INDEX] = log2(of->parts);
    launch->unit[NH_WORK_VECTOR] = launch->warps;
    launch->unit[NH_WORK_BLOCK] = of->stages;
    return true;
}

static bool backward_work(const struct nh_short_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    if (!backward_useful(of)) return false;
    int64_t wanted = wanted_registers(of), had = NH_CUDA_REGISTERS / (32 * of->warps);
    int64_t steps = (sums_of(problem, problem->dim) + sums_of(problem, problem->dim_v)) / 2;
    double members = (double)(problem->heads / problem->kv_heads);
    double tiles = (double)of->tiles, rows = (double)shape->rows, own = 16 * tiles;
    double scores = members * 16 * tiles * shape->columns;
    double dims = (double)(problem->dim + problem->dim_v);
    double copied = of->parts == 1 ? 5 * rows : 2.5 * (rows + own);
    double bytes = members * copied * dims * (double)nh_dtype_bytes(problem->dtype);
    double tensor = 2.5 * scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    struct nh_launch_work *launch = add_launch(of, scores, tensor, bytes, work);
    launch->blocks = (double)(shape->work_tiles * of->parts);
    launch->unit[NH_WORK_SPILL] = tensor * (1 - (double)nh_min(wanted, had) / (double)wanted);
    launch->unit[NH_WORK_SHARED] = held(of) ? 0 : tensor;
    launch->unit[NH_WORK_REDUCE] = tiles * (of->split - 1) * (double)steps;
    launch->unit[NH_WORK_INDEX] = rows / 16;
    return true;
}

static bool work_of(const struct nh_short_launch *of, struct nh_work *work) {
    return of->problem->op == NHOOD_OP_FWD ? forward_work(of, work) : backward_work(of, work);
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    struct nh_short_shape shape;
    if (!nh_short_shape_of(problem, config->value[ROWS], &shape)) return false;
    const struct nh_short_launch of = launch_of(problem, device->backend, &shape, config->value);
    return work_of(&of, work);
}

/* ---- candidates ---- */

/* Whether there are useful configs. Keeps the fastest of all in `top` or, if that is NULL, stops at the first. Of the
 * values of `rows` that hold equally many groups, only the first is tried. */
static bool search(const struct nh_problem *problem, const struct nh_device *device,
                   struct nh_top_n *top) {
    /* the values of each knob that are tried; for split and stages, pairs of values */
    enum { SIZES = 3, CHOICES = 6, PAIRS = 4 };
    static const int32_t sizes[SIZES] = {16, 64, 128}, warps[CHOICES] = {1, 2, 4, 8, 12, 16},
                         parts[CHOICES] = {1, 2, 4, 8, 16, 32},
                         pair[PAIRS][2] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}};
    int64_t groups = 0;
    for (int s = 0; s < SIZES; s++) {
        struct nh_short_shape shape;
        if (!nh_short_shape_of(problem, sizes[s], &shape) || shape.groups == groups) continue;
        groups = shape.groups;
        for (int i = 0; i < CHOICES * CHOICES * PAIRS; i++) {
            const int32_t *last = pair[i / CHOICES / CHOICES];
            const struct nh_config config = {
                {sizes[s], warps[i % CHOICES], parts[i / CHOICES % CHOICES], last[0], last[1]}};
            const struct nh_short_launch of =
                launch_of(problem, device->backend, &shape, config.value);
            struct nh_work asked;
            if (!work_of(&of, &asked)) continue;
            if (!top) return true;
            nh_top_n_add(top, &config, nh_predict(device->backend, &asked, NULL));
        }
    }
    return top && top->count;
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    enum { MOST_CANDIDATES = 8 };
    struct nh_top_n top;
    nh_top_configs_start(&top, config, (int)nh_min(capacity, MOST_CANDIDATES));
    search(problem, device, &top);
    return top.count;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_FWD && problem->op != NHOOD_OP_BWD)
        return "only the forward and the backward pass";
    if (problem->dtype == NHOOD_DTYPE_F64)
        return "no f64: tensor cores are used for f32, f16 and bf16";
    if (problem->dim % 8 || problem->dim_v % 8 || nh_max(problem->dim, problem->dim_v) > MOST_DIM)
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

static struct nh_kernel_spec spec_of(const struct nh_short_launch *of, const int32_t *value) {
    const struct nh_problem *problem = of->problem;
    bool forward = problem->op == NHOOD_OP_FWD;
    struct nh_kernel_spec spec = {.source = forward ? "short_forward.cu" : "short_backward.cu"};
    nh_short_define(of, &spec);
    nh_kernel_define_knobs(&spec, knobs, NH_CONFIG_KNOBS, value);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS", residents_by_registers(of));
    if (forward) {
        nh_kernel_define(&spec, "NH_CONTIGUOUS", of->shape->contiguous);
    } else {
        nh_kernel_define(&spec, "NH_DENSE", dense(of));
        nh_kernel_define(&spec, "NH_SHARED_HEADS", problem->heads != problem->kv_heads);
    }
    return spec;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    struct nh_short_shape shape;
    if (!nh_short_shape_of(problem, config->value[ROWS], &shape))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the dilation groups are too long or too many");
    const struct nh_short_launch of = launch_of(problem, operation->device, &shape, config->value);
    const struct nh_kernel_spec spec = spec_of(&of, config->value);
    struct nh_short_tiling tiling;
    struct nh_cuda_step step;
    nhood_status status = nh_short_tiling(&of, &tiling);
    if (status) return status;
    nh_cuda_step_init(&step, problem);
    nh_cuda_step_set_own(&step, &tiling, sizeof tiling);
    step.grid[0] = step.work_tiles = tiling.work_tiles;
    step.threads = 32 * of.warps;
    step.shared_bytes = of.shared_bytes;
    if (problem->op == NHOOD_OP_BWD) step.grid[1] = of.parts;
    if (problem->op == NHOOD_OP_FWD) /* blocks go from work tile to work tile */
        step.grid[0] = nh_min(step.work_tiles, of.cuda->multiprocessors * residents_of(&of));
    return nh_cuda_step_add(operation, &step, &spec);
}

const struct nh_solver nh_solver_cuda_short = {
    NH_CUDA_SOLVER,           .name = "cuda.short", .knob = knobs,          .refuse = refuse,
    .candidates = candidates, .work = work,         .add_steps = add_steps,
};
