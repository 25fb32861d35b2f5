/* The tiles of cuda.fused90 that are worth trying. */
#ifndef NH_FUSED90_SEARCH_H
#define NH_FUSED90_SEARCH_H

#include "top_n.h"

/* Adds configs with the tiles worth trying, as far as they stay below the limit; AGAIN is left 0. */
void nh_fused90_search(const struct nh_problem *problem, const struct nh_device *device,
                       struct nh_top_n *best);

#endif
