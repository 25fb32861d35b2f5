/* From a kernel's source and its knobs to a loaded kernel: memory, then bundles, then the disk store, then NVRTC. */
#ifndef NH_KERNEL_CACHE_H
#define NH_KERNEL_CACHE_H

#include "compiler.h"
#include "cuda.h"

/* The cache uses the NVRTC at options->nvrtc, or searches for one when first needed, the disk store in options->cache
 * and the bundles of options->bundle. Fails with ARGUMENT (a bundle is missing or is none) or MEMORY. */
nhood_status nh_kernel_cache_create(const struct nh_host *host,
                                    const nhood_context_options *options,
                                    struct nh_kernel_cache **cache);
void nh_kernel_cache_destroy(struct nh_kernel_cache *cache, const struct nh_driver *driver);

/* From here on kernels are compiled and kept as machine code instead of loaded: the cache needs no driver, and the
 * kernels that it returns cannot be launched. Fails with COMPILE (no NVRTC). */
nhood_status nh_kernel_cache_collect(struct nh_kernel_cache *cache);
bool nh_kernel_cache_collects(const struct nh_kernel_cache *cache);
/* Writes what was collected as a bundle. Fails with ARGUMENT (the file cannot be written) or MEMORY. */
nhood_status nh_kernel_cache_write(struct nh_kernel_cache *cache, const char *path);

/* Says where NVRTC is, or what to do about its absence, and which bundles are used. The text begins with `before` (less
 * than 1 KiB) of the first call, and lives as long as the cache. */
const char *nh_kernel_cache_note(struct nh_kernel_cache *cache, const char *before);

/* Gets a kernel ready to launch on the device with that much dynamic shared memory. Any number of threads may ask for
 * the same kernel: one makes it, the others wait. Fails with COMPILE, DEVICE or MEMORY. */
nhood_status nh_kernel_get(struct nh_cuda_device *device, const struct nh_kernel_spec *spec,
                           int64_t shared_bytes, nh_cu_kernel *kernel);

bool nh_kernel_in_memory(const struct nh_cuda_device *device, const struct nh_kernel_spec *spec);

struct nh_bundle_item;
/* The kernel's key and code in a cache that collects, or NULL if nobody got that kernel from it. */
const struct nh_bundle_item *nh_kernel_code(const struct nh_cuda_device *device,
                                            const struct nh_kernel_spec *spec);

/* Fills in every member but struct_size. */
void nh_kernel_cache_count(struct nh_kernel_cache *cache, nhood_kernel_counts *counts);

#endif
