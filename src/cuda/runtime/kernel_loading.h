#ifndef NH_KERNEL_LOADING_H
#define NH_KERNEL_LOADING_H

#include "launch.h"

/* Loads the kernels of all steps. COMPILE, DEVICE, MEMORY. */
nhood_status nh_cuda_load_kernels(struct nh_cuda_operation *operation);

#endif
