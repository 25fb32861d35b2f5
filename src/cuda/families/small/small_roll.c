#include "small_roll.h"

enum { MOST_HELD = 16 };

/* The first axis of a problem, along which halos roll, as the kernels see it. A chain is all work tiles that differ
 * only in their position along it. */
struct chain {
    const struct nh_axis *axis;
    bool keys;
    /* warp tiles stop at the last line that any of their rows sees: NH_STOPS */
    bool stops;
    /* length and work tiles of the longest dilation group; 1 if others are shorter */
    int64_t length, tiles, shorter;
    /* region: NH_REGIONS of the kernels. whole: tensors have all rows and columns; else own and other are those they
     * have. */
    bool region, whole;
    struct nh_range own, other;
    /* with a region: the position from which slots are counted, and the end of the last slot, beyond which no box
     * reaches */
    int64_t base, slots_end;
    /* positions per work tile; lines of a warp tile's box, and columns per line */
    int64_t work_tile, lines, columns;
    int64_t least_pairs;
};

/* The same as nh_roll_touched in small_roll.cuh. */
static int64_t touched(const struct chain *chain, int64_t seen) {
    int64_t pairs = nh_max(nh_ceil_div(nh_max(seen, 1) * chain->columns, 16), chain->least_pairs);
    return chain->stops ? nh_min(nh_ceil_div(16 * pairs, chain->columns), chain->lines)
                        : chain->lines;
}

static struct nh_range covered_columns(const struct chain *chain, int64_t length,
                                       int64_t position) {
    const struct nh_axis *axis = chain->axis;
    struct nh_range seen = nh_seen_range(length, axis->window, axis->stride, axis->causal,
                                         axis->periodic, chain->keys, position);
    return chain->whole ? seen : nh_covered_part(seen, chain->other, length, axis->periodic);
}

/* The columns that the work tile's rows see, of those that tensors have. */
static struct nh_range seen_in_part(const struct chain *chain, int64_t length, int64_t work_tile) {
    int64_t first = work_tile * chain->work_tile + chain->own.begin;
    int64_t rows_end = chain->whole ? length : chain->own.end;
    int64_t last = nh_min(first + chain->work_tile, rows_end) - 1;
    return (struct nh_range){covered_columns(chain, length, nh_min(first, last)).begin,
                             covered_columns(chain, length, last).end};
}

/* The slots that the work tile's halo needs, counted from the base; negative before it. */
static struct nh_range slots_in_part(const struct chain *chain, int64_t length, int64_t work_tile) {
    struct nh_range seen = seen_in_part(chain, length, work_tile);
    int64_t begin = seen.begin;
    while (begin + touched(chain, seen.end - begin) > chain->slots_end)
        begin--;
    int64_t lines = touched(chain, seen.end - begin);
    return (struct nh_range){nh_floor_div(begin - chain->base, chain->work_tile),
                             nh_floor_div(begin + lines - 1 - chain->base, chain->work_tile) + 1};
}

/* The end of the last slot: after the last column that a row sees, unless a box is longer. A periodic axis has none. */
static int64_t slots_end_of(const struct chain *chain) {
    if (!chain->region || chain->axis->periodic) return INT64_MAX;
    struct nh_range seen = seen_in_part(chain, chain->length, 0);
    for (int64_t i = 1; i < chain->tiles; i++) {
        struct nh_range own = seen_in_part(chain, chain->length, i);
        seen = (struct nh_range){nh_min(seen.begin, own.begin), nh_max(seen.end, own.end)};
    }
    int64_t base = chain->base, rows = chain->work_tile,
            begin = base + nh_floor_div(seen.begin - base, rows) * rows,
            end = base + nh_ceil_div(seen.end - base, rows) * rows;
    return nh_max(end, begin + nh_ceil_div(chain->lines, rows) * rows);
}

/* The slots that the work tile's halo needs in a dilation group of this length, as nh_roll_box in small_roll.cuh has
 * them. */
static struct nh_range slots_in_group(const struct chain *chain, int64_t length,
                                      int64_t work_tile) {
    if (chain->region) return slots_in_part(chain, length, work_tile);
    int64_t first = nh_min(work_tile * chain->work_tile, length - 1);
    int64_t last = nh_min((work_tile + 1) * chain->work_tile, length) - 1;
    int64_t begin = nh_small_columns_of(chain->axis, chain->keys, length, first).begin;
    int64_t end = nh_small_columns_of(chain->axis, chain->keys, length, last).end;
    while (begin + touched(chain, end - begin) > chain->tiles * chain->work_tile)
        begin--;
    return (struct nh_range){begin / chain->work_tile,
                             nh_ceil_div(begin + touched(chain, end - begin), chain->work_tile)};
}

/* The slots that it needs in any group. */
static struct nh_range work_tile_slots(const struct chain *chain, int64_t work_tile) {
    struct nh_range slots = slots_in_group(chain, chain->length, work_tile);
    if (!chain->shorter) return slots;
    struct nh_range others = slots_in_group(chain, chain->length - 1, work_tile);
    return (struct nh_range){nh_min(slots.begin, others.begin), nh_max(slots.end, others.end)};
}

/* Whether no work tile's slots end before those of the one before it: each slot is fetched only once. */
static bool advances(const struct chain *chain) {
    for (int64_t less = 0; less <= chain->shorter; less++)
        for (int64_t i = 1; i < chain->tiles; i++)
            if (slots_in_group(chain, chain->length - less, i).end <
                slots_in_group(chain, chain->length - less, i - 1).end)
                return false;
    return true;
}

/* The most slots that are in use when a work tile's slots are fetched while the last `held` work tiles are unfinished.
 * Where slots are planes, a chain begins only when enough of the chain before is done, so that only its own work tiles
 * count. */
static int64_t slots_in_use(const struct chain *chain, int32_t held, bool planes, int64_t around) {
    int64_t begin[MOST_HELD], most = 1;
    for (int64_t work_tile = 1 - held; work_tile < chain->tiles; work_tile++) {
        int64_t own = (work_tile % chain->tiles + chain->tiles) % chain->tiles;
        struct nh_range slots = work_tile_slots(chain, own);
        int64_t before = (work_tile - own) / chain->tiles * (chain->tiles + around);
        begin[(work_tile + held) % held] = before + slots.begin;
        int64_t others = planes ? nh_min(held, own + 1) : held;
        for (int64_t i = 0; work_tile >= 0 && i < others; i++)
            most = nh_max(most, slots.end - begin[i]);
    }
    return most;
}

/* Whether a slot has a whole number of the swizzle's periods or, if the number of slots is even, of half periods. */
static bool rows_agree(const struct nh_problem *problem, bool planes, int64_t slot_rows) {
    return slot_rows % (problem->rank == 2 || planes ? 4 : 8) == 0;
}

bool nh_small_rolls_planes(const struct nh_problem *problem, const struct nh_small_shape *shape) {
    return problem->rank == 3 && shape->rows[0] == 1;
}

/* Whether halos can roll along an axis that tensors do not cover, or that is periodic. It must have one dilation group,
 * and if periodic be covered and divided by work tiles. The limit bounds the time in which the host looks at each work
 * tile. */
static bool part_rolls(const struct nh_axis *axis, const struct chain *chain) {
    enum { MOST_TILES = 4096 };
    if (chain->whole && !axis->periodic) return true;
    return axis->dilation == 1 && chain->tiles <= MOST_TILES &&
           (!axis->periodic || (chain->whole && axis->length % chain->work_tile == 0));
}

/* Sets the number of positions between the start of a chain's slots and its first row, and the number of its slots
 * beyond that of its work tiles. They are negative if columns begin after the rows, or are fewer. */
static void count_around(const struct chain *chain, struct nh_small_shape *shape) {
    struct nh_range all = work_tile_slots(chain, 0);
    for (int64_t i = 1; i < chain->tiles; i++) {
        struct nh_range slots = work_tile_slots(chain, i);
        all = (struct nh_range){nh_min(all.begin, slots.begin), nh_max(all.end, slots.end)};
    }
    shape->lines_before = (int32_t)(chain->own.begin - chain->base - all.begin * chain->work_tile);
    shape->slots_around = (int32_t)(all.end - all.begin - chain->tiles);
}

static struct chain chain_of(const struct nh_problem *problem, bool keys,
                             const struct nh_small_shape *shape) {
    int first = NH_AXES - problem->rank;
    const struct nh_axis *axis = &problem->axis[first];
    const struct nh_box *own = keys ? &axis->key : &axis->query,
                        *other = keys ? &axis->query : &axis->key;
    int64_t work_tile = shape->rows[first], group = nh_longest_group(axis);
    bool whole = nh_is_whole(axis, own) && nh_is_whole(axis, other);
    int64_t length =
        whole && !axis->periodic ? nh_small_representative_length(axis, group, work_tile) : group;
    return (struct chain){.axis = axis,
                          .keys = keys,
                          .stops = problem->op == NHOOD_OP_BWD,
                          .length = length,
                          .tiles = nh_ceil_div(whole ? length : own->length, work_tile),
                          .shorter = axis->length % axis->dilation != 0,
                          .region = nh_small_has_region(problem),
                          .whole = whole,
                          .own = {own->offset, own->offset + own->length},
                          .other = {other->offset, other->offset + other->length},
                          .work_tile = work_tile,
                          .lines = shape->columns[first],
                          .columns =
                              shape->columns[2] * (problem->rank == 3 ? shape->columns[1] : 1),
                          .least_pairs = shape->least_pairs};
}

/* Returns the number of slots that a chain needs; 0: its halos do not roll. In a region columns need not begin where
 * rows do, so slots may begin at any position of a work tile: the one that needs the fewest slots is taken. On a
 * periodic axis they begin with the rows. */
static int64_t place_slots(struct chain *chain, int32_t held, bool planes,
                           struct nh_small_shape *shape) {
    int64_t places = chain->region && !chain->axis->periodic ? chain->work_tile : 1, least = 0;
    for (int64_t place = 0; place < places; place++) {
        struct nh_small_shape placed = *shape;
        chain->base = chain->own.begin + place;
        chain->slots_end = slots_end_of(chain);
        if (!advances(chain)) continue;
        if (chain->region) count_around(chain, &placed);
        int64_t slots = slots_in_use(chain, held, planes, placed.slots_around);
        if (least && slots >= least) continue;
        least = slots;
        *shape = placed;
    }
    return least;
}

void nh_small_roll(const struct nh_problem *problem, bool keys, int32_t held,
                   struct nh_small_shape *shape) {
    int first = NH_AXES - problem->rank;
    const struct nh_axis *axis = &problem->axis[first];
    int64_t work_tile = shape->rows[first];
    /* An axis shorter than a work tile has nothing to roll, and planes must have no gaps between them. */
    bool planes = nh_small_rolls_planes(problem, shape);
    if (problem->rank == 1 || (work_tile == 1 && (!planes || problem->op == NHOOD_OP_BWD)) ||
        work_tile != shape->warp_tile[first] || work_tile > shape->halo[first] ||
        (planes && (shape->halo[first] == 1 || axis->length % axis->dilation)) ||
        (keys && problem->heads != problem->kv_heads))
        return;
    int64_t lines = problem->rank == 3 ? shape->halo[1] : 1;
    int64_t slot_rows = work_tile * lines * shape->halo[2];
    struct chain chain = chain_of(problem, keys, shape);
    if (!rows_agree(problem, planes, slot_rows) || !part_rolls(axis, &chain) ||
        (!chain.region && chain.tiles * work_tile < chain.lines))
        return;
    int64_t slots = place_slots(&chain, held, planes, shape);
    if (!slots) return;
    shape->slots = (int32_t)(slot_rows % 8 ? slots + slots % 2 : slots);
    shape->halo[first] = (int32_t)work_tile;
    shape->fetched_rows = slot_rows;
    shape->halo_rows = shape->slots * slot_rows;
}

int32_t nh_small_near_heads(const struct nh_problem *problem, const struct nh_small_shape *shape) {
    if (!shape->slots || nh_small_rolls_planes(problem, shape)) return 1;
    return problem->heads % 4 == 0 ? 4 : problem->heads % 2 == 0 ? 2 : 1;
}

int64_t nh_small_statistics_box(const struct nh_small_shape *shape, int32_t *box) {
    for (int a = 0; a < NH_AXES; a++)
        box[a] = shape->halo[a];
    if (!shape->slots || shape->halo[0] > 1) return shape->fetched_rows;
    box[2] += box[2] % 2;
    return (int64_t)box[1] * box[2];
}
