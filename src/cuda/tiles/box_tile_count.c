#include "box_tile_count.h"

#include "tile_count.h"

/* One way in which the halo of row tiles falls on the boxes of an axis: it takes `boxes` boxes, of which all rows see
 * [begin, end) entirely. `count` row tiles lie so. */
struct way {
    int64_t boxes, begin, end, count;
};

enum { MOST_WAYS = 64 };

struct ways {
    struct way way[MOST_WAYS];
    int count;
};

/* Consecutive dilation groups of an axis of which the tensors have the same positions: how many they are, the length of
 * each, and the rows (queries) and columns (keys) that tensors have of it. */
struct group {
    const struct nh_axis *axis;
    int64_t count, length;
    struct nh_range rows, columns;
};

static struct group group_of(const struct nh_axis *axis, int64_t group) {
    return (struct group){axis, nh_next_group_kind(axis, group) - group,
                          nh_axis_group_length(axis->length, axis->dilation, group),
                          nh_axis_covered(axis, &axis->query, group),
                          nh_axis_covered(axis, &axis->key, group)};
}

static struct nh_range seen_by(const struct group *group, int64_t row) {
    const struct nh_axis *axis = group->axis;
    if (group->rows.begin >= group->rows.end)
        return (struct nh_range){group->columns.begin, group->columns.begin};
    struct nh_range seen = nh_seen_range(group->length, axis->window, axis->stride, axis->causal,
                                         axis->periodic, false, nh_min(row, group->rows.end - 1));
    return nh_covered_part(seen, group->columns, group->length, axis->periodic);
}

static void add_way(struct ways *ways, struct way way) {
    int i = 0;
    while (i < ways->count && (ways->way[i].boxes != way.boxes || ways->way[i].begin != way.begin ||
                               ways->way[i].end != way.end))
        i++;
    if (i == MOST_WAYS) {
        i--;
    } else if (i == ways->count) {
        ways->way[ways->count++] = (struct way){way.boxes, way.begin, way.end, 0};
    }
    ways->way[i].count += way.count;
}

/* Counts the ways of the row tiles along an axis that is not the stacking axis. */
static void find_ways(const struct nh_axis *axis, int32_t rows, int32_t box, struct ways *ways) {
    int64_t tiles = nh_ceil_div(nh_longest_rows(axis, false), rows);
    ways->count = 0;
    for (int64_t g = 0; g < axis->dilation; g = nh_next_group_kind(axis, g)) {
        const struct group group = group_of(axis, g);
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t row = group.rows.begin + tile * rows;
            struct nh_range first = seen_by(&group, row), last = seen_by(&group, row + rows - 1);
            const struct nh_range halo = {first.begin, last.end};
            int64_t begin = nh_first_box(axis, group.columns, group.length, halo, box);
            add_way(ways, (struct way){nh_max(nh_ceil_div(halo.end - begin, box), 1),
                                       nh_ceil_div(last.begin - begin, box),
                                       (first.end - begin) / box, group.count});
        }
    }
}

/* Counts the tiles whose boxes are all seen entirely by all rows. Boxes are numbered along the second axis first, and
 * each `tile_boxes` of them in that order are a tile. */
static int64_t whole_tiles(const struct way *second, const struct way *third, int32_t tile_boxes) {
    int64_t lines = second->boxes, whole = 0;
    if (second->end <= second->begin || third->end <= third->begin) return 0;
    if (second->end - second->begin == lines)
        return nh_max(
            third->end * lines / tile_boxes - nh_ceil_div(third->begin * lines, tile_boxes), 0);
    for (int64_t plane = third->begin; plane < third->end; plane++) {
        int64_t end = (plane * lines + second->end) / tile_boxes;
        whole += nh_max(end - nh_ceil_div(plane * lines + second->begin, tile_boxes), 0);
    }
    return whole;
}

struct nh_box_tile_count nh_box_tile_count(const struct nh_problem *problem, const int32_t own[3],
                                           int32_t part, int32_t stack, const int32_t box[3],
                                           int32_t tile_boxes) {
    int second = stack == 2 ? 1 : 2, third = 3 - stack - second;
    struct ways seconds, thirds;
    int64_t tiles = 0, whole = 0;
    find_ways(&problem->axis[second], own[second], box[second], &seconds);
    find_ways(&problem->axis[third], own[third], box[third], &thirds);
    for (int i = 0; i < seconds.count; i++)
        for (int j = 0; j < thirds.count; j++) {
            const struct way *a = &seconds.way[i], *b = &thirds.way[j];
            tiles += a->count * b->count * nh_ceil_div(a->boxes * b->boxes, tile_boxes);
            whole += a->count * b->count * whole_tiles(a, b, tile_boxes);
        }
    struct nh_tile_counts fetched, seen; /* boxes along the stacking axis */
    const struct nh_axis *axis = &problem->axis[stack];
    nh_tile_counts(axis, own[stack], own[stack], false, true, &box[stack], 1, &fetched);
    nh_tile_counts(axis, own[stack], part, false, true, &box[stack], 1, &seen);
    double work_tiles = 1;
    for (int a = 0; a < NH_AXES; a++)
        work_tiles *= (double)nh_row_tiles(&problem->axis[a], own[a], false);
    double multiplied = seen.visits[0] * (double)tiles;
    return (struct nh_box_tile_count){work_tiles, fetched.visits[0] * (double)tiles, multiplied,
                                      multiplied - seen.dense[0] * (double)whole};
}
