/* GPUs by their published numbers, for planning where there is none. */
#ifndef NH_DEVICE_SPEC_H
#define NH_DEVICE_SPEC_H

#include "cuda.h"

/* Devices that are only described, by the name of a GPU or, "sm_90", of an architecture, at most NH_MOST_DESCRIBED into
 * device[]: nothing to close. ARGUMENT. */
enum { NH_MOST_DESCRIBED = 4 };
nhood_status nh_cuda_describe(const char *name, const struct nh_host *host,
                              struct nh_device *device, int32_t *count);

#endif
