/* cuda.short90: fused attention, forward, where the copy engine of sm_90 fetches whole dilation groups.
 *
 * It is cuda.short for groups that are boxes. One block per multiprocessor has warps that take 16 queries after the
 * other while the next groups are fetched, so that copies, products and stores of different groups overlap throughout:
 * see short90.cuh. f16 and bf16, head dims from 32 to 128; no bias, no extra tokens; no axis of a group is longer than
 * a box. */
#include "top_n.h"
#include "rates.h"
#include "tile_count.h"
#include "cuda_family.h"
#include "tensor_maps.h"
#include "warpgroup_tile.h"
#include "short_shape.h"

#include <math.h>
#include <string.h>

#define NH_KNOBS "short90_knobs.def"
#include "knob_table.h"
enum { MOST_DIM = 128, MOST_STAGES = 32, NARROW_DIM = 32 };

/* ---- what a config needs ---- */

/* The shape with one group per work tile. */
static bool shape_of(const struct nh_problem *problem, struct nh_short_shape *shape) {
    if (!nh_short_shape_of(problem, 1, shape)) return false;
    if (shape->order == NH_SHORT_BY_RESIDUE) shape->order = NH_SHORT_BOXES;
    return true;
}

/* A part's queries as a box: some lines along the first axis. The last part of a group may have fewer. */
static void part_of(const struct nh_short_launch *of, int32_t box[NH_AXES]) {
    const int first = NH_AXES - of->problem->rank;
    memcpy(box, of->shape->extent, NH_AXES * sizeof *box);
    box[first] = (int32_t)nh_ceil_div(box[first], of->value[PARTS]);
}

static bool part_is_empty(const struct nh_short_launch *of) {
    const int first = NH_AXES - of->problem->rank;
    int32_t box[NH_AXES];
    part_of(of, box);
    return (of->value[PARTS] - 1) * box[first] >= of->shape->extent[first];
}

/* Warp tiles of a part, 16 queries each. */
static int64_t warp_tiles_of(const struct nh_short_launch *of) {
    int32_t box[NH_AXES];
    part_of(of, box);
    return nh_ceil_div(nh_box_volume(box), 16);
}

static int64_t stage_bytes(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    int64_t key_row = nh_sm90_row_bytes(problem->dim),
            value_row = nh_sm90_row_bytes(problem->dim_v);
    return of->shape->rows * (key_row + value_row) +
           16 * warp_tiles_of(of) * nh_max(key_row, value_row);
}

/* Shared memory: stages with barriers and places, columns, and alignment of the first stage (struct nh_ring of the
 * kernel). */
static int64_t shared_bytes(const struct nh_short_launch *of, int64_t stages) {
    enum { BARRIERS = 16, PLACE = 48, WORD = 4, ALIGNMENT = 1024 };
    return stages * (stage_bytes(of) + BARRIERS + PLACE) + WORD * of->shape->rows + ALIGNMENT;
}

static int64_t stages_of(const struct nh_short_launch *of) {
    int64_t none = shared_bytes(of, 0), one = shared_bytes(of, 1);
    return nh_min((of->cuda->shared_bytes_per_block - none) / (one - none), MOST_STAGES);
}

/* An estimate of a thread's registers: operands, scores and sums, and a constant for addresses and masks. */
static int64_t wanted_registers(const struct nh_problem *problem) {
    return 4 * nh_ceil_div(problem->dim, 16) + 8 * nh_ceil_div(problem->dim_v, 16) + 48;
}

/* Registers per thread; warps get registers in groups of four. */
static int64_t registers_of(const int32_t *value) {
    return NH_CUDA_REGISTERS / (128 * nh_ceil_div(value[WARPS] + 1, 4)) / 8 * 8;
}

/* Whether a config is worth predicting. If a block has several work tiles, a warp must not be further ahead than the
 * ring has stages: barriers tell only two rounds apart. */
static bool useful(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->value;
    int64_t stages = stages_of(of);
    bool one_each =
        nh_short_forward_work_tiles(problem, of->shape, value[PARTS]) <= of->cuda->multiprocessors;
    return !part_is_empty(of) && stages > 0 &&
           (one_each || nh_ceil_div(value[WARPS], warp_tiles_of(of)) <= stages) &&
           registers_of(value) >= wanted_registers(problem);
}

/* ---- work ---- */

static double work_tile_bytes(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    int64_t key_row = nh_sm90_row_bytes(problem->dim),
            value_row = nh_sm90_row_bytes(problem->dim_v);
    int32_t box[NH_AXES];
    part_of(of, box);
    return (double)(of->shape->group_tokens * (key_row + value_row) +
                    box[0] * box[1] * box[2] * key_row);
}

/* The number of boxes that fetch rows of `width` elements. */
static double boxes_of(int64_t width) {
    enum { BOX_BYTES = 128 };
    return (double)nh_ceil_div(nh_sm90_row_bytes(width), BOX_BYTES);
}

/* Warps take 16 queries after the other, of as many work tiles as the ring holds. If it holds one, fetching the next is
 * a step of its own. Boxes with gaps between tokens take the copy engine twice as long. */
static bool work_of(const struct nh_short_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    const int32_t *value = of->value;
    enum { STEP_CLOCKS = 1000 };
    if (!useful(of)) return false;
    double tiles = (double)warp_tiles_of(of), scores = 16 * tiles * shape->columns;
    double dims = (double)(16 * (nh_ceil_div(problem->dim, 16) + nh_ceil_div(problem->dim_v, 16)));
    double boxes = boxes_of(problem->dim) * 2 + boxes_of(problem->dim_v);
    bool apart = nh_problem_dilated(problem) && !nh_sm90_folds(problem);
    nh_work_start(work, NH_OPERATION_SHORT90, problem);
    struct nh_launch_work *launch = nh_work_add(work, NH_KERNEL_SHORT90);
    launch->blocks = (double)nh_short_forward_work_tiles(problem, shape, value[PARTS]);
    launch->warps = value[WARPS];
    double stages = (double)stages_of(of);
    double fetching = nh_cuda_l2_clocks(of->cuda, work_tile_bytes(of));
    launch->in_flight = fmin(stages, fmax(1, launch->warps / tiles));
    launch->steps = stages > 1 ? 1 : 1 + fetching / STEP_CLOCKS;
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
    const struct nh_short_launch of = {problem, device->backend, &shape, config->value};
    return shape_of(problem, &shape) && work_of(&of, work);
}

/* ---- candidates ---- */

/* With more warps, a thread has too few registers. */
enum { WARP_CHOICES = 3, PART_CHOICES = 4, MOST_COMBINATIONS = WARP_CHOICES * PART_CHOICES };
static const int32_t warps[WARP_CHOICES] = {8, 10, 12}, parts[PART_CHOICES] = {1, 2, 4, 8};

static struct nh_config combination(int number) {
    return (struct nh_config){{warps[number % WARP_CHOICES], parts[number / WARP_CHOICES]}};
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    struct nh_top_n top;
    struct nh_short_shape shape;
    if (!shape_of(problem, &shape)) return 0;
    nh_top_configs_start(&top, below_ns, config, capacity);
    for (int i = 0; i < MOST_COMBINATIONS; i++) {
        const struct nh_config one = combination(i);
        const struct nh_short_launch of = {problem, device->backend, &shape, one.value};
        struct nh_work asked;
        if (work_of(&of, &asked))
            nh_top_n_add(&top, &one, nh_predict(device->backend, &asked, NULL));
    }
    return top.count;
}

/* ---- refusal ---- */

static bool any_useful(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                       const struct nh_short_shape *shape) {
    for (int i = 0; i < MOST_COMBINATIONS; i++) {
        const struct nh_config one = combination(i);
        const struct nh_short_launch of = {problem, cuda, shape, one.value};
        if (useful(&of)) return true;
    }
    return false;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    const uint32_t fetched = 1u << NHOOD_Q | 1u << NHOOD_K | 1u << NHOOD_V, stored = 1u << NHOOD_O;
    struct nh_short_shape shape;
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    const char *reason = nh_sm90_refuse(problem, device, fetched, stored, MOST_DIM);
    if (reason) return reason;
    if ((problem->dim == NARROW_DIM) != (problem->dim_v == NARROW_DIM))
        return "of two head dims, one alone is 32";
    if (problem->has_bias) return "no relative bias";
    if (problem->extra_tokens) return "no extra tokens";
    if (nh_sm90_any_far(problem)) return "a dilation above 8 in more than one dimension";
    if (!shape_of(problem, &shape))
        return "a dilation group has more than 1024 tokens, or there are more than 2^30";
    if (shape.order != NH_SHORT_EVEN && nh_sm90_folds(problem))
        return "in one dimension, a dilation that does not divide it";
    if (!nh_sm90_boxes_fit(problem, shape.extent)) return "an axis has more than 256 tokens";
    if (!nh_short_offsets_fit(problem)) return "a batch entry spans more than 2^31 elements";
    if (!any_useful(problem, device->backend, &shape))
        return "a dilation group exceeds shared memory";
    return NULL;
}

/* ---- plan ---- */

static struct nh_kernel_spec spec_of(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    struct nh_kernel_spec spec = {.source = "short90_forward.cu"};
    nh_short_define(problem, shape, &spec);
    nh_kernel_define_knobs(&spec, knobs, NH_CONFIG_KNOBS, of->value);
    nh_kernel_define(&spec, "NH_CONTIGUOUS", shape->contiguous);
    nh_kernel_define(&spec, "NH_FOLDED", nh_sm90_folds(problem));
    nh_kernel_define(&spec, "NH_Q_MAP", nh_map_layout_of(problem, NHOOD_Q));
    nh_kernel_define(&spec, "NH_K_MAP", nh_map_layout_of(problem, NHOOD_K));
    nh_kernel_define(&spec, "NH_V_MAP", nh_map_layout_of(problem, NHOOD_V));
    return spec;
}

/* Sets struct nh_maps of the kernel. Where dilation groups are an axis of the maps, the second half is that of equally
 * long groups. */
static void add_maps(const struct nh_short_launch *of, struct nh_cuda_step *step) {
    const struct nh_problem *problem = of->problem;
    enum { MAPS = 3 };
    int32_t box[NH_AXES];
    part_of(of, box);
    for (int32_t tensor = NHOOD_Q; tensor <= NHOOD_V; tensor++)
        step->map[step->maps++] =
            nh_sm90_map(problem, tensor, tensor == NHOOD_Q ? box : of->shape->extent, 1);
    nh_sm90_add_twins(step, problem);
    if (step->maps > MAPS) memcpy(step->map, step->map + MAPS, MAPS * sizeof *step->map);
    step->maps = MAPS;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const struct nh_cuda_device *cuda = operation->device;
    const int32_t *value = config->value;
    struct nh_short_shape shape;
    if (!shape_of(problem, &shape))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the dilation groups are too long or too many");
    const struct nh_short_launch of = {problem, cuda, &shape, value};
    struct nh_kernel_spec spec = spec_of(&of);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    struct nh_short_tiling tiling;
    nhood_status status = nh_short_forward_tiling(problem, &shape, value[PARTS], &tiling);
    if (status) return status;
    int32_t box[NH_AXES];
    part_of(&of, box);
    tiling.lines = box[NH_AXES - problem->rank];
    tiling.queries = (int)nh_box_volume(box);
    tiling.stages = (int)stages_of(&of);
    nh_cuda_step_set_own(&step, &tiling, sizeof tiling);
    step.work_tiles = tiling.work_tiles;
    step.threads = 32 * (value[WARPS] + 1);
    step.shared_bytes = shared_bytes(&of, tiling.stages);
    step.grid[0] = nh_min(step.work_tiles, cuda->multiprocessors);
    add_maps(&of, &step);
    return nh_cuda_step_add(operation, &step, &spec);
}

const struct nh_solver nh_solver_cuda_short90 = {
    NH_CUDA_SOLVER,           .name = "cuda.short90", .knob = knobs,          .refuse = refuse,
    .candidates = candidates, .work = work,           .add_steps = add_steps,
};
