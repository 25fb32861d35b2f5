/* Wide values, in parts of their columns. Registers of fused kernels hold sums of 256 columns: a launch for each part makes
 * the scores again. */
#ifndef NH_VALUE_PARTS_H
#define NH_VALUE_PARTS_H

#include "launch.h"

enum { NH_MOST_VALUES = 1024, NH_MOST_VALUES_AT_ONCE = 256 };

/* The number of parts: 1 up to NH_MOST_VALUES_AT_ONCE columns. */
int nh_value_parts(const struct nh_problem *problem);

/* The problem of a part, written to `room`, or `problem` itself if there is one part. Parts have about the same width, a
 * multiple of 16 but for the last, which is the narrowest. Strides remain those of all columns. */
const struct nh_problem *nh_value_part(const struct nh_problem *problem, int part,
                                       struct nh_problem *room);

/* Moves what a step has of values, outputs and their gradients to the columns of a part. */
void nh_value_part_bind(struct nh_cuda_step *step, const struct nh_problem *problem, int part);

#endif
