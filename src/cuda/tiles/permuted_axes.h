/* The grid as the fused kernels of sm_90 see it: as few axes as can be, of three the one last that lines of tokens run
 * along. Tiles are lines of 8 columns; nothing but the strides says which axis these are of. */
#ifndef NH_PERMUTED_AXES_H
#define NH_PERMUTED_AXES_H

#include "problem.h"

/* In `permuted`, the problem with merged axes (merged_axes.h), or one in three dimensions with the axis last that lines fit
 * best; or the problem itself, if that is the last already, or a bias has a table in the order of the axes. */
const struct nh_problem *nh_permuted_axes(const struct nh_problem *problem,
                                          struct nh_problem *permuted);

#endif
