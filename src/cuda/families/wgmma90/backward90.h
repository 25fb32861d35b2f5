/* What the backward solvers of sm_90 share: pairs of tiles, the launch for the stats of the queries, and the launch of
 * a kernel whose blocks own tiles of keys or of queries. */
#ifndef NH_BACKWARD90_H
#define NH_BACKWARD90_H

#include "box.h"
#include "tensor_maps.h"
#include "solver.h"
#include "tiling.h"
#include "work.h"

enum {
    NH_BACKWARD90_WARPGROUPS = 2,
    NH_BACKWARD90_MOST_STAGES = 4,
    NH_BACKWARD90_MOST_STAGES_SKIPPING = 6, /* timed: docs/log/wgmma90.md */
    NH_BACKWARD90_OWN_PLACES_SKIPPING = 2,  /* NH_OWN_PLACES of fused90_kv_loop.cuh */
    NH_BACKWARD90_KEPT = 5
};

/* A tile that blocks own, the tile of their loop, and what their launches take. */
struct nh_backward90_pair {
    int32_t own[3];
    const int32_t *loop;
    struct nh_work work;
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

/* The warpgroup tile of a kernel whose warpgroups can pass over tiles (split90_skipping.cuh), if with these they do; else
 * NULL. */
const int32_t *nh_backward90_skips(const struct nh_problem *problem, const int32_t own[3],
                                   const int32_t loop[3]);

/* Extra tokens come last in the loops of blocks that own queries. skips: warpgroups may pass over tiles. */
struct nh_backward90_loops nh_backward90_loops_of(const struct nh_problem *problem,
                                                  const int32_t own[3], const int32_t loop[3],
                                                  bool keys, bool skips);

/* Blocks that share a work tile: as many as leave multiprocessors to the other side's, which run at the same time. */
int32_t nh_backward90_cluster(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                              const struct nh_backward90_loops *loops, bool shares);

/* Adds the launch of blocks with these loops. products: multiply-adds of a pair of rows; column_bytes: that move for a
 * row of a loop tile; sums: clocks in which blocks of a cluster add up what they have, 0 where they share no work
 * tiles. */
struct nh_backward90_launch {
    enum nh_kernel_kind kernel;
    double products, column_bytes, bias_instructions, sums;
};
void nh_backward90_add_work(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                            const struct nh_backward90_loops *loops,
                            const struct nh_backward90_launch *launch, struct nh_work *work);

/* Adds the launches of a kernel with these tiles; false if it cannot run with them. keys: blocks own keys, or queries. */
typedef bool nh_backward90_work(const struct nh_problem *problem, const struct nh_device *device,
                                const int32_t own[3], const int32_t loop[3],
                                const struct nh_backward90_loops *loops, bool keys,
                                struct nh_work *work);

struct nh_backward90_search {
    const struct nh_problem *problem;
    const struct nh_device *device;
    nh_backward90_work *work;
    enum nh_operation_kind operation;
    bool keys;
    int64_t least_rows; /* of the tiles that they own */
    bool skips;         /* warpgroups may pass over tiles */
};

/* The pairs of the fewest clocks, fewest first; how many. */
int nh_backward90_best(const struct nh_backward90_search *search,
                       struct nh_backward90_pair best[NH_BACKWARD90_KEPT]);

/* Whether a pair of tiles runs whose loops can go around the problem's periodic axes (nh_tiling_laps_fit). */
bool nh_backward90_goes_around(const struct nh_backward90_search *search);

/* Shared memory of a kernel that owns keys, or queries, beside what it may have of its own. */
int64_t nh_backward90_shared_bytes(const struct nh_problem *problem, const int32_t loop[3],
                                   bool keys, int64_t stages);

/* Stages that fit beside `own_bytes` more of shared memory, `most` at most. */
int32_t nh_backward90_stages(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                             const int32_t loop[3], bool keys, int64_t own_bytes, int32_t most);

/* Reserves the stats' memory in the workspace; returns its offset. */
size_t nh_backward90_reserve_stats(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem);

/* Sets up the launch of a kernel that owns keys, or queries; its source, its outputs and what it has of its own are
 * left to the caller. UNSUPPORTED if there are too many tiles. */
nhood_status nh_backward90_step(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                                size_t stats, const int32_t own[3], const int32_t loop[3],
                                bool keys, bool skips, int32_t stages, struct nh_cuda_step *step,
                                struct nh_kernel_spec *spec);

#endif
