/* Tiles of warpgroups: how they are cut, which suit a problem, and what they take of shared memory. */
#ifndef NH_WARPGROUP_TILE_H
#define NH_WARPGROUP_TILE_H

#include "problem.h"

/* Bytes of one row of a tile in shared memory. */
int64_t nh_sm90_row_bytes(int64_t dim);

/* With a bias: whether 16 rows that follow each other are two runs of 8 along z, a step apart along z or y. */
bool nh_sm90_pairs(const int32_t warpgroup_tile[3]);

/* Bytes of the boxes of bias tables for one pair of tiles, which `heads` share: see fused90_bias.cuh. */
int64_t nh_sm90_bias_bytes(const int32_t own[3], int32_t heads, const int32_t loop[3]);

/* The warpgroup tile of a tile, which is as few of these, of at most 64 rows, as can be, along the axis `stack`; heads:
 * that share the tile. False if it cannot be cut so. */
bool nh_sm90_warpgroup_tile(const int32_t tile[3], int32_t heads, int32_t stack,
                            int32_t warpgroup_tile[3]);

/* The same along the tile's first axis longer than 1, as kernels cut it that name none. */
bool nh_sm90_first_warpgroup_tile(const int32_t tile[3], int32_t warpgroup_tile[3]);

/* Whether the rows that tensors have of no axis are covered by half of the tile already: one of half the extent there has fewer places
 * beyond them. keys: they are keys, else queries. */
bool nh_sm90_suits(const struct nh_problem *problem, const int32_t tile[3], bool keys);

/* Whether extents of own tiles that are multiples of 7 take no more tiles than as many 8 would. */
bool nh_sm90_sevens_fit(const struct nh_problem *problem, const int32_t tile[3]);

/* Whether windows move along by a token from row to row, and rows see nothing beside them: no stride, causal axis, bias
 * or extra tokens. */
bool nh_sm90_windows_slide(const struct nh_problem *problem);

/* The same on axes with ends: none is periodic. */
bool nh_sm90_windows_are_plain(const struct nh_problem *problem);

#endif
