/* The tiles of cuda.fused90 that are worth trying. */
#ifndef NH_FUSED90_SEARCH_H
#define NH_FUSED90_SEARCH_H

#include "top_n.h"

/* Whether the copy engine can go around the periodic axes: no window and tile of queries meet the ends of two laps of one, or tiles of
 * keys divide it. */
bool nh_fused90_goes_around(const struct nh_problem *problem);

/* Adds configs with the tiles worth trying, as far as they stay below the limit; AGAIN is left 0. */
void nh_fused90_search(const struct nh_problem *problem, const struct nh_device *device,
                       struct nh_top_n *best);

#endif
