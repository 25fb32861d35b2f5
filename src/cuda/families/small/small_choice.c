/* The search for launches of cuda.small that are worth trying, as configs. */
#include "small_launch.h"

#include "dtype.h"
#include "memo.h"
#include "predict.h"
#include "tensor_maps.h"
#include "tile_count.h"
#include "top_n.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { LEAST_STAGES = 2, MOST_STAGES = 5, MOST_BOX = 1024, MOST_CANDIDATES = 6 };
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

/* ---- boxes ---- */

/* Extents of a work tile and a warp tile; warps where threads copy. By keys each warp tile has a warp, for its sums. */
struct box {
    int32_t work_tile[NH_AXES], warp_tile[NH_AXES], warps;
};

enum { MOST_BOXES = 32 };
struct boxes {
    struct box box[MOST_BOXES];
    int count;
};

/* Lines of 4 modulo 8 rows leave no gaps in the halo. The last two boxes are for f32, whose halos take twice the bytes:
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

/* Work tiles of one plane of a volume, whose halos roll: each plane of keys is fetched once per sweep of work tiles. */
static const struct box plane_boxes[] = {
    {{1, 4, 12}, {1, 4, 4}, 3}, {{1, 8, 4}, {1, 4, 4}, 2},  {{1, 8, 8}, {1, 4, 4}, 4},
    {{1, 16, 4}, {1, 4, 4}, 4}, {{1, 8, 12}, {1, 4, 4}, 6},
};

/* A work tile of two planes, whose halo rolls, for the forward in 16 bits. With windows of 5 x 5 x 5 the box of its warp
 * tiles has 6 x 6 x 8 columns, that of a plane's 5 x 8 x 8. It was timed with 12 warps (docs/log/small.md, 2026-11-28). */
static const struct box pair_box = {{NH_SMALL_PAIR}, {2, 2, 4}, 12};

/* Warp tiles of the boxes of three axes above. */
static const int32_t warp_tiles3[2][NH_AXES] = {{2, 2, 4}, {1, 4, 4}};

static_assert(COUNT_OF(query_boxes) + COUNT_OF(plane_boxes) + COUNT_OF(warp_tiles3) + 1 <=
                      MOST_BOXES &&
                  sizeof key_boxes <= sizeof query_boxes,
              "room for all that there are");

/* Whether some of the box's warp tiles exist in no dilation group, so that shared memory is filled for nothing. */
static bool sticks_out(const struct nh_problem *problem, bool keys, const struct box *box) {
    for (int a = 0; a < NH_AXES; a++)
        if (box->work_tile[a] >= nh_longest_rows(&problem->axis[a], keys) + box->warp_tile[a])
            return true;
    return false;
}

static int rank_of(const struct box *box) {
    return box->work_tile[0] > 1 ? 3 : box->work_tile[1] > 1 ? 2 : 1;
}

/* Adds the smallest box of 2 to 16 warp tiles that holds all rows of a dilation group, if there is one and it is new. */
static void add_group(const struct nh_problem *problem, bool keys, const int32_t *warp_tile,
                      struct boxes *boxes) {
    enum { MOST_WARP_TILES = 16, MOST_WARPS = 8 };
    struct box *box = &boxes->box[boxes->count];
    int64_t count = 1;
    memcpy(box->warp_tile, warp_tile, sizeof box->warp_tile);
    for (int a = 0; a < NH_AXES; a++) {
        int64_t along = nh_ceil_div(nh_longest_rows(&problem->axis[a], keys), warp_tile[a]);
        if (along > MOST_WARP_TILES) return;
        box->work_tile[a] = (int32_t)along * warp_tile[a];
        count *= along;
    }
    bool halves = !keys && count > MOST_WARPS && count % 2 == 0;
    box->warps = (int32_t)(halves ? count / 2 : count);
    if (count == 1 || count > MOST_WARP_TILES || rank_of(box) < 3) return;
    for (int i = 0; i < boxes->count; i++)
        if (!memcmp(&boxes->box[i], box, offsetof(struct box, warps))) return;
    boxes->count++;
}

/* Lists the boxes of the problem's rank for kernels that own keys, or queries. In 3-D this includes boxes that hold all
 * rows of a dilation group and nothing else, as the halos of short groups overlap little, and planes. (In 1-D such boxes
 * lose to longer ones, whose warps without a warp tile help with copies.) */
static void list_boxes(const struct nh_problem *problem, bool keys, struct boxes *boxes) {
    const struct box *box = keys ? key_boxes : query_boxes;
    size_t count = keys ? COUNT_OF(key_boxes) : COUNT_OF(query_boxes);
    if (!keys && problem->dtype != NHOOD_DTYPE_F32) count -= QUERY_BOXES_OF_F32;
    boxes->count = 0;
    for (size_t i = 0; i < count; i++)
        if (rank_of(&box[i]) == problem->rank) boxes->box[boxes->count++] = box[i];
    if (problem->rank < 3) return;
    for (size_t i = 0; i < COUNT_OF(warp_tiles3); i++)
        add_group(problem, keys, warp_tiles3[i], boxes);
    for (size_t i = 0; i < COUNT_OF(plane_boxes); i++)
        boxes->box[boxes->count++] = plane_boxes[i];
    if (problem->op == NHOOD_OP_FWD && problem->dtype != NHOOD_DTYPE_F32)
        boxes->box[boxes->count++] = pair_box;
}

/* ---- the search among the launches of one kernel ---- */

/* Numbers of warps that are tried: where the copy engine fetches, with producers; by keys, with more registers each.
 * Where planes roll, those that compute: as many on each scheduler, or few that take whole work tiles. */
enum { MOST_CHOICES = 5 };
static const int32_t query_warps[MOST_CHOICES] = {8, 12, 16, 20, 24},
                     key_warps[MOST_CHOICES] = {8, 12, 16},
                     plane_warps[MOST_CHOICES] = {4, 6, 8, 12};

struct choice {
    struct nh_small_launch begun; /* what all launches have in common */
    bool boxes;                   /* the copy engine can serve the problem */
    bool any;                     /* the first launch that fits is enough */
    bool grouped;                 /* a group's launch is to serve it */
    /* launches of the box at hand whose warps suit it, and of those the ones for which a multiprocessor has room */
    int made, fitting;
    /* the fastest; in a config only the knobs of this kernel are set */
    struct nh_config config[MOST_CANDIDATES];
    struct nh_top_n top;
};

bool nh_small_boxes_possible(const struct nh_problem *problem, const struct nh_device *device) {
    if (device->any_length) return false;
    int64_t bytes = problem->dim * (int64_t)nh_dtype_bytes(problem->dtype);
    if (problem->dim != problem->dim_v || (bytes != 64 && bytes != 128) || nh_sm90_folds(problem))
        return false;
    const uint32_t distinct = nh_sm90_distinct(problem, NH_SMALL_ROWS);
    return !nh_sm90_by_origin(problem, distinct) &&
           !nh_sm90_refuse_boxes(problem, device, distinct);
}

/* Whether several query heads share keys: by keys, a warp then keeps one warp tile's sums while it goes over them. */
static bool sums_stay(const struct nh_small_launch *launch) {
    return nh_small_by_keys(launch) && launch->problem->heads > launch->problem->kv_heads;
}

static bool warps_fit(const struct nh_small_launch *launch) {
    int warp_tiles = small_warp_tiles(&launch->config);
    return launch->config.warps <= launch->config.stages * warp_tiles &&
           (!sums_stay(launch) || launch->config.warps == warp_tiles);
}

static struct nh_config config_of(const struct nh_small_launch *launch) {
    const struct small_config *own = &launch->config;
    const bool keys = nh_small_by_keys(launch);
    struct nh_config config = {{0}};
    memcpy(config.value + (keys ? NH_SMALL_KEY_TILE : NH_SMALL_QUERY_TILE), own->rows,
           sizeof own->rows);
    config.value[NH_SMALL_WARP_TILE] = own->warp_tile[0];
    config.value[NH_SMALL_WARP_TILE_1] = own->warp_tile[1];
    config.value[keys ? NH_SMALL_KEY_WARPS : NH_SMALL_WARPS] = own->warps;
    /* The knob says that the copy engine fetches; whether halos roll then follows from the problem. */
    config.value[keys ? NH_SMALL_KEY_PIPELINE : NH_SMALL_PIPELINE] =
        (int32_t)nh_min(own->pipeline, SMALL_BOXES);
    config.value[keys ? NH_SMALL_KEY_STAGES : NH_SMALL_STAGES] =
        nh_small_fetches(launch) ? own->stages : 0;
    return config;
}

/* Adds the launch if there is room for it. */
static void consider(struct choice *choice, const struct nh_small_launch *launch) {
    struct nh_work work;
    if (nh_small_fetches(launch) && !warps_fit(launch)) return;
    if (nh_small_cannot_roll(launch) || (choice->grouped && !nh_small_hosts(launch))) return;
    choice->made++;
    nh_work_start(&work,
                  launch->config.pass == SMALL_FORWARD ? NH_OPERATION_SMALL_FORWARD
                                                       : NH_OPERATION_SMALL_BACKWARD,
                  launch->problem);
    if (!nh_small_add_work(launch, &work)) return;
    choice->fitting++;
    const struct nh_config config = config_of(launch);
    nh_top_n_add(&choice->top, &config, nh_predict(launch->cuda, &work, NULL));
}

/* Makes the boxes; false if there is no such launch. Boxes do not depend on the numbers of stages and warps. */
static bool boxes_fit(const struct choice *choice, const struct box *box,
                      enum small_pipeline pipeline, struct nh_small_launch *launch) {
    struct nh_small_boxes extents;
    memcpy(extents.work_tile, box->work_tile, sizeof extents.work_tile);
    memcpy(extents.warp_tile, box->warp_tile, sizeof extents.warp_tile);
    return nh_small_with_boxes(&choice->begun, &extents, pipeline, launch) &&
           8 * small_box_blocks(&launch->config) <= MOST_BOX &&
           (pipeline != SMALL_BOXES || (nh_sm90_boxes_fit(launch->problem, launch->config.halo) &&
                                        nh_sm90_boxes_fit(launch->problem, launch->config.rows)));
}

/* Considers the launches whose threads copy: with keys and values side by side, and sharing one place. The latter have
 * a warp per warp tile, which keeps its scores in registers. */
static void consider_copies(struct choice *choice, const struct box *box) {
    enum { MOST_BLOCKS = 16, MOST_WARPS = 16 };
    struct nh_small_launch copies, turns;
    if (!boxes_fit(choice, box, SMALL_COPIES, &copies)) return;
    const struct nh_small_launch launch = nh_small_with_warps(&copies, box->warps);
    consider(choice, &launch);
    int warps = small_warp_tiles(&copies.config);
    bool bias_gradient = copies.config.pass == SMALL_BY_QUERY && copies.problem->has_bias;
    if (copies.problem->dtype != NHOOD_DTYPE_F32 || bias_gradient || sums_stay(&copies) ||
        warps > MOST_WARPS || small_box_blocks(&copies.config) > MOST_BLOCKS ||
        !boxes_fit(choice, box, SMALL_TURNS, &turns))
        return;
    const struct nh_small_launch in_turns = nh_small_with_warps(&turns, warps);
    consider(choice, &in_turns);
}

/* Whether this number of warps suits planes: one per scheduler if all columns are one chunk; else two or more per
 * scheduler, or as many as take whole work tiles. And whether sweeps of planes are worth it. At the start of a sweep, a
 * block has finished all its work tiles and waits for as many planes as the window has. Timed, sweeps were faster with
 * up to 0.26 such planes per work tile, and slower with 0.3. */
static bool planes_pay(const struct nh_small_launch *launch, const struct box *box) {
    const double most_planes = 0.28;
    const int32_t schedulers = 4;
    const struct nh_problem *problem = launch->problem;
    if (launch->config.chunk_blocks > SMALL_MASK_BLOCKS
            ? launch->config.warps != schedulers
            : launch->config.warps < 2 * schedulers && launch->config.warps % box->warps)
        return false;
    double blocks = (double)launch->cuda->multiprocessors * launch->config.min_blocks;
    double length = (double)nh_longest_rows(&problem->axis[0], false);
    double tiles = (double)(problem->batch * problem->heads) * launch->work_tiles / blocks;
    double planes = ceil(tiles / length) * (double)(problem->axis[0].window - 1);
    return planes < most_planes * tiles;
}

/* Whether warp tiles of a pair multiply fewer columns than those of planes. Timed, pairs that do not are slower. */
static bool pair_pays(const struct choice *choice, const struct nh_small_launch *pair) {
    const struct nh_small_boxes plane = {{1, 4, 12}, {1, 4, 4}};
    struct nh_small_launch launch;
    return !nh_small_with_boxes(&choice->begun, &plane, SMALL_BOXES, &launch) ||
           small_box_blocks(&pair->config) < small_box_blocks(&launch.config);
}

/* Considers launches that the copy engine serves with these boxes and stages. Returns whether there is room for any. */
static bool consider_stages(struct choice *choice, const struct box *box,
                            const struct nh_small_launch *boxed, int32_t stages) {
    bool planes = nh_small_is_plane(boxed->problem, box->work_tile),
         pair = nh_small_is_pair(box->work_tile);
    const int32_t *warps = planes ? plane_warps : nh_small_by_keys(boxed) ? key_warps : query_warps;
    const struct nh_small_launch staged = nh_small_with_stages(boxed, stages);
    choice->made = choice->fitting = 0;
    if (nh_small_must_roll(boxed->problem, box->work_tile) && !staged.config.slots) return false;
    /* Query heads that share keys need a warp per warp tile. */
    const struct nh_small_launch usual = nh_small_with_warps(&staged, box->warps);
    if (!planes) consider(choice, &usual);
    for (int i = 0; i < MOST_CHOICES && warps[i] && !pair; i++) {
        const struct nh_small_launch launch =
            nh_small_with_warps(&staged, planes ? warps[i] : warps[i] - staged.config.fetchers);
        if (planes ? planes_pay(&launch, box) : launch.config.warps != box->warps)
            consider(choice, &launch);
    }
    return choice->fitting || !choice->made;
}

static void consider_box(struct choice *choice, const struct box *box) {
    const struct nh_problem *problem = choice->begun.problem;
    const bool must_roll = nh_small_must_roll(problem, box->work_tile);
    struct nh_small_launch boxed;
    if (!must_roll) consider_copies(choice, box);
    if (choice->any && choice->top.count) return;
    if (!choice->boxes || !boxes_fit(choice, box, SMALL_BOXES, &boxed)) return;
    if (nh_small_is_pair(box->work_tile) && !pair_pays(choice, &boxed)) return;
    int32_t stages = LEAST_STAGES;
    while (stages <= MOST_STAGES && consider_stages(choice, box, &boxed, stages))
        stages++;
    /* With one stage the block waits for every halo: only for halos of which there is no room for two. Nothing else is
     * then under way while a warp copies what is beyond a seam: of volumes that may have one docs/log/small.md has 11.0
     * and 31.2 ms where other configs take 2.6 and 8.5. */
    bool seams = nh_problem_periodic(problem) && problem->axis[0].length > 1;
    if (!must_roll && stages == LEAST_STAGES && !seams) consider_stages(choice, box, &boxed, 1);
}

/* Searches the launches of one kernel. warp_tile: what the boxes' warp tiles must be, or NULL. Boxes that stick out are
 * tried only if no other one fits, as on small grids. any: the first launch that fits is enough. */
static void choose(const struct nh_problem *problem, const struct nh_device *device,
                   enum small_pass pass, const int32_t *warp_tile, bool any,
                   struct choice *choice) {
    struct boxes boxes;
    bool keys = pass == SMALL_BY_KEY;
    choice->begun = nh_small_begin(problem, device->backend, pass);
    if (!nh_small_has_region(problem))
        choice->begun.serves = nh_small_serves_of(device->for_group, device->any_length);
    choice->grouped = device->for_group;
    choice->boxes = nh_small_boxes_possible(problem, device);
    choice->any = any;
    nh_top_configs_start(&choice->top, choice->config, MOST_CANDIDATES);
    list_boxes(problem, keys, &boxes);
    for (int out = 0; out < 2 && !choice->top.count; out++)
        for (int i = 0; i < boxes.count && !(any && choice->top.count); i++) {
            const struct box *box = &boxes.box[i];
            if (sticks_out(problem, keys, box) == out &&
                (!warp_tile ||
                 (warp_tile[0] == box->warp_tile[0] && warp_tile[1] == box->warp_tile[1])))
                consider_box(choice, box);
        }
}

/* ---- configs ---- */

/* Launches of the backward, both with the same warp tile. */
struct backward {
    struct nh_config config[MOST_CANDIDATES];
    int count;
    double ns; /* of the fastest, estimated */
};

/* Searches launches by keys for those by queries that have the warp tile of the fastest one, and combines them. */
static void combine(const struct nh_problem *problem, const struct nh_device *device,
                    const struct choice *queries, struct backward *both) {
    /* Which choices of the two launches are combined: the best of both, then each with variants of the other. */
    static const int pairs[MOST_CANDIDATES][2] = {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {0, 2}};
    const struct nh_config *best = queries->config;
    struct choice keys;
    *both = (struct backward){.count = 0};
    if (!queries->top.count) return;
    choose(problem, device, SMALL_BY_KEY, &best->value[NH_SMALL_WARP_TILE], false, &keys);
    if (keys.top.count) both->ns = queries->top.ns[0] + keys.top.ns[0];
    for (int i = 0; i < MOST_CANDIDATES; i++) {
        int q = pairs[i][0], k = pairs[i][1];
        if (q >= queries->top.count || k >= keys.top.count ||
            best[q].value[NH_SMALL_WARP_TILE] != best->value[NH_SMALL_WARP_TILE] ||
            best[q].value[NH_SMALL_WARP_TILE_1] != best->value[NH_SMALL_WARP_TILE_1])
            continue;
        struct nh_config *config = &both->config[both->count++];
        *config = best[q];
        for (int knob = NH_SMALL_KEY_TILE; knob <= NH_SMALL_KEY_STAGES; knob++)
            config->value[knob] = keys.config[k].value[knob];
    }
}

/* The other warp tile of volumes. */
static const int32_t *other_warp_tile(const int32_t *warp_tile) {
    return warp_tiles3[!memcmp(warp_tiles3[0], warp_tile, 2 * sizeof *warp_tile)];
}

/* Both launches have the same warp tile. Where planes may roll, the one that the fastest launch by queries has need not
 * be the best for both: the other one is tried, too, and adds its fastest launches to the candidates, unless they are
 * estimated to take much longer. */
static int search_backward(const struct nh_problem *problem, const struct nh_device *device,
                           struct nh_config config[MOST_CANDIDATES]) {
    enum { OF_OTHER = 2 };
    const double much_longer = 1.3;
    struct choice queries;
    struct backward both[2];
    choose(problem, device, SMALL_BY_QUERY, NULL, false, &queries);
    combine(problem, device, &queries, &both[0]);
    both[1] = (struct backward){.count = 0};
    if (queries.top.count && problem->rank == 3 && (queries.boxes || !both[0].count)) {
        const int32_t *other = other_warp_tile(&queries.config[0].value[NH_SMALL_WARP_TILE]);
        choose(problem, device, SMALL_BY_QUERY, other, false, &queries);
        combine(problem, device, &queries, &both[1]);
    }
    int best = both[1].count && (!both[0].count || both[1].ns < both[0].ns);
    bool compete = both[!best].ns < much_longer * both[best].ns;
    int others = compete ? (int)nh_min(both[!best].count, OF_OTHER) : 0;
    int count = (int)nh_min(both[best].count, MOST_CANDIDATES - others);
    memcpy(config, both[best].config, (size_t)count * sizeof *config);
    memcpy(config + count, both[!best].config, (size_t)others * sizeof *config);
    return count + others;
}

static bool any_fits(const struct nh_problem *problem, const struct nh_device *device,
                     enum small_pass pass, const int32_t *warp_tile) {
    struct choice choice;
    choose(problem, device, pass, warp_tile, true, &choice);
    return choice.top.count > 0;
}

bool nh_small_fits(const struct nh_problem *problem, const struct nh_device *device) {
    static const int32_t flat[][2] = {{1, 1}, {1, 4}};
    if (problem->window_count > MOST_BOX) return false; /* some query sees a whole window */
    if (problem->op == NHOOD_OP_FWD) return any_fits(problem, device, SMALL_FORWARD, NULL);
    bool fits = false;
    for (int i = 0; i < (problem->rank == 3 ? (int)COUNT_OF(warp_tiles3) : 1) && !fits; i++) {
        const int32_t *tile = problem->rank == 3 ? warp_tiles3[i] : flat[problem->rank - 1];
        fits = any_fits(problem, device, SMALL_BY_QUERY, tile) &&
               any_fits(problem, device, SMALL_BY_KEY, tile);
    }
    return fits;
}

int nh_small_candidates(const struct nh_problem *problem, const struct nh_device *device,
                        struct nh_config *config, int capacity) {
    struct nh_config found[MOST_CANDIDATES];
    struct choice queries;
    int count = 0;
    if (problem->window_count > MOST_BOX) return 0; /* some query sees a whole window */
    if (problem->op != NHOOD_OP_FWD) {
        count = search_backward(problem, device, found);
    } else {
        choose(problem, device, SMALL_FORWARD, NULL, false, &queries);
        count = queries.top.count;
        memcpy(found, queries.config, (size_t)count * sizeof *found);
    }
    count = (int)nh_min(capacity, count);
    memcpy(config, found, (size_t)count * sizeof *config);
    return count;
}

bool nh_small_can_run(const struct nh_small_launch *launch) {
    return warps_fit(launch) && nh_sm90_boxes_fit(launch->problem, launch->config.halo) &&
           nh_sm90_boxes_fit(launch->problem, launch->config.rows) &&
           (launch->config.slots || !nh_small_must_roll(launch->problem, launch->config.rows));
}

/* Makes a launch, with config.min_blocks as nh_small_launches_of. */
static void make(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                 enum small_pass pass, const int32_t *value, enum nh_small_serves serves,
                 struct nh_small_launch *launch) {
    const bool keys = pass == SMALL_BY_KEY;
    const int32_t *work_tile = value + (keys ? NH_SMALL_KEY_TILE : NH_SMALL_QUERY_TILE);
    int32_t s0 = value[NH_SMALL_WARP_TILE], s1 = value[NH_SMALL_WARP_TILE_1];
    int32_t stages = value[keys ? NH_SMALL_KEY_STAGES : NH_SMALL_STAGES];
    const struct nh_small_boxes extents = {
        .work_tile = {work_tile[0], work_tile[1], work_tile[2]},
        .warp_tile = {s0, s1, 16 / (s0 * s1)},
    };
    struct nh_small_launch begun = nh_small_begin(problem, cuda, pass), boxed;
    begun.serves = serves;
    const enum small_pipeline pipeline =
        (enum small_pipeline)value[keys ? NH_SMALL_KEY_PIPELINE : NH_SMALL_PIPELINE];
    *launch = begun;
    if (!nh_small_with_boxes(&begun, &extents, pipeline, &boxed)) return;
    if (pipeline == SMALL_BOXES) boxed = nh_small_with_stages(&boxed, stages);
    if (nh_small_cannot_roll(&boxed)) return;
    *launch = nh_small_with_warps(&boxed, value[keys ? NH_SMALL_KEY_WARPS : NH_SMALL_WARPS]);
}

static void make_all(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                     const int32_t *value, enum nh_small_serves serves,
                     struct nh_small_launch *launch) {
    if (problem->op == NHOOD_OP_FWD) {
        make(problem, cuda, SMALL_FORWARD, value, serves, &launch[0]);
    } else {
        make(problem, cuda, SMALL_BY_QUERY, value, serves, &launch[0]);
        make(problem, cuda, SMALL_BY_KEY, value, serves, &launch[1]);
    }
}

/* What the configurations of launches for a group depend on: no stride, and lengths as far as they tell. The axes of its problems are
 * covered, are not periodic and have no tables. All bytes count, so there is no padding. */
struct key {
    char solver[16]; /* others may remember results, too */
    struct {
        int64_t length, window, stride, dilation, causal;
    } axis[NH_AXES];
    int64_t heads, kv_heads, dim, dim_v, bias_count;
    double scale;
    int32_t op, dtype;
    int64_t rank;
    struct nh_config config;
};
static_assert(sizeof(struct key) == 16 + 8 * (5 * NH_AXES + 8) + 4 * NH_CONFIG_KNOBS, "no padding");

static struct key key_of(const struct nh_problem *problem, const int32_t *value) {
    struct key key = {.solver = "cuda.small",
                      .heads = problem->heads,
                      .kv_heads = problem->kv_heads,
                      .dim = problem->dim,
                      .dim_v = problem->dim_v,
                      .bias_count = problem->has_bias ? problem->bias_count : 0,
                      .scale = problem->scale,
                      .op = problem->op,
                      .dtype = problem->dtype,
                      .rank = problem->rank};
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        key.axis[a].length = nh_small_telling_length(problem, a, value);
        key.axis[a].window = axis->window;
        key.axis[a].stride = axis->stride;
        key.axis[a].dilation = axis->dilation;
        key.axis[a].causal = axis->causal;
    }
    memcpy(key.config.value, value, sizeof key.config.value);
    return key;
}

/* The plan of a group asks for the launches of each member several times, for estimates and to build them. Members whose lengths tell
 * nothing new share those that are made. */
static void make_once(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                      const int32_t *value, struct nh_small_launch *launch) {
    const struct key key = key_of(problem, value);
    const int count = nh_small_launches(problem);
    struct small_config made[NH_SMALL_LAUNCHES];
    if (nh_memo_find(cuda->memo, &key, sizeof key, made, sizeof made)) {
        for (int i = 0; i < count; i++) {
            launch[i].problem = problem;
            launch[i].cuda = cuda;
            launch[i].serves = NH_SMALL_GROUP;
            launch[i].config = made[i];
            if (made[i].min_blocks) nh_small_count_tiles(&launch[i]);
        }
        return;
    }
    make_all(problem, cuda, value, NH_SMALL_GROUP, launch);
    memset(made, 0, sizeof made);
    for (int i = 0; i < count; i++)
        made[i] = launch[i].config;
    nh_memo_keep(cuda->memo, &key, sizeof key, made, sizeof made);
}

void nh_small_launches_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                          const int32_t *value, enum nh_small_serves serves,
                          struct nh_small_launch launch[NH_SMALL_LAUNCHES]) {
    if (nh_small_has_region(problem)) serves = NH_SMALL_ONE;
    if (serves == NH_SMALL_GROUP && cuda->memo)
        make_once(problem, cuda, value, launch);
    else
        make_all(problem, cuda, value, serves, launch);
}
