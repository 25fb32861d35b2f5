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

/* Counts tiles of either kind for kernels that pass over row tiles which lie beyond the last row of their dilation
 * group. */
struct nh_tiling_count nh_tiling_grid_count(const struct nh_problem *problem, const int32_t row[3],
                                            const int32_t column[3], bool inverse);

/* The order of query tiles in which `blocks` of them at a time share the most keys. */
int32_t nh_tiling_order(const struct nh_problem *problem, const int32_t q[3], int32_t blocks);

/* The order for blocks that take work tiles one after the other (work_queue.cuh), which shares most of what they read:
 * fastest the axis that the halo of a row covers most of. */
int32_t nh_tiling_queue_order(const struct nh_problem *problem);

/* Everything but extra_tiles; heads: of one query tile. UNSUPPORTED if there are too many work tiles to number. */
nhood_status nh_tiling_set(const struct nh_problem *problem, const int32_t q[3], int32_t heads,
                           int32_t order, struct nh_cuda_tiling *tiling);

#endif
