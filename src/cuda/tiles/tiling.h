/* The tiles that a fused kernel visits on the whole grid, and the order of its work. Positions, tiles and windows are
 * those of kernels/common/boxes.cuh. */
#ifndef NH_TILING_H
#define NH_TILING_H

#include "kernel_abi.h"
#include "tile_count.h"

/* Counts per batch entry and head. */
struct nh_tiling_count {
    /* row tiles; pairs of a row tile with a column tile of its halo; of these, pairs that need masks */
    double work_tiles, visited, partial;
    /* the most column tiles in the loop of a row tile */
    double longest;
};

/* Counts for row tiles with extents `own` and column tiles with extents `loop`, where parts of a row tile, boxes with extents
 * `part`, skip column tiles of which their rows see nothing: pairs are of a part and a column tile. Rows are queries or, with
 * `inverse`, keys, whose loops are over the queries that attend them, for each query head: if query heads share a key head,
 * whose loop is over all of them, the caller multiplies. beyond: as for nh_tile_counts. */
struct nh_tiling_count nh_tiling_count(const struct nh_problem *problem, const int32_t own[3],
                                       const int32_t part[3], const int32_t loop[3], bool inverse,
                                       bool beyond);

/* ---- the counts of many pairs of shapes ----
 * As axes are independent, the counts of the thousands of pairs that solvers ask for are products of counts of single axes,
 * which are computed for a row tile and all column tiles at once. */

/* The extents of column tiles per axis, each listed once. */
struct nh_loop_extents {
    int count[NH_AXES];
    int32_t extent[NH_AXES][NH_MOST_EXTENTS];
};

/* A column tile, as the indices of its extents in struct nh_loop_extents. */
struct nh_loop_columns {
    int8_t place[NH_AXES];
};

/* Adds a tile's extents, and sets their indices in *columns. Lists start as zeros. False, with no change: no room. */
bool nh_loop_extents_add(struct nh_loop_extents *extents, const int32_t tile[3],
                         struct nh_loop_columns *columns);

struct nh_loop_counts {
    struct nh_axis axis[NH_AXES];
    /* inverse: rows are keys; beyond: as for nh_tile_counts */
    bool inverse, beyond;
    struct nh_loop_extents columns;
};

/* The counts of a row tile's three axes. */
struct nh_loop_rows {
    struct nh_tile_counts of[NH_AXES];
};

/* Starts the counts; column tiles can have these extents and no others. */
void nh_loop_counts_start(struct nh_loop_counts *counts, const struct nh_problem *problem,
                          bool inverse, bool beyond, const struct nh_loop_extents *columns);

/* Counts for row tiles with parts, as nh_tiling_count does. */
void nh_loop_rows_of(const struct nh_loop_counts *counts, const int32_t rows[3],
                     const int32_t part[3], struct nh_loop_rows *found);

static inline double nh_loop_work_tiles(const struct nh_loop_rows *rows) {
    return (double)(rows->of[0].tiles * rows->of[1].tiles * rows->of[2].tiles);
}

/* All counts of a pair of shapes. */
struct nh_tiling_count nh_loop_count(const struct nh_loop_rows *rows,
                                     struct nh_loop_columns columns);

/* ---- tiles of several boxes ---- The key tiles of loops may be several boxes of neighboring lines
 * (fused90_kv_loop.cuh). Boxes of two axes fill a tile together, so that counts are not products over axes. */

/* Work tiles; key tiles that their loops fetch; pairs of a part and a key tile that are multiplied; and of these, pairs
 * that need masks. Row tiles that only the longest dilation groups have are counted in all groups. */
struct nh_box_tile_count {
    double work_tiles, fetched, multiplied, masked;
};

/* Rows are queries. A row tile has extents `own` and consists of two or more parts of extent `part`, which follow each
 * other along the axis `stack`; each skips key tiles of which none of its rows sees anything. A key tile is
 * `tile_boxes` boxes of extents `box` that are neighbors across the stacking axis. Exact as long as the row tiles of an
 * axis fall on boxes in at most 64 different ways. */
struct nh_box_tile_count nh_box_tile_count(const struct nh_problem *problem, const int32_t own[3],
                                           int32_t part, int32_t stack, const int32_t box[3],
                                           int32_t tile_boxes);

/* ---- choosing tiles and their order ---- */

/* Finds, among tiles of `warpgroups` boxes of at most 64 rows, the one that needs the fewest blocks, and among equals
 * the one with the smallest halo. The boxes follow each other along the first axis on which the tile is longer than 1;
 * extents cut dilation groups about evenly. False if these boxes are full, as other tiles then do as well, or if an
 * axis has more than 40 rows, as then no extent leaves many rows empty. */
bool nh_covering_tile(const struct nh_problem *problem, int32_t warpgroups, int32_t tile[3]);

/* The order of owned tiles (an index of tiling.c's table, for nh_tiling_set) in which `blocks` consecutive ones share
 * most of what their loops read. inverse: owned tiles are of keys. */
int32_t nh_tiling_order(const struct nh_problem *problem, const int32_t own[3], bool inverse,
                        int32_t blocks);

/* The order for persistent blocks, which take work tiles from a queue (work_queue.cuh): fastest is the axis of which
 * the halo of a row covers the largest share, so that blocks share most of what they read. */
int32_t nh_tiling_queue_order(const struct nh_problem *problem);

/* Whether column tiles can end at every seam of the periodic axes. The copy engine fetches boxes, which cannot go
 * around (boxes.cuh), so where a loop may meet two seams, the extent of a column tile has to divide the axis. inverse:
 * owned tiles are of keys, loops over queries. */
bool nh_tiling_laps_fit(const struct nh_problem *problem, const int32_t own[3],
                        const int32_t loop[3], bool inverse);

/* Sets all but extra_tiles. own: extents of a work tile, with `heads` heads; inverse: it is of keys; order: from
 * nh_tiling_order or nh_tiling_queue_order. Fails with UNSUPPORTED if there are 2^31 work tiles or more. */
nhood_status nh_tiling_set(const struct nh_problem *problem, const int32_t own[3], int32_t heads,
                           bool inverse, int32_t order, struct nh_cuda_tiling *tiling);

#endif
