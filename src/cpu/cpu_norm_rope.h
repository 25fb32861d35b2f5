#ifndef NH_CPU_NORM_ROPE_H
#define NH_CPU_NORM_ROPE_H

#include "norm_rope.h"
#include "solver.h"

/* Builds RMS norm and rotary positions for the CPU. MEMORY. */
nhood_status nh_cpu_norm_rope_build(const struct nh_norm_rope *problem,
                                    const struct nh_device *device,
                                    struct nh_norm_rope_operation **operation);

#endif
