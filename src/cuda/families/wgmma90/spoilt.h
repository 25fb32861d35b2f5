/* Rows that something not finite outside their windows has spoilt, made again by a launch of their own
 * (spoilt_row.cuh) if an earlier one has noted any. */
#ifndef NH_SPOILT_H
#define NH_SPOILT_H

#include "launch.h"

/* The words of NH_QUEUE, at this place of the workspace; the second tells of spoilt rows. */
void nh_spoilt_bind(struct nh_cuda_step *step, size_t words);

/* Adds the launch that sets them to zero. */
nhood_status nh_spoilt_add_clear(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, size_t words);

/* Adds the launch of `source`, whose tensors are bound; lanes: that share a row of 8 elements each. */
nhood_status nh_spoilt_add_again(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, struct nh_cuda_step *step,
                                 const char *source, int64_t lanes);

#endif
