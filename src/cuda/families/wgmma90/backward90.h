/* What the backward kernels of sm_90 share: kernels with their tiles, what these need and ask of a device, the search
 * for the best ones, and their launches. */
#ifndef NH_BACKWARD90_H
#define NH_BACKWARD90_H

#include "launch90.h"
#include "tile_count.h"
#include "tensor_maps.h"
#include "tiling.h"
#include "value_parts.h"
#include "warpgroup_tile.h"
#include "work.h"

enum { NH_BACKWARD90_WARPGROUPS = 2, NH_BACKWARD90_ROWS = 64 * NH_BACKWARD90_WARPGROUPS };

/* A kernel with the tile that its blocks own and the tile of their loop. Those that own queries or keys skip tiles, and
 * share work tiles in clusters; the others do neither. */
struct nh_backward90_kernel {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    enum wgmma90_kernel kind;
    const int32_t *own, *loop;
    /* it makes a part of dV, and the problem is one with this part of the values (value_parts.h) */
    bool part;
    /* the launch is that of many members, whose work tiles fill the device without clusters */
    bool for_group;
};

/* What a launch of a kernel computes. */
enum nh_backward90_pass {
    NH_BACKWARD90_D_Q,
    NH_BACKWARD90_D_K_AND_V,
    NH_BACKWARD90_D_K,
    NH_BACKWARD90_D_V,
    NH_BACKWARD90_ALL,
    NH_BACKWARD90_PASSES
};

/* Whether this launch is one of the kernel's. One makes dK and dV as long as registers hold the sums of both. Where values
 * are wide, it makes dK, and other kernels the parts of dV. */
bool nh_backward90_has(const struct nh_backward90_kernel *kernel, enum nh_backward90_pass pass);

/* The number of these other kernels, and one of them with the same tiles; room: for its problem. */
int nh_backward90_parts(const struct nh_backward90_kernel *kernel);
struct nh_backward90_kernel nh_backward90_part(const struct nh_backward90_kernel *kernel, int part,
                                               struct nh_problem *room);

/* Whether the joint kernel's sums of dQ need no zeros, as the first block stores a tile of queries: in one dimension, on
 * whole grids without strides, dilations and tables (joint90_sums.cuh). */
bool nh_backward90_stores_first(const struct nh_backward90_kernel *kernel);

/* Whether registers and shared memory suffice for the launches with these tiles, those of parts included. */
bool nh_backward90_fits(const struct nh_backward90_kernel *kernel);

/* ---- loops and work ---- */

/* Counts of a launch per batch entry and query head: work tiles, loop tiles that are visited, those with masks, and
 * tiles of the longest loop. */
struct nh_backward90_loops {
    double work_tiles, tiles, masked, longest;
    /* pairs of a warpgroup and a tile that are multiplied, and with masks, where warpgroups skip tiles; else 0 */
    double multiplied, multiplied_masked;
};

/* The warpgroup tile if warpgroups skip tiles or, without a loop tile, do so with some; else NULL. */
const int32_t *nh_backward90_skips(const struct nh_backward90_kernel *kernel);

/* The counts of a kernel's loops. In loops of blocks that own queries, extra tokens come last. */
struct nh_backward90_loops nh_backward90_loops_of(const struct nh_backward90_kernel *kernel);

/* The same from pairs of tiles already counted; seen: those that warpgroups multiply if they skip, else NULL. */
struct nh_backward90_loops nh_backward90_loops_from(const struct nh_backward90_kernel *kernel,
                                                    const struct nh_tiling_count *count,
                                                    const struct nh_tiling_count *seen);

/* The share of pairs of a warpgroup and a tile that are multiplied. */
double nh_backward90_multiplied_share(const struct nh_backward90_loops *loops);

/* Adds the work of the launches, those of parts included. */
void nh_backward90_add_work(const struct nh_backward90_kernel *kernel,
                            const struct nh_backward90_loops *loops, struct nh_work *work);

/* ---- search (backward90_search.c) ---- */

/* An owned tile, a loop tile, and the work of the launches with them. */
struct nh_backward90_pair {
    int32_t tiles[2 * NH_AXES];
    struct nh_work work;
};

/* Writes the pairs with the fewest predicted clocks, fewest first, whatever tiles the kernel has; returns how many. */
enum { NH_BACKWARD90_KEPT = 5 };
int nh_backward90_best(const struct nh_backward90_kernel *kernel,
                       struct nh_backward90_pair best[NH_BACKWARD90_KEPT]);

/* NULL, or why no pair of tiles runs whose loops can go around the problem's periodic axes (nh_tiling_laps_fit). */
const char *nh_backward90_refuse_around(const struct nh_backward90_kernel *kernel);

/* ---- launches ---- */

/* Columns of dQ's sums in memory, rounded up to whole chunks of shared memory. */
int64_t nh_backward90_sum_columns(const struct nh_problem *problem);

/* Reserves workspace for the statistics of queries and sets up a step with them bound. Returns their offset. */
size_t nh_backward90_start(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step);

/* Sets up a launch of a kernel and its configuration. Fails with UNSUPPORTED if there are too many tiles. */
nhood_status nh_backward90_step(const struct nh_backward90_kernel *kernel,
                                enum nh_backward90_pass pass, size_t stats,
                                struct nh_cuda_step *step, struct wgmma90_config *config);

#endif
