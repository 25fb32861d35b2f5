/* The tiles of a whole problem, and the order of its query tiles. */
#include "tiling.h"

#include <string.h>

/* The place of an extent in the list of an axis; if it is not there, the place after the last. */
static int place_of(const struct nh_loop_extents *extents, int a, int32_t extent) {
    int place = 0;
    while (place < extents->count[a] && extents->extent[a][place] != extent)
        place++;
    return place;
}

bool nh_loop_extents_add(struct nh_loop_extents *extents, const int32_t tile[3],
                         struct nh_loop_columns *columns) {
    int place[NH_AXES];
    for (int a = 0; a < NH_AXES; a++)
        if ((place[a] = place_of(extents, a, tile[a])) == NH_MOST_EXTENTS) return false;
    for (int a = 0; a < NH_AXES; a++) {
        extents->extent[a][place[a]] = tile[a];
        if (place[a] == extents->count[a]) extents->count[a]++;
        columns->place[a] = (int8_t)place[a];
    }
    return true;
}

void nh_loop_counts_start(struct nh_loop_counts *counts, const struct nh_problem *problem,
                          bool inverse, bool beyond, const struct nh_loop_extents *columns) {
    memcpy(counts->axis, problem->axis, sizeof counts->axis);
    counts->inverse = inverse;
    counts->beyond = beyond;
    counts->columns = *columns;
}

void nh_loop_rows_of(const struct nh_loop_counts *counts, const int32_t rows[3],
                     const int32_t part[3], struct nh_loop_rows *found) {
    for (int a = 0; a < NH_AXES; a++)
        nh_tile_counts(&counts->axis[a], rows[a], part[a], counts->inverse, counts->beyond,
                       counts->columns.extent[a], counts->columns.count[a], &found->of[a]);
}

struct nh_tiling_count nh_loop_count(const struct nh_loop_rows *rows,
                                     struct nh_loop_columns columns) {
    struct nh_tiling_count count = {nh_loop_work_tiles(rows), 1, 0, 1};
    double dense = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_tile_counts *line = &rows->of[a];
        count.visited *= line->visits[columns.place[a]];
        count.longest *= line->longest[columns.place[a]];
        dense *= line->dense[columns.place[a]];
    }
    count.partial = count.visited - dense;
    return count;
}

struct nh_tiling_count nh_tiling_count(const struct nh_problem *problem, const int32_t own[3],
                                       const int32_t part[3], const int32_t loop[3], bool inverse,
                                       bool beyond) {
    struct nh_loop_rows rows;
    for (int a = 0; a < NH_AXES; a++)
        nh_tile_counts(&problem->axis[a], own[a], part[a], inverse, beyond, &loop[a], 1,
                       &rows.of[a]);
    return nh_loop_count(&rows, (struct nh_loop_columns){{0, 0, 0}});
}

/* ---- tiles of several boxes ---- */

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
    for (int64_t group = 0; group < axis->dilation;) {
        const struct nh_groups groups = nh_groups_from(axis, group, false);
        for (int64_t row = 0; row < tiles * rows; row += rows) {
            struct nh_range first = nh_groups_seen(&groups, row),
                            last = nh_groups_seen(&groups, row + rows - 1);
            const struct nh_range halo = {first.begin, last.end};
            int64_t begin = nh_first_box(&groups, halo, box);
            add_way(ways, (struct way){nh_max(nh_ceil_div(halo.end - begin, box), 1),
                                       nh_ceil_div(last.begin - begin, box),
                                       (first.end - begin) / box, groups.count});
        }
        group += groups.count;
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

/* ---- the order of work ---- */

/* The orders in which tiles can be numbered, fastest axis first. The first `rank` ones differ in problems of fewer than
 * three axes, where leading axes have one tile. */
static const int orders[][3] = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {1, 0, 2}, {0, 1, 2}, {0, 2, 1}};

static int32_t orders_of(int32_t rank) {
    return rank == 3 ? 6 : rank;
}

int32_t nh_tiling_order(const struct nh_problem *problem, const int32_t own[3], bool inverse,
                        int32_t blocks) {
    int32_t best = 0;
    double least = 0;
    for (int32_t o = 0; o < orders_of(problem->rank); o++) {
        int64_t left = blocks;
        double columns = 1;
        for (int i = 0; i < NH_AXES; i++) {
            const struct nh_axis *axis = &problem->axis[orders[o][i]];
            int64_t rows = nh_longest_rows(axis, inverse), tile = own[orders[o][i]];
            int64_t tiles = nh_min(nh_ceil_div(rows, tile), left);
            left = nh_max(1, left / tiles);
            columns *=
                (double)nh_min(nh_longest_rows(axis, !inverse), axis->window + tiles * tile - 1);
        }
        if (o > 0 && columns >= least * 0.999) continue;
        best = o;
        least = columns;
    }
    return best;
}

/* The share of an axis that the halo of one stride group covers. */
static double cover(const struct nh_axis *axis) {
    int64_t length = nh_longest_group(axis), halo = axis->window + axis->stride - 1;
    return (double)nh_min(halo, length) / (double)length;
}

int32_t nh_tiling_queue_order(const struct nh_problem *problem) {
    double share[NH_AXES];
    int32_t best = 0;
    for (int a = 0; a < NH_AXES; a++)
        share[a] = cover(&problem->axis[a]);
    for (int32_t o = 1; o < orders_of(problem->rank); o++) {
        int i = 0;
        while (i < NH_AXES - 1 && share[orders[o][i]] == share[orders[best][i]])
            i++;
        if (share[orders[o][i]] > share[orders[best][i]]) best = o;
    }
    return best;
}

bool nh_tiling_laps_fit(const struct nh_problem *problem, const int32_t own[3],
                        const int32_t loop[3], bool inverse) {
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (!axis->periodic) continue;
        int64_t rows = nh_min(own[a], nh_longest_rows(axis, inverse)), lap = nh_longest_group(axis),
                window = axis->window, stride = axis->stride;
        int64_t halo = inverse ? nh_ceil_div(window + rows - 1, stride) * stride
                               : window + nh_ceil_div(rows - 1, stride) * stride;
        if (halo > lap + 1 && lap % loop[a]) return false;
    }
    return true;
}

nhood_status nh_tiling_set(const struct nh_problem *problem, const int32_t own[3], int32_t heads,
                           bool inverse, int32_t order, struct nh_cuda_tiling *tiling) {
    int64_t work_tiles = problem->batch;
    bool fits = nh_multiply(work_tiles, problem->heads / heads, &work_tiles);
    *tiling = (struct nh_cuda_tiling){.work_tiles = 0};
    for (int a = 0, next = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        tiling->tiles[a] = (int)nh_ceil_div(nh_longest_rows(axis, inverse), own[a]);
        fits = fits && nh_multiply(work_tiles, tiling->tiles[a], &work_tiles) &&
               nh_multiply(work_tiles, axis->dilation, &work_tiles);
        /* The kernel knows only the problem's own axes. */
        int ordered = orders[order][a];
        if (ordered >= NH_AXES - problem->rank) tiling->order[next++] = ordered;
    }
    if (!fits || work_tiles > INT32_MAX)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^31 query tiles");
    tiling->work_tiles = (int)work_tiles;
    return NHOOD_OK;
}
