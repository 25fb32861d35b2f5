/* Groups on CUDA: one launch a pass for members with equal kernels. */
#ifndef NH_CUDA_GROUP_H
#define NH_CUDA_GROUP_H

#include "group.h"

/* Where blocks loop over work tiles (loop_blocks of launch.h), what one takes beside its tiles: it starts, fills its pipeline and drains
 * it. 64 recordings of 500 to 8,000 samples, windows of 129, by cuda.joint90 took 2.0 ms with 132 blocks each, where one problem took
 * 1.41 (H200). A member gets so many blocks that each takes at least 3 times that, and no more than 40 times, of which it is 2 %. */
#define NH_BLOCK_NS 9e3
#define NH_LEAST_BLOCK_NS (3 * NH_BLOCK_NS)
#define NH_MOST_BLOCK_NS (40 * NH_BLOCK_NS)

/* Makes the operation of a group whose members' operations were built without kernels (kernels_later of struct nh_device), in the
 * device's arena. Fails with what nh_cuda_build fails with. */
nh_group_build_fn nh_cuda_group_build;

#endif
