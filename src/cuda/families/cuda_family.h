/* What every solver of the CUDA backend is made with. */
#ifndef NH_CUDA_FAMILY_H
#define NH_CUDA_FAMILY_H

#include "cuda_solvers.h"
#include "launch.h"
#include "predict.h"

/* Begins the initialiser of a solver: its name, its knobs, and its functions for refusing problems, for candidates, for the
 * work of a config, by which its time is estimated, and for the launches. */
#define NH_CUDA_SOLVER(own_name, own_knobs, own_refuse, own_candidates, own_work, own_add_steps)   \
    .device_kind = NHOOD_DEVICE_CUDA, .name = own_name, .knob = own_knobs, .refuse = own_refuse,   \
    .candidates = own_candidates, .estimate = nh_estimate, .build = nh_cuda_build,                 \
    .preference = nh_preference, .work = own_work, .add_steps = own_add_steps

#endif
