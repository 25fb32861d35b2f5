/* Repair of rows that are not finite because something outside their windows is not, by a launch of its own
 * (repair_noted.cuh), which does nothing unless an earlier launch has noted such a row. */
#ifndef NH_REPAIR_H
#define NH_REPAIR_H

#include "launch.h"

/* Binds NH_QUEUE to two words of the workspace; the second one notes that there are rows to repair. */
void nh_repair_bind(struct nh_cuda_step *step, size_t words);

/* Adds the launch that clears these words. */
nhood_status nh_repair_add_clear(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, size_t words);

/* Adds the launch of `source`, whose tensors are bound. lanes: threads that share a row, with 8 elements each. */
nhood_status nh_repair_add(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, const char *source, int64_t lanes);

#endif
