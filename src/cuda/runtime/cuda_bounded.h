/* Groups on CUDA whose members' lengths are data in device memory. */
#ifndef NH_CUDA_BOUNDED_H
#define NH_CUDA_BOUNDED_H

#include "bound.h"

/* Where blocks loop over work tiles, a launch for the largest batch has at least so many waves of them (set_loop in cuda_bounded.c says
 * why). */
enum { NH_BOUNDED_WAVES = 4 };

/* Makes the operation of any members within the bound, by the launches of a solver's config. Fails with what nh_cuda_build fails
 * with, and with UNSUPPORTED if these depend on lengths by more than their grids, shared arguments and tiling. device: as
 * nh_device_for_any_length says. */
nhood_status nh_cuda_bounded_build(const struct nh_solver *solver, const struct nh_config *config,
                                   const struct nh_device *device, const struct nh_bound *bound,
                                   struct nh_group_operation **operation);

/* The most blocks that such a launch has for members within the bound. */
struct nh_cuda_blocks;
int64_t nh_cuda_most_blocks(const struct nh_cuda_blocks *blocks, const struct nh_bound *bound);

#endif
