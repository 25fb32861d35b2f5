/* Times operations on the CPU as a caller would, with the caches as the previous run left them. */
#include "cpu.h"

#include <string.h>
#include <time.h>

static nhood_status allocate(const struct nh_device *device, size_t bytes, void **memory) {
    *memory = nh_allocate(device->host, bytes);
    return *memory ? NHOOD_OK : NHOOD_ERR_MEMORY;
}

static void release(const struct nh_device *device, void *memory) {
    nh_release(device->host, memory);
}

static nhood_status write_memory(const struct nh_device *device, void *memory, const void *host,
                                 size_t bytes) {
    (void)device;
    memcpy(memory, host, bytes);
    return NHOOD_OK;
}

static nhood_status run(const struct nh_device *device, void *clock,
                        const struct nh_operation *operation, const nhood_io *io, double *ns) {
    struct timespec start, end;
    (void)device, (void)clock;
    clock_gettime(CLOCK_MONOTONIC, &start);
    nhood_status status = operation->run(operation, io);
    clock_gettime(CLOCK_MONOTONIC, &end);
    *ns = (double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec);
    return status;
}

const struct nh_timing nh_cpu_timing = {
    .allocate = allocate, .release = release, .write = write_memory, .run = run};
