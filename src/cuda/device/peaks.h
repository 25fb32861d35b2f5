/* What a CUDA device can reach at most. */
#ifndef NH_PEAKS_H
#define NH_PEAKS_H

#include "cuda.h"

/* Measures copying in memory, and multiply-adds of the dtype in registers. COMPILE, DEVICE, MEMORY. */
nhood_status nh_cuda_measure(const struct nh_device *device, int32_t dtype,
                             nhood_ceilings *ceilings);

#endif
