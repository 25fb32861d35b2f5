/* How many tiles the loops of many pairs of shapes visit. Axes are independent, so that what solvers ask for thousands
 * of pairs is made of a few hundred counts of single axes, each found once. */
#ifndef NH_LOOP_COUNTS_H
#define NH_LOOP_COUNTS_H

#include "tile_count.h"
#include "tiling.h"

enum { NH_MOST_LINES = 32 };

/* Rows of row tiles of an axis, and of their parts. */
struct nh_loop_row_tile {
    int32_t rows, part;
};

/* Extents of column tiles, none twice on an axis. */
struct nh_loop_extents {
    int count[NH_AXES];
    int32_t extent[NH_AXES][NH_MOST_EXTENTS];
};

/* The places of a column tile's extents. */
struct nh_loop_columns {
    int8_t place[NH_AXES];
};

/* Adds those of a tile, from zeros on; false, and nothing added, if there is no room for them. */
bool nh_loop_extents_add(struct nh_loop_extents *extents, const int32_t tile[3],
                         struct nh_loop_columns *columns);

struct nh_loop_counts {
    struct nh_axis axis[NH_AXES];
    /* rows are keys; row tiles that only the longest dilation groups have are counted in all of them */
    bool inverse, beyond;
    struct nh_loop_extents columns;
    int lines[NH_AXES];
    struct nh_loop_row_tile tile[NH_AXES][NH_MOST_LINES];
    struct nh_tile_counts line[NH_AXES][NH_MOST_LINES];
};

/* The lines of row tiles with three extents. */
struct nh_loop_rows {
    const struct nh_tile_counts *of[NH_AXES];
};

/* Starts counts of loops over tiles with these extents of columns and no others. */
void nh_loop_counts_start(struct nh_loop_counts *counts, const struct nh_problem *problem,
                          bool inverse, bool beyond, const struct nh_loop_extents *columns);

/* Counts for row tiles made of parts, as for nh_tiling_part_count; valid until the next start. False: there is no room
 * for more, or no tile of columns. */
bool nh_loop_rows_of(struct nh_loop_counts *counts, const int32_t rows[3], const int32_t part[3],
                     struct nh_loop_rows *found);

static inline double nh_loop_work_tiles(const struct nh_loop_rows *rows) {
    return (double)(rows->of[0]->tiles * rows->of[1]->tiles * rows->of[2]->tiles);
}

static inline double nh_loop_visits(const struct nh_loop_rows *rows,
                                    struct nh_loop_columns columns) {
    return rows->of[0]->visits[columns.place[0]] * rows->of[1]->visits[columns.place[1]] *
           rows->of[2]->visits[columns.place[2]];
}

/* All of them. */
struct nh_tiling_count nh_loop_count(const struct nh_loop_rows *rows,
                                     struct nh_loop_columns columns);

#endif
