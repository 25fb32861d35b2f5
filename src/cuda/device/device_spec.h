/* GPUs by their published numbers, for planning where there is none. */
#ifndef NH_DEVICE_SPEC_H
#define NH_DEVICE_SPEC_H

#include "cuda.h"

/* A device that is only described, by the name of a GPU: nothing to close. ARGUMENT. */
nhood_status nh_cuda_describe(const char *name, const struct nh_host *host,
                              struct nh_device *device);

#endif
