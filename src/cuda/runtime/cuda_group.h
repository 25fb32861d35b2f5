/* Groups on CUDA: one launch a pass for members with equal kernels. */
#ifndef NH_CUDA_GROUP_H
#define NH_CUDA_GROUP_H

#include "group.h"

/* Makes the operation of a group whose members' operations were built without kernels (kernels_later of struct nh_device), in the
 * device's arena. Fails with what nh_cuda_build fails with. */
nh_group_build_fn nh_cuda_group_build;

#endif
