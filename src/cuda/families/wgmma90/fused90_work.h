/* What configs of cuda.fused90 ask of a device. */
#ifndef NH_FUSED90_WORK_H
#define NH_FUSED90_WORK_H

#include "fused90_launch.h"
#include "work.h"

/* The tiles that blocks fetch, and those that warpgroups multiply. */
struct nh_fused90_loops {
    struct nh_tiling_count fetched, seen;
};

/* The work of a config with these loops. */
void nh_fused90_work_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        const int32_t *value, const struct nh_fused90_loops *loops,
                        struct nh_work *work);

struct nh_fused90_loops nh_fused90_loops_of(const struct nh_problem *problem, const int32_t *value);

#endif
