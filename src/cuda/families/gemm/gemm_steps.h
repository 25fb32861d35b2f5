/* The launches of cuda.gemm. */
#ifndef NH_CUDA_GEMM_STEPS_H
#define NH_CUDA_GEMM_STEPS_H

#include "launch.h"

/* Appends the launches of the problem's operation. */
nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config);

#endif
