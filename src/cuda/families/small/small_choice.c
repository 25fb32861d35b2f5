#include "small_choice.h"

#include "dtype.h"
#include "tensor_maps.h"
#include "small_box.h"
#include "small_roll.h"
#include "tile_count.h"
#include "top_n.h"

#include <math.h>
#include <string.h>

enum { LEAST_STAGES = 2, MOST_STAGES = 5, MOST_BOX = 1024 };

const struct nh_knob nh_small_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "small_knobs.def"
#undef KNOB
    {NULL, NULL}};

/* Blocks of 8 columns per chunk (NH_CHUNK_BLOCKS) where planes roll. One chunk of 40 has all 20 pairs of a window of 5
 * x 5 x 5, or the 19 of one of 3 x 7 x 7: this much unrolled code suits one warp per scheduler, as the compiler then
 * overlaps products with the softmax. Chunks of 8 suit several warps per scheduler. Timed (docs/log/small.md): at head
 * dim 64, one chunk is faster if there are that many columns. */
enum { ONE_CHUNK_BLOCKS = 40, ONE_CHUNK_WARPS = 4, SHORT_CHUNK_BLOCKS = 8 };

static bool is_one_chunk(const struct nh_problem *problem, const struct nh_small_shape *shape) {
    /* more than two chunks of NH_SMALL_CHUNK_BLOCKS each; head dim 64 in 16 bits */
    enum { LEAST_BLOCKS = 2 * NH_SMALL_CHUNK_BLOCKS + 1, LEAST_ROW_BYTES = 64 * 2 };
    return shape->blocks >= LEAST_BLOCKS && shape->blocks <= ONE_CHUNK_BLOCKS &&
           nh_small_row_bytes(problem, problem->dim) >= LEAST_ROW_BYTES;
}

/* Makes the halo of a launch roll if it can, with slots for so many work tiles ("held"). Warps load their rows into
 * registers first, which frees a stage, so that more work tiles use the halo than there are stages. By keys, statistics
 * take room as well, so that there are fewer extra ones, and none on a periodic axis, which takes a slot more. Away
 * from the ends of chains the slots are enough for one work tile more. */
static void roll(struct nh_small_launch *launch) {
    enum { HELD_LONGER = 2, HELD_LONGER_BY_KEYS = 1 };
    const struct nh_problem *problem = launch->problem;
    bool planes = nh_small_rolls_planes(problem, &launch->shape);
    bool around = problem->axis[NH_AXES - problem->rank].periodic;
    int32_t longer = !launch->keys ? HELD_LONGER : around ? 0 : HELD_LONGER_BY_KEYS;
    int32_t held = launch->stages + (planes ? 0 : longer);
    nh_small_roll(problem, launch->keys, held, &launch->shape);
    /* With NH_PASSES a plane is free as soon as the last warp tile that begins with it has passed it. */
    bool passes = problem->dtype != NHOOD_DTYPE_F16;
    launch->held = !launch->shape.slots ? launch->stages : planes ? held + passes : held + 1;
    /* in f32 a pair has three times the instructions, so chunks stay as they are */
    if (planes && launch->shape.slots && problem->dtype != NHOOD_DTYPE_F32 &&
        launch->shape.blocks > NH_SMALL_CHUNK_BLOCKS && !nh_small_masks_by_bits(launch))
        launch->shape.chunk_blocks =
            is_one_chunk(problem, &launch->shape) ? ONE_CHUNK_BLOCKS : SHORT_CHUNK_BLOCKS;
}

bool nh_small_launch_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        enum nh_small_kernel kernel, const int32_t *value,
                        struct nh_small_launch *launch) {
    bool keys = kernel == NH_SMALL_BACKWARD_KEY;
    int32_t s0 = value[NH_SMALL_S0], s1 = value[NH_SMALL_S1];
    const int32_t warp_tile[NH_AXES] = {s0, s1, 16 / (s0 * s1)};
    const int32_t *work_tile = value + (keys ? NH_SMALL_K0 : NH_SMALL_Q0);
    int32_t stages = value[keys ? NH_SMALL_KEY_STAGES : NH_SMALL_STAGES];
    bool boxes = stages > 0;
    *launch = (struct nh_small_launch){.problem = problem,
                                       .cuda = cuda,
                                       .kernel = kernel,
                                       .keys = keys,
                                       .warps = value[keys ? NH_SMALL_KEY_WARPS : NH_SMALL_WARPS],
                                       .turns = stages == NH_SMALL_IN_TURNS,
                                       .stages = boxes ? stages : 0};
    if (!nh_small_shape_of(problem, keys, work_tile, warp_tile, boxes, &launch->shape))
        return false;
    if (boxes) roll(launch);
    return true;
}

/* Warps of a block where the copy engine fetches, producer warps included. By keys, warps need more registers. */
static const int32_t query_warps[] = {8, 12, 16, 20, 24};
static const int32_t key_warps[] = {8, 12, 16};

/* Warps that compute where planes roll: the same number on each scheduler, as the fullest sets the pace, or few warps
 * that take whole work tiles. */
static const int32_t plane_warps[] = {4, 6, 8, 12};

enum { MOST_CANDIDATES = 6 };

/* The search among the launches of one kernel, and the cheapest that it found. */
struct choice {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    enum nh_small_kernel kernel;
    bool boxes; /* the copy engine can serve the problem */
    struct option {
        struct nh_small_box box;
        int32_t warps, stages;
        double ns;
    } option[MOST_CANDIDATES];
    struct nh_top_n top;
};

static bool by_keys(const struct choice *choice) {
    return choice->kernel == NH_SMALL_BACKWARD_KEY;
}

static void set_config(const struct choice *choice, int index, struct nh_config *config) {
    const struct option *option = &choice->option[index];
    const struct nh_small_box *box = &option->box;
    bool keys = by_keys(choice);
    memcpy(config->value + (keys ? NH_SMALL_K0 : NH_SMALL_Q0), box->work_tile,
           sizeof box->work_tile);
    config->value[NH_SMALL_S0] = box->warp_tile[0];
    config->value[NH_SMALL_S1] = box->warp_tile[1];
    config->value[keys ? NH_SMALL_KEY_WARPS : NH_SMALL_WARPS] = option->warps;
    config->value[keys ? NH_SMALL_KEY_STAGES : NH_SMALL_STAGES] = option->stages;
}

static const uint32_t ROW_TENSORS = NH_BIT(Q) | NH_BIT(K) | NH_BIT(V) | NH_BIT(O) | NH_BIT(D_O) |
                                    NH_BIT(D_Q) | NH_BIT(D_K) | NH_BIT(D_V);

/* Whether the copy engine can serve the problem at all. */
static bool boxes_possible(const struct nh_problem *problem, const struct nh_device *device) {
    int64_t bytes = problem->dim * (int64_t)nh_dtype_bytes(problem->dtype);
    return problem->dim == problem->dim_v && (bytes == 64 || bytes == 128) &&
           !nh_sm90_folds(problem) && !nh_sm90_any_far(problem) &&
           !nh_sm90_refuse_boxes(problem, device, ROW_TENSORS);
}

/* Whether several query heads share keys: by keys, a warp then keeps the sums of one warp tile while it goes over
 * them. */
static bool sums_stay(const struct nh_small_launch *launch) {
    return launch->keys && launch->problem->heads > launch->problem->kv_heads;
}

static bool warps_fit(const struct nh_small_launch *launch) {
    int64_t warp_tiles = launch->shape.work_tile_rows / 16;
    return launch->warps <= launch->stages * warp_tiles &&
           (!sums_stay(launch) || launch->warps == warp_tiles);
}

/* The number of launches whose warps suit the box, and of those for which a multiprocessor has room. */
struct tries {
    int made, fitting;
};

/* Adds the launch if there is room for it. */
static void consider(struct choice *choice, const struct nh_small_launch *launch,
                     const struct nh_small_box *box, struct tries *tries) {
    if (launch->stages && !warps_fit(launch)) return;
    const struct option option = {*box, launch->warps,
                                  launch->turns ? NH_SMALL_IN_TURNS : launch->stages,
                                  nh_small_launch_ns(launch)};
    tries->made++;
    if (!isfinite(option.ns)) return;
    tries->fitting++;
    nh_top_n_add(&choice->top, &option, option.ns);
}

/* Sets the shape of a halo that does not roll; it does not depend on stages and warps. */
static bool shape_fits(const struct nh_small_box *box, bool boxes, struct nh_small_launch *launch) {
    return nh_small_shape_of(launch->problem, launch->keys, box->work_tile, box->warp_tile, boxes,
                             &launch->shape) &&
           8 * launch->shape.blocks <= MOST_BOX &&
           (!boxes || (nh_sm90_boxes_fit(launch->problem, launch->shape.halo) &&
                       nh_sm90_boxes_fit(launch->problem, launch->shape.rows)));
}

/* Considers the launch whose keys and values share one place: with a warp per warp tile, which keeps its scores in
 * registers. */
static void consider_turns(struct choice *choice, const struct nh_small_box *box,
                           struct nh_small_launch launch) {
    enum { MOST_BLOCKS = 16, MOST_WARPS = 16 };
    int64_t warp_tiles = nh_box_volume(box->work_tile) / 16;
    struct tries tries = {0, 0};
    bool bias_gradient = launch.kernel == NH_SMALL_BACKWARD_QUERY && launch.problem->has_bias;
    if (launch.problem->dtype != NHOOD_DTYPE_F32 || bias_gradient || sums_stay(&launch) ||
        warp_tiles > MOST_WARPS || !shape_fits(box, false, &launch) ||
        launch.shape.blocks > MOST_BLOCKS)
        return;
    launch.turns = true;
    launch.warps = (int32_t)warp_tiles;
    consider(choice, &launch, box, &tries);
}

/* Whether chains of planes are worth it. At the start of a chain, a block has finished all its work tiles and waits for
 * as many planes as the window has. Timed, chains were faster with up to 0.26 such planes per work tile, and slower
 * with 0.3. */
static bool chains_pay(const struct nh_small_launch *launch) {
    const double most_planes = 0.28;
    const struct nh_problem *problem = launch->problem;
    double blocks = (double)launch->cuda->multiprocessors * (double)nh_small_residents(launch);
    double length = (double)nh_longest_rows(&problem->axis[0], false);
    double tiles = (double)(problem->batch * problem->heads) * launch->shape.work_tiles / blocks;
    double planes = ceil(tiles / length) * (double)(launch->shape.columns[0] - 1);
    return planes < most_planes * tiles;
}

/* Whether this number of warps suits planes: one per scheduler if all columns are one chunk; else two or more per
 * scheduler, or as many as take whole work tiles. */
static bool plane_warps_fit(const struct nh_small_launch *launch, const struct nh_small_box *box) {
    if (launch->shape.chunk_blocks == ONE_CHUNK_BLOCKS) return launch->warps == ONE_CHUNK_WARPS;
    return launch->warps >= 2 * ONE_CHUNK_WARPS || launch->warps % box->warps == 0;
}

/* Considers launches with this many stages. Returns whether a multiprocessor has room for any. */
static bool consider_stages(struct choice *choice, const struct nh_small_box *box,
                            const struct nh_small_shape *whole, struct nh_small_launch *launch) {
    bool planes = nh_small_is_plane(launch->problem, box);
    const int32_t *warps = planes ? plane_warps : launch->keys ? key_warps : query_warps;
    size_t count = planes         ? sizeof plane_warps / sizeof *warps
                   : launch->keys ? sizeof key_warps / sizeof *warps
                                  : sizeof query_warps / sizeof *warps;
    struct tries tries = {0, 0};
    launch->shape = *whole;
    roll(launch);
    if (planes && !launch->shape.slots) return false;
    /* Query heads that share keys need a warp per warp tile. */
    launch->warps = box->warps;
    if (!planes) consider(choice, launch, box, &tries);
    for (size_t i = 0; i < count; i++) {
        launch->warps = planes ? warps[i] : warps[i] - nh_small_fetchers(launch);
        if (planes ? plane_warps_fit(launch, box) && chains_pay(launch)
                   : launch->warps != box->warps)
            consider(choice, launch, box, &tries);
    }
    return tries.fitting || !tries.made;
}

/* Whether halos of a volume may have a seam. With one stage nothing else is under way while a warp copies what is
 * beyond the seam: docs/log/small.md has 11.0 and 31.2 ms where other configs take 2.6 and 8.5. */
static bool volume_has_seams(const struct nh_problem *problem) {
    return nh_problem_periodic(problem) && problem->axis[0].length > 1;
}

static void consider_box(struct choice *choice, const struct nh_small_box *box) {
    struct nh_small_launch launch = {.problem = choice->problem,
                                     .cuda = choice->cuda,
                                     .kernel = choice->kernel,
                                     .keys = by_keys(choice),
                                     .warps = box->warps};
    struct tries tries = {0, 0};
    bool planes = nh_small_is_plane(choice->problem, box);
    if (!planes && shape_fits(box, false, &launch)) consider(choice, &launch, box, &tries);
    if (!planes) consider_turns(choice, box, launch);
    if (!choice->boxes || !shape_fits(box, true, &launch)) return;
    const struct nh_small_shape whole = launch.shape;
    /* With one stage the block waits for every halo: only for halos of which there is no room for two. */
    for (launch.stages = LEAST_STAGES; launch.stages <= MOST_STAGES; launch.stages++)
        if (!consider_stages(choice, box, &whole, &launch)) break;
    if (planes || launch.stages > LEAST_STAGES || volume_has_seams(choice->problem)) return;
    launch.stages = 1;
    consider_stages(choice, box, &whole, &launch);
}

/* Searches the launches of one kernel. warp_tile: extents that the boxes must have, or NULL. Boxes that stick out are
 * tried only if no other one fits, as on small grids. */
static void choose(const struct nh_problem *problem, const struct nh_device *device,
                   enum nh_small_kernel kernel, const int32_t *warp_tile, struct choice *choice) {
    struct nh_small_boxes boxes;
    choice->problem = problem;
    choice->cuda = device->backend;
    choice->kernel = kernel;
    choice->boxes = boxes_possible(problem, device);
    nh_top_n_start(&choice->top, INFINITY, choice->option, sizeof *choice->option, MOST_CANDIDATES);
    nh_small_list_boxes(problem, by_keys(choice), &boxes);
    for (int out = 0; out < 2 && !choice->top.count; out++)
        for (int i = 0; i < boxes.count; i++) {
            const struct nh_small_box *box = &boxes.box[i];
            if (nh_small_sticks_out(problem, by_keys(choice), box) == out &&
                (!warp_tile || memcmp(warp_tile, box->warp_tile, sizeof box->warp_tile) == 0))
                consider_box(choice, box);
        }
}

/* Which choices of the two backward launches are combined: the best of both, then each with variants of the other. */
static const int pairs[MOST_CANDIDATES][2] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {0, 2}};

static int search(const struct nh_problem *problem, const struct nh_device *device,
                  struct nh_config config[MOST_CANDIDATES]) {
    bool forward = problem->op == NHOOD_OP_FWD;
    enum nh_small_kernel by_queries = forward ? NH_SMALL_FORWARD : NH_SMALL_BACKWARD_QUERY;
    if (problem->window_count > MOST_BOX) return 0; /* some query sees a whole window */
    struct choice queries, keys;
    choose(problem, device, by_queries, NULL, &queries);
    const int32_t *warp_tile = queries.top.count ? queries.option[0].box.warp_tile : NULL;
    int count = 0;
    if (!forward && warp_tile) choose(problem, device, NH_SMALL_BACKWARD_KEY, warp_tile, &keys);
    for (int i = 0; i < MOST_CANDIDATES; i++) {
        int q = forward ? i : pairs[i][0], k = pairs[i][1];
        if (q >= queries.top.count) continue;
        config[count] = (struct nh_config){{0}};
        set_config(&queries, q, &config[count]);
        if (!forward) {
            if (k >= keys.top.count || memcmp(queries.option[q].box.warp_tile, warp_tile,
                                              NH_AXES * sizeof *warp_tile) != 0)
                continue;
            set_config(&keys, k, &config[count]);
        }
        count++;
    }
    return count;
}

/* A solver is first asked whether it refuses and then for its candidates: each thread remembers its last search. */
int nh_small_candidates(const struct nh_problem *problem, const struct nh_device *device,
                        double below_ns, struct nh_config *config, int capacity) {
    (void)below_ns;
    static _Thread_local struct {
        nhood_device_info device;
        struct nh_problem problem;
        struct nh_config config[MOST_CANDIDATES];
        int count;
    } last;
    if (strcmp(last.device.description, device->info.description) != 0 ||
        memcmp(&last.problem, problem, sizeof *problem) != 0) {
        last.count = search(problem, device, last.config);
        last.device = device->info;
        memcpy(&last.problem, problem, sizeof *problem);
    }
    int count = (int)nh_min(capacity, last.count);
    memcpy(config, last.config, (size_t)count * sizeof *config);
    return count;
}
