/* Repair of rows that are not finite since something outside their windows is not, by a launch of its own
 * (repair_noted.cuh) if an earlier one has noted any. */
#ifndef NH_REPAIR_H
#define NH_REPAIR_H

#include "launch.h"

/* The words of NH_QUEUE, at this place of the workspace; the second tells of rows to repair. */
void nh_repair_bind(struct nh_cuda_step *step, size_t words);

/* Adds the launch that sets them to zero. */
nhood_status nh_repair_add_clear(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, size_t words);

/* Adds the launch of `source`, whose tensors are bound; lanes: that share a row of 8 elements each. */
nhood_status nh_repair_add(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, const char *source, int64_t lanes);

#endif
