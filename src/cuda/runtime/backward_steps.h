/* Launches that the backward passes of several solvers have in common. */
#ifndef NH_BACKWARD_STEPS_H
#define NH_BACKWARD_STEPS_H

#include "launch.h"

/* Threads and blocks of a step, and macros of its kernel, that goes over dO and O with a group of lanes per row, which
 * hold it in registers. vector: elements per load, nh_cuda_vector of both tensors. */
void nh_cuda_lanes_per_row(const struct nh_problem *problem, int64_t vector,
                           struct nh_kernel_spec *spec, struct nh_cuda_step *step);

/* Binds NH_DELTA to the workspace as [B, H, X, Y, Z, 4] in f32 over the queries that the tensors have, of which the copy
 * engine of sm_90 fetches boxes. */
void nh_cuda_bind_stats(struct nh_cuda_step *step, const struct nh_problem *problem,
                        size_t offset_bytes);

/* Appends the launch that makes LSE and delta of the queries, of a step with NH_DELTA bound to them, and zeroes sums of
 * dQ of so many columns. */
nhood_status nh_cuda_add_stats(struct nh_cuda_operation *operation, struct nh_cuda_step *step,
                               const struct nh_problem *problem, int64_t sum_columns);

/* Appends the launch that adds up the shares of the bias's gradient to which a step has NH_D_S bound. */
nhood_status nh_cuda_add_bias_sum(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, struct nh_cuda_step step);

/* Appends, for a problem with keys left out (nh_attended_keys), the launch that stores zeros as their gradients. */
nhood_status nh_cuda_add_clear_keys(struct nh_cuda_operation *operation,
                                    const struct nh_problem *problem);

#endif
