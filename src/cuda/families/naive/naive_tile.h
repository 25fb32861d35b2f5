/* The tiles of cuda.naive: queries, one a thread, whose keys lie in shared memory, or keys and their queries; see
 * naive_tile.cuh. */
#ifndef NH_NAIVE_TILE_H
#define NH_NAIVE_TILE_H

#include "cuda.h"
#include "problem.h"
#include "work.h"

/* The best tile for a problem; false if there is none: tiles are for small windows and head dims. */
bool nh_naive_tile_choose(const struct nh_problem *problem, const struct nh_cuda_device *device,
                          int32_t tile[NH_AXES]);

/* Shared memory of a block that owns a tile of queries or of keys. */
int64_t nh_naive_tile_shared_bytes(const struct nh_problem *problem, const int32_t tile[NH_AXES],
                                   bool keys);

/* Blocks that a multiprocessor has registers for, where a thread holds a row of each tensor. */
int64_t nh_naive_tile_resident(int32_t op, const int32_t tile[NH_AXES], bool keys);

/* False: a launch does not take the tile. */
bool nh_naive_tile_work(const struct nh_problem *problem, const struct nh_cuda_device *device,
                        const int32_t tile[NH_AXES], struct nh_work *work);

#endif
