/* What cuda.fused90 (fused90.c) knows of how long its configs take, for the search among them. */
#ifndef NH_FUSED90_TIME_H
#define NH_FUSED90_TIME_H

#include "top_n.h"
#include "fused90_launch.h"

/* Nanoseconds of the device for a tile of a warpgroup, for its masks, for a tile that is fetched, for an item, and for a
 * block's part in adding up what a cluster has; and what holding queries in registers takes from a tile and adds to an
 * item. Where masks are worked out by lines they are cheaper, and what a warpgroup passes over counts for itself: it waits
 * for the others. */
struct nh_fused90_prices {
    double tile, masks, line_masks, passing, fetch, item, meeting, spared, holding;
};
struct nh_fused90_prices nh_fused90_prices_of(const struct nh_problem *problem,
                                              const struct nh_cuda_device *cuda,
                                              const int32_t *value);

/* The tiles that blocks fetch, and those that warpgroups multiply. */
struct nh_fused90_walks {
    struct nh_tiling_count fetched, seen;
};
struct nh_fused90_walks nh_fused90_walks_of(const struct nh_problem *problem, const int32_t *value);

/* Blocks of a cluster share the tiles of an item, and are items of their own. Warpgroups multiply, masked, what they
 * would pass over on their own. */
struct nh_fused90_walks nh_fused90_walks_of_blocks(const struct nh_fused90_walks *walks,
                                                   double warpgroups, double cluster);

/* Of all copies, whose items are nearly alike, with the end of the launch: of the last round of items, all but a few of
 * the multiprocessors may have none. */
double nh_fused90_scale(const struct nh_cuda_device *cuda, double copies, double items);

/* Nanoseconds that a copy keeps the device busy, with so many tiles of extra tokens to an item. Of a cluster every block
 * takes as long as the one with the most tiles. */
double nh_fused90_busy_ns(const struct nh_problem *problem, const int32_t *value,
                          const struct nh_fused90_prices *prices,
                          const struct nh_fused90_walks *walks, double extra, double cluster);

/* Of the launch. */
double nh_fused90_launch_ns(const struct nh_problem *problem, double busy, double memory_ns);

/* Adds configs with the tiles worth trying, as far as they stay below the limit; REPAIR_APART is left 0. */
void nh_fused90_search(const struct nh_problem *problem, const struct nh_device *device,
                       struct nh_top_n *best);

#endif
