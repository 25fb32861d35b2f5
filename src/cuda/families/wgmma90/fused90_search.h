/* The search for the tiles of cuda.fused90. */
#ifndef NH_FUSED90_SEARCH_H
#define NH_FUSED90_SEARCH_H

#include "top_n.h"

/* Whether the copy engine can go around the periodic axes: either no query tile with its windows meets two seams of an
 * axis, or key tiles divide it. */
bool nh_fused90_goes_around(const struct nh_problem *problem);

/* Adds configs with the tiles worth trying whose time is below the list's limit; their knob REPAIR_APART is 0. */
void nh_fused90_search(const struct nh_problem *problem, const struct nh_device *device,
                       struct nh_top_n *best);

#endif
