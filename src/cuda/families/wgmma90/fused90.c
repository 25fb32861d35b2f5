/* cuda.fused90: the fused forward pass of sm_90 (fused90_forward.cu): problems, needs and work of configs, launches. */
#include "fused90.h"

#include "cuda_family.h"
#include "launch90.h"
#include "permuted_axes.h"
#include "rates.h"
#include "tensor_maps.h"
#include "value_parts.h"

#include <math.h>
#include <string.h>

enum { MOST_DIM = 256 };
/* The step that masks scores (fused90_mask_step.cuh) has this depth. */
enum { MASK_DEPTH = 16 };
/* A warpgroup tile whose warps skip key tiles is 4 x 4 x 4 or, in 2-D, 8 x 8; its warps follow along the first axis. */
enum { SIDE = 4, SIDE_2D = 8, WARPS_OF_GROUP = 4 };

static const struct nh_knob knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "fused90_knobs.def"
#undef KNOB
    {NULL, NULL}};

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    struct nh_problem room;
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    if (problem->dim_v > NH_MOST_VALUES || (problem->dim_v > MOST_DIM && problem->dim_v % 16))
        return "value dims must be multiples of 16 from 32 to 1024";
    if (nh_problem_periodic(problem) && !nh_fused90_goes_around(problem))
        return "a window and a query tile go around a periodic axis that no key tile divides";
    return nh_sm90_refuse(nh_value_part(problem, 0, &room), device,
                          NH_BIT(Q) | NH_BIT(K) | NH_BIT(V) | NH_BIT(EXTRA_K) | NH_BIT(EXTRA_V),
                          NH_BIT(O), MOST_DIM);
}

/* ---- what a config needs ---- */

/* The configuration of a kernel as far as shared memory and registers depend on it. */
static struct wgmma90_config shape_of(const struct nh_fused90 *of) {
    const int32_t *value = of->value;
    struct wgmma90_config config = nh_wgmma90_config(of->problem, WGMMA90_FORWARD);
    memcpy(config.own, value + QX, sizeof config.own);
    memcpy(config.loop, value + KX, sizeof config.loop);
    config.own_heads = value[QH];
    config.loop_boxes = value[TILE_BOXES];
    config.warpgroups = value[WARPGROUPS];
    config.stack = value[STACK];
    config.stages = value[STAGES];
    config.q_in_registers = value[Q_IN_REGISTERS];
    config.repair_apart = value[REPAIR_APART];
    config.mask = nh_fused90_has_mask_step(value) ? WGMMA90_MASK_PRODUCT
                  : wgmma90_runs(&config) <= 4    ? WGMMA90_MASK_PLACES
                                                  : WGMMA90_MASK_BITS;
    return config;
}

static struct wgmma90_config loop_of(const int32_t *value) {
    return (struct wgmma90_config){.loop = {value[KX], value[KY], value[KZ]},
                                   .loop_boxes = value[TILE_BOXES]};
}

int64_t nh_fused90_keys(const int32_t *value) {
    const struct wgmma90_config config = loop_of(value);
    return wgmma90_loop_rows(&config);
}

int64_t nh_fused90_columns(const int32_t *value) {
    const struct wgmma90_config config = loop_of(value);
    return wgmma90_loop_columns(&config);
}

double nh_fused90_copies(const struct nh_fused90 *of) {
    return (double)(of->problem->batch * of->problem->heads / of->value[QH]);
}

/* A thread's sums, scores, weights and, if they are kept in registers, queries have to fit what setmaxnreg gives it,
 * less the registers for addresses and masks. Whether there is a queue, whose barriers are in shared memory, too, is not
 * known yet where stages are chosen, so that there is room for it. */
int32_t nh_fused90_stages(const struct nh_fused90 *of, int32_t most) {
    struct wgmma90_config config = shape_of(of);
    int64_t held = config.q_in_registers ? config.dim / 4 : 0;
    int64_t registers = config.dim_v / 2 + wgmma90_loop_columns(&config) / 2 +
                        wgmma90_loop_depth(&config) / 4 + held;
    if (held && config.mask == WGMMA90_MASK_PRODUCT)
        return 0; /* ptxas then waits for each product */
    if (registers > (config.warpgroups == 2 ? 204 : 124)) return 0;
    config.repair_apart = 1;
    for (config.stages = most; config.stages > 1; config.stages--)
        if (wgmma90_block_bytes(&config) <= nh_cuda_block_room(of->cuda, of->for_group))
            return config.stages;
    return 0;
}

/* What problems have in common whose warps may skip key tiles. */
static bool may_skip(const struct nh_problem *problem) {
    enum { MOST_SKIPPING_DIM = 64 };
    return nh_max(problem->dim, problem->dim_v) <= MOST_SKIPPING_DIM &&
           nh_sm90_windows_slide(problem) && !nh_problem_periodic(problem);
}

/* Whether the tensors have all keys of each query's window on an axis: then its rows see as many keys as in a whole grid. */
static bool windows_are_whole(const struct nh_axis *axis) {
    if (!nh_is_cut(axis)) return true;
    if (axis->periodic || axis->windows.kind || axis->dilation > 1) return false;
    const struct nh_box *query = &axis->query, *key = &axis->key;
    const int64_t last = query->offset + query->length - 1;
    return nh_axis_window(axis, query->offset).begin >= key->offset &&
           nh_axis_window(axis, last).end <= key->offset + key->length;
}

/* Timed on an H200, skipping planes is faster for cubes of 4 x 4 x 4 rows, windows from 5 to 11 and head dims up to 64.
 * Lines follow each other along axis 1. If a window lacked keys there, the lines that all rows see (WHOLE_BEGIN of
 * fused90_softmax.cuh, or the places of fused90_mask_step.cuh) would not be known in advance. */
static bool planes_may_be_skipped(const struct nh_problem *problem) {
    enum { LEAST_WINDOW = 5, MOST_WINDOW = 11 };
    return problem->rank == 3 && may_skip(problem) && windows_are_whole(&problem->axis[1]) &&
           problem->axis[0].window >= LEAST_WINDOW && problem->axis[0].window <= MOST_WINDOW;
}

/* Scores of 112 columns are as many as registers hold. */
enum { MOST_LINE_KEYS = 112 };

/* Every row must see some of each tile that its warp sees, and the operand of masks has room for two tiles of a plane. */
static bool lines_of_plane(const struct nh_problem *problem, int32_t tile[3]) {
    enum { MOST_TILES = 2 };
    int64_t lines = problem->axis[1].window + SIDE - 1, line = problem->axis[2].window + SIDE - 1;
    int64_t tiles = nh_ceil_div(lines * line, MOST_LINE_KEYS), per_tile = nh_ceil_div(lines, tiles);
    tile[1] = (int32_t)per_tile;
    tile[2] = (int32_t)line;
    return planes_may_be_skipped(problem) && tiles <= MOST_TILES &&
           per_tile * line <= MOST_LINE_KEYS && (tiles - 1) * per_tile < problem->axis[1].window;
}

/* In 2-D: four lines, which divide what is between the first lines of two warpgroups, or two. Timed on an H200, this is
 * faster than masks by bits for windows from 11 to 43 (docs/log/wgmma90.md, 2026-11-28); smaller ones were not timed. */
static bool lines_of_image(const struct nh_problem *problem, int32_t tile[3]) {
    enum { LEAST_WINDOW = 11 };
    int64_t window = nh_min(problem->axis[1].window, problem->axis[2].window),
            line = problem->axis[2].window + SIDE_2D - 1;
    tile[1] = 4 * line <= MOST_LINE_KEYS ? 4 : 2;
    tile[2] = (int32_t)line;
    return problem->rank == 2 && may_skip(problem) && window >= LEAST_WINDOW &&
           tile[1] * line <= MOST_LINE_KEYS;
}

bool nh_fused90_lines(const struct nh_problem *problem, int32_t tile[3]) {
    const double least_scale = 0x1p-64; /* times -3e38, a masked score, it is far below 0 */
    tile[0] = 1;
    return (problem->rank == 3 ? lines_of_plane : lines_of_image)(problem, tile) &&
           tile[2] % 8 != 0 && windows_are_whole(&problem->axis[2]) &&
           problem->scale >= least_scale;
}

bool nh_fused90_has_mask_step(const int32_t *value) {
    return value[KZ] % 8 && value[TILE_BOXES] == 1;
}

bool nh_fused90_skips(const struct nh_fused90 *of) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->value;
    const bool image = problem->rank == 2;
    const int stack = NH_AXES - problem->rank;
    const int32_t volume_tile[3] = {SIDE, SIDE, SIDE}, image_tile[3] = {1, SIDE_2D, SIDE_2D};
    int32_t tile[3], lines[3];
    if ((!image && value[WARPGROUPS] != 3) || value[STACK] != stack || value[QH] != 1 ||
        value[KX] != 1 || value[TILE_BOXES] != 1 ||
        !nh_sm90_warpgroup_tile(value + QX, value[QH], stack, tile) ||
        memcmp(tile, image ? image_tile : volume_tile, sizeof tile) != 0)
        return false;
    if (nh_fused90_has_mask_step(value))
        return nh_fused90_lines(problem, lines) && !memcmp(value + KX, lines, sizeof lines);
    return planes_may_be_skipped(problem) && value[KZ] == 8 &&
           value[KY] >= problem->axis[1].window + SIDE - 1;
}

/* ---- loops and clusters ---- */

static double extra_tiles(const struct nh_fused90 *of) {
    return (double)nh_ceil_div(of->problem->extra_tokens, nh_fused90_keys(of->value));
}

struct nh_fused90_loops nh_fused90_loops_of(const struct nh_fused90 *of) {
    const int32_t *value = of->value, *q = value + QX, *k = value + KX;
    int32_t warpgroup_tile[3];
    nh_sm90_warpgroup_tile(q, value[QH], value[STACK], warpgroup_tile);
    if (value[TILE_BOXES] == 1)
        return (struct nh_fused90_loops){
            nh_tiling_count(of->problem, q, q, k, false, true),
            nh_tiling_count(of->problem, q, warpgroup_tile, k, false, true)};
    const struct nh_box_tile_count count = nh_box_tile_count(
        of->problem, q, warpgroup_tile[value[STACK]], value[STACK], k, value[TILE_BOXES]);
    return (struct nh_fused90_loops){{count.work_tiles, count.fetched, 0, 0},
                                     {count.work_tiles, count.multiplied, count.masked, 0}};
}

/* Whether the last query tile of some dilation group has a warpgroup with padding rows only. In a cluster, where
 * warpgroups do not skip, it would multiply every key tile for nothing. */
static bool pads_a_warpgroup(const struct nh_fused90 *of) {
    const int32_t *value = of->value;
    const struct nh_axis *axis = &of->problem->axis[value[STACK]];
    const int64_t length[] = {nh_longest_rows(axis, false), axis->query.length / axis->dilation};
    int32_t tile[3], rows = value[QX + value[STACK]];
    if (!nh_sm90_warpgroup_tile(value + QX, value[QH], value[STACK], tile)) return false;
    for (int i = 0; i < 2; i++) {
        int64_t last = length[i] % rows;
        if (last > 0 && last <= rows - tile[value[STACK]]) return true;
    }
    return false;
}

int32_t nh_fused90_cluster(const struct nh_fused90 *of, const struct nh_tiling_count *fetched) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->value;
    const int32_t multiprocessors = of->cuda->multiprocessors;
    const struct wgmma90_config config = shape_of(of);
    double work_tiles = nh_fused90_copies(of) * fetched->work_tiles;
    if (of->for_group || !nh_cluster_possible(multiprocessors, work_tiles) || problem->has_bias ||
        value[TILE_BOXES] > 1 || nh_fused90_has_mask_step(value) || pads_a_warpgroup(of) ||
        wgmma90_own_rows(&config) * wgmma90_sums_pitch(config.dim_v) >
            (int)wgmma90_layout_at(&config, 0).masks)
        return 1;
    return nh_cluster_blocks(multiprocessors, work_tiles,
                             fetched->visited / fetched->work_tiles + extra_tiles(of));
}

/* ---- work ---- */

/* Instructions per logit for a bias, as of commit 3c75332; few timings have one. Rows of several heads share none. */
static double bias_instructions(const struct nh_fused90 *of) {
    enum { SHARED = 15, APART = 19 };
    return !of->problem->has_bias ? 0 : of->value[QH] > 1 ? APART : SHARED;
}

/* The share of the scores that a warpgroup multiplies of which its warps compute weights. */
static double weighed_share(const struct nh_fused90 *of) {
    if (!nh_fused90_has_mask_step(of->value)) return 1;
    const int stack = of->value[STACK];
    const int64_t rows = of->problem->rank == 3 ? SIDE : SIDE_2D, extent = of->value[KX + stack];
    /* n rows see n more positions than this; so many touch as many tiles on average, times `extent` */
    const int64_t beside = of->problem->axis[stack].window - 1 + extent - 1;
    return (double)(beside + rows / WARPS_OF_GROUP) / (double)(beside + rows);
}

/* Sets the work of a block that fetches so many tiles and whose warpgroups multiply `seen` of them, `masked` with
 * masks. by_line: masks across lines are computed once per line of tiles (fused90_softmax.cuh). */
static void set_units(const struct nh_fused90 *of, double fetched, double seen, double masked,
                      bool by_line, struct nh_launch_work *launch) {
    const struct nh_problem *problem = of->problem;
    const struct nh_cuda_device *cuda = of->cuda;
    const bool held = of->value[Q_IN_REGISTERS];
    double keys = (double)nh_fused90_keys(of->value),
           scores = 64 * (double)nh_fused90_columns(of->value), groups = of->value[WARPGROUPS];
    double dims = (double)(problem->dim + problem->dim_v), masks = nh_cuda_lane_clocks(scores);
    const bool mask_step = nh_fused90_has_mask_step(of->value);
    double products = seen * scores * (dims + (mask_step ? MASK_DEPTH : 0));
    double tensor = products / nh_cuda_products_per_clock(problem, cuda, true);
    launch->unit[NH_WORK_TENSOR] = tensor;
    launch->unit[NH_WORK_SHARED] = held ? 0 : tensor; /* queries are read for each product */
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(seen * scores * weighed_share(of));
    if (!mask_step) launch->unit[by_line ? NH_WORK_LINE : NH_WORK_MASK] = masked * masks;
    launch->unit[NH_WORK_IDLE] = by_line ? (groups * fetched - seen) * masks : 0;
    launch->unit[NH_WORK_L2] = nh_cuda_l2_clocks(cuda, (fetched * keys + 64 * groups) * dims * 2);
    launch->unit[NH_WORK_STEP] = seen / groups;
    launch->unit[NH_WORK_INDEX] = problem->rank;
    /* setmaxnreg is slow to move registers between warpgroups */
    launch->unit[NH_WORK_SPILL] = groups > 2 ? dims : 0;
    launch->unit[NH_WORK_VECTOR] =
        nh_cuda_lane_clocks(64 * groups * dims + seen * scores * bias_instructions(of));
    launch->unit[NH_WORK_COPY] = held ? (problem->rank - 1) * (double)problem->dim : 0;
}

/* Blocks of a cluster share a work tile's key tiles. Their warpgroups multiply, with masks, what others skip. */
void nh_fused90_add_work(const struct nh_fused90 *of, const struct nh_fused90_loops *loops,
                         struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->value;
    double cluster = nh_fused90_cluster(of, &loops->fetched);
    double groups = value[WARPGROUPS], work_tiles = loops->seen.work_tiles;
    double extra = extra_tiles(of);
    double fetched = loops->fetched.visited / work_tiles + extra,
           seen = loops->seen.visited / work_tiles + groups * extra,
           masked = loops->seen.partial / work_tiles;
    double blocks = nh_fused90_copies(of) * work_tiles, tiles = seen;
    bool by_line = cluster == 1 && value[STACK] == 0 && !problem->has_bias &&
                   value[TILE_BOXES] * value[KY] * value[KZ] <= 32;
    if (cluster > 1) {
        tiles = groups * fetched;
        masked += tiles - seen;
        fetched = ceil(fetched / cluster);
        seen = groups * fetched;
    }
    struct nh_launch_work *launch = nh_work_add(work, NH_KERNEL_FUSED90);
    launch->blocks = blocks * cluster;
    launch->warps = 4 * groups;
    launch->steps = fetched;
    launch->longest = fmax(1, (loops->fetched.longest + extra) / cluster / fetched);
    launch->serial = 1 / groups;
    launch->code = (double)(problem->dim + problem->dim_v);
    launch->tiles = blocks * tiles;
    launch->masked_tiles = blocks * masked;
    launch->scores = 64 * (double)nh_fused90_columns(value);
    launch->flops = 2 * launch->tiles * launch->scores * launch->code;
    set_units(of, fetched, seen, masked / cluster, by_line, launch);
    if (cluster > 1)
        launch->unit[NH_WORK_REDUCE] =
            nh_cluster_reduction_clocks(64 * value[WARPGROUPS], problem->dim_v);
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const struct nh_fused90 all = {problem, device->backend, config->value, device->for_group};
    const struct nh_fused90_loops loops = nh_fused90_loops_of(&all);
    nh_work_start(work, NH_OPERATION_FUSED90, problem);
    for (int part = 0; part < nh_value_parts(problem); part++) {
        struct nh_problem room;
        const struct nh_fused90 of = {nh_value_part(problem, part, &room), device->backend,
                                      config->value, device->for_group};
        nh_fused90_add_work(&of, &loops, work);
    }
    return true;
}

/* ---- configs ---- */

/* Rows that are not finite can be repaired by a launch of their own, after another one that clears the note of them.
 * Without that code, a large kernel compiles in three quarters of the time, but the two launches take 4 us. They are
 * used for calls that take long. If tensors cover a part of a grid, whose work tiles see anything from none to all of
 * their windows, a queue then hands out work tiles. */
enum { WORTH_LAUNCHES_NS = 300000, WORTH_QUEUE_NS = 100000 };

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct nh_top_n best;
    struct nh_problem room;
    nh_top_configs_start(&best, config, capacity);
    nh_fused90_search(nh_value_part(problem, 0, &room), device->backend, device->for_group, &best);
    int count = best.count;
    const double worth_ns = nh_problem_partial(problem) ? WORTH_QUEUE_NS : WORTH_LAUNCHES_NS;
    for (int i = 0; i < count; i++)
        config[i].value[REPAIR_APART] = best.ns[i] > worth_ns;
    if (!count || count == capacity) return count;
    /* Adds the best config with the other choice, for those who time or check candidates. */
    config[count] = config[0];
    config[count].value[REPAIR_APART] ^= 1;
    return count + 1;
}

/* ---- launches ---- */

/* The configuration of the kernel, complete but for what nh_wgmma90_configure adds. */
static struct wgmma90_config config_of(const struct nh_fused90 *of) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->value, *q = value + QX, *k = value + KX;
    const struct nh_tiling_count fetched = nh_tiling_count(problem, q, q, k, false, true);
    struct wgmma90_config config = shape_of(of);
    config.cluster = nh_fused90_cluster(of, &fetched);
    config.skipping = config.cluster > 1 ? WGMMA90_SKIP_NOTHING : WGMMA90_SKIP_TILES;
    if (!nh_fused90_skips(of)) return config;
    if (config.cluster == 1) config.skipping = WGMMA90_SKIP_PLANES;
    config.window_y = (int)problem->axis[1].window;
    if (config.mask == WGMMA90_MASK_PRODUCT) config.window_z = (int)problem->axis[2].window;
    return config;
}

/* Begins a launch for a part of the values, whose problem is given beside that of all. The first part stores LSE. */
static void init_part(struct nh_cuda_step *step, const struct nh_problem *problem,
                      const struct nh_problem *all, int part) {
    nh_cuda_step_init(step, problem);
    nh_value_part_bind(step, all, part);
    if (part) step->binding[NH_LSE].from = NH_BIND_NONE;
}

/* of: of the part's problem. words: of the queue, in the workspace. */
static nhood_status add_forward(struct nh_cuda_operation *operation, const struct nh_fused90 *of,
                                const struct nh_problem *all, int part, size_t words) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->value, *q = value + QX, *k = value + KX;
    const struct wgmma90_config config = config_of(of);
    int32_t warpgroup_tile[3];
    struct nh_kernel_spec spec = {.source = "fused90_forward.cu"};
    struct nh_cuda_step step;
    nh_wgmma90_configure(&spec, problem, config);
    init_part(&step, problem, all, part);
    if (value[REPAIR_APART]) nh_cuda_bind_offset(&step, NH_QUEUE, words);
    nhood_status status =
        nh_tiling_set(problem, q, value[QH], false, value[ORDER], &step.own.tiling);
    if (status) return status;
    step.work_tiles = step.own.tiling.work_tiles;
    step.threads = 128 * (value[WARPGROUPS] + 1);
    step.shared_bytes = wgmma90_shared_bytes(&config);
    step.loop_blocks = of->cuda->multiprocessors;
    step.grid[0] = nh_min(step.work_tiles, step.loop_blocks);
    nh_cluster_share(&step, config.cluster);
    nh_sm90_warpgroup_tile(q, value[QH], value[STACK], warpgroup_tile);
    step.map[step.maps++] = nh_sm90_map(problem, NHOOD_Q, warpgroup_tile, value[QH]);
    step.map[step.maps++] = nh_sm90_map(problem, NHOOD_K, k, 1);
    step.map[step.maps++] = nh_sm90_map(problem, NHOOD_V, k, 1);
    nh_sm90_loop_over_extra(&step, problem, wgmma90_loop_rows(&config));
    nh_sm90_add_twins(&step, problem);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status add_part(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             const struct nh_config *config, int part, size_t words) {
    struct nh_problem room;
    const struct nh_fused90 of = {nh_value_part(problem, part, &room), operation->device,
                                  config->value, operation->for_group};
    if (!config->value[REPAIR_APART]) return add_forward(operation, &of, problem, part, 0);
    struct nh_kernel_spec spec = {.source = "repair_clear.cu"};
    struct nh_cuda_step clear, repair;
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    init_part(&clear, of.problem, problem, part);
    nh_cuda_bind_offset(&clear, NH_QUEUE, words);
    repair = clear;
    clear.threads = 32;
    nhood_status status = nh_cuda_step_add(operation, &clear, &spec);
    if (!status) status = add_forward(operation, &of, problem, part, words);
    if (status) return status;
    return nh_repair_add(operation, of.problem, &repair, "fused90_repair.cu", MOST_DIM / 8);
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const bool apart = config->value[REPAIR_APART];
    const size_t words = apart ? nh_cuda_reserve(operation, 2 * sizeof(uint32_t)) : 0;
    nhood_status status = NHOOD_OK;
    for (int part = 0; !status && part < nh_value_parts(problem); part++)
        status = add_part(operation, problem, config, part, words);
    return status;
}

const struct nh_solver nh_solver_cuda_fused90 = {
    NH_CUDA_SOLVER("cuda.fused90", knobs, refuse, candidates, work, add_steps),
    .view = nh_permuted_axes,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
};
