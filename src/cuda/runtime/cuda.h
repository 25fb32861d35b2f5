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

/* The device's description, by which wisdom knows it. */
void nh_cuda_device_text(nhood_device_info *info, const char *model, int32_t arch);

/* Makes a context of the device current, unless the caller's already is: planning retains the primary context
 * when it has to; executing only uses what there is. DEVICE. Leave puts things back. */
struct nh_cuda_scope {
    bool pushed;
};
nhood_status nh_cuda_enter(struct nh_cuda_device *device, bool planning,
                           struct nh_cuda_scope *scope);
void nh_cuda_leave(const struct nh_cuda_device *device, const struct nh_cuda_scope *scope);

#endif
