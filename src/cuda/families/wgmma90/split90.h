/* What a bias and extra tokens add to cuda.split90's launches. */
#ifndef NH_SPLIT90_H
#define NH_SPLIT90_H

#include "backward90.h"

/* Bytes of shared memory for boxes of the bias and, beside dQ, sums of its gradient; 0 without a bias. */
int64_t nh_split90_bias_bytes(const struct nh_backward90_kernel *kernel);

/* Makes the launch for dQ add the bias's gradient to tables in the workspace, one per head and block, and limits its
 * blocks and the heads per block so that there are not too many tables. */
void nh_split90_add_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, struct nh_kernel_spec *spec);

/* NULL, or why the queries cannot be taken as one grid without dilation, as the launch for extra tokens does. */
const char *nh_split90_refuse_extra(const struct nh_problem *problem,
                                    const struct nh_device *device);

/* The loop tile of blocks that own extra tokens. Sets *tiles to the number of such tiles of queries in all their loops,
 * per batch entry and head. */
const int32_t *nh_split90_extra_loop_tile(const struct nh_problem *problem,
                                          const struct nh_cuda_device *cuda, double *tiles);

/* Appends the launches for the gradients of the extra tokens. stats: workspace offset of the queries' statistics. */
nhood_status nh_split90_add_extra(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, size_t stats);

#endif
