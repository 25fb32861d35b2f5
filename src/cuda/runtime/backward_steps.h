/* Launches that the backward passes of several solvers have in common. */
#ifndef NH_BACKWARD_STEPS_H
#define NH_BACKWARD_STEPS_H

#include "launch.h"

/* Sets threads and blocks of a step, and macros of its kernel, for kernels that read dO and O with a power of two of
 * lanes per row (at most 32), which hold the row in registers. vector: elements per load, as nh_cuda_vector returns for
 * both tensors. */
void nh_cuda_lanes_per_row(const struct nh_problem *problem, int64_t vector,
                           struct nh_kernel_spec *spec, struct nh_cuda_step *step);

/* Binds NH_DELTA to the workspace as an f32 tensor [B, H, X, Y, Z, 4] over the queries that the tensors have. Heads
 * come first so that the copy engine of sm_90 can fetch boxes of tokens. */
void nh_cuda_bind_stats(struct nh_cuda_step *step, const struct nh_problem *problem,
                        size_t offset_bytes);

/* Appends the launch that computes LSE and delta of every query (backward_stats.cu), and zeroes the f32 sums of dQ,
 * `sum_columns` per row; 0: there are none. `step` has NH_DELTA bound by nh_cuda_bind_stats. */
nhood_status nh_cuda_add_stats(struct nh_cuda_operation *operation, struct nh_cuda_step *step,
                               const struct nh_problem *problem, int64_t sum_columns);

/* Makes the step of the launch for dQ add the bias's gradient to tables in the workspace, `shares` of each head. */
void nh_cuda_add_bias_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             int64_t shares, struct nh_cuda_step *step);

/* Appends the launch that adds up partial sums of the bias's gradient. The step, which is used as a template, has
 * NH_D_S bound to them. */
nhood_status nh_cuda_add_bias_sum(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, struct nh_cuda_step step);

/* Appends, for a problem with keys left out (nh_attended_keys), the launch that stores zeros as their gradients. */
nhood_status nh_cuda_add_clear_keys(struct nh_cuda_operation *operation,
                                    const struct nh_problem *problem);

#endif
