/* The tile of rows that covers short dilation groups with the fewest blocks. */
#ifndef NH_COVERING_TILE_H
#define NH_COVERING_TILE_H

#include "problem.h"

/* Finds, among tiles of `warpgroups` boxes of at most 64 rows, the one that needs the fewest blocks, and among equals
 * the one with the smallest halo. The boxes follow each other along the first axis on which the tile is longer than 1;
 * extents cut dilation groups about evenly. False if these boxes are full, as other tiles then do as well, or if an
 * axis has more than 40 rows, as then no extent leaves many rows empty. */
bool nh_covering_tile(const struct nh_problem *problem, int32_t warpgroups, int32_t tile[3]);

#endif
