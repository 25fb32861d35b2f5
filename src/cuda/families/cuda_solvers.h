/* The solvers of the CUDA backend. */
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

#endif
