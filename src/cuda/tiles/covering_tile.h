/* The tile of rows that covers short dilation groups with the fewest blocks. */
#ifndef NH_COVERING_TILE_H
#define NH_COVERING_TILE_H

#include "problem.h"

/* `warpgroups` boxes of at most 64 rows, one after the other along the first axis on which the tile is longer than 1,
 * with extents that cut dilation groups about evenly: of the tiles that need the fewest blocks, the one with the least
 * halo. False if these boxes are full, so that other tiles do as well, or an axis is long, so that no extent leaves
 * many rows empty. */
bool nh_covering_tile(const struct nh_problem *problem, int32_t warpgroups, int32_t tile[3]);

#endif
