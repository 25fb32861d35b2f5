/* How many key tiles loops visit whose tiles are several boxes, of neighboring lines (fused90_kv_loop.cuh). Axes are
 * not independent there, as in tile_count.h: lines of two axes fill tiles together. */
#ifndef NH_BOX_TILE_COUNT_H
#define NH_BOX_TILE_COUNT_H

#include "problem.h"

/* Tiles that are fetched for row tiles, pairs of a part and a tile that are multiplied, and of these those that need
 * masks. Row tiles that only the longest dilation groups have are counted in all of them. */
struct nh_box_tile_count {
    double work_tiles, fetched, multiplied, masked;
};

/* Rows are queries, tiles of which have extents `own` and are made of two or more parts, one after the other along the axis
 * `stack`, that pass over what none of their rows sees. A key tile is `tile_boxes` boxes of keys of these extents, of
 * neighboring lines along that axis. Exact where row tiles lie to the keys of an axis in up to 64 ways. */
struct nh_box_tile_count nh_box_tile_count(const struct nh_problem *problem, const int32_t own[3],
                                           int32_t part, int32_t stack, const int32_t box[3],
                                           int32_t tile_boxes);

#endif
