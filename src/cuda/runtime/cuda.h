/* The CUDA backend of one context: driver, compiler, store and loaded kernels, shared by its devices. */
#ifndef NH_CUDA_H
#define NH_CUDA_H

#include "driver.h"
#include "solver.h"

#include <stdatomic.h>

struct nh_kernel_cache;
struct nh_coefficients;
struct nh_memo;

struct nh_cuda {
    const struct nh_host *host;
    struct nh_driver driver; /* all members NULL if there is no driver */
    struct nh_kernel_cache *kernels;
    char driver_note[512];
};

enum { NH_OVERLAPPING_ARCH = 90 };

struct nh_cuda_device {
    struct nh_cuda *cuda;
    nh_cu_device handle;
    /* the device's primary context; NULL until something is planned in it */
    _Atomic(nh_cu_context) primary;
    /* a byte of the primary context's memory, for which plan_memory.c has a use; 0: none yet */
    _Atomic(nh_cu_pointer) held;
    /* a stream of the primary context, by which plans' memory is written; NULL: none yet */
    _Atomic(nh_cu_stream) uploads;
    /* compute capability, 90 for 9.0 */
    int32_t arch;
    int32_t multiprocessors;
    /* has programmatic dependent launch, also in graphs: NH_OVERLAPPING_ARCH with CUDA 12.3 */
    bool overlaps;
    int64_t shared_bytes_per_block, shared_bytes_per_multiprocessor, l2_bytes;
    /* For tests: the most tiles per work tile that kernels note (kernels/common/tile_note.cuh); 0: none. */
    int32_t noted_tiles;
    /* highest clock of the multiprocessors and nominal bandwidth of the memory, for estimates */
    double clock_hz, memory_bytes_per_s;
    /* coefficients of the device's estimates; NULL: the built-in ones (model/predict.h) */
    const struct nh_coefficients *coefficients;
    /* what families computed for members of groups, which a plan asks for several times; NULL: nothing is remembered */
    struct nh_memo *memo;
};

/* Opens every CUDA device from sm_80 on, at most `capacity`, into device[]; *count is 0 without a driver or a device.
 * driver: NULL, or an initialised one to use instead of the machine's. Fails with ARGUMENT, MEMORY or DEVICE. */
nhood_status nh_cuda_open(const struct nh_driver *driver, const nhood_context_options *options,
                          const struct nh_host *host, struct nh_device *device, int32_t capacity,
                          int32_t *count, struct nh_cuda **cuda);
void nh_cuda_close(struct nh_cuda *cuda, struct nh_device *device, int32_t count);

/* Says what was found of driver, compiler and bundles, or what to install. Never empty; lives as long as `cuda`. The
 * first call looks for the compiler, unless a plan needed it before. */
const char *nh_cuda_note(struct nh_cuda *cuda);

/* Opens a backend without devices that compiles kernels and keeps them, to be written as a bundle with
 * nh_kernel_cache_write. Plans are built on twins of devices, real or only described; these plans cannot run. Fails
 * with COMPILE (no NVRTC) or MEMORY. */
nhood_status nh_cuda_collect_open(const nhood_context_options *options, const struct nh_host *host,
                                  struct nh_cuda **cuda);
/* Makes a copy of a device for such a backend; its `backend` is to be released by nh_release. Fails with MEMORY. */
nhood_status nh_cuda_collect_twin(struct nh_cuda *cuda, const struct nh_device *device,
                                  struct nh_device *twin);

/* Returns what the library tells callers of a device. Wisdom knows the device by the description in it. */
nhood_device_info nh_cuda_device_info(const struct nh_cuda_device *device, int32_t ordinal,
                                      const char *name, const char *model);

/* nh_cuda_enter makes a context of the device current, unless the caller's current one is of that device. Planning
 * retains the primary context if it has to, or if the caller uses it; executing only uses one that is there. Fails with DEVICE.
 * nh_cuda_leave restores the caller's context. primary: when planning, the primary context is current, so that what is made in it
 * can be kept for other plans. */
struct nh_cuda_scope {
    bool pushed, primary;
};
nhood_status nh_cuda_enter(struct nh_cuda_device *device, bool planning,
                           struct nh_cuda_scope *scope);
void nh_cuda_leave(const struct nh_cuda_device *device, const struct nh_cuda_scope *scope);

/* Enqueues that memory becomes zero. The stream is a CUstream, as of an execute. DEVICE. */
nhood_status nh_cuda_clear(struct nh_cuda_device *device, void *memory, size_t bytes, void *stream);

/* ---- timing (timing.c) ---- */

/* Measures the time between two events of a stream. */
struct nh_cuda_timer {
    const struct nh_driver *driver;
    nh_cu_stream stream;
    nh_cu_event start, end;
};

/* Creates a stream and two events in the current context. Fails with DEVICE; nh_cuda_timer_destroy follows anyway. */
nhood_status nh_cuda_timer_create(const struct nh_driver *driver, struct nh_cuda_timer *timer);
void nh_cuda_timer_destroy(struct nh_cuda_timer *timer);

/* begin and end enclose what is put on timer->stream in between; end waits for it and returns its time. */
nhood_status nh_cuda_timer_begin(const struct nh_cuda_timer *timer);
nhood_status nh_cuda_timer_end(const struct nh_cuda_timer *timer, double *seconds);

/* The functions that MEASURE needs of a backend. */
extern const struct nh_timing nh_cuda_timing;

#endif
