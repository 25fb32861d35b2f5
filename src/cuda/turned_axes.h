/* Which axis of the grid lines of tokens run along. Tiles of the fused kernels of sm_90 are lines of 8 columns; nothing
 * but the strides says which axis these are of. */
#ifndef NH_TURNED_AXES_H
#define NH_TURNED_AXES_H

#include "problem.h"

/* In `turned`, a problem in three dimensions with the axis last that lines fit best; or the problem itself, if that is the
 * last already, or a bias has a table in the order of the axes. */
const struct nh_problem *nh_turned_axes(const struct nh_problem *problem,
                                        struct nh_problem *turned);

#endif
