/* The grid as the fused kernels of sm_90 see it: as few axes as can be, of three the one last that lines of tokens run
 * along. Tiles are lines of 8 columns; nothing but the strides says which axis these are of. */
#ifndef NH_PERMUTED_AXES_H
#define NH_PERMUTED_AXES_H

#include "problem.h"

/* In `permuted`, the problem without keys that no query attends (nh_attended_keys), with merged axes, or one in three dimensions with the axis last that lines fit best; or the
 * problem itself, if that is the last already, or a bias has a table in the order of the axes. */
const struct nh_problem *nh_permuted_axes(const struct nh_problem *problem,
                                          struct nh_problem *permuted);

/* Whether axes can be merged; in `merged`, the same problem with as few as can be. Where windows are all of the inner one
 * of two axes, what a query sees is a range of the tokens as they lie in memory: a problem with an axis less, which tiles
 * cut without leaving rows empty. */
bool nh_merged_axes(const struct nh_problem *problem, struct nh_problem *merged);

/* Whether a tensor's axis strides are those of the grid. */
bool nh_tensor_of_grid(int32_t tensor);

#endif
