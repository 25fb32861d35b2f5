#include "abreast_count.h"

#include "tile_count.h"

/* How row tiles of an axis meet its boxes: so many of a walk, of which [begin, end) are seen whole; how many do. */
struct way {
    int64_t boxes, begin, end, count;
};

enum { MOST_WAYS = 64 };

struct ways {
    struct way way[MOST_WAYS];
    int count;
};

static struct nh_range seen_by(const struct nh_axis *axis, int64_t length, int64_t row) {
    return nh_window_range(length, axis->window, axis->stride, axis->causal,
                           nh_min(row, length - 1));
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

/* Of row tiles of an axis across the stack's. */
static void add_group(const struct nh_axis *axis, int64_t length, int64_t tiles, int32_t rows,
                      int32_t box, int64_t groups, struct ways *ways) {
    for (int64_t row = 0; row < tiles * rows; row += rows) {
        struct nh_range first = seen_by(axis, length, row),
                        last = seen_by(axis, length, row + rows - 1);
        int64_t walk = nh_ceil_div(last.end - first.begin, box);
        add_way(ways, (struct way){walk, nh_ceil_div(last.begin - first.begin, box),
                                   (first.end - first.begin) / box, groups});
    }
}

static void find_ways(const struct nh_axis *axis, int32_t rows, int32_t box, struct ways *ways) {
    int64_t longest = nh_longest_group(axis), tiles = nh_ceil_div(longest, rows);
    int64_t shorter = longest * axis->dilation - axis->length;
    ways->count = 0;
    add_group(axis, longest, tiles, rows, box, axis->dilation - shorter, ways);
    if (shorter) add_group(axis, longest - 1, tiles, rows, box, shorter, ways);
}

/* Along a line: boxes of walks, those of parts, and of these those that are seen whole. */
struct line {
    int64_t fetched, multiplied, whole;
};

static void add_part(const struct nh_axis *axis, int64_t length, int64_t walk, int64_t row,
                     int32_t part, int32_t box, int64_t groups, struct line *line) {
    struct nh_range first = seen_by(axis, length, row),
                    last = seen_by(axis, length, row + part - 1);
    int64_t begin = (first.begin - walk) / box, end = nh_ceil_div(last.end - walk, box);
    if (row >= length) end = begin + 1;
    int64_t from = nh_max(begin, nh_ceil_div(last.begin - walk, box));
    int64_t to = nh_min(end, (first.end - walk) / box);
    line->multiplied += groups * (end - begin);
    line->whole += groups * nh_max(to - from, 0);
}

static void add_line(const struct nh_axis *axis, int64_t length, int64_t tiles, int32_t rows,
                     int32_t part, int32_t box, int64_t groups, struct line *line) {
    for (int64_t row = 0; row < tiles * rows; row += rows) {
        int64_t walk = seen_by(axis, length, row).begin;
        int64_t end = seen_by(axis, length, row + rows - 1).end;
        line->fetched += groups * nh_ceil_div(end - walk, box);
        for (int64_t first = row; first < row + rows; first += part)
            add_part(axis, length, walk, first, part, box, groups, line);
    }
}

static struct line line_of(const struct nh_axis *axis, int32_t rows, int32_t part, int32_t box) {
    int64_t longest = nh_longest_group(axis), tiles = nh_ceil_div(longest, rows);
    int64_t shorter = longest * axis->dilation - axis->length;
    struct line line = {0, 0, 0};
    add_line(axis, longest, tiles, rows, part, box, axis->dilation - shorter, &line);
    if (shorter) add_line(axis, longest - 1, tiles, rows, part, box, shorter, &line);
    return line;
}

/* Tiles all of whose lines are seen whole, where lines are numbered along the second axis first. */
static int64_t whole_tiles(const struct way *second, const struct way *third, int32_t abreast) {
    int64_t lines = second->boxes, whole = 0;
    if (second->end <= second->begin || third->end <= third->begin) return 0;
    if (second->end - second->begin == lines)
        return nh_max(third->end * lines / abreast - nh_ceil_div(third->begin * lines, abreast), 0);
    for (int64_t plane = third->begin; plane < third->end; plane++) {
        int64_t end = (plane * lines + second->end) / abreast;
        whole += nh_max(end - nh_ceil_div(plane * lines + second->begin, abreast), 0);
    }
    return whole;
}

struct nh_abreast_count nh_abreast_count(const struct nh_problem *problem, const int32_t own[3],
                                         int32_t part, int32_t stack, const int32_t box[3],
                                         int32_t abreast) {
    int second = stack == 2 ? 1 : 2, third = 3 - stack - second;
    struct ways seconds, thirds;
    int64_t tiles = 0, whole = 0;
    find_ways(&problem->axis[second], own[second], box[second], &seconds);
    find_ways(&problem->axis[third], own[third], box[third], &thirds);
    for (int i = 0; i < seconds.count; i++)
        for (int j = 0; j < thirds.count; j++) {
            const struct way *a = &seconds.way[i], *b = &thirds.way[j];
            tiles += a->count * b->count * nh_ceil_div(a->boxes * b->boxes, abreast);
            whole += a->count * b->count * whole_tiles(a, b, abreast);
        }
    struct line line = line_of(&problem->axis[stack], own[stack], part, box[stack]);
    double items = 1;
    for (int a = 0; a < NH_AXES; a++)
        items *= (double)nh_row_tiles(&problem->axis[a], own[a], false);
    double multiplied = (double)line.multiplied * (double)tiles;
    return (struct nh_abreast_count){items, (double)line.fetched * (double)tiles, multiplied,
                                     multiplied - (double)line.whole * (double)whole};
}
