/* From a kernel's source and its knobs to a loaded kernel: memory, then the disk store, then NVRTC. */
#ifndef NH_KERNEL_CACHE_H
#define NH_KERNEL_CACHE_H

#include "cuda.h"

enum { NH_KERNEL_DEFINES = 48 };

/* One specialisation: a kernel source and the macros it is compiled with. Its key is all of this and nothing of
 * a problem's extents, so that a new image size compiles nothing. */
struct nh_kernel_spec {
    /* file name of a kernel source, "naive_forward.cu"; its one kernel has the file's stem for its name */
    const char *source;
    int32_t count;
    struct {
        const char *name;
        int64_t value;
    } define[NH_KERNEL_DEFINES];
};

/* A spec that is full stays as it is; nh_cuda_step_add refuses it. */
void nh_kernel_define(struct nh_kernel_spec *spec, const char *name, int64_t value);

struct nh_kernel {
    nh_cu_kernel handle;
    int32_t registers, local_bytes;
};

/* The NVRTC at options->nvrtc, or searched for when first needed; the store in options->cache. */
nhood_status nh_kernel_cache_create(const struct nh_host *host,
                                    const nhood_context_options *options,
                                    struct nh_kernel_cache **cache);
void nh_kernel_cache_destroy(struct nh_kernel_cache *cache, const struct nh_driver *driver);

/* Where NVRTC is, or what to do about its absence. */
void nh_kernel_cache_note(struct nh_kernel_cache *cache, char *note, size_t capacity);

/* Gets a kernel ready to launch on the device with that much dynamic shared memory. Any number of threads may ask
 * for the same kernel: one makes it, the others wait. COMPILE, DEVICE, MEMORY. */
nhood_status nh_kernel_get(struct nh_cuda_device *device, const struct nh_kernel_spec *spec,
                           int64_t shared_bytes, struct nh_kernel *kernel);

/* Whether the kernel need not be loaded or made any more. */
bool nh_kernel_in_memory(struct nh_cuda_device *device, const struct nh_kernel_spec *spec);

/* Fills in all but struct_size. */
void nh_kernel_cache_count(struct nh_kernel_cache *cache, nhood_kernel_counts *counts);

#endif
