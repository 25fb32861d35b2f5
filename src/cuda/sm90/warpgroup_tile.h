/* Warpgroup tiles: how a tile is cut into them, which tiles suit a problem, and what they take of shared memory. */
#ifndef NH_WARPGROUP_TILE_H
#define NH_WARPGROUP_TILE_H

#include "problem.h"

/* Bytes of one row of a tile in shared memory: 64 for 32 channels, else a multiple of 128. Elements have 16 bits. */
int64_t nh_sm90_row_bytes(int64_t dim);

/* With a bias: whether any 16 consecutive rows are two runs of 8 along z, which are neighbors along z or y. */
bool nh_sm90_pairs(const int32_t warpgroup_tile[3]);

/* Cuts a tile with `heads` heads along the axis `stack` into the fewest warpgroup tiles of at most 64 rows. False if
 * they do not divide that extent. */
bool nh_sm90_warpgroup_tile(const int32_t tile[3], int32_t heads, int32_t stack,
                            int32_t warpgroup_tile[3]);

/* The same along the tile's first axis longer than 1, as kernels do that have no knob for the stacking axis. */
bool nh_sm90_first_warpgroup_tile(const int32_t tile[3], int32_t warpgroup_tile[3]);

/* False if along some axis half of the tile covers all rows that tensors have: a tile of half the extent would have
 * fewer padding rows. keys: rows are keys, else queries. */
bool nh_sm90_suits(const struct nh_problem *problem, const int32_t tile[3], bool keys);

/* Whether extents that are multiples of 7 need no more tiles than the same multiples of 8 would. */
bool nh_sm90_sevens_fit(const struct nh_problem *problem, const int32_t tile[3]);

/* Whether a row's window is the one of the row before, moved by a token, and rows see nothing else: no stride, causal
 * axis, bias, extra tokens or window table. */
bool nh_sm90_windows_slide(const struct nh_problem *problem);

#endif
