/* What every solver of the CUDA backend is made with. */
#ifndef NH_CUDA_FAMILY_H
#define NH_CUDA_FAMILY_H

#include "cuda_solvers.h"
#include "launch.h"
#include "predict.h"

/* Begins the initialiser of a solver, which adds `work` for the estimates and `add_steps` for the launches. */
#define NH_CUDA_SOLVER                                                                             \
    .device_kind = NHOOD_DEVICE_CUDA, .estimate = nh_estimate, .build = nh_cuda_build,             \
    .preference = nh_preference

#endif
