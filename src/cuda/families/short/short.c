/* cuda.short: fused attention if whole dilation groups fit shared memory, sm_80 and later, forward and backward. Groups
 * of a few tokens leave the tiles of other solvers nearly empty, and short sequences with wide windows are not worth a
 * KV loop. Here a block holds as many whole groups as its rows have room for, one after the other, and multiplies 16
 * rows at a time with the rows that these see: see short.cuh and short_backward.cu. One launch. f32, f16 and bf16, head
 * dims up to 128; no bias, no extra tokens, groups of at most 1024 tokens that fit with keys and values. */
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

/* Whether a thread of the backward pass keeps its own rows' operands in registers: NH_HELD in short_backward.cu. */
static bool held(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    int64_t sums =
        short_sums(&of->config, (int)problem->dim) + short_sums(&of->config, (int)problem->dim_v);
    return problem->dtype != NHOOD_DTYPE_F32 && sums <= (of->config.warps > 8 ? 8 : 16);
}

/* An estimate of a thread's registers: sums, operands, scores, and a constant for addresses and masks, which is larger
 * in f32, where operands are mostly read and split where they are needed. */
static int64_t wanted_registers(const struct nh_short_launch *of) {
    enum { MOST = 248 };
    const struct nh_problem *problem = of->problem;
    bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    int64_t sums = short_sums(&of->config, (int)problem->dim),
            sums_v = short_sums(&of->config, (int)problem->dim_v);
    if (problem->op == NHOOD_OP_FWD)
        return nh_ceil_div(4 * sums_v + (f32 ? 112 : 2 * sums + 72), 8) * 8;
    return nh_min((held(of) ? 6 : 4) * (sums + sums_v) + (f32 ? 104 : 80), MOST);
}

static int64_t residents_by_registers(const struct nh_short_launch *of) {
    enum { MOST_WARPS = 48 };
    return nh_max(1, nh_min(NH_CUDA_REGISTERS / (32 * of->config.warps * wanted_registers(of)),
                            MOST_WARPS / of->config.warps));
}

/* Whether every query sees its whole group, and warp tiles only meet rows of one group. */
static bool dense(const struct nh_problem *problem, const struct nh_short_shape *shape) {
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (axis->window != shape->extent[a] || axis->causal) return false;
    }
    return shape->groups == 1 || shape->group_tokens % 16 == 0;
}

/* A block of the backward pass computes warp tiles of 16 queries and of 16 keys: all of both kinds or, where blocks share
 * a work tile, some of one kind. */
static struct nh_short_launch launch_of(const struct nh_problem *problem,
                                        const struct nh_cuda_device *cuda,
                                        const struct nh_short_shape *shape, const int32_t *value) {
    const bool forward = problem->op == NHOOD_OP_FWD;
    struct nh_short_launch launch = {
        .problem = problem,
        .cuda = cuda,
        .shape = shape,
        .config = nh_short_config(problem, shape, forward ? SHORT_FORWARD : SHORT_BACKWARD),
        .tiling = nh_short_tiling_of(problem, shape, value[PARTS])};
    launch.config.warps = value[WARPS];
    launch.config.split = value[SPLIT];
    launch.config.stages = value[STAGES];
    launch.config.dense = !forward && dense(problem, shape);
    launch.config.shared_heads = !forward && problem->heads != problem->kv_heads;
    launch.config.min_blocks = (int)residents_by_registers(&launch);
    launch.tiles = forward ? short_part_rows(&launch.tiling) / 16
                           : short_part_warp_tiles(&launch.tiling, (int)shape->rows);
    launch.shared_bytes = short_shared_bytes(&launch.config, &launch.tiling);
    return launch;
}

static int64_t residents_of(const struct nh_short_launch *of) {
    return nh_min(nh_cuda_residents_by_shared(of->cuda, of->shared_bytes),
                  residents_by_registers(of));
}

/* ---- which configs are worth predicting ---- */

static bool fits(const struct nh_short_launch *of) {
    return 16 * of->tiling.parts <= of->shape->rows &&
           of->shared_bytes <= of->cuda->shared_bytes_per_block;
}

/* Whether a config of the forward pass is worth predicting. No warp has more than four warp tiles, and at most two warps
 * have none (where warps share warp tiles, those of one warp tile). Work tiles are divided into parts only if
 * multiprocessors would idle or shared memory does not suffice. Warps share warp tiles only if each has one, and there
 * are at most two work tiles per multiprocessor. A second stage needs blocks with a second work tile. */
static bool forward_useful(const struct nh_short_launch *of) {
    int64_t split = of->config.split, multiprocessors = of->cuda->multiprocessors;
    int64_t least_tiles = of->config.warps / split, blocks = nh_short_work_tiles(of);
    if (of->config.warps % split || !fits(of)) return false;
    if (split > 1 && (of->tiles > least_tiles || blocks > 2 * multiprocessors)) return false;
    if (of->config.stages > 1 &&
        (split > 1 || of->tiling.parts > 1 || blocks <= multiprocessors * residents_of(of)))
        return false;
    if (least_tiles > of->tiles + (split > 1 ? 1 : 2) || of->tiles > 4 * least_tiles) return false;
    if (of->tiling.parts == 1 || blocks < 8 * multiprocessors) return true;
    const int32_t undivided[] = {0, of->config.warps, 1, 1, 1};
    const struct nh_short_launch whole = launch_of(of->problem, of->cuda, of->shape, undivided);
    return !fits(&whole);
}

/* The same for the backward pass. Warps that share a warp tile, or that sum over the query heads of a key, have only one
 * warp tile. Warps that lack more than a fifth of their registers would spill in every step. */
static bool backward_useful(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    int64_t sums = short_sums(&of->config, (int)nh_max(problem->dim, problem->dim_v));
    int64_t sharing =
        of->config.warps / of->config.split; /* warps, or groups of warps that share a warp tile */
    bool shared_heads = problem->heads != problem->kv_heads;
    if (5 * (NH_CUDA_REGISTERS / (32 * of->config.warps)) < 4 * wanted_registers(of)) return false;
    if (8 * of->tiling.parts > of->shape->rows || of->config.stages != 1) return false;
    if (of->config.warps % of->config.split || sharing > of->tiles || !residents_of(of))
        return false;
    if (of->config.split == 1) return !shared_heads || sharing == of->tiles;
    return !shared_heads &&
           short_share_bytes(&of->config, (int)sums) <=
               short_tensor_bytes(&of->config, &of->tiling) &&
           sharing == of->tiles;
}

static bool useful(const struct nh_short_launch *of) {
    return of->problem->op == NHOOD_OP_FWD ? forward_useful(of) : backward_useful(of);
}

/* ---- work ---- */

/* Adds a launch's work for both passes. scores, tensor, bytes: a block's logits, clocks of products, and copies. */
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
    launch->warps = of->config.warps;
    double tiles = (double)of->tiles * of->config.split;
    launch->serial = ceil(tiles / launch->warps) / tiles;
    launch->unit[NH_WORK_TENSOR] = tensor;
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(scores);
    launch->unit[NH_WORK_MASK] =
        (forward ? of->shape->contiguous : of->config.dense) ? 0 : nh_cuda_lane_clocks(scores);
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(bytes / 16);
    return launch;
}

/* The share of a thread's registers that are lacking and spilled. The compiler takes a few more than are estimated, and
 * warps that share queries need some for the sums that they add up. */
static double forward_lacking(const struct nh_short_launch *of) {
    const double margin = 1.125;
    double had = NH_CUDA_REGISTERS / 32.0 / of->config.warps;
    double sums = of->config.split > 1 ? 4 * (double)short_sums(&of->config, of->config.dim_v) : 0;
    return fmax(0, 1 - had / (margin * (double)wanted_registers(of) + sums));
}

/* The model's work tile is a share of one of short.cuh; a block with two stages copies the next one meanwhile. */
static void forward_work(const struct nh_short_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    const double ahead =
        1.5; /* of two work tiles that a block holds, one is half done on average */
    double tiles = (double)of->tiles, rows = 16 * tiles;
    double present = fmax(1, tiles * shape->rows_share), scores = 16 * present * shape->columns;
    double dims = (double)(problem->dim + problem->dim_v);
    double bytes = (double)nh_dtype_bytes(problem->dtype) * dims * ((double)shape->rows + rows) *
                   shape->tokens_share;
    double tensor = scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    struct nh_launch_work *launch = add_launch(of, scores, tensor, bytes, work);
    launch->blocks = (double)nh_short_work_tiles(of);
    if (of->config.stages > 1) launch->in_flight *= ahead;
    launch->unit[NH_WORK_SPILL] = tensor * forward_lacking(of);
    launch->unit[NH_WORK_TILE] = present * of->config.split;
    launch->unit[NH_WORK_REDUCE] = present * (of->config.split - 1);
    launch->unit[NH_WORK_INDEX] = log2(of->tiling.parts);
    launch->unit[NH_WORK_VECTOR] = launch->warps;
    launch->unit[NH_WORK_BLOCK] = of->config.stages;
}

static void backward_work(const struct nh_short_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    int64_t wanted = wanted_registers(of), had = NH_CUDA_REGISTERS / (32 * of->config.warps);
    int64_t steps = (short_sums(&of->config, (int)problem->dim) +
                     short_sums(&of->config, (int)problem->dim_v)) /
                    2;
    double members = (double)(problem->heads / problem->kv_heads);
    double tiles = (double)of->tiles, rows = (double)shape->rows, own = 16 * tiles;
    double scores = members * 16 * tiles * shape->columns;
    double dims = (double)(problem->dim + problem->dim_v);
    double copied = of->tiling.parts == 1 ? 5 * rows : 2.5 * (rows + own);
    double bytes = members * copied * dims * (double)nh_dtype_bytes(problem->dtype);
    double tensor = 2.5 * scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    struct nh_launch_work *launch = add_launch(of, scores, tensor, bytes, work);
    launch->blocks = (double)(shape->work_tiles * of->tiling.parts);
    launch->unit[NH_WORK_SPILL] = tensor * (1 - (double)nh_min(wanted, had) / (double)wanted);
    launch->unit[NH_WORK_SHARED] = held(of) ? 0 : tensor;
    launch->unit[NH_WORK_REDUCE] = tiles * (of->config.split - 1) * (double)steps;
    launch->unit[NH_WORK_INDEX] = rows / 16;
}

static bool work_of(const struct nh_short_launch *of, struct nh_work *work) {
    if (!useful(of)) return false;
    (of->problem->op == NHOOD_OP_FWD ? forward_work : backward_work)(of, work);
    return true;
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    struct nh_short_shape shape;
    if (!nh_short_shape_of(problem, config->value[ROWS], &shape)) return false;
    const struct nh_short_launch of = launch_of(problem, device->backend, &shape, config->value);
    return work_of(&of, work);
}

/* ---- candidates ---- */

/* The values of each knob that are tried; for split and stages, pairs of values. */
enum { SIZES = 3, CHOICES = 6, PAIRS = 4 };
static const int32_t sizes[SIZES] = {16, 64, 128}, warps[CHOICES] = {1, 2, 4, 8, 12, 16},
                     parts[CHOICES] = {1, 2, 4, 8, 16, 32},
                     pair[PAIRS][2] = {{1, 1}, {2, 1}, {4, 1}, {1, 2}};

/* Whether there are useful configs: then one of the smallest work tiles, which no warps or stages share, is useful. */
static bool any_useful(const struct nh_problem *problem, const struct nh_device *device) {
    struct nh_short_shape shape;
    bool any = false;
    if (!nh_short_shape_of(problem, sizes[0], &shape)) return false;
    for (int i = 0; i < CHOICES * CHOICES && !any; i++) {
        const int32_t value[] = {sizes[0], warps[i % CHOICES], parts[i / CHOICES], 1, 1};
        const struct nh_short_launch of = launch_of(problem, device->backend, &shape, value);
        any = useful(&of);
    }
    return any;
}

/* Several values of `rows` may hold equally many groups: only the first of them is tried. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    enum { MOST_CANDIDATES = 8 };
    struct nh_top_n top;
    int64_t groups = 0;
    nh_top_configs_start(&top, config, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int s = 0; s < SIZES; s++) {
        struct nh_short_shape shape;
        if (!nh_short_shape_of(problem, sizes[s], &shape) || shape.groups == groups) continue;
        groups = shape.groups;
        for (int i = 0; i < CHOICES * CHOICES * PAIRS; i++) {
            const int32_t *last = pair[i / CHOICES / CHOICES];
            const struct nh_config tried = {
                {sizes[s], warps[i % CHOICES], parts[i / CHOICES % CHOICES], last[0], last[1]}};
            const struct nh_short_launch of =
                launch_of(problem, device->backend, &shape, tried.value);
            struct nh_work asked;
            if (work_of(&of, &asked))
                nh_top_n_add(&top, &tried, nh_predict(device->backend, &asked, NULL));
        }
    }
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
    if (!any_useful(problem, device))
        return "a dilation group exceeds shared memory, or there are more than 2^30";
    return NULL;
}

/* ---- plan ---- */

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    struct nh_short_shape shape;
    if (!nh_short_shape_of(problem, config->value[ROWS], &shape))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the dilation groups are too long or too many");
    const struct nh_short_launch of = launch_of(problem, operation->device, &shape, config->value);
    const struct nh_kernel_spec spec = nh_short_spec(&of);
    struct nh_cuda_step step;
    nhood_status status = nh_short_check(&of);
    if (status) return status;
    nh_cuda_step_init(&step, problem);
    nh_cuda_step_set_own(&step, &of.tiling, sizeof of.tiling);
    step.grid[0] = step.work_tiles = of.tiling.work_tiles;
    step.threads = 32 * of.config.warps;
    step.shared_bytes = of.shared_bytes;
    if (problem->op == NHOOD_OP_BWD) step.grid[1] = of.tiling.parts;
    if (problem->op == NHOOD_OP_FWD) {
        step.loop_blocks = of.cuda->multiprocessors * residents_of(&of);
        step.grid[0] = nh_min(step.work_tiles, step.loop_blocks);
    }
    return nh_cuda_step_add(operation, &step, &spec);
}

const struct nh_solver nh_solver_cuda_short = {
    NH_CUDA_SOLVER("cuda.short", knobs, refuse, candidates, work, add_steps),
};
