/* Counts the tiles that the loops of many pairs of tile shapes visit. As axes are independent, the counts of the
 * thousands of pairs that solvers ask for are products of a few hundred counts of single axes, each computed once. */
#ifndef NH_LOOP_COUNTS_H
#define NH_LOOP_COUNTS_H

#include "tile_count.h"
#include "tiling.h"

enum { NH_MOST_LINES = 32 };

/* Extents of a row tile and of its parts along an axis. */
struct nh_loop_row_tile {
    int32_t rows, part;
};

/* The extents of column tiles per axis, each listed once. */
struct nh_loop_extents {
    int count[NH_AXES];
    int32_t extent[NH_AXES][NH_MOST_EXTENTS];
};

/* A column tile, as the indices of its extents in struct nh_loop_extents. */
struct nh_loop_columns {
    int8_t place[NH_AXES];
};

/* Adds the extents of a tile, and sets their indices in *columns. Lists start as zeros. False, and nothing is added, if
 * there is no room. */
bool nh_loop_extents_add(struct nh_loop_extents *extents, const int32_t tile[3],
                         struct nh_loop_columns *columns);

struct nh_loop_counts {
    struct nh_axis axis[NH_AXES];
    /* inverse: rows are keys; beyond: as for nh_tile_counts */
    bool inverse, beyond;
    struct nh_loop_extents columns;
    int lines[NH_AXES];
    struct nh_loop_row_tile tile[NH_AXES][NH_MOST_LINES];
    struct nh_tile_counts line[NH_AXES][NH_MOST_LINES];
};

/* The counts of a row tile's three axes. */
struct nh_loop_rows {
    const struct nh_tile_counts *of[NH_AXES];
};

/* Starts the counts; column tiles can have these extents and no others. */
void nh_loop_counts_start(struct nh_loop_counts *counts, const struct nh_problem *problem,
                          bool inverse, bool beyond, const struct nh_loop_extents *columns);

/* Counts for row tiles with parts, as nh_tiling_part_count does. What it finds is valid until the next start. False if
 * there is no room for more row tiles, or no column tile was added. */
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

/* All counts of a pair of shapes. */
struct nh_tiling_count nh_loop_count(const struct nh_loop_rows *rows,
                                     struct nh_loop_columns columns);

#endif
