/* The backward pass of cuda.short, one launch: see short_backward.cu. */
#ifndef NH_SHORT_BACKWARD_H
#define NH_SHORT_BACKWARD_H

#include "launch.h"
#include "short_shape.h"
#include "work.h"

/* Sets the launch's work; false for configs that do not fit, or that are never better than others. */
bool nh_short_backward_work(const struct nh_short_launch *of, struct nh_work *work);

nhood_status nh_short_backward_add(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem, const int32_t *value);

#endif
