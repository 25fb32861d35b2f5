/* How many tiles walks of several lines abreast visit (fused90_kv_loop.cuh). Axes are not independent there, as in
 * tile_count.h: lines of two axes fill tiles together. */
#ifndef NH_ABREAST_COUNT_H
#define NH_ABREAST_COUNT_H

#include "problem.h"

/* Tiles that are fetched for row tiles, pairs of a part and a tile that are multiplied, and of these those that need
 * masks. Row tiles that only the longest dilation groups have are walked in all of them. */
struct nh_abreast_count {
    double items, fetched, multiplied, masked;
};

/* Rows are queries, tiles of which have extents `own` and are made of parts, stacked along an axis, that pass over what
 * none of their rows sees. Lines along that axis are walked `abreast` at a time, in boxes of keys of these extents. Exact
 * where row tiles of an axis meet its keys in up to 64 ways. */
struct nh_abreast_count nh_abreast_count(const struct nh_problem *problem, const int32_t own[3],
                                         int32_t part, int32_t stack, const int32_t box[3],
                                         int32_t abreast);

#endif
