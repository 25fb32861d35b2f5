/* Counts the pairs of a row tile (of queries) and a column tile (of keys) in its halo that loops visit along one axis.
 * Axes are independent: the pairs of a grid are the product of those of its axes. */
#ifndef NH_TILE_COUNT_H
#define NH_TILE_COUNT_H

#include "problem.h"

/* The number of positions in a box with these extents. */
static inline int64_t nh_box_volume(const int32_t box[NH_AXES]) {
    return (int64_t)box[0] * box[1] * box[2];
}

/* The most rows that tensors have of a dilation group; inverse: rows are keys. */
static inline int64_t nh_longest_rows(const struct nh_axis *axis, bool inverse) {
    return nh_ceil_div(inverse ? axis->key.length : axis->query.length, axis->dilation);
}

/* The number of row tiles of an axis, `rows` rows each. */
static inline int64_t nh_row_tiles(const struct nh_axis *axis, int32_t rows, bool inverse) {
    return axis->dilation * nh_ceil_div(nh_longest_rows(axis, inverse), rows);
}

/* Consecutive dilation groups of an axis of which tensors have the same positions. */
struct nh_groups {
    const struct nh_axis *axis;
    int64_t count, length; /* how many groups; the length of each */
    /* what tensors have of each; inverse: rows are keys, columns the queries that attend them; else rows are queries */
    struct nh_range rows, columns;
    bool inverse;
    bool whole; /* tensors cover the axis, which is not periodic */
};

/* The groups from `first` on that are like it. */
struct nh_groups nh_groups_from(const struct nh_axis *axis, int64_t first, bool inverse);

/* The columns that a row sees and tensors have. Rows count from the first that tensors have; one beyond the last sees what
 * the last sees. */
struct nh_range nh_groups_seen(const struct nh_groups *groups, int64_t row);

/* NULL, or why the problem is refused: what a row sees may be two pieces of the box that tensors cover, one at each
 * end, because the axis is periodic. backward: keys are rows, too. */
const char *nh_refuse_pieces(const struct nh_axis *axis, bool backward);

/* The first column of a loop over boxes of `extent` columns that the copy engine fetches (boxes.cuh) and that cover a
 * halo. On a periodic axis, boxes cannot go around, so that the first one begins where another ends at the seam. */
int64_t nh_first_box(const struct nh_groups *groups, struct nh_range halo, int64_t extent);

/* Counts for `count` extents of column tiles at once, which costs little more than one. */
enum { NH_MOST_EXTENTS = 18 };
struct nh_tile_counts {
    /* row tiles as nh_row_tiles counts them, with all dilation groups as long as the longest; columns of the longest
     * halo */
    int64_t tiles, halo;
    /* per extent: column tiles of the longest halo; pairs of a row tile with a column tile of its halo; of these, pairs
     * that need no mask */
    double longest[NH_MOST_EXTENTS], visits[NH_MOST_EXTENTS], dense[NH_MOST_EXTENTS];
};

/* Whether all row tiles of an axis with a window table are looked at. */
enum { NH_LISTED_EXACTLY = 1 << 12 };
static inline bool nh_listed_exactly(const struct nh_axis *axis) {
    return nh_max(axis->length, nh_axis_keys(axis)) <= NH_LISTED_EXACTLY;
}

/* Counts the pairs of one axis. Column tiles start at the halo's first position, and hold columns that tensors have. Row
 * tiles consist of parts of `part` rows that share a loop and skip column tiles of which none of their rows sees anything:
 * counts pairs of a part and a column tile. A part beyond the group's last row visits one tile. beyond: kernels also visit
 * row tiles that only the longest dilation groups have, in all groups; their loop is then over what the group's last row
 * sees. If tensors do not cover the grid, or the axis is periodic, these kernels fetch boxes (boxes.cuh): at least one for
 * each part, and more where boxes end at a seam. Exact for up to 2^14 row tiles in each run that is counted (those near
 * the ends of a group, and one period of what is between), but of axes with window tables only as nh_listed_exactly says; of more,
 * every n-th is counted, and a longer halo may be missed. */
void nh_tile_counts(const struct nh_axis *axis, int32_t rows, int32_t part, bool inverse,
                    bool beyond, const int32_t *columns, int count, struct nh_tile_counts *counts);

/* The same for one extent and tiles of one part. */
struct nh_tile_count {
    int64_t tiles, halo;
    double visits;
};
struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t rows, int32_t columns,
                                   bool inverse);

/* The least power of two that covers the most rows or columns of a dilation group, but at most `most`. */
int32_t nh_tile_cover(const struct nh_axis *axis, int32_t most);

/* Lists the boxes of `size` positions, a power of two, whose extents are powers of two. No extent is longer than it
 * takes to cover its axis, unless no box would be left. Returns how many there are. */
enum { NH_MOST_BOXES = 36 };
int nh_tile_boxes(const struct nh_problem *problem, int32_t size, int32_t box[NH_MOST_BOXES][3]);

#endif
