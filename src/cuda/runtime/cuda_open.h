/* Opens and closes the CUDA devices of a context. */
#ifndef NH_CUDA_OPEN_H
#define NH_CUDA_OPEN_H

#include "cuda.h"

/* Opens every CUDA device, at most `capacity`, into device[]; *count is 0 where there is none or no driver. ARGUMENT,
 * MEMORY or DEVICE. */
nhood_status nh_cuda_open(const nhood_context_options *options, const struct nh_host *host,
                          struct nh_device *device, int32_t capacity, int32_t *count,
                          struct nh_cuda **cuda);

/* As nh_cuda_open, with this driver (already initialised) in place of the machine's. */
nhood_status nh_cuda_open_with(const struct nh_driver *driver, const nhood_context_options *options,
                               const struct nh_host *host, struct nh_device *device,
                               int32_t capacity, int32_t *count, struct nh_cuda **cuda);

/* What was found of driver, compiler and bundles, or what to install. Never empty; lives as long as `cuda`. The compiler
 * is looked for when this is first called, unless a plan needed it before. */
const char *nh_cuda_note(struct nh_cuda *cuda);

/* A backend without devices that compiles kernels and keeps them, for a bundle: plans that are built on its twins of
 * devices, whether those are there or only described, cannot run. COMPILE (no NVRTC), MEMORY. */
nhood_status nh_cuda_collect_open(const nhood_context_options *options, const struct nh_host *host,
                                  struct nh_cuda **cuda);
/* The twin's `backend` is to be released with nh_release. MEMORY. */
nhood_status nh_cuda_collect_twin(struct nh_cuda *cuda, const struct nh_device *device,
                                  struct nh_device *twin);

/* ARGUMENT (cannot be written). */
nhood_status nh_cuda_collect_write(struct nh_cuda *cuda, const char *path);

void nh_cuda_close(struct nh_cuda *cuda, struct nh_device *device, int32_t count);

/* Fills in all but struct_size. */
void nh_cuda_count_kernels(const struct nh_cuda *cuda, nhood_kernel_counts *counts);

#endif
