/* The work of configs of cuda.fused90. */
#ifndef NH_FUSED90_WORK_H
#define NH_FUSED90_WORK_H

#include "fused90_launch.h"
#include "work.h"

/* Counts of the tiles that blocks fetch, and of those that warpgroups multiply. */
struct nh_fused90_loops {
    struct nh_tiling_count fetched, seen;
};

/* Sets the work of a config with these loops. */
void nh_fused90_work_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        const int32_t *value, const struct nh_fused90_loops *loops,
                        struct nh_work *work);

struct nh_fused90_loops nh_fused90_loops_of(const struct nh_problem *problem, const int32_t *value);

#endif
