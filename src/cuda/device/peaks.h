/* Measured peaks of a CUDA device. */
#ifndef NH_PEAKS_H
#define NH_PEAKS_H

#include "cuda.h"

/* Measures bytes per second (read and written) of a copy in memory, and operations per second (two per multiply-add) of
 * the dtype with operands on chip. Fails with COMPILE, DEVICE or MEMORY; then both are 0 or incomplete. */
nhood_status nh_cuda_measure(const struct nh_device *device, int32_t dtype,
                             nhood_ceilings *ceilings);

#endif
