/* The solvers of the CUDA backend, and its operator for RMS norm and rotary positions. */
#ifndef NH_CUDA_SOLVERS_H
#define NH_CUDA_SOLVERS_H

#include "solver.h"

extern const struct nh_solver nh_solver_cuda_short;
extern const struct nh_solver nh_solver_cuda_short90;
extern const struct nh_solver nh_solver_cuda_small;
extern const struct nh_solver nh_solver_cuda_fused80;
extern const struct nh_solver nh_solver_cuda_fused90;
extern const struct nh_solver nh_solver_cuda_joint90;
extern const struct nh_solver nh_solver_cuda_split90;
extern const struct nh_solver nh_solver_cuda_split80;
extern const struct nh_solver nh_solver_cuda_naive;
extern const struct nh_solver nh_solver_cuda_gemm;

/* Builds RMS norm with rotary positions for a CUDA device, or for a twin of one whose kernels go into a bundle. Fails
 * with UNSUPPORTED, COMPILE, DEVICE or MEMORY. */
struct nh_norm_rope;
struct nh_norm_rope_operation;
nhood_status nh_cuda_norm_rope_build(const struct nh_norm_rope *problem,
                                     const struct nh_device *device,
                                     struct nh_norm_rope_operation **operation);

#endif
