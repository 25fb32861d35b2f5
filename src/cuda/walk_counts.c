#include "walk_counts.h"

void nh_walk_init(struct nh_walk_counts *counts, const struct nh_problem *problem, bool inverse,
                  bool beyond) {
    counts->problem = problem;
    counts->inverse = inverse;
    counts->beyond = beyond;
    for (int a = 0; a < NH_AXES; a++)
        counts->extents[a] = counts->lines[a] = 0;
}

struct nh_walk_columns nh_walk_columns_of(struct nh_walk_counts *counts, const int32_t tile[3]) {
    struct nh_walk_columns columns;
    for (int a = 0; a < NH_AXES; a++) {
        int place = 0;
        while (place < counts->extents[a] && counts->extent[a][place] != tile[a])
            place++;
        if (place == counts->extents[a]) counts->extent[a][counts->extents[a]++] = tile[a];
        columns.place[a] = (int8_t)place;
    }
    return columns;
}

static void count_line(const struct nh_walk_counts *counts, int a, struct nh_walk_line *line) {
    struct nh_tile_count count[NH_MOST_EXTENTS];
    nh_tile_counts(&counts->problem->axis[a], line->rows, line->part, counts->inverse,
                   counts->extent[a], counts->extents[a], count);
    line->tiles = (double)count[0].tiles;
    for (int i = 0; i < counts->extents[a]; i++) {
        line->visits[i] = count[i].visits + (counts->beyond ? count[i].visits_beyond : 0);
        line->longest[i] = (double)nh_ceil_div(count[i].halo, counts->extent[a][i]);
        line->dense[i] = count[i].dense + (counts->beyond ? count[i].dense_beyond : 0);
    }
}

struct nh_walk_rows nh_walk_rows_of(struct nh_walk_counts *counts, const int32_t rows[3],
                                    const int32_t part[3]) {
    struct nh_walk_rows found;
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_walk_line *line = counts->line[a], *end = line + counts->lines[a];
        while (line < end && (line->rows != rows[a] || line->part != part[a]))
            line++;
        if (line == end) {
            line->rows = rows[a];
            line->part = part[a];
            count_line(counts, a, line);
            counts->lines[a]++;
        }
        found.of[a] = line;
    }
    return found;
}
