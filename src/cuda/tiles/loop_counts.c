#include "loop_counts.h"

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
    memset(counts->lines, 0, sizeof counts->lines);
}

bool nh_loop_rows_of(struct nh_loop_counts *counts, const int32_t rows[3], const int32_t part[3],
                     struct nh_loop_rows *found) {
    struct nh_loop_rows loop_rows;
    if (!counts->columns.count[0]) return false;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_loop_row_tile tile = {rows[a], part[a]};
        int line = 0, lines = counts->lines[a];
        while (line < lines &&
               (counts->tile[a][line].rows != tile.rows || counts->tile[a][line].part != tile.part))
            line++;
        if (line == NH_MOST_LINES) return false;
        if (line == lines) {
            counts->tile[a][counts->lines[a]++] = tile;
            nh_tile_counts(&counts->axis[a], tile.rows, tile.part, counts->inverse, counts->beyond,
                           counts->columns.extent[a], counts->columns.count[a],
                           &counts->line[a][line]);
        }
        loop_rows.of[a] = &counts->line[a][line];
    }
    *found = loop_rows;
    return true;
}

struct nh_tiling_count nh_loop_count(const struct nh_loop_rows *rows,
                                     struct nh_loop_columns columns) {
    struct nh_tiling_count count = {nh_loop_work_tiles(rows), 1, 0, 1};
    double dense = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_tile_counts *line = rows->of[a];
        count.visited *= line->visits[columns.place[a]];
        count.longest *= line->longest[columns.place[a]];
        dense *= line->dense[columns.place[a]];
    }
    count.partial = count.visited - dense;
    return count;
}
