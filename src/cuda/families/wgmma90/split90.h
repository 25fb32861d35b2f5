/* What bias and extra tokens need of cuda.split90's launches. */
#ifndef NH_SPLIT90_H
#define NH_SPLIT90_H

#include "backward90.h"

/* Shared memory for boxes of the bias and, beside dQ, sums of its gradient; 0 without a bias. */
int64_t nh_split90_bias_bytes(const struct nh_backward90_kernel *kernel);

/* Lets the launch that makes dQ add the bias's gradient to tables in the workspace, one per head and block, and has it
 * keep to as few blocks and heads per block as they are meant for. */
void nh_split90_add_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, struct nh_kernel_spec *spec);

/* NULL, or why the queries cannot be taken as one grid, without dilation. */
const char *nh_split90_refuse_extra(const struct nh_problem *problem,
                                    const struct nh_device *device);

/* The loop tile of blocks that own extra tokens, and how many such tiles of queries all of their loops have, per batch
 * entry and head. */
const int32_t *nh_split90_extra_loop_tile(const struct nh_problem *problem,
                                          const struct nh_cuda_device *cuda, double *tiles);

/* Appends the launches that make the gradients of the extra tokens. */
nhood_status nh_split90_add_extra(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, size_t stats);

#endif
