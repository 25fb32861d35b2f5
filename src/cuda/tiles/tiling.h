/* The tiles that a fused kernel visits on the whole grid, and the order of its work. Positions, tiles and windows are
 * those of kernels/common/boxes.cuh. */
#ifndef NH_TILING_H
#define NH_TILING_H

#include "kernel_abi.h"
#include "problem.h"

/* Counts per batch entry and head. */
struct nh_tiling_count {
    /* query tiles; pairs of a query tile with a key tile of its halo; of these, pairs that need masks */
    double work_tiles, visited, partial;
    /* the most key tiles in the loop of a query tile */
    double longest;
};

/* q, k: extents of a query tile and of a key tile per axis. */
struct nh_tiling_count nh_tiling_count(const struct nh_problem *problem, const int32_t q[3],
                                       const int32_t k[3]);

/* The same where each part of a query tile, a box with extents `part`, skips key tiles of which its rows see nothing:
 * counts pairs of a part and a key tile. */
struct nh_tiling_count nh_tiling_part_count(const struct nh_problem *problem, const int32_t q[3],
                                            const int32_t part[3], const int32_t k[3]);

/* The same for kernels that own keys: tiles of keys, and pairs with tiles of the queries that attend them, for each
 * query head. If query heads share a key head, its loop is over all of them: the caller multiplies. */
struct nh_tiling_count nh_tiling_inverse_count(const struct nh_problem *problem, const int32_t k[3],
                                               const int32_t q[3]);

/* The same where each part of a key tile skips query tiles of which its rows see nothing. */
struct nh_tiling_count nh_tiling_inverse_part_count(const struct nh_problem *problem,
                                                    const int32_t k[3], const int32_t part[3],
                                                    const int32_t q[3]);

/* Counts tiles of either kind for kernels that skip row tiles which lie beyond the last row of their dilation group. */
struct nh_tiling_count nh_tiling_grid_count(const struct nh_problem *problem, const int32_t row[3],
                                            const int32_t column[3], bool inverse);

/* The order of owned tiles (an index of tiling.c's table, for nh_tiling_set) in which `blocks` consecutive ones share
 * most of what their loops read. inverse: owned tiles are of keys. */
int32_t nh_tiling_order(const struct nh_problem *problem, const int32_t own[3], bool inverse,
                        int32_t blocks);

/* The order for persistent blocks, which take work tiles from a queue (work_queue.cuh): fastest is the axis of which
 * the halo of a row covers the largest share, so that blocks share most of what they read. */
int32_t nh_tiling_queue_order(const struct nh_problem *problem);

/* Whether column tiles can end at every seam of the periodic axes. The copy engine fetches boxes, which cannot go
 * around (boxes.cuh), so where a loop may meet two seams, the extent of a column tile has to divide the axis. inverse:
 * owned tiles are of keys, loops over queries. */
bool nh_tiling_laps_fit(const struct nh_problem *problem, const int32_t own[3],
                        const int32_t loop[3], bool inverse);

/* Sets all members but extra_tiles. own: extents of a work tile, which has `heads` heads; inverse: work tiles are of
 * keys; order: from nh_tiling_order or nh_tiling_queue_order. Fails with UNSUPPORTED if there are 2^31 work tiles or
 * more. */
nhood_status nh_tiling_set(const struct nh_problem *problem, const int32_t own[3], int32_t heads,
                           bool inverse, int32_t order, struct nh_cuda_tiling *tiling);

#endif
