/* The tiles that a fused kernel visits on a whole grid, and the order of its work. Positions, tiles and windows
 * here are those of kernels/common/boxes.cuh. */
#ifndef NH_TILING_H
#define NH_TILING_H

#include "kernel_abi.h"
#include "problem.h"

/* Per batch entry and head. */
struct nh_tiling_count {
    /* query tiles; pairs of a query tile with a key tile of its halo; of these, pairs that need masks */
    double work_tiles, visited, partial;
    /* key tiles of a query tile's loop at most */
    double longest;
};

/* q, k: extents of a query tile and of a key tile per axis. */
struct nh_tiling_count nh_tiling_count(const struct nh_problem *problem, const int32_t q[3],
                                       const int32_t k[3]);

/* The same where each part of a query tile, a box with extents `part`, passes over key tiles of which it sees nothing:
 * pairs of a part with a key tile. */
struct nh_tiling_count nh_tiling_part_count(const struct nh_problem *problem, const int32_t q[3],
                                            const int32_t part[3], const int32_t k[3]);

/* The same for the kernels that own keys: tiles of keys, and the tiles of queries that attend them. Loops over heads
 * that share a key head count as many times. */
struct nh_tiling_count nh_tiling_inverse_count(const struct nh_problem *problem, const int32_t k[3],
                                               const int32_t q[3]);

/* The same where each part of a key tile passes over query tiles of which it sees nothing. */
struct nh_tiling_count nh_tiling_inverse_part_count(const struct nh_problem *problem,
                                                    const int32_t k[3], const int32_t part[3],
                                                    const int32_t q[3]);

/* Counts tiles of either kind for kernels that pass over row tiles which lie beyond the last row of their dilation
 * group. */
struct nh_tiling_count nh_tiling_grid_count(const struct nh_problem *problem, const int32_t row[3],
                                            const int32_t column[3], bool inverse);

/* The order of owned tiles in which `blocks` of them at a time share the most of what their loops are over. inverse:
 * they are tiles of keys. */
int32_t nh_tiling_order(const struct nh_problem *problem, const int32_t own[3], bool inverse,
                        int32_t blocks);

/* The order for blocks that take work tiles one after the other (work_queue.cuh), which shares most of what they read:
 * fastest the axis that the halo of a row covers most of. */
int32_t nh_tiling_queue_order(const struct nh_problem *problem);

/* Whether loops that meet the ends of two laps of a periodic axis have a tile that ends with each: the copy engine
 * fetches boxes, which cannot go around (boxes.cuh). inverse: owned tiles are of keys, loops over queries. */
bool nh_tiling_laps_fit(const struct nh_problem *problem, const int32_t own[3],
                        const int32_t loop[3], bool inverse);

/* Everything but extra_tiles; heads: of one work tile; inverse: work tiles are of keys. UNSUPPORTED if there are too
 * many of them to number. */
nhood_status nh_tiling_set(const struct nh_problem *problem, const int32_t own[3], int32_t heads,
                           bool inverse, int32_t order, struct nh_cuda_tiling *tiling);

#endif
