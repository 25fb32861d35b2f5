/* cuda.split80 in four files: split80.c chooses tiles, split80_work.c says what they ask of a device, split80_steps.c launches
 * them, and split80_launch.c says what a launch needs. */
#ifndef NH_SPLIT80_H
#define NH_SPLIT80_H

#include "box_search.h"
#include "split80_launch.h"

/* The work of both sides, with no launches; and the launches of one side, for extra tokens, too. count: of the side's
 * tiles. False: blocks do not fit. */
void nh_split80_start(const struct nh_problem *problem, struct nh_work *work);
bool nh_split80_add_side(const struct nh_problem *problem, const struct nh_cuda_device *device,
                         const int32_t *side, bool inverse, const struct nh_tiling_count *count,
                         struct nh_work *work);

nh_work_fn nh_split80_work;

nhood_status nh_split80_add_steps(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, const struct nh_config *config);

#endif
