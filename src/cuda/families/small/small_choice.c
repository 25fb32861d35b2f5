#include "small_choice.h"

#include "box.h"
#include "dtype.h"
#include "tensor_maps.h"
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

/* Blocks in chunks of a plane's columns. One chunk has the 20 pairs of a window of 5 x 5 x 5 or the 19 of one of
 * 3 x 7 x 7: so much code is for one warp per scheduler, whose products the compiler moves past all softmax. Short chunks
 * are for several. Timed (docs/log/small.md): at head dim 64 the first is the faster where there are that many columns. */
enum { ONE_CHUNK_BLOCKS = 40, ONE_CHUNK_WARPS = 4, SHORT_CHUNK_BLOCKS = 8 };

static bool is_one_chunk(const struct nh_problem *problem, const struct nh_small_shape *shape) {
    /* more than two chunks of NH_SMALL_CHUNK_BLOCKS each; head dim 64 in 16 bits */
    enum { LEAST_BLOCKS = 2 * NH_SMALL_CHUNK_BLOCKS + 1, LEAST_ROW_BYTES = 64 * 2 };
    return shape->blocks >= LEAST_BLOCKS && shape->blocks <= ONE_CHUNK_BLOCKS &&
           nh_small_row_bytes(problem, problem->dim) >= LEAST_ROW_BYTES;
}

/* Makes the halo of a launch roll if it can. A warp takes its rows at once, so that more work tiles hold their part of
 * the halo than have stages; by keys it has statistics, too, and there is less room, around a circle, which takes a
 * slot more, none. Away from the ends of chains the slots do for one work tile more. */
static void roll(const struct nh_problem *problem, struct nh_small_launch *launch) {
    enum { HELD_LONGER = 2, HELD_LONGER_BY_KEYS = 1 };
    bool by_keys = launch->kernel == NH_SMALL_BACKWARD_KEY;
    bool planes = nh_small_rolls_planes(problem, &launch->shape);
    bool around = problem->axis[NH_AXES - problem->rank].periodic;
    int32_t longer = !by_keys ? HELD_LONGER : around ? 0 : HELD_LONGER_BY_KEYS;
    int32_t held = launch->stages + (planes ? 0 : longer);
    nh_small_roll(problem, by_keys ? NH_SMALL_KEYS : NH_SMALL_QUERIES, held, &launch->shape);
    /* a plane is free as soon as the last warp tile that begins with it is past it, as NH_PASSES has it */
    bool passes = problem->dtype != NHOOD_DTYPE_F16;
    launch->held = !launch->shape.slots ? launch->stages : planes ? held + passes : held + 1;
    /* in f32 a pair has three times the instructions */
    if (planes && launch->shape.slots && problem->dtype != NHOOD_DTYPE_F32 &&
        launch->shape.blocks > NH_SMALL_CHUNK_BLOCKS && !nh_small_masks_by_bits(problem, launch))
        launch->shape.chunk_blocks =
            is_one_chunk(problem, &launch->shape) ? ONE_CHUNK_BLOCKS : SHORT_CHUNK_BLOCKS;
}

bool nh_small_launch_of(const struct nh_problem *problem, enum nh_small_kernel kernel,
                        const int32_t *value, struct nh_small_launch *launch) {
    bool by_keys = kernel == NH_SMALL_BACKWARD_KEY;
    int32_t s0 = value[NH_SMALL_S0], s1 = value[NH_SMALL_S1];
    const int32_t warp_tile[NH_AXES] = {s0, s1, 16 / (s0 * s1)};
    launch->kernel = kernel;
    launch->warps = value[by_keys ? NH_SMALL_KEY_WARPS : NH_SMALL_WARPS];
    int32_t stages = value[by_keys ? NH_SMALL_KEY_STAGES : NH_SMALL_STAGES];
    launch->turns = stages == NH_SMALL_IN_TURNS;
    launch->stages = stages > 0 ? stages : 0;
    enum nh_small_rows rows = by_keys ? NH_SMALL_KEYS : NH_SMALL_QUERIES;
    bool boxes = launch->stages > 0;
    if (!nh_small_shape_of(problem, rows, value + (by_keys ? NH_SMALL_K0 : NH_SMALL_Q0), warp_tile,
                           boxes, &launch->shape))
        return false;
    launch->held = 0;
    if (boxes) roll(problem, launch);
    return true;
}

/* Extents of a work tile and a warp tile, and warps where threads copy: by keys one per warp tile, which keeps its
 * sums. */
struct box {
    int32_t work_tile[NH_AXES], warp_tile[NH_AXES], warps;
};

/* Lines of 4 modulo 8 rows leave no gaps in the halo. The last ones are for f32, whose halos take twice the bytes:
 * narrow boxes leave room for several work tiles. */
enum { QUERY_BOXES_OF_F32 = 2 };
static const struct box query_boxes[] = {
    {{1, 1, 64}, {1, 1, 16}, 4}, {{1, 1, 128}, {1, 1, 16}, 8}, {{1, 1, 256}, {1, 1, 16}, 8},
    {{1, 8, 28}, {1, 4, 4}, 7},  {{1, 8, 8}, {1, 4, 4}, 4},    {{1, 8, 12}, {1, 4, 4}, 6},
    {{1, 12, 12}, {1, 4, 4}, 9}, {{1, 8, 16}, {1, 4, 4}, 8},   {{1, 8, 20}, {1, 4, 4}, 5},
    {{1, 16, 16}, {1, 4, 4}, 8}, {{1, 12, 28}, {1, 4, 4}, 7},  {{1, 16, 28}, {1, 4, 4}, 7},
    {{1, 4, 28}, {1, 4, 4}, 7},  {{1, 4, 20}, {1, 4, 4}, 5},   {{2, 4, 8}, {2, 2, 4}, 4},
    {{4, 4, 4}, {2, 2, 4}, 4},   {{4, 4, 8}, {2, 2, 4}, 8},    {{4, 8, 8}, {2, 2, 4}, 8},
    {{4, 8, 12}, {2, 2, 4}, 8},  {{2, 8, 8}, {1, 4, 4}, 8},    {{4, 8, 8}, {1, 4, 4}, 8},
    {{1, 4, 8}, {1, 4, 4}, 2},   {{1, 4, 12}, {1, 4, 4}, 3},
};
static const struct box key_boxes[] = {
    {{1, 1, 64}, {1, 1, 16}, 4}, {{1, 1, 128}, {1, 1, 16}, 8}, {{1, 1, 256}, {1, 1, 16}, 16},
    {{1, 4, 8}, {1, 4, 4}, 2},   {{1, 8, 8}, {1, 4, 4}, 4},    {{1, 4, 16}, {1, 4, 4}, 4},
    {{1, 8, 12}, {1, 4, 4}, 6},  {{1, 8, 16}, {1, 4, 4}, 8},   {{1, 12, 12}, {1, 4, 4}, 9},
    {{1, 8, 28}, {1, 4, 4}, 14}, {{1, 16, 16}, {1, 4, 4}, 16}, {{1, 4, 28}, {1, 4, 4}, 7},
    {{1, 4, 12}, {1, 4, 4}, 3},  {{1, 8, 20}, {1, 4, 4}, 10},  {{2, 4, 4}, {2, 2, 4}, 2},
    {{4, 4, 4}, {2, 2, 4}, 4},   {{2, 4, 8}, {2, 2, 4}, 4},    {{4, 4, 8}, {2, 2, 4}, 8},
    {{4, 8, 8}, {2, 2, 4}, 16},  {{2, 8, 8}, {1, 4, 4}, 8},
};

/* One plane of a volume at a time, whose halos roll: each plane of keys is fetched once per column of work tiles. */
static const struct box plane_boxes[] = {
    {{1, 4, 12}, {1, 4, 4}, 3}, {{1, 8, 4}, {1, 4, 4}, 2},  {{1, 8, 8}, {1, 4, 4}, 4},
    {{1, 16, 4}, {1, 4, 4}, 4}, {{1, 8, 12}, {1, 4, 4}, 6},
};

/* Warp tiles of the boxes of three axes above. */
static const int32_t warp_tiles3[][NH_AXES] = {{2, 2, 4}, {1, 4, 4}};

/* Warps of a block where the copy engine fetches, those that fetch included. By keys they need more registers. */
static const int32_t query_warps[] = {8, 12, 16, 20, 24};
static const int32_t key_warps[] = {8, 12, 16};

/* Where planes roll, warps that work: as many for each scheduler, as the fullest sets the pace, or few that take whole
 * work tiles. */
static const int32_t plane_warps[] = {4, 6, 8, 12};

enum { MOST_CANDIDATES = 6 };

/* The cheapest launches of a kernel. */
struct choice {
    struct option {
        struct box box;
        int32_t warps, stages;
        double ns;
    } option[MOST_CANDIDATES];
    struct nh_top_n top;
};

static void set_config(enum nh_small_kernel kernel, const struct option *option,
                       struct nh_config *config) {
    bool by_keys = kernel == NH_SMALL_BACKWARD_KEY;
    const struct box *box = &option->box;
    memcpy(config->value + (by_keys ? NH_SMALL_K0 : NH_SMALL_Q0), box->work_tile,
           sizeof box->work_tile);
    config->value[NH_SMALL_S0] = box->warp_tile[0];
    config->value[NH_SMALL_S1] = box->warp_tile[1];
    config->value[by_keys ? NH_SMALL_KEY_WARPS : NH_SMALL_WARPS] = option->warps;
    config->value[by_keys ? NH_SMALL_KEY_STAGES : NH_SMALL_STAGES] = option->stages;
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

static bool warps_fit(const struct nh_problem *problem, const struct nh_small_launch *launch) {
    int64_t warp_tiles = launch->shape.work_tile_rows / 16;
    /* a warp keeps the sums of one warp tile while the heads that share it pass by */
    bool shared = launch->kernel == NH_SMALL_BACKWARD_KEY && problem->heads > problem->kv_heads;
    return launch->warps <= launch->stages * warp_tiles && (!shared || launch->warps == warp_tiles);
}

/* Launches that warps can share out, and those of them that a multiprocessor has room for. */
struct tries {
    int made, fitting;
};

/* Adds the launch if there is room for it. */
static void consider(const struct nh_problem *problem, const struct nh_device *device,
                     const struct nh_small_launch *launch, const struct box *box,
                     struct choice *choice, struct tries *tries) {
    if (launch->stages && !warps_fit(problem, launch)) return;
    const struct option option = {*box, launch->warps,
                                  launch->turns ? NH_SMALL_IN_TURNS : launch->stages,
                                  nh_small_launch_ns(problem, device->backend, launch)};
    tries->made++;
    if (!isfinite(option.ns)) return;
    tries->fitting++;
    nh_top_n_add(&choice->top, &option, option.ns);
}

/* Sets the shape of a halo that does not roll, which stages and warps have no part in. */
static bool shape_fits(const struct nh_problem *problem, const struct box *box, bool boxes,
                       struct nh_small_launch *launch) {
    enum nh_small_rows rows =
        launch->kernel == NH_SMALL_BACKWARD_KEY ? NH_SMALL_KEYS : NH_SMALL_QUERIES;
    return nh_small_shape_of(problem, rows, box->work_tile, box->warp_tile, boxes,
                             &launch->shape) &&
           8 * launch->shape.blocks <= MOST_BOX &&
           (!boxes || (nh_sm90_boxes_fit(problem, launch->shape.halo) &&
                       nh_sm90_boxes_fit(problem, launch->shape.rows)));
}

/* As many warps as a work tile has warp tiles, which keep their scores in registers. */
static void consider_turns(const struct nh_problem *problem, const struct nh_device *device,
                           const struct box *box, struct nh_small_launch launch,
                           struct choice *choice) {
    enum { MOST_BLOCKS = 16, MOST_WARPS = 16 };
    int64_t warp_tiles = nh_box_volume(box->work_tile) / 16;
    struct tries tries = {0, 0};
    bool bias_gradient = launch.kernel == NH_SMALL_BACKWARD_QUERY && problem->has_bias;
    bool shared = launch.kernel == NH_SMALL_BACKWARD_KEY && problem->heads > problem->kv_heads;
    if (problem->dtype != NHOOD_DTYPE_F32 || bias_gradient || shared || warp_tiles > MOST_WARPS ||
        !shape_fits(problem, box, false, &launch) || launch.shape.blocks > MOST_BLOCKS)
        return;
    launch.turns = true;
    launch.warps = (int32_t)warp_tiles;
    consider(problem, device, &launch, box, choice, &tries);
}

/* Whether the box is one plane of a volume, for halos that must roll. */
static bool is_plane(const struct nh_problem *problem, const struct box *box) {
    return problem->rank == 3 && box->work_tile[0] == 1;
}

/* Whether chains of planes are worth their starts, at which a block is done with all work tiles and waits for as many
 * planes as the window has: timed, they were at up to 0.26 planes per work tile and not at 0.3. */
static bool chains_pay(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_small_launch *launch) {
    const double most_planes = 0.28;
    const struct nh_cuda_device *cuda = device->backend;
    double blocks =
        (double)cuda->multiprocessors * (double)nh_small_residents(problem, cuda, launch);
    double length = (double)nh_longest_rows(&problem->axis[0], false);
    double tiles = (double)(problem->batch * problem->heads) * launch->shape.work_tiles / blocks;
    double planes = ceil(tiles / length) * (double)(launch->shape.columns[0] - 1);
    return planes < most_planes * tiles;
}

/* Whether so many warps suit planes: one per scheduler where all columns are one chunk, else two or more, or whole work
 * tiles. */
static bool plane_warps_fit(const struct nh_small_launch *launch, const struct box *box) {
    if (launch->shape.chunk_blocks == ONE_CHUNK_BLOCKS) return launch->warps == ONE_CHUNK_WARPS;
    return launch->warps >= 2 * ONE_CHUNK_WARPS || launch->warps % box->warps == 0;
}

/* With this many stages of halos, which the copy engine fetches; whether a multiprocessor has room for any such launch.
 */
static bool consider_stages(const struct nh_problem *problem, const struct nh_device *device,
                            const struct box *box, const struct nh_small_shape *whole,
                            struct nh_small_launch *launch, struct choice *choice) {
    bool by_keys = launch->kernel == NH_SMALL_BACKWARD_KEY, planes = is_plane(problem, box);
    const int32_t *warps = planes ? plane_warps : by_keys ? key_warps : query_warps;
    size_t count = planes    ? sizeof plane_warps / sizeof *warps
                   : by_keys ? sizeof key_warps / sizeof *warps
                             : sizeof query_warps / sizeof *warps;
    struct tries tries = {0, 0};
    launch->shape = *whole;
    roll(problem, launch);
    if (planes && !launch->shape.slots) return false;
    /* as many warps as a work tile has warp tiles serve heads that share keys */
    launch->warps = box->warps;
    if (!planes) consider(problem, device, launch, box, choice, &tries);
    for (size_t i = 0; i < count; i++) {
        launch->warps = planes ? warps[i] : warps[i] - nh_small_fetchers(launch);
        if (planes ? plane_warps_fit(launch, box) && chains_pay(problem, device, launch)
                   : launch->warps != box->warps)
            consider(problem, device, launch, box, choice, &tries);
    }
    return tries.fitting || !tries.made;
}

/* Whether halos of a volume go around an axis. With one stage nothing is under way while a warp copies what is beyond the
 * seam: docs/log/small.md has 11.0 and 31.2 ms where others take 2.6 and 8.5. */
static bool volume_has_seams(const struct nh_problem *problem) {
    return nh_problem_periodic(problem) && problem->axis[0].length > 1;
}

static void consider_box(const struct nh_problem *problem, const struct nh_device *device,
                         enum nh_small_kernel kernel, const struct box *box, bool boxes,
                         struct choice *choice) {
    struct nh_small_launch launch = {.kernel = kernel, .warps = box->warps};
    struct tries tries = {0, 0};
    bool planes = is_plane(problem, box);
    if (!planes && shape_fits(problem, box, false, &launch))
        consider(problem, device, &launch, box, choice, &tries);
    if (!planes) consider_turns(problem, device, box, launch, choice);
    if (!boxes || !shape_fits(problem, box, true, &launch)) return;
    const struct nh_small_shape whole = launch.shape;
    /* One stage waits for every halo: it is for halos of which there is no room for two. */
    for (launch.stages = LEAST_STAGES; launch.stages <= MOST_STAGES; launch.stages++)
        if (!consider_stages(problem, device, box, &whole, &launch, choice)) break;
    if (planes || launch.stages > LEAST_STAGES || volume_has_seams(problem)) return;
    launch.stages = 1;
    consider_stages(problem, device, box, &whole, &launch, choice);
}

static int rank_of(const struct box *box) {
    return box->work_tile[0] > 1 ? 3 : box->work_tile[1] > 1 ? 2 : 1;
}

/* Whether some of the box's warp tiles exist in no dilation group: their room would be fetched to for nothing. */
static bool sticks_out(const struct nh_problem *problem, enum nh_small_kernel kernel,
                       const struct box *box) {
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        int64_t longest = nh_longest_rows(axis, kernel == NH_SMALL_BACKWARD_KEY);
        if (box->work_tile[a] >= longest + box->warp_tile[a]) return true;
    }
    return false;
}

/* Boxes of one kernel, and in 3-D those that hold all rows of a dilation group and no warp tile beyond it: halos of short
 * groups are mostly their own. (In 1-D they lose to longer boxes, whose warps without a warp tile help with copies.) */
struct boxes {
    struct box box[sizeof query_boxes / sizeof *query_boxes +
                   sizeof plane_boxes / sizeof *plane_boxes +
                   sizeof warp_tiles3 / sizeof *warp_tiles3];
    size_t count, planes; /* planes: where those of volumes begin */
};

/* The least box that holds all rows of a dilation group, of 2 to 16 warp tiles. */
static bool fit_group(const struct nh_problem *problem, enum nh_small_kernel kernel,
                      const int32_t *warp_tile, struct box *box) {
    enum { MOST_WARP_TILES = 16, MOST_WARPS = 8 };
    int64_t count = 1;
    memcpy(box->warp_tile, warp_tile, sizeof box->warp_tile);
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        int64_t longest = nh_longest_rows(axis, kernel == NH_SMALL_BACKWARD_KEY);
        int64_t along = nh_ceil_div(longest, warp_tile[a]);
        if (along > MOST_WARP_TILES) return false;
        box->work_tile[a] = (int32_t)along * warp_tile[a];
        count *= along;
    }
    bool halves = kernel != NH_SMALL_BACKWARD_KEY && count > MOST_WARPS && count % 2 == 0;
    box->warps = (int32_t)(halves ? count / 2 : count);
    return count > 1 && count <= MOST_WARP_TILES;
}

static bool same_box(const struct box *a, const struct box *b) {
    return memcmp(a->work_tile, b->work_tile, sizeof a->work_tile) == 0 &&
           memcmp(a->warp_tile, b->warp_tile, sizeof a->warp_tile) == 0;
}

static bool has_box(const struct boxes *boxes, const struct box *box) {
    bool has = false;
    for (size_t i = 0; i < boxes->count; i++)
        has = has || same_box(&boxes->box[i], box);
    return has;
}

static void list_boxes(const struct nh_problem *problem, enum nh_small_kernel kernel,
                       struct boxes *boxes) {
    bool by_keys = kernel == NH_SMALL_BACKWARD_KEY;
    boxes->count =
        by_keys ? sizeof key_boxes / sizeof *key_boxes : sizeof query_boxes / sizeof *query_boxes;
    if (!by_keys && problem->dtype != NHOOD_DTYPE_F32) boxes->count -= QUERY_BOXES_OF_F32;
    memcpy(boxes->box, by_keys ? key_boxes : query_boxes, boxes->count * sizeof *boxes->box);
    for (size_t i = 0; problem->rank == 3 && i < sizeof warp_tiles3 / sizeof *warp_tiles3; i++) {
        struct box *box = &boxes->box[boxes->count];
        boxes->count += fit_group(problem, kernel, warp_tiles3[i], box) && !has_box(boxes, box);
    }
    boxes->planes = boxes->count;
    bool planes = problem->rank == 3 && kernel == NH_SMALL_FORWARD;
    for (size_t i = 0; planes && i < sizeof plane_boxes / sizeof *plane_boxes; i++)
        boxes->box[boxes->count++] = plane_boxes[i];
}

/* warp tile: that of the boxes to choose from; NULL: any. Small grids may have no box that does not stick out. */
static void choose(const struct nh_problem *problem, const struct nh_device *device,
                   enum nh_small_kernel kernel, const int32_t *warp_tile, struct choice *choice) {
    bool boxes_too = boxes_possible(problem, device);
    struct boxes boxes;
    nh_top_n_start(&choice->top, INFINITY, choice->option, sizeof *choice->option, MOST_CANDIDATES);
    list_boxes(problem, kernel, &boxes);
    for (int out = 0; out < 2 && !choice->top.count; out++)
        for (size_t i = 0; i < boxes.count; i++) {
            const struct box *box = &boxes.box[i];
            bool fits = i >= boxes.planes || rank_of(box) == problem->rank;
            if (fits && sticks_out(problem, kernel, box) == out &&
                (!warp_tile || memcmp(warp_tile, box->warp_tile, sizeof box->warp_tile) == 0))
                consider_box(problem, device, kernel, box, boxes_too, choice);
        }
}

/* Which choices of the backward pass' two launches go together: the best ones, then each with variants of the other. */
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
        const struct option *option = &queries.option[q];
        config[count] = (struct nh_config){{0}};
        set_config(by_queries, option, &config[count]);
        if (!forward) {
            if (k >= keys.top.count ||
                memcmp(option->box.warp_tile, warp_tile, sizeof option->box.warp_tile) != 0)
                continue;
            set_config(NH_SMALL_BACKWARD_KEY, &keys.option[k], &config[count]);
        }
        count++;
    }
    return count;
}

/* The solver is asked whether it refuses, then for its candidates: what a thread has found last is remembered. */
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
