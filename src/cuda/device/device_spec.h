/* GPUs by their published numbers, for planning where there is none. */
#ifndef NH_DEVICE_SPEC_H
#define NH_DEVICE_SPEC_H

#include "cuda.h"

/* Finds described devices by the name of a GPU ("h200") or of an architecture ("sm_90"), writes them to device[], which
 * has room for NH_MOST_DESCRIBED, and sets *count. They need not be closed. Fails with ARGUMENT for any other name. */
enum { NH_MOST_DESCRIBED = 4 };
nhood_status nh_cuda_describe(const char *name, const struct nh_host *host,
                              struct nh_device *device, int32_t *count);

#endif
