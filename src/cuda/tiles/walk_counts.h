/* How many tiles the walks of many pairs of shapes visit. Axes are independent, so that what solvers ask for
 * thousands of pairs is made of a few hundred counts of single axes, each found once. */
#ifndef NH_WALK_COUNTS_H
#define NH_WALK_COUNTS_H

#include "tile_count.h"
#include "tiling.h"

enum { NH_MOST_LINES = 32 };

/* Rows of row tiles of an axis, and of their parts. */
struct nh_walk_tile {
    int32_t rows, part;
};

/* Extents of column tiles, none twice on an axis, 1 always among them. */
struct nh_walk_extents {
    int count[NH_AXES];
    int32_t extent[NH_AXES][NH_MOST_EXTENTS];
};

/* The places of a column tile's extents. */
struct nh_walk_columns {
    int8_t place[NH_AXES];
};

/* Adds those of a tile, from zeros on; false, and nothing added, if there is no room for them. */
bool nh_walk_add(struct nh_walk_extents *extents, const int32_t tile[3],
                 struct nh_walk_columns *columns);

struct nh_walk_counts {
    struct nh_axis axis[NH_AXES];
    /* rows are keys; row tiles that only the longest dilation groups have are walked in all of them */
    bool inverse, beyond;
    struct nh_walk_extents columns;
    int lines[NH_AXES];
    struct nh_walk_tile tile[NH_AXES][NH_MOST_LINES];
    struct nh_tile_counts line[NH_AXES][NH_MOST_LINES];
};

/* The lines of row tiles with three extents. */
struct nh_walk_rows {
    const struct nh_tile_counts *of[NH_AXES];
};

/* Walks over tiles with these extents of columns and no others. */
void nh_walk_start(struct nh_walk_counts *counts, const struct nh_problem *problem, bool inverse,
                   bool beyond, const struct nh_walk_extents *columns);

/* The same of counts that were started before, or zeros: what is counted stays where it is of the same walks. */
void nh_walk_resume(struct nh_walk_counts *counts, const struct nh_problem *problem, bool inverse,
                    bool beyond, const struct nh_walk_extents *columns);

/* Counts for row tiles made of parts, as for nh_tiling_part_count; valid until the next start. False: there is no room
 * for more, or no tile of columns. */
bool nh_walk_rows_of(struct nh_walk_counts *counts, const int32_t rows[3], const int32_t part[3],
                     struct nh_walk_rows *found);

static inline double nh_walk_items(const struct nh_walk_rows *rows) {
    return (double)(rows->of[0]->tiles * rows->of[1]->tiles * rows->of[2]->tiles);
}

/* Columns that tiles must hold at least, however rows are made of parts. */
static inline double nh_walk_needed(const struct nh_walk_rows *rows) {
    return rows->of[0]->needed * rows->of[1]->needed * rows->of[2]->needed;
}

static inline double nh_walk_visits(const struct nh_walk_rows *rows,
                                    struct nh_walk_columns columns) {
    return rows->of[0]->visits[columns.place[0]] * rows->of[1]->visits[columns.place[1]] *
           rows->of[2]->visits[columns.place[2]];
}

static inline double nh_walk_dense(const struct nh_walk_rows *rows,
                                   struct nh_walk_columns columns) {
    return rows->of[0]->dense[columns.place[0]] * rows->of[1]->dense[columns.place[1]] *
           rows->of[2]->dense[columns.place[2]];
}

static inline double nh_walk_longest(const struct nh_walk_rows *rows,
                                     struct nh_walk_columns columns) {
    return rows->of[0]->longest[columns.place[0]] * rows->of[1]->longest[columns.place[1]] *
           rows->of[2]->longest[columns.place[2]];
}

/* All of them. */
static inline struct nh_tiling_count nh_walk_count(const struct nh_walk_rows *rows,
                                                   struct nh_walk_columns columns) {
    double visits = nh_walk_visits(rows, columns);
    return (struct nh_tiling_count){nh_walk_items(rows), visits,
                                    visits - nh_walk_dense(rows, columns),
                                    nh_walk_longest(rows, columns)};
}

#endif
