#include "box_search.h"

#include "tile_count.h"
#include "walk_counts.h"

#include <math.h>
#include <string.h>

enum { MOST_OF_VARIANT = 2, SIZES = 8 };

/* Items, and the columns that their tiles hold at least. */
struct least {
    double items, needed;
};

/* All of a size, with their counts as columns, and as rows where these have been asked for; the one nearest to a cube
 * comes first. */
struct boxes {
    int count;
    int32_t extent[NH_MOST_BOXES][NH_AXES];
    struct nh_walk_columns columns[NH_MOST_BOXES];
    /* as rows; fewest: of all, items 0 until they are asked for */
    struct least row[NH_MOST_BOXES], fewest;
};

/* Of equal costs the first in the order of variants and boxes is the cheaper one. */
struct ranked {
    struct nh_box_choice choice;
    int order;
};

struct state {
    const struct nh_box_search *search;
    struct nh_walk_counts counts;
    struct boxes boxes[SIZES];         /* by powers of two; count 0: not asked for yet */
    struct least line[NH_AXES][SIZES]; /* items of 0: not asked for yet */
    struct nh_box_bound bound[NH_MOST_BOX_VARIANTS];
    struct ranked kept[NH_MOST_BOX_CHOICES]; /* cheapest first */
    int count, capacity;
};

static double smaller(double a, double b) {
    return a < b ? a : b;
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

void nh_box_balanced(int32_t size, int32_t box[NH_AXES]) {
    int32_t volume = 1;
    box[0] = box[1] = box[2] = 1;
    for (int a = NH_AXES - 1; volume < size; a = a ? a - 1 : NH_AXES - 1, volume *= 2)
        box[a] *= 2;
}

/* ---- boxes of a size ---- */

static void start(struct state *state, const struct nh_box_search *search, int capacity) {
    const struct nh_problem *problem = search->problem;
    struct nh_walk_extents extents = {.count = {0}};
    for (int power = 0; power < SIZES; power++) {
        const int32_t extent = 1 << power;
        const int32_t box[NH_AXES] = {nh_tile_cover(&problem->axis[0], extent),
                                      nh_tile_cover(&problem->axis[1], extent), extent};
        struct nh_walk_columns places;
        nh_walk_add(&extents, box, &places);
        state->boxes[power].count = 0;
    }
    nh_walk_start(&state->counts, problem, search->inverse, false, &extents);
    state->search = search;
    memset(state->line, 0, sizeof state->line);
    state->count = 0;
    state->capacity = capacity < NH_MOST_BOX_CHOICES ? capacity : NH_MOST_BOX_CHOICES;
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

/* Extents were added one power of two after the other. */
static struct nh_walk_columns places_of(const int32_t box[NH_AXES]) {
    struct nh_walk_columns places = {{0, 0, 0}};
    for (int a = 0; a < NH_AXES; a++)
        while (1 << places.place[a] < box[a])
            places.place[a]++;
    return places;
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
    boxes->count = found;
    for (int i = 0; i < found; i++)
        boxes->columns[i] = places_of(boxes->extent[i]);
    boxes->fewest.items = 0;
    return boxes;
}

static const struct least *line_of(struct state *state, int a, int power) {
    const struct nh_box_search *search = state->search;
    const struct nh_axis *axis = &search->problem->axis[a];
    struct least *line = &state->line[a][power];
    if (line->items == 0) {
        line->items = (double)nh_row_tiles(axis, 1 << power);
        line->needed = nh_tile_needed(axis, 1 << power, search->inverse);
    }
    return line;
}

static void count_rows(struct state *state, struct boxes *boxes) {
    struct least fewest = {INFINITY, INFINITY};
    for (int i = 0; i < boxes->count; i++) {
        struct least *row = &boxes->row[i];
        *row = (struct least){1, 1};
        for (int a = 0; a < NH_AXES; a++) {
            const struct least *line = line_of(state, a, boxes->columns[i].place[a]);
            row->items *= line->items;
            row->needed *= line->needed;
        }
        fewest.items = smaller(fewest.items, row->items);
        fewest.needed = smaller(fewest.needed, row->needed);
    }
    boxes->fewest = fewest;
}

/* ---- bounds ---- */

/* Of what latency sets or throughput does, beside the bound's own: what tiles and, more, those with masks add. */
struct floor {
    double fixed, per_tile, per_masked;
};

struct floors {
    struct floor latency, throughput;
};

static double at(const struct floor *floor, double tiles) {
    return floor->fixed + floor->per_tile * tiles;
}

static struct floors floors_of(const struct nh_box_bound *bound, double items) {
    double waves = bound->blocks * items / bound->multiprocessors,
           rounds = ceil(waves / bound->residents);
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
    return (struct floors){latency, throughput};
}

/* INFINITY: more than there is to spare. */
static double least_of(const struct state *state, const struct nh_box_bound *bound,
                       const struct floors *floors, double tiles) {
    double latency = bound->fixed + at(&floors->latency, tiles);
    double throughput = bound->fixed + at(&floors->throughput, tiles);
    if (throughput >= state->search->spare) return INFINITY;
    return larger(larger(latency, throughput), bound->least);
}

/* Of all row boxes that have no fewer items, and tiles. */
static double least_of_all(const struct state *state, const struct nh_box_bound *bound,
                           double items, double tiles) {
    double waves = bound->blocks * items / bound->multiprocessors;
    double busy = bound->per_clock * bound->walks / bound->multiprocessors;
    double alone = bound->latency + bound->alone * bound->tile;
    const struct floors floors = {
        {bound->per_clock * ceil(waves / bound->residents) * bound->block,
         busy / bound->residents * alone, 0},
        {bound->per_clock * (waves / bound->residents + bound->ending) * bound->block,
         busy * bound->tile, 0}};
    return least_of(state, bound, &floors, tiles);
}

/* ---- the cheapest so far ---- */

static bool precedes(const struct ranked *a, const struct ranked *b) {
    return a->choice.cost < b->choice.cost ||
           (a->choice.cost == b->choice.cost && a->order < b->order);
}

/* The last of a variant that has all that are kept of one; -1: it has not. */
static int last_of(const struct state *state, const struct nh_box_variant *variant) {
    int last = -1, count = 0;
    for (int i = 0; i < state->count; i++) {
        if (state->kept[i].choice.variant != variant) continue;
        count++;
        last = i;
    }
    return count == MOST_OF_VARIANT ? last : -1;
}

/* What costs more is not kept, with room for rounding; variant: NULL, or what it is of. */
static double limit_of(const struct state *state, const struct nh_box_variant *variant) {
    const double rounding = 1 + 1e-9;
    double limit = state->search->below;
    int last = variant ? last_of(state, variant) : -1;
    if (state->count) limit = smaller(limit, state->search->behind * state->kept[0].choice.cost);
    if (last < 0 && state->count == state->capacity) last = state->count - 1;
    return rounding * (last < 0 ? limit : smaller(limit, state->kept[last].choice.cost));
}

static void keep(struct state *state, const struct ranked *ranked) {
    int place = last_of(state, ranked->choice.variant);
    if (!(ranked->choice.cost < state->search->below)) return;
    if (place < 0 && state->count < state->capacity) {
        place = state->count++;
    } else {
        if (place < 0) place = state->count - 1;
        if (!precedes(ranked, &state->kept[place])) return;
    }
    for (; place > 0 && precedes(ranked, &state->kept[place - 1]); place--)
        state->kept[place] = state->kept[place - 1];
    state->kept[place] = *ranked;
}

/* ---- the search ---- */

static int lowest(const double *least, int count) {
    int lowest = 0;
    for (int i = 1; i < count; i++)
        if (least[i] < least[lowest]) lowest = i;
    return lowest;
}

/* Of the pairs of a row box with each column box; INFINITY where it is clear that they are not kept. */
static void find_least_of_pairs(const struct nh_box_bound *bound, const struct floors *floors,
                                const struct nh_walk_rows *row, const struct boxes *columns,
                                double limit, double *least) {
    const struct floor latency = floors->latency, throughput = floors->throughput;
    for (int j = 0; j < columns->count; j++) {
        double tiles = nh_walk_visits(row, columns->columns[j]);
        double waits = bound->fixed + at(&latency, tiles),
               works = bound->fixed + at(&throughput, tiles);
        least[j] = INFINITY;
        if (waits >= limit || works >= limit) continue;
        const struct nh_tiling_count count = nh_walk_count(row, columns->columns[j]);
        least[j] = larger(larger(waits + latency.per_masked * count.partial,
                                 works + throughput.per_masked * count.partial),
                          bound->fixed +
                              bound->per_clock * (count.longest * bound->longest + bound->block));
    }
}

/* Keeps those of the pairs of row box i that are cheap. */
static void try_row(struct state *state, int v, const struct boxes *rows, int i,
                    const struct boxes *columns, const struct floors *floors) {
    const struct nh_box_search *search = state->search;
    const struct nh_box_variant *variant = &search->variant[v];
    const int32_t *box = rows->extent[i];
    struct nh_walk_rows row;
    double least[NH_MOST_BOXES];
    if (!nh_walk_rows_of(&state->counts, box, box, &row)) return;
    find_least_of_pairs(&state->bound[v], floors, &row, columns, limit_of(state, variant), least);
    for (;;) {
        int j = lowest(least, columns->count);
        if (!(least[j] < limit_of(state, variant))) return;
        const struct nh_tiling_count count = nh_walk_count(&row, columns->columns[j]);
        struct ranked ranked = {.choice.variant = variant,
                                .order = (v * NH_MOST_BOXES + i) * NH_MOST_BOXES + j};
        struct nh_box_choice *choice = &ranked.choice;
        memcpy(choice->row, box, sizeof choice->row);
        memcpy(choice->column, columns->extent[j], sizeof choice->column);
        choice->count = count;
        choice->cost = search->cost(search, choice);
        keep(state, &ranked);
        least[j] = INFINITY;
    }
}

static void try_variant(struct state *state, int v) {
    const struct nh_box_variant *variant = &state->search->variant[v];
    const struct boxes *rows = boxes_of(state, variant->rows),
                       *columns = boxes_of(state, variant->columns);
    struct floors floors[NH_MOST_BOXES];
    double least[NH_MOST_BOXES];
    for (int i = 0; i < rows->count; i++) {
        floors[i] = floors_of(&state->bound[v], rows->row[i].items);
        least[i] =
            least_of(state, &state->bound[v], &floors[i], rows->row[i].needed / variant->columns);
    }
    for (;;) {
        int i = lowest(least, rows->count);
        if (!(least[i] < limit_of(state, variant))) return;
        try_row(state, v, rows, i, columns, &floors[i]);
        least[i] = INFINITY;
    }
}

/* What no boxes of the variant stay below. */
static double least_of_variant(struct state *state, int v) {
    const struct nh_box_variant *variant = &state->search->variant[v];
    struct nh_box_bound *bound = &state->bound[v];
    *bound = state->search->bound(state->search, variant);
    if (bound->residents <= 0) return INFINITY;
    struct boxes *rows = boxes_of(state, variant->rows),
                 *columns = boxes_of(state, variant->columns);
    if (!rows || !columns || !columns->count) return INFINITY;
    if (rows->fewest.items == 0) count_rows(state, rows);
    return least_of_all(state, bound, rows->fewest.items, rows->fewest.needed / variant->columns);
}

int nh_box_search(const struct nh_box_search *search, struct nh_box_choice *best, int capacity) {
    struct state state;
    double least[NH_MOST_BOX_VARIANTS];
    start(&state, search, capacity);
    for (int v = 0; v < search->variants; v++)
        least[v] = least_of_variant(&state, v);
    for (;;) {
        int v = lowest(least, search->variants);
        if (!(least[v] < limit_of(&state, NULL))) break;
        try_variant(&state, v);
        least[v] = INFINITY;
    }
    while (state.count &&
           state.kept[state.count - 1].choice.cost > search->behind * state.kept[0].choice.cost)
        state.count--;
    for (int i = 0; i < state.count; i++)
        best[i] = state.kept[i].choice;
    return state.count;
}
