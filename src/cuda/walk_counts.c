#include "walk_counts.h"

#include <string.h>

/* Behind the last if it is not there. */
static int place_of(const struct nh_walk_extents *extents, int a, int32_t extent) {
    int place = 0;
    while (place < extents->count[a] && extents->extent[a][place] != extent)
        place++;
    return place;
}

bool nh_walk_add(struct nh_walk_extents *extents, const int32_t tile[3],
                 struct nh_walk_columns *columns) {
    int place[NH_AXES];
    for (int a = 0; a < NH_AXES; a++)
        if (!extents->count[a]) extents->extent[a][extents->count[a]++] = 1;
    for (int a = 0; a < NH_AXES; a++)
        if ((place[a] = place_of(extents, a, tile[a])) == NH_MOST_EXTENTS) return false;
    for (int a = 0; a < NH_AXES; a++) {
        extents->extent[a][place[a]] = tile[a];
        if (place[a] == extents->count[a]) extents->count[a]++;
        columns->place[a] = (int8_t)place[a];
    }
    return true;
}

void nh_walk_start(struct nh_walk_counts *counts, const struct nh_problem *problem, bool inverse,
                   bool beyond, const struct nh_walk_extents *columns) {
    memcpy(counts->axis, problem->axis, sizeof counts->axis);
    counts->inverse = inverse;
    counts->beyond = beyond;
    counts->columns = *columns;
    memset(counts->lines, 0, sizeof counts->lines);
}

static bool same_walks(const struct nh_walk_counts *counts, const struct nh_problem *problem,
                       bool inverse, bool beyond, const struct nh_walk_extents *columns) {
    if (counts->inverse != inverse || counts->beyond != beyond) return false;
    for (int a = 0; a < NH_AXES; a++) {
        int extents = columns->count[a];
        if (!nh_same_axis(&counts->axis[a], &problem->axis[a]) ||
            counts->columns.count[a] != extents ||
            memcmp(counts->columns.extent[a], columns->extent[a],
                   (size_t)extents * sizeof columns->extent[a][0]) != 0)
            return false;
    }
    return true;
}

void nh_walk_resume(struct nh_walk_counts *counts, const struct nh_problem *problem, bool inverse,
                    bool beyond, const struct nh_walk_extents *columns) {
    if (!same_walks(counts, problem, inverse, beyond, columns))
        nh_walk_start(counts, problem, inverse, beyond, columns);
}

static void count_line(const struct nh_walk_counts *counts, int a, struct nh_walk_line *line) {
    struct nh_tile_count count[NH_MOST_EXTENTS];
    const int32_t *extent = counts->columns.extent[a];
    int extents = counts->columns.count[a];
    nh_tile_counts(&counts->axis[a], line->rows, line->part, counts->inverse, extent, extents,
                   count);
    line->tiles = (double)count[0].tiles;
    line->needed = count[0].visits; /* tiles of one column */
    for (int i = 0; i < extents; i++) {
        line->visits[i] = count[i].visits + (counts->beyond ? count[i].visits_beyond : 0);
        line->longest[i] = (double)nh_ceil_div(count[i].halo, extent[i]);
        line->dense[i] = count[i].dense + (counts->beyond ? count[i].dense_beyond : 0);
    }
}

bool nh_walk_rows_of(struct nh_walk_counts *counts, const int32_t rows[3], const int32_t part[3],
                     struct nh_walk_rows *found) {
    struct nh_walk_rows walked;
    if (!counts->columns.count[0]) return false;
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_walk_line *line = counts->line[a], *end = line + counts->lines[a];
        while (line < end && (line->rows != rows[a] || line->part != part[a]))
            line++;
        if (line == counts->line[a] + NH_MOST_LINES) return false;
        if (line == end) {
            line->rows = rows[a];
            line->part = part[a];
            count_line(counts, a, line);
            counts->lines[a]++;
        }
        walked.of[a] = line;
    }
    *found = walked;
    return true;
}
