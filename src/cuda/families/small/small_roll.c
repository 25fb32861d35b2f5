#include "small_roll.h"

enum { MOST_HELD = 16, NEAR_PLANES = 1 };

/* The axis along which they do. */
struct chain {
    const struct nh_axis *axis;
    enum nh_small_rows rows;
    /* whether warp tiles stop at the last line that any of their rows sees */
    bool stops;
    /* of the longest dilation group, and whether others are shorter */
    int64_t length, tiles, shorter;
    /* rows of a work tile along the axis, and its lines of columns with their columns */
    int64_t work_tile, lines, columns;
    int64_t least_pairs;
};

/* As nh_roll_touched. */
static int64_t touched(const struct chain *chain, int64_t seen) {
    int64_t pairs = nh_max(nh_ceil_div(seen * chain->columns, 16), chain->least_pairs);
    return chain->stops ? nh_min(nh_ceil_div(16 * pairs, chain->columns), chain->lines)
                        : chain->lines;
}

/* Slots that the work tile's box needs in a dilation group, as nh_roll_box has it. */
static struct nh_range slots_in_group(const struct chain *chain, int64_t length,
                                      int64_t work_tile) {
    int64_t first = nh_min(work_tile * chain->work_tile, length - 1);
    int64_t last = nh_min((work_tile + 1) * chain->work_tile, length) - 1;
    int64_t begin = nh_small_columns_of(chain->axis, chain->rows, length, first).begin;
    int64_t end = nh_small_columns_of(chain->axis, chain->rows, length, last).end;
    while (begin + touched(chain, end - begin) > chain->tiles * chain->work_tile)
        begin--;
    return (struct nh_range){begin / chain->work_tile,
                             nh_ceil_div(begin + touched(chain, end - begin), chain->work_tile)};
}

/* In any group. */
static struct nh_range work_tile_slots(const struct chain *chain, int64_t work_tile) {
    struct nh_range slots = slots_in_group(chain, chain->length, work_tile);
    if (!chain->shorter) return slots;
    struct nh_range others = slots_in_group(chain, chain->length - 1, work_tile);
    return (struct nh_range){nh_min(slots.begin, others.begin), nh_max(slots.end, others.end)};
}

/* No work tile may need less than the one before: slots are asked for once. */
static bool advances(const struct chain *chain) {
    for (int64_t less = 0; less <= chain->shorter; less++)
        for (int64_t i = 1; i < chain->tiles; i++)
            if (slots_in_group(chain, chain->length - less, i).end <
                slots_in_group(chain, chain->length - less, i - 1).end)
                return false;
    return true;
}

/* Slots that are in use when a work tile's are asked for and the `held` last work tiles are not done, at most. Where
 * slots are planes a chain begins once enough of the one before is done: only its own work tiles count. */
static int64_t slots_in_use(const struct chain *chain, int32_t held, bool planes) {
    int64_t begin[MOST_HELD], most = 1;
    for (int64_t work_tile = 1 - held; work_tile < chain->tiles; work_tile++) {
        int64_t own = (work_tile % chain->tiles + chain->tiles) % chain->tiles;
        struct nh_range slots = work_tile_slots(chain, own);
        begin[(work_tile + held) % held] = work_tile - own + slots.begin;
        int64_t others = planes ? nh_min(held, own + 1) : held;
        for (int64_t before = 0; work_tile >= 0 && before < others; before++)
            most = nh_max(most, slots.end - begin[before]);
    }
    return most;
}

/* Whole turns of the swizzle, or with an even number of slots half ones. */
static bool rows_agree(const struct nh_problem *problem, bool planes, int64_t slot_rows) {
    return slot_rows % (problem->rank == 2 || planes ? 4 : 8) == 0;
}

bool nh_small_rolls_planes(const struct nh_problem *problem, const struct nh_small_shape *shape) {
    return problem->rank == 3 && shape->rows[0] == 1;
}

void nh_small_roll(const struct nh_problem *problem, enum nh_small_rows rows, int32_t held,
                   struct nh_small_shape *shape) {
    int first = NH_AXES - problem->rank;
    const struct nh_axis *axis = &problem->axis[first];
    int64_t work_tile = shape->rows[first];
    /* an axis shorter than a work tile has nothing to roll, nor gaps between its planes */
    if (axis->periodic || !nh_is_whole(axis, &axis->query) || !nh_is_whole(axis, &axis->key))
        return;
    bool planes = nh_small_rolls_planes(problem, shape);
    if (problem->rank == 1 || (work_tile == 1 && (!planes || problem->op == NHOOD_OP_BWD)) ||
        work_tile != shape->warp_tile[first] || work_tile > shape->halo[first] ||
        (planes && (shape->halo[first] == 1 || axis->length % axis->dilation)) ||
        (rows == NH_SMALL_KEYS && problem->heads != problem->kv_heads))
        return;
    int64_t lines = problem->rank == 3 ? shape->halo[1] : 1;
    int64_t slot_rows = work_tile * lines * shape->halo[2];
    int64_t group = nh_longest_group(axis);
    int64_t length = nh_small_representative_length(axis, group, work_tile);
    const struct chain chain = {.axis = axis,
                                .rows = rows,
                                .stops = problem->op == NHOOD_OP_BWD,
                                .length = length,
                                .tiles = nh_ceil_div(length, work_tile),
                                .shorter = axis->length % axis->dilation != 0,
                                .work_tile = work_tile,
                                .lines = shape->columns[first],
                                .columns = shape->columns[2] *
                                           (problem->rank == 3 ? shape->columns[1] : 1),
                                .least_pairs = shape->least_pairs};
    if (!rows_agree(problem, planes, slot_rows) || chain.tiles * work_tile < chain.lines ||
        !advances(&chain))
        return;
    int64_t slots = slots_in_use(&chain, held, planes);
    shape->slots = (int32_t)(slot_rows % 8 ? slots + slots % 2 : slots);
    shape->halo[first] = (int32_t)work_tile;
    shape->fetched_rows = slot_rows;
    shape->halo_rows = shape->slots * slot_rows;
}

int32_t nh_small_near_heads(const struct nh_problem *problem, const struct nh_small_shape *shape) {
    if (!shape->slots) return 1;
    if (nh_small_rolls_planes(problem, shape)) return NEAR_PLANES;
    return problem->heads % 4 == 0 ? 4 : problem->heads % 2 == 0 ? 2 : 1;
}

int64_t nh_small_statistics_box(const struct nh_small_shape *shape, int32_t *box) {
    for (int a = 0; a < NH_AXES; a++)
        box[a] = shape->halo[a];
    if (!shape->slots || shape->halo[0] > 1) return shape->fetched_rows;
    box[2] += box[2] % 2;
    return (int64_t)box[1] * box[2];
}
