/* What the backward kernels of sm_90 share: a kernel with its tiles, what it asks of a device, and its launch. */
#ifndef NH_BACKWARD90_H
#define NH_BACKWARD90_H

#include "box.h"
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
    bool skips; /* warpgroups can pass over tiles (split90_skipping.cuh) */
    const int32_t *own, *loop;
};

/* The blocks of a launch, per batch entry and query head. */
struct nh_backward90_loops {
    double work_tiles, tiles, masked;
    /* tiles of the longest loop; rows of a loop tile */
    double longest, columns;
    /* where warpgroups pass over tiles, pairs of a warpgroup and a tile that they multiply, and of these that they mask;
     * else 0 */
    double multiplied, multiplied_masked;
};

/* The warpgroup tile of a kernel whose warpgroups can pass over tiles if it owns such tiles, and if with this loop tile they do;
 * else NULL. */
const int32_t *nh_backward90_skipping_part(const struct nh_backward90_kernel *kernel);
const int32_t *nh_backward90_skips(const struct nh_backward90_kernel *kernel);

/* Extra tokens come last in the loops of blocks that own queries. */
struct nh_backward90_loops nh_backward90_loops_of(const struct nh_backward90_kernel *kernel);

/* The same of pairs of tiles that are counted already; seen: those that warpgroups multiply where they skip, else NULL. */
struct nh_backward90_loops nh_backward90_loops_from(const struct nh_backward90_kernel *kernel,
                                                    const struct nh_tiling_count *count,
                                                    const struct nh_tiling_count *seen);

/* The share of pairs of a warpgroup and a tile that are multiplied. */
double nh_backward90_multiplied_share(const struct nh_backward90_loops *loops);

/* Blocks that share a work tile: as many as leave multiprocessors to the other side's, which run at the same time. */
int32_t nh_backward90_cluster(const struct nh_backward90_kernel *kernel,
                              const struct nh_backward90_loops *loops, bool shares);

/* Adds the launch of blocks with these loops. products: multiply-adds of a pair of rows; column_bytes: that move for a
 * row of a loop tile; sums: clocks in which blocks of a cluster add up what they have, 0 where they share no work
 * tiles. */
struct nh_backward90_launch {
    enum nh_kernel_kind kind;
    double products, column_bytes, bias_instructions, sums;
};
void nh_backward90_add_work(const struct nh_backward90_kernel *kernel,
                            const struct nh_backward90_loops *loops,
                            const struct nh_backward90_launch *launch, struct nh_work *work);

/* Shared memory beside what a kernel may have of its own. */
int64_t nh_backward90_shared_bytes(const struct nh_backward90_kernel *kernel, int64_t stages);

/* Stages that fit beside `own_bytes` more of shared memory, `most` at most. */
int32_t nh_backward90_stages(const struct nh_backward90_kernel *kernel, int64_t own_bytes,
                             int32_t most);

/* Reserves the stats' memory in the workspace; returns its offset. */
size_t nh_backward90_reserve_stats(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem);

/* Sets up the launch of a kernel; its source, its outputs and what it has of its own are left to the caller. UNSUPPORTED if
 * there are too many tiles. */
nhood_status nh_backward90_step(const struct nh_backward90_kernel *kernel, size_t stats,
                                int32_t stages, struct nh_cuda_step *step,
                                struct nh_kernel_spec *spec);

#endif
