/* What the backward kernels of sm_90 share: a kernel with its tiles, what it asks of a device, and its launch. */
#ifndef NH_BACKWARD90_H
#define NH_BACKWARD90_H

#include "tile_count.h"
#include "tensor_maps.h"
#include "warpgroup_tile.h"
#include "solver.h"
#include "tiling.h"
#include "work.h"

enum {
    NH_BACKWARD90_WARPGROUPS = 2,
    NH_BACKWARD90_MOST_STAGES = 4,
    NH_BACKWARD90_MOST_STAGES_SKIPPING = 6, /* timed: docs/log/wgmma90.md */
    NH_BACKWARD90_OWN_PLACES_SKIPPING = 2   /* NH_OWN_PLACES of fused90_kv_loop.cuh */
};

/* A kernel with the tile that its blocks own and the tile of their loop. */
struct nh_backward90_kernel {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    bool keys;  /* blocks own keys and loop over queries, else the other way round */
    bool skips; /* warpgroups can skip tiles (split90_skipping.cuh) */
    const int32_t *own, *loop;
};

/* Counts of a launch per batch entry and query head: work tiles, loop tiles that are visited, and those with masks. */
struct nh_backward90_loops {
    double work_tiles, tiles, masked;
    /* tiles of the longest loop; rows of a loop tile */
    double longest, columns;
    /* where warpgroups skip tiles: pairs of a warpgroup and a tile that are multiplied, and those of them with masks;
     * else 0 */
    double multiplied, multiplied_masked;
};

/* nh_backward90_skipping_part: the warpgroup tile of a kernel whose owned tile is one of those whose warpgroups skip;
 * else NULL. nh_backward90_skips: the same if they do skip with this loop tile. */
const int32_t *nh_backward90_skipping_part(const struct nh_backward90_kernel *kernel);
const int32_t *nh_backward90_skips(const struct nh_backward90_kernel *kernel);

/* The counts of a kernel's loops. In loops of blocks that own queries, extra tokens come last. */
struct nh_backward90_loops nh_backward90_loops_of(const struct nh_backward90_kernel *kernel);

/* The same from pairs of tiles that are already counted; seen: those that warpgroups multiply if they skip, else
 * NULL. */
struct nh_backward90_loops nh_backward90_loops_from(const struct nh_backward90_kernel *kernel,
                                                    const struct nh_tiling_count *count,
                                                    const struct nh_tiling_count *seen);

/* The share of pairs of a warpgroup and a tile that are multiplied. */
double nh_backward90_multiplied_share(const struct nh_backward90_loops *loops);

/* The number of blocks that share a work tile. Half of the multiprocessors are left to the launch of the other side,
 * which runs at the same time. */
int32_t nh_backward90_cluster(const struct nh_backward90_kernel *kernel,
                              const struct nh_backward90_loops *loops, bool shares);

/* Adds the work of a launch with these loops. products: multiply-adds per pair of rows; column_bytes: bytes moved per
 * row of a loop tile; sums: clocks in which blocks of a cluster add up their sums, 0 if they share no work tiles. */
struct nh_backward90_launch {
    enum nh_kernel_kind kind;
    double products, column_bytes, bias_instructions, sums;
};
void nh_backward90_add_work(const struct nh_backward90_kernel *kernel,
                            const struct nh_backward90_loops *loops,
                            const struct nh_backward90_launch *launch, struct nh_work *work);

/* Bytes of shared memory, without what a kernel needs besides own tiles, stages and barriers. */
int64_t nh_backward90_shared_bytes(const struct nh_backward90_kernel *kernel, int64_t stages);

/* The number of stages, at most `most`, that fit shared memory together with `own_bytes`. */
int32_t nh_backward90_stages(const struct nh_backward90_kernel *kernel, int64_t own_bytes,
                             int32_t most);

/* Reserves workspace for the statistics of queries; returns its offset. */
size_t nh_backward90_reserve_stats(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem);

/* Sets up the launch of a kernel, but for its source, outputs and own shared memory, which are left to the caller.
 * Fails with UNSUPPORTED if there are too many tiles. */
nhood_status nh_backward90_step(const struct nh_backward90_kernel *kernel, size_t stats,
                                int32_t stages, struct nh_cuda_step *step,
                                struct nh_kernel_spec *spec);

#endif
