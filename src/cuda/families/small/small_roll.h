/* Halos that roll along the first axis (small_roll.cuh): a block takes work tiles that follow each other there, and
 * fetches only the part of each halo that the halo before did not have. */
#ifndef NH_SMALL_ROLL_H
#define NH_SMALL_ROLL_H

#include "small_shape.h"

/* Makes the halo of a shape roll, or leaves it alone if it cannot: work tiles must be one warp tile wide on the first
 * axis, and slots agree with the swizzle. An axis that tensors do not cover, or a periodic one, needs a single dilation
 * group; a periodic one also has to be covered and divided by work tiles. held: work tiles that are under way or in
 * use. */
void nh_small_roll(const struct nh_problem *problem, bool keys, int32_t held,
                   struct nh_small_shape *shape);

/* Whether the slots of a halo that rolls are planes of a volume, one position each. There are then as many slots as
 * `held` work tiles of one chain need, and a chain begins once enough work tiles of the chain before are done. */
bool nh_small_rolls_planes(const struct nh_problem *problem, const struct nh_small_shape *shape);

/* The number of adjacent heads that adjacent blocks compute at the same time where halos roll; 1 if they roll by
 * planes. */
int32_t nh_small_near_heads(const struct nh_problem *problem, const struct nh_small_shape *shape);

/* Sets the box of columns whose statistics are fetched at a time, and returns their places in shared memory. A slot's
 * lines are even in length, as boxes have to start at multiples of 128 bytes. */
int64_t nh_small_statistics_box(const struct nh_small_shape *shape, int32_t *box);

#endif
