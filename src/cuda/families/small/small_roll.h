/* Halos that roll along the first axis (small_roll.cuh): a block takes work tiles that follow each other there, and
 * fetches of each halo what the one before did not have. */
#ifndef NH_SMALL_ROLL_H
#define NH_SMALL_ROLL_H

#include "small_shape.h"

/* Makes the halo of a shape for the copy engine one that rolls, if work tiles are one warp tile wide on the first axis
 * and the rows of a slot agree with the swizzle; if tensors do not cover that axis or it is periodic, where it has one
 * dilation group, and around a circle that is covered and that work tiles divide. held: work tiles that are under way
 * or in use. */
void nh_small_roll(const struct nh_problem *problem, bool keys, int32_t held,
                   struct nh_small_shape *shape);

/* Whether slots of a halo that rolls are planes of a volume, one position each. There are then as many as `held` work
 * tiles of a chain need, and a chain begins once enough work tiles of the one before are done. */
bool nh_small_rolls_planes(const struct nh_problem *problem, const struct nh_small_shape *shape);

/* Heads next to each other that blocks next to each other work for, where halos roll; 1 where they roll by planes. */
int32_t nh_small_near_heads(const struct nh_problem *problem, const struct nh_small_shape *shape);

/* Box of columns whose statistics are fetched at a time, and its places in shared memory: a slot's lines are even, as
 * boxes start at multiples of 128 bytes. */
int64_t nh_small_statistics_box(const struct nh_small_shape *shape, int32_t *box);

#endif
