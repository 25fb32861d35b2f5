/* The CUDA backend of one context: driver, compiler, store and loaded kernels, shared by its devices. */
#ifndef NH_CUDA_H
#define NH_CUDA_H

#include "driver.h"
#include "solver.h"

#include <stdatomic.h>

struct nh_kernel_cache;
struct nh_coefficients;

struct nh_cuda {
    const struct nh_host *host;
    struct nh_driver driver; /* all NULL where there is none */
    struct nh_kernel_cache *kernels;
    char driver_note[512];
};

struct nh_cuda_device {
    struct nh_cuda *cuda;
    nh_cu_device handle;
    /* the device's primary context, once something was planned without a context of the caller */
    _Atomic(nh_cu_context) primary;
    /* compute capability, 90 for 9.0 */
    int32_t arch;
    int32_t multiprocessors;
    /* a launch may begin before the one before it has ended, in graphs, too: sm_90, CUDA 12.3 */
    bool overlaps;
    int64_t shared_bytes_per_block, shared_bytes_per_multiprocessor, l2_bytes;
    /* 0; or, for tests, kernels note the tiles they multiply, up to so many per work tile:
     * kernels/common/tile_note.cuh */
    int32_t noted_tiles;
    /* highest clock of the multiprocessors and nominal bandwidth of the memory, for estimates */
    double clock_hz, memory_bytes_per_s;
    /* of its estimates; NULL: the built-in ones (model/coefficients.h) */
    const struct nh_coefficients *coefficients;
};

/* Opens every CUDA device, at most `capacity`, into device[]; *count is 0 where there is none or no driver. driver: NULL, or
 * one (already initialised) in place of the machine's. ARGUMENT, MEMORY or DEVICE. */
nhood_status nh_cuda_open(const struct nh_driver *driver, const nhood_context_options *options,
                          const struct nh_host *host, struct nh_device *device, int32_t capacity,
                          int32_t *count, struct nh_cuda **cuda);
void nh_cuda_close(struct nh_cuda *cuda, struct nh_device *device, int32_t count);

/* What was found of driver, compiler and bundles, or what to install. Never empty; lives as long as `cuda`. The compiler
 * is looked for when this is first called, unless a plan needed it before. */
const char *nh_cuda_note(struct nh_cuda *cuda);

/* A backend without devices that compiles kernels and keeps them, for a bundle (nh_kernel_cache_write): plans that are
 * built on its twins of devices, whether those are there or only described, cannot run. COMPILE (no NVRTC), MEMORY. */
nhood_status nh_cuda_collect_open(const nhood_context_options *options, const struct nh_host *host,
                                  struct nh_cuda **cuda);
/* The twin's `backend` is to be released with nh_release. MEMORY. */
nhood_status nh_cuda_collect_twin(struct nh_cuda *cuda, const struct nh_device *device,
                                  struct nh_device *twin);

/* What the library tells of a device; its description is what wisdom knows it by. */
nhood_device_info nh_cuda_device_info(const struct nh_cuda_device *device, int32_t ordinal,
                                      const char *name, const char *model);

/* Makes a context of the device current, unless the caller's already is: planning retains the primary context
 * when it has to; executing only uses what there is. DEVICE. Leave puts things back. */
struct nh_cuda_scope {
    bool pushed;
};
nhood_status nh_cuda_enter(struct nh_cuda_device *device, bool planning,
                           struct nh_cuda_scope *scope);
void nh_cuda_leave(const struct nh_cuda_device *device, const struct nh_cuda_scope *scope);

#endif
