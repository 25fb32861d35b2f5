/* The tiles of cuda.naive: queries, one per thread, with their keys in shared memory, or keys with their queries; see
 * naive_tile.cuh. */
#ifndef NH_NAIVE_TILE_H
#define NH_NAIVE_TILE_H

#include "cuda.h"
#include "problem.h"
#include "work.h"

/* Chooses the best tile for a problem; false if there is none, as tiles are for small windows and head dims. */
bool nh_naive_tile_choose(const struct nh_problem *problem, const struct nh_cuda_device *device,
                          int32_t tile[NH_AXES]);

/* Bytes of shared memory of a block that owns a tile of queries, or of keys. */
int64_t nh_naive_tile_shared_bytes(const struct nh_problem *problem, const int32_t tile[NH_AXES],
                                   bool keys);

/* Blocks for which a multiprocessor has registers if a thread holds a row of each tensor. */
int64_t nh_naive_tile_resident(int32_t op, const int32_t tile[NH_AXES], bool keys);

/* Sets the work of the launches; false: the tile does not fit. */
bool nh_naive_tile_work(const struct nh_problem *problem, const struct nh_cuda_device *device,
                        const int32_t tile[NH_AXES], struct nh_work *work);

#endif
