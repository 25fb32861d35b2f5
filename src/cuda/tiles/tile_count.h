/* How many pairs of row tiles (of queries) and column tiles (of keys) of their halos loops visit on one axis. Axes are
 * independent: the visits of a grid are the product of its axes'. */
#ifndef NH_TILE_COUNT_H
#define NH_TILE_COUNT_H

#include "problem.h"

struct nh_tile_count {
    /* as nh_row_tiles says: all dilation groups as long as the first */
    int64_t tiles;
    /* columns of the longest halo */
    int64_t halo;
    /* pairs of a row tile with a column tile of its halo */
    double visits;
};

/* Rows that tensors have of the dilation groups with most of them; `inverse` as below. */
static inline int64_t nh_longest_rows(const struct nh_axis *axis, bool inverse) {
    return nh_ceil_div(inverse ? axis->key.length : axis->query.length, axis->dilation);
}

/* Row tiles of an axis, of so many rows each. */
static inline int64_t nh_row_tiles(const struct nh_axis *axis, int32_t rows, bool inverse) {
    return axis->dilation * nh_ceil_div(nh_longest_rows(axis, inverse), rows);
}

/* The first dilation group behind `group` of which tensors cover other positions than of it. */
int64_t nh_next_group_kind(const struct nh_axis *axis, int64_t group);

/* NULL, or why what a row sees may be in two pieces: it then goes from one end of the box that tensors cover to the
 * other, around a periodic axis. backward: also of what keys see. */
const char *nh_refuse_pieces(const struct nh_axis *axis, bool backward);

/* Where a walk begins over boxes of `extent` columns that the copy engine fetches (boxes.cuh), with all of a halo: around a circle a box
 * ends where a lap of the columns does that tensors have. */
int64_t nh_first_box(const struct nh_axis *axis, struct nh_range columns, int64_t group_length,
                     struct nh_range halo, int64_t extent);

/* Tiles of columns start at the halo's first position, and hold columns that tensors have. `inverse`: rows are keys, columns the queries that attend
 * them; else rows are queries and columns keys. Exact where a group has up to 2^14 row tiles within a window and a
 * stride of its ends or in a period of its inner part; of more every n-th is counted. */
struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t rows, int32_t columns,
                                   bool inverse);

/* The same of `count` extents of column tiles at once, which costs little more than one, where row tiles are made of
 * parts of `part` rows that share a loop, each passing over what none of its rows sees: pairs of a part with a column
 * tile. A part beyond the group's last row visits one tile.
 * beyond: as kernels work that do not pass over row tiles which the longest dilation groups have and shorter ones lack:
 * each visits the columns that its group's last row sees. Where tensors do not cover the grid, or the axis is periodic,
 * these kernels fetch boxes (boxes.cuh): one at least for each part that sees none, and those that end at a seam. */
enum { NH_MOST_EXTENTS = 18 };
struct nh_tile_counts {
    int64_t tiles, halo;
    /* by extents: tiles of the longest halo, pairs, and pairs that need no mask */
    double longest[NH_MOST_EXTENTS], visits[NH_MOST_EXTENTS], dense[NH_MOST_EXTENTS];
};
void nh_tile_counts(const struct nh_axis *axis, int32_t rows, int32_t part, bool inverse,
                    bool beyond, const int32_t *columns, int count, struct nh_tile_counts *counts);

/* The least power of two that covers what tensors have of an axis' longest dilation group, `most` if that is less. */
int32_t nh_tile_cover(const struct nh_axis *axis, int32_t most);

/* Boxes of `size` positions with extents that are powers of two, none longer than it takes to cover its axis unless
 * nothing else is left. Returns how many. */
enum { NH_MOST_BOXES = 36 };
int nh_tile_boxes(const struct nh_problem *problem, int32_t size, int32_t box[NH_MOST_BOXES][3]);

#endif
