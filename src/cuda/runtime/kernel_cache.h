/* From a kernel's source and its knobs to a loaded kernel: memory, then bundles, then the disk store, then NVRTC. */
#ifndef NH_KERNEL_CACHE_H
#define NH_KERNEL_CACHE_H

#include "compiler.h"
#include "cuda.h"

/* The NVRTC at options->nvrtc, or searched for when first needed; the store in options->cache; the bundles of
 * options->bundle. ARGUMENT (a bundle is not there or is none), MEMORY. */
nhood_status nh_kernel_cache_create(const struct nh_host *host,
                                    const nhood_context_options *options,
                                    struct nh_kernel_cache **cache);
void nh_kernel_cache_destroy(struct nh_kernel_cache *cache, const struct nh_driver *driver);

/* From here on kernels are compiled and kept as machine code instead of loaded: the cache needs no driver, and what it
 * hands out cannot be launched. COMPILE (no NVRTC). */
nhood_status nh_kernel_cache_collect(struct nh_kernel_cache *cache);
/* Writes what was collected as a bundle. ARGUMENT (cannot be written), MEMORY. */
nhood_status nh_kernel_cache_write(struct nh_kernel_cache *cache, const char *path);

/* Where NVRTC is, or what to do about its absence, and the bundles; behind `before` (less than 1 KiB), which the first call
 * gives for all. As long-lived as the cache. */
const char *nh_kernel_cache_note(struct nh_kernel_cache *cache, const char *before);

/* Gets a kernel ready to launch on the device with that much dynamic shared memory. Any number of threads may ask
 * for the same kernel: one makes it, the others wait. COMPILE, DEVICE, MEMORY. */
nhood_status nh_kernel_get(struct nh_cuda_device *device, const struct nh_kernel_spec *spec,
                           int64_t shared_bytes, nh_cu_kernel *kernel);

/* Whether the kernel need not be loaded or made any more. */
bool nh_kernel_in_memory(struct nh_cuda_device *device, const struct nh_kernel_spec *spec);

/* Fills in all but struct_size. */
void nh_kernel_cache_count(struct nh_kernel_cache *cache, nhood_kernel_counts *counts);

#endif
