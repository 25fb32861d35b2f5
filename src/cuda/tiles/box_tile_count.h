/* Counts the key tiles of loops whose tiles are several boxes of neighboring lines (fused90_kv_loop.cuh). Boxes of two
 * axes fill a tile together, so that counts are not products over axes as in tile_count.h. */
#ifndef NH_BOX_TILE_COUNT_H
#define NH_BOX_TILE_COUNT_H

#include "problem.h"

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

#endif
