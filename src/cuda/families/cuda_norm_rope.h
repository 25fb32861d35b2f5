#ifndef NH_CUDA_NORM_ROPE_H
#define NH_CUDA_NORM_ROPE_H

#include "norm_rope.h"
#include "solver.h"

/* RMS norm and rotary positions on a CUDA device, or, for a bundle, on the twin of one. UNSUPPORTED, COMPILE, DEVICE, MEMORY. */
nhood_status nh_cuda_norm_rope_build(const struct nh_norm_rope *problem,
                                     const struct nh_device *device,
                                     struct nh_norm_rope_operation **operation);

#endif
