/* What cuda.fused90 (fused90.c) says of the work of its configs, for the search among them. */
#ifndef NH_FUSED90_WORK_H
#define NH_FUSED90_WORK_H

#include "fused90_launch.h"
#include "top_n.h"
#include "work.h"

/* The tiles that blocks fetch, and those that warpgroups multiply. */
struct nh_fused90_walks {
    struct nh_tiling_count fetched, seen;
};

/* The work of a config with these walks. */
void nh_fused90_work_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        const int32_t *value, const struct nh_fused90_walks *walks,
                        struct nh_work *work);

struct nh_fused90_walks nh_fused90_walks_of(const struct nh_problem *problem, const int32_t *value);

/* Adds configs with the tiles worth trying, as far as they stay below the limit; AGAIN is left 0. */
void nh_fused90_search(const struct nh_problem *problem, const struct nh_device *device,
                       struct nh_top_n *best);

#endif
