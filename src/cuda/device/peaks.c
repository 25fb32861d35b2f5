/* Measured peaks of a CUDA device: copying in memory, and multiply-adds in registers. */
#include "peaks.h"

#include "kernel_cache.h"

#include <string.h>

enum { RUNS = 5 };
static const size_t copy_bytes = (size_t)512 << 20; /* far beyond any L2 */

static nhood_status measure_copy(const struct nh_cuda_timer *timer, double *bytes_per_s) {
    const struct nh_driver *driver = timer->driver;
    nh_cu_pointer memory = 0;
    nhood_status status =
        nh_driver_check(driver, driver->memory_allocate(&memory, 2 * copy_bytes), "copy buffers");
    for (int run = 0; !status && run < RUNS; run++) {
        double seconds = 0;
        status = nh_cuda_timer_begin(timer);
        if (!status)
            status = nh_driver_check(
                driver, driver->memory_copy(memory + copy_bytes, memory, copy_bytes, timer->stream),
                "measuring");
        if (!status) status = nh_cuda_timer_end(timer, &seconds);
        double rate = 2 * (double)copy_bytes / seconds;
        if (!status && rate > *bytes_per_s) *bytes_per_s = rate;
    }
    if (memory) driver->memory_free(memory);
    return status;
}

/* The kernel that measures a dtype, and the operations that one thread does in one round of its loop. */
struct peak {
    struct nh_kernel_spec spec;
    double flops_per_thread_round;
};

static struct peak peak_of(int32_t arch, int32_t dtype) {
    bool tensor = dtype == NHOOD_DTYPE_F16 || dtype == NHOOD_DTYPE_BF16;
    struct peak peak = {.spec = {.source = tensor && arch == 90 ? "peak90.cu" : "peak.cu"}};
    nh_kernel_define(&peak.spec, "NH_DTYPE", dtype);
    nh_kernel_define(&peak.spec, "NH_PEAK", tensor);
    peak.flops_per_thread_round = 2.0 * 4 * 8; /* 4 repeats of 8 chains */
    if (tensor) peak.flops_per_thread_round = 2.0 * 8 * 16 * 8 * 16 / 32; /* 8 chains of 16x8x16 */
    if (tensor && arch == 90)
        peak.flops_per_thread_round = 2.0 * 4 * 64 * 128 * 16 / 128; /* 4 products of 64x128x16 */
    return peak;
}

static nhood_status measure_peak(struct nh_cuda_device *device, const struct nh_cuda_timer *timer,
                                 int32_t dtype, double *flops_per_s) {
    enum { BLOCKS_PER_MULTIPROCESSOR = 2, THREADS = 256 };
    const struct nh_driver *driver = timer->driver;
    struct peak peak = peak_of(device->arch, dtype);
    nh_cu_kernel kernel;
    int64_t rounds = 2000;
    void *nowhere = NULL, *parameters[] = {&rounds, &nowhere};
    const struct nh_cu_launch config = {
        .grid = {(unsigned)(BLOCKS_PER_MULTIPROCESSOR * device->multiprocessors), 1, 1},
        .block = {THREADS, 1, 1},
        .stream = timer->stream,
    };
    nhood_status status = nh_kernel_get(device, &peak.spec, 0, &kernel);
    for (int run = 0; !status && run < RUNS; run++) {
        double seconds = 0;
        status = nh_cuda_timer_begin(timer);
        if (!status)
            status = nh_driver_check(
                driver, driver->launch(&config, (nh_cu_function)(void *)kernel, parameters, NULL),
                "measuring");
        if (!status) status = nh_cuda_timer_end(timer, &seconds);
        double rate =
            peak.flops_per_thread_round * (double)rounds * config.grid[0] * THREADS / seconds;
        if (!status && rate > *flops_per_s) *flops_per_s = rate;
    }
    return status;
}

nhood_status nh_cuda_measure(const struct nh_device *device, int32_t dtype,
                             nhood_ceilings *ceilings) {
    struct nh_cuda_device *cuda = device->backend;
    struct nh_cuda_scope scope;
    struct nh_cuda_timer timer;
    ceilings->flops_per_s = ceilings->bytes_per_s = 0;
    nhood_status status = nh_cuda_enter(cuda, true, &scope);
    if (status) return status;
    status = nh_cuda_timer_create(&cuda->cuda->driver, &timer);
    if (!status) status = measure_copy(&timer, &ceilings->bytes_per_s);
    if (!status) status = measure_peak(cuda, &timer, dtype, &ceilings->flops_per_s);
    nh_cuda_timer_destroy(&timer);
    nh_cuda_leave(cuda, &scope);
    return status;
}
