#include "box_search.h"

#include "tile_count.h"
#include "walk_counts.h"

#include <math.h>
#include <string.h>

enum { MOST_OF_VARIANT = 2, SIZES = 8 };

/* All of a size, with their counts as columns, and as rows where these have been asked for; the one nearest to a cube
 * comes first, since what a good one costs keeps others out. */
struct boxes {
    int count;
    int32_t extent[NH_MOST_BOXES][NH_AXES];
    struct nh_walk_columns columns[NH_MOST_BOXES];
    struct nh_walk_rows rows[NH_MOST_BOXES];
};

struct state {
    const struct nh_box_search *search;
    struct nh_walk_counts counts;
    struct nh_walk_columns single;
    struct boxes boxes[SIZES]; /* by powers of two; count 0: not asked for yet */
};

struct ranking {
    struct nh_box_choice *choice;
    int count, capacity;
    double behind, below; /* of the search */
};

void nh_box_balanced(int32_t size, int32_t box[NH_AXES]) {
    box[0] = box[1] = box[2] = 1;
    for (int a = NH_AXES - 1; box[0] * box[1] * box[2] < size; a = (a + 2) % NH_AXES)
        box[a] *= 2;
}

/* No box is longer along the first two axes than the power of two that covers them. */
static int32_t covering(const struct nh_problem *problem, int a, int32_t extent) {
    int64_t longest = nh_axis_group_length(problem->axis[a].length, problem->axis[a].dilation, 0);
    while (extent > 1 && extent / 2 >= longest)
        extent /= 2;
    return extent;
}

static void start(struct state *state, const struct nh_box_search *search) {
    state->search = search;
    struct nh_walk_extents extents = {.count = {0}};
    for (int power = 0; power < SIZES; power++) {
        const int32_t extent = 1 << power;
        const int32_t box[NH_AXES] = {covering(search->problem, 0, extent),
                                      covering(search->problem, 1, extent), extent};
        nh_walk_add(&extents, box);
        state->boxes[power].count = 0;
    }
    nh_walk_start(&state->counts, search->problem, search->inverse, false, &extents);
    nh_walk_columns_of(&state->counts, (const int32_t[NH_AXES]){1, 1, 1}, &state->single);
}

static void begin_with_balanced(int32_t size, int32_t (*box)[NH_AXES], int count) {
    int32_t balanced[NH_AXES];
    nh_box_balanced(size, balanced);
    for (int i = 1; i < count; i++) {
        if (memcmp(box[i], balanced, sizeof balanced) != 0) continue;
        memcpy(box[i], box[0], sizeof balanced);
        memcpy(box[0], balanced, sizeof balanced);
    }
}

/* NULL: they are larger than any that are counted. */
static struct boxes *boxes_of(struct state *state, int32_t size) {
    int power = 0;
    while (power < SIZES && 1 << power < size)
        power++;
    if (power == SIZES) return NULL;
    struct boxes *boxes = &state->boxes[power];
    if (boxes->count) return boxes;
    int found = nh_tile_boxes(state->search->problem, size, boxes->extent);
    begin_with_balanced(size, boxes->extent, found);
    for (int i = 0; i < found; i++) {
        if (!nh_walk_columns_of(&state->counts, boxes->extent[i], &boxes->columns[i])) break;
        boxes->rows[i].of[0] = NULL;
        boxes->count++;
    }
    return boxes;
}

/* NULL: there is no room to count them. */
static const struct nh_walk_rows *rows_of(struct state *state, struct boxes *boxes, int i) {
    const int32_t *box = boxes->extent[i];
    bool known = boxes->rows[i].of[0] || nh_walk_rows_of(&state->counts, box, box, &boxes->rows[i]);
    return known ? &boxes->rows[i] : NULL;
}

/* ---- bounds ---- */

/* Of a row box with any columns: cost beside the bound's own, and what tiles and, more, those with masks add. */
struct floor {
    double fixed, per_tile, per_masked;
};

/* Of the two bounds, that latency and that throughput set, the one that is higher for `tiles` without masks. */
static struct floor floor_of(const struct nh_box_bound *bound, const struct nh_walk_rows *rows,
                             double tiles) {
    double blocks = bound->blocks * nh_walk_items(rows);
    double waves = blocks / bound->multiprocessors, rounds = ceil(waves / bound->residents);
    double busy = bound->per_clock * bound->walks / bound->multiprocessors,
           turns = busy * rounds / waves;
    const struct floor latency = {bound->per_clock * rounds * bound->block,
                                  turns * (bound->latency + bound->alone * bound->tile),
                                  turns * bound->alone * bound->masks};
    double end = bound->ending / rounds;
    const struct floor throughput = {bound->per_clock * waves * bound->block / bound->residents +
                                         end * latency.fixed,
                                     busy * bound->tile + end * latency.per_tile,
                                     busy * bound->masks + end * latency.per_masked};
    bool waits =
        latency.fixed + latency.per_tile * tiles > throughput.fixed + throughput.per_tile * tiles;
    return waits ? latency : throughput;
}

/* ---- the search ---- */

static double smaller(double a, double b) {
    return a < b ? a : b;
}

/* What a choice must stay below to be kept. */
static double limit_of(const struct ranking *ranking) {
    if (!ranking->count) return ranking->below;
    double most = smaller(ranking->below, ranking->behind * ranking->choice[0].cost);
    if (ranking->count < ranking->capacity) return most;
    return smaller(most, ranking->choice[ranking->count - 1].cost);
}

/* Behind those that cost no more. */
static void insert(struct ranking *ranking, const struct nh_box_choice *choice) {
    if (choice->cost >= limit_of(ranking)) return;
    if (ranking->count < ranking->capacity) ranking->count++;
    int place = ranking->count - 1;
    for (; place > 0 && choice->cost < ranking->choice[place - 1].cost; place--)
        ranking->choice[place] = ranking->choice[place - 1];
    ranking->choice[place] = *choice;
}

/* Adds to `found` the pairs of a row box that may be cheaper than the limit. */
static void rank_columns(const struct state *state, const struct nh_box_bound *bound,
                         const struct nh_box_choice *of_row, const struct nh_walk_rows *rows,
                         const struct boxes *columns, double most, struct ranking *found) {
    const double rounding = 1 + 1e-9;
    const struct nh_box_search *search = state->search;
    /* walks by single columns visit what any tiles must hold */
    double least = nh_walk_visits(rows, state->single) / of_row->variant->columns;
    const struct floor floor = floor_of(bound, rows, least);
    double limit = rounding * smaller(most, limit_of(found)) - bound->fixed;
    if (floor.fixed + floor.per_tile * least >= limit) return;
    for (int j = 0; j < columns->count; j++) {
        double cost = floor.fixed + floor.per_tile * nh_walk_visits(rows, columns->columns[j]);
        if (cost >= limit) continue;
        const struct nh_tiling_count count = nh_walk_count(rows, columns->columns[j]);
        double longest = bound->per_clock * (count.longest * bound->longest + bound->block);
        if (cost + floor.per_masked * count.partial >= limit || longest >= limit) continue;
        struct nh_box_choice choice = *of_row;
        memcpy(choice.column, columns->extent[j], sizeof choice.column);
        choice.cost = search->cost(search, choice.variant, choice.row, choice.column, &count);
        insert(found, &choice);
        limit = rounding * smaller(most, limit_of(found)) - bound->fixed;
    }
}

/* No pair that the bound keeps out could have entered `kept`. */
static void rank_pairs(struct state *state, const struct nh_box_variant *variant,
                       struct ranking *kept) {
    const struct nh_box_bound bound = state->search->bound(state->search, variant);
    if (bound.residents <= 0) return;
    struct boxes *rows = boxes_of(state, variant->rows),
                 *columns = boxes_of(state, variant->columns);
    if (!rows || !columns) return;
    struct nh_box_choice found[MOST_OF_VARIANT];
    struct ranking of_variant = {found, 0, (int)nh_min(kept->capacity, MOST_OF_VARIANT),
                                 kept->behind, kept->below};
    for (int i = 0; i < rows->count; i++) {
        if (bound.least >= smaller(limit_of(kept), limit_of(&of_variant))) break;
        const struct nh_walk_rows *walked = rows_of(state, rows, i);
        if (!walked) continue;
        struct nh_box_choice choice = {.variant = variant};
        memcpy(choice.row, rows->extent[i], sizeof choice.row);
        rank_columns(state, &bound, &choice, walked, columns, limit_of(kept), &of_variant);
    }
    for (int i = 0; i < of_variant.count; i++)
        insert(kept, &found[i]);
}

int nh_box_search(const struct nh_box_search *search, struct nh_box_choice *best, int capacity) {
    struct state state;
    struct ranking kept = {best, 0, capacity, search->behind, search->below};
    start(&state, search);
    for (int i = 0; i < search->variants; i++)
        rank_pairs(&state, &search->variant[i], &kept);
    while (kept.count && best[kept.count - 1].cost > search->behind * best[0].cost)
        kept.count--;
    return kept.count;
}
