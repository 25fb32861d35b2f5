/* The grid as the fused kernels of sm_90 see it: with as few axes as possible and, in three dimensions, the axis last
 * along which lines of 8 tokens waste least. Only extents and strides change; kernels do not know of it. */
#ifndef NH_PERMUTED_AXES_H
#define NH_PERMUTED_AXES_H

#include "problem.h"

/* Returns a problem with the same result without keys that no query attends (nh_attended_keys), whose axes are merged
 * or, in three dimensions, permuted so that the axis comes last that lines fit best: `problem` itself if nothing is
 * gained, or else `permuted`. With a bias, axes stay as they are, in the order of its table. */
const struct nh_problem *nh_permuted_axes(const struct nh_problem *problem,
                                          struct nh_problem *permuted);

/* Writes to `merged` the same problem with as few axes as possible; false if none can be merged. Two axes become one if
 * every window is all of the inner axis: it is then a range of tokens in memory, cut without empty rows. */
bool nh_merged_axes(const struct nh_problem *problem, struct nh_problem *merged);

#endif
