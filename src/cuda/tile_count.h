/* How many tiles a walk over query tiles and the key tiles of their halos visits on one axis. Axes are independent:
 * the visits of a grid are the product of its axes'. */
#ifndef NH_TILE_COUNT_H
#define NH_TILE_COUNT_H

#include "problem.h"

struct nh_tile_count {
    /* query tiles, all dilation groups as long as the first */
    int64_t tiles;
    /* pairs of a query tile with a key tile of its halo; of these, pairs in which every query attends every key */
    double visits, dense;
};

/* Key tiles start at the halo's first key. Exact up to 2^14 query tiles a group, beyond that every n-th is counted. */
struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t queries, int32_t keys);

#endif
