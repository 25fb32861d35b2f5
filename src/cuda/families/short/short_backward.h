/* The backward of cuda.short: one launch, see short_backward.cu. */
#ifndef NH_SHORT_BACKWARD_H
#define NH_SHORT_BACKWARD_H

#include "launch.h"
#include "short_shape.h"

/* Nanoseconds; INFINITY for configs that it has no use for or that do not fit. */
double nh_short_backward_ns(const struct nh_problem *problem, const struct nh_cuda_device *device,
                            const struct nh_short_shape *shape, const int32_t *value);

nhood_status nh_short_backward_add(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem, const int32_t *value);

#endif
