/* cuda.short90: fused attention, forward, where the copy engine of sm_90 fetches whole dilation groups: cuda.short for
 * groups that are boxes. One block per multiprocessor has warps that take 16 queries after the other while the next
 * groups are fetched, so that copies, products and stores of different groups overlap throughout: see short90.cuh. f16
 * and bf16, head dims from 32 to 128; no bias, no extra tokens; no axis of a group is longer than a box. */
#include "cuda_family.h"
#include "rates.h"
#include "short_shape.h"
#include "tensor_maps.h"
#include "tile_count.h"
#include "top_n.h"
#include "warpgroup_tile.h"

#include <math.h>
#include <string.h>

#define NH_KNOBS "short90_knobs.def"
#include "knob_table.h"

enum { MOST_DIM = 128, NARROW_DIM = 32 };

/* ---- what a config needs ---- */

struct launch {
    struct nh_short_launch of; /* its stages are as many as fit; 0: not even one */
    /* A share's queries as a box, some lines along the first axis; the last one may have fewer, or none (`empty`). */
    int32_t box[NH_AXES];
    bool empty;
};

/* The shape with one group per work tile. */
static bool shape_of(const struct nh_problem *problem, struct nh_short_shape *shape) {
    if (!nh_short_shape_of(problem, 1, shape)) return false;
    if (shape->order == SHORT_BY_RESIDUE) shape->order = SHORT_BOXES;
    return true;
}

static struct launch launch_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                               const struct nh_short_shape *shape, const int32_t *value) {
    enum { MOST_STAGES = 32 };
    int32_t box[] = {shape->extent[0], shape->extent[1], shape->extent[2]};
    int32_t *lines = &box[NH_AXES - problem->rank], all = *lines;
    *lines = (int32_t)nh_ceil_div(all, value[PARTS]);
    struct launch launch = {.of = {.problem = problem,
                                   .cuda = cuda,
                                   .shape = shape,
                                   .config = nh_short_config(problem, shape, SHORT_RING),
                                   .tiling = nh_short_tiling_of(problem, shape, value[PARTS])},
                            .box = {box[0], box[1], box[2]},
                            .empty = (value[PARTS] - 1) * *lines >= all};
    struct short_config *config = &launch.of.config;
    struct nh_short_tiling *tiling = &launch.of.tiling;
    config->warps = value[WARPS];
    config->folded = nh_sm90_folds(problem);
    config->q_map = (int)nh_map_layout_of(problem, NHOOD_Q);
    config->k_map = (int)nh_map_layout_of(problem, NHOOD_K);
    config->v_map = (int)nh_map_layout_of(problem, NHOOD_V);
    tiling->lines = *lines;
    tiling->queries = (int)nh_box_volume(box);
    /* as many stages as fit beside what a launch without stages has */
    const int others = short_shared_bytes(config, tiling);
    tiling->stages = 1;
    const int stage = short_shared_bytes(config, tiling) - others;
    tiling->stages = (int)nh_min((cuda->shared_bytes_per_block - others) / stage, MOST_STAGES);
    launch.of.tiles = short_own_rows(tiling) / 16;
    launch.of.shared_bytes = short_shared_bytes(config, tiling);
    return launch;
}

/* Whether a config is worth predicting. If a block has several work tiles, a warp must not be further ahead than the
 * ring has stages: barriers tell only two rounds apart. */
static bool useful(const struct launch *launch) {
    const struct nh_short_launch *of = &launch->of;
    /* an estimate of a thread's registers: operands, scores and sums, and a constant for addresses and masks */
    int64_t wanted =
        4 * nh_ceil_div(of->problem->dim, 16) + 8 * nh_ceil_div(of->problem->dim_v, 16) + 48;
    /* registers per thread; warps get registers in groups of four */
    int64_t had = NH_CUDA_REGISTERS / (128 * nh_ceil_div(of->config.warps + 1, 4)) / 8 * 8;
    bool one_each = nh_short_work_tiles(of) <= of->cuda->multiprocessors;
    return !launch->empty && of->tiling.stages > 0 &&
           (one_each || nh_ceil_div(of->config.warps, of->tiles) <= of->tiling.stages) &&
           had >= wanted;
}

/* ---- work ---- */

/* Warps take 16 queries after the other, of as many work tiles as the ring holds. If it holds one, fetching the next is
 * a step of its own. Boxes with gaps between tokens take the copy engine twice as long. */
static bool work_of(const struct launch *own, struct nh_work *work) {
    const struct nh_short_launch *of = &own->of;
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    enum { STEP_CLOCKS = 1000, BOX_BYTES = 128 };
    if (!useful(own)) return false;
    double tiles = (double)of->tiles, scores = 16 * tiles * shape->columns;
    double dims = (double)(16 * (nh_ceil_div(problem->dim, 16) + nh_ceil_div(problem->dim_v, 16)));
    const int64_t key_row = short_ring_row_bytes(of->config.dim),
                  value_row = short_ring_row_bytes(of->config.dim_v);
    double boxes =
        (double)(nh_ceil_div(key_row, BOX_BYTES) * 2 + nh_ceil_div(value_row, BOX_BYTES));
    double bytes =
        (double)(shape->group_tokens * (key_row + value_row) + of->tiling.queries * key_row);
    bool apart = nh_problem_dilated(problem) && !nh_sm90_folds(problem);
    double fetching = nh_cuda_l2_clocks(of->cuda, bytes);
    nh_work_start(work, NH_OPERATION_SHORT90, problem);
    struct nh_launch_work *launch = nh_work_add(work, NH_KERNEL_SHORT90);
    launch->blocks = (double)nh_short_work_tiles(of);
    launch->warps = of->config.warps;
    launch->in_flight = fmin(of->tiling.stages, fmax(1, launch->warps / tiles));
    launch->steps = of->tiling.stages > 1 ? 1 : 1 + fetching / STEP_CLOCKS;
    launch->serial = ceil(tiles / launch->warps) / tiles;
    launch->fetchers = 1;
    launch->boxes = apart ? 2 * boxes : boxes;
    launch->unit[NH_WORK_TENSOR] =
        scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(scores);
    launch->unit[NH_WORK_MASK] = shape->contiguous ? 0 : nh_cuda_lane_clocks(scores);
    launch->unit[NH_WORK_TILE] = tiles;
    launch->unit[NH_WORK_L2] = fetching;
    return true;
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    struct nh_short_shape shape;
    if (!shape_of(problem, &shape)) return false;
    const struct launch launch = launch_of(problem, device->backend, &shape, config->value);
    return work_of(&launch, work);
}

/* ---- candidates ---- */

/* Whether there are useful configs. Keeps the fastest of all in `top` or, if that is NULL, stops at the first. */
static bool search(const struct nh_problem *problem, const struct nh_device *device,
                   const struct nh_short_shape *shape, struct nh_top_n *top) {
    enum { WARP_CHOICES = 3, PART_CHOICES = 4 };
    /* With more warps, a thread has too few registers. */
    static const int32_t warps[WARP_CHOICES] = {8, 10, 12}, parts[PART_CHOICES] = {1, 2, 4, 8};
    for (int i = 0; i < WARP_CHOICES * PART_CHOICES; i++) {
        const struct nh_config config = {{warps[i % WARP_CHOICES], parts[i / WARP_CHOICES]}};
        const struct launch launch = launch_of(problem, device->backend, shape, config.value);
        struct nh_work asked;
        if (!work_of(&launch, &asked)) continue;
        if (!top) return true;
        nh_top_n_add(top, &config, nh_predict(device->backend, &asked, NULL));
    }
    return top && top->count;
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct nh_top_n top;
    struct nh_short_shape shape;
    if (!shape_of(problem, &shape)) return 0;
    nh_top_configs_start(&top, config, capacity);
    search(problem, device, &shape, &top);
    return top.count;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    const uint32_t fetched = NH_BIT(Q) | NH_BIT(K) | NH_BIT(V), stored = NH_BIT(O);
    struct nh_short_shape shape;
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    const char *reason = nh_sm90_refuse(problem, device, fetched, stored, MOST_DIM);
    if (reason) return reason;
    if ((problem->dim == NARROW_DIM) != (problem->dim_v == NARROW_DIM))
        return "of two head dims, one alone is 32";
    if (problem->has_bias) return "no relative bias";
    if (problem->extra_tokens) return "no extra tokens";
    if (nh_sm90_any_far(problem)) return "a dilation above 8 in more than one dimension";
    if (nh_sm90_by_origin(problem, fetched))
        return "batch entries or heads that are expanded or, in 3-D, join neither each other nor a "
               "row";
    if (!shape_of(problem, &shape))
        return "a dilation group has more than 1024 tokens, or there are more than 2^30";
    if (shape.order != SHORT_EVEN && nh_sm90_folds(problem))
        return "in one dimension, a dilation that does not divide it";
    if (!nh_sm90_boxes_fit(problem, shape.extent)) return "an axis has more than 256 tokens";
    if (!nh_short_offsets_fit(problem)) return "a batch entry spans more than 2^31 elements";
    if (!search(problem, device, &shape, NULL)) return "a dilation group exceeds shared memory";
    return NULL;
}

/* ---- plan ---- */

/* Sets struct nh_maps of the kernel. Where dilation groups are an axis of the maps, the second half is that of equally
 * long groups. */
static void add_maps(const struct launch *launch, struct nh_cuda_step *step) {
    enum { MAPS = 3 };
    const struct nh_problem *problem = launch->of.problem;
    for (int32_t tensor = NHOOD_Q; tensor <= NHOOD_V; tensor++)
        step->map[step->maps++] = nh_sm90_map(
            problem, tensor, tensor == NHOOD_Q ? launch->box : launch->of.shape->extent, 1);
    nh_sm90_add_twins(step, problem);
    if (step->maps > MAPS) memcpy(step->map, step->map + MAPS, MAPS * sizeof *step->map);
    step->maps = MAPS;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const struct nh_cuda_device *cuda = operation->device;
    struct nh_short_shape shape;
    if (!shape_of(problem, &shape))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the dilation groups are too long or too many");
    const struct launch launch = launch_of(problem, cuda, &shape, config->value);
    const struct nh_kernel_spec spec = nh_short_spec(&launch.of);
    struct nh_cuda_step step;
    nhood_status status = nh_short_check(&launch.of);
    if (status) return status;
    nh_cuda_step_init(&step, problem);
    nh_cuda_step_set_own(&step, &launch.of.tiling, sizeof launch.of.tiling);
    step.work_tiles = launch.of.tiling.work_tiles;
    step.threads = 32 * (launch.of.config.warps + 1);
    step.shared_bytes = launch.of.shared_bytes;
    step.loop_blocks = cuda->multiprocessors;
    step.grid[0] = nh_min(step.work_tiles, step.loop_blocks);
    add_maps(&launch, &step);
    return nh_cuda_step_add(operation, &step, &spec);
}

const struct nh_solver nh_solver_cuda_short90 = {
    NH_CUDA_SOLVER("cuda.short90", knobs, refuse, candidates, work, add_steps),
};
