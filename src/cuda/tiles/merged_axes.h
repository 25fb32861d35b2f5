/* Axes of the grid as one. Where windows are all of the inner one of two axes, what a query sees is a range of the tokens
 * as they lie in memory: a problem with an axis less, which tiles cut without leaving rows empty. */
#ifndef NH_MERGED_AXES_H
#define NH_MERGED_AXES_H

#include "problem.h"

/* Whether the problem has such axes; in `merged`, the same problem with as few axes as can be. */
bool nh_merged_axes(const struct nh_problem *problem, struct nh_problem *merged);

/* Whether a tensor's axis strides are those of the grid. */
bool nh_tensor_of_grid(int32_t tensor);

#endif
