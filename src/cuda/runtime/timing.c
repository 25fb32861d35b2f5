/* Timing operations on memory of the library's own. */
#include "cuda.h"

nhood_status nh_cuda_timer_create(const struct nh_driver *driver, struct nh_cuda_timer *timer) {
    *timer = (struct nh_cuda_timer){.driver = driver};
    nhood_status status = nh_driver_check(
        driver, driver->stream_create(&timer->stream, NH_CU_STREAM_NON_BLOCKING), "stream");
    if (!status)
        status = nh_driver_check(driver, driver->event_create(&timer->start, NH_CU_EVENT_DEFAULT),
                                 "event");
    if (!status)
        status = nh_driver_check(driver, driver->event_create(&timer->end, NH_CU_EVENT_DEFAULT),
                                 "event");
    return status;
}

void nh_cuda_timer_destroy(struct nh_cuda_timer *timer) {
    if (timer->end) timer->driver->event_destroy(timer->end);
    if (timer->start) timer->driver->event_destroy(timer->start);
    if (timer->stream) timer->driver->stream_destroy(timer->stream);
}

nhood_status nh_cuda_timer_begin(const struct nh_cuda_timer *timer) {
    const struct nh_driver *driver = timer->driver;
    return nh_driver_check(driver, driver->event_record(timer->start, timer->stream), "event");
}

nhood_status nh_cuda_timer_end(const struct nh_cuda_timer *timer, double *seconds) {
    const struct nh_driver *driver = timer->driver;
    float milliseconds = 0;
    nhood_status status =
        nh_driver_check(driver, driver->event_record(timer->end, timer->stream), "event");
    if (!status)
        status = nh_driver_check(driver, driver->event_synchronize(timer->end), "measuring");
    if (!status)
        status = nh_driver_check(
            driver, driver->event_elapsed(&milliseconds, timer->start, timer->end), "measuring");
    *seconds = 1e-3 * milliseconds;
    return status;
}

static nhood_status allocate(const struct nh_device *device, size_t bytes, void **memory) {
    struct nh_cuda_device *cuda = device->backend;
    const struct nh_driver *driver = &cuda->cuda->driver;
    struct nh_cuda_scope scope;
    nh_cu_pointer address = 0;
    *memory = NULL;
    nhood_status status = nh_cuda_enter(cuda, true, &scope);
    if (status) return status;
    if (driver->memory_allocate(&address, bytes ? bytes : 1) != NH_CU_SUCCESS)
        status = nh_error(NHOOD_ERR_MEMORY, "%s has no %zu bytes free", device->info.name, bytes);
    nh_cuda_leave(cuda, &scope);
    *memory = (void *)(uintptr_t)address;
    return status;
}

static void release(const struct nh_device *device, void *memory) {
    struct nh_cuda_device *cuda = device->backend;
    struct nh_cuda_scope scope;
    if (nh_cuda_enter(cuda, true, &scope)) return;
    cuda->cuda->driver.memory_free((nh_cu_pointer)(uintptr_t)memory);
    nh_cuda_leave(cuda, &scope);
}

static nhood_status copy_in(const struct nh_device *device, void *memory, const void *host,
                            size_t bytes) {
    struct nh_cuda_device *cuda = device->backend;
    const struct nh_driver *driver = &cuda->cuda->driver;
    struct nh_cuda_scope scope;
    nhood_status status = nh_cuda_enter(cuda, true, &scope);
    if (status) return status;
    status = nh_driver_check(
        driver, driver->memory_write((nh_cu_pointer)(uintptr_t)memory, host, bytes), "copying in");
    /* The copy may return while its last bytes are on their way, and a non-blocking stream would not wait for them. */
    if (!status) status = nh_driver_check(driver, driver->stream_synchronize(NULL), "copying in");
    nh_cuda_leave(cuda, &scope);
    return status;
}

/* What runs keep: allocating and freeing memory and a stream takes a hundred times as long as a short operation. */
struct clock {
    struct nh_cuda_timer timer;
    void *flushed;
    size_t flushed_bytes;
};

static void clock_destroy(const struct nh_device *device, void *made) {
    struct nh_cuda_device *cuda = device->backend;
    struct clock *clock = made;
    struct nh_cuda_scope scope;
    if (!nh_cuda_enter(cuda, true, &scope)) {
        nh_cuda_timer_destroy(&clock->timer);
        nh_cuda_leave(cuda, &scope);
    }
    if (clock->flushed) release(device, clock->flushed);
    nh_release(device->host, clock);
}

static nhood_status clock_create(const struct nh_device *device, void **made) {
    struct nh_cuda_device *cuda = device->backend;
    struct nh_cuda_scope scope;
    struct clock *clock = *made = nh_allocate(device->host, sizeof *clock);
    if (!clock) return NHOOD_ERR_MEMORY;
    *clock = (struct clock){.timer.driver = &cuda->cuda->driver,
                            .flushed_bytes = 2 * (size_t)cuda->l2_bytes + 1};
    nhood_status status = allocate(device, clock->flushed_bytes, &clock->flushed);
    if (!status) status = nh_cuda_enter(cuda, true, &scope);
    if (status) return status;
    status = nh_cuda_timer_create(&cuda->cuda->driver, &clock->timer);
    nh_cuda_leave(cuda, &scope);
    return status;
}

/* First writes more memory than the L2 holds, so that no sample finds the operation's tensors there. The operation is
 * launched while that goes on, so that the time between the events has no launch latency on the host. */
static nhood_status flush_and_time(const struct clock *clock, const struct nh_operation *operation,
                                   const nhood_io *io, double *seconds) {
    const struct nh_cuda_timer *timer = &clock->timer;
    nhood_io timed = *io;
    timed.stream = timer->stream;
    nhood_status status =
        nh_driver_check(timer->driver,
                        timer->driver->memory_set((nh_cu_pointer)(uintptr_t)clock->flushed, 0,
                                                  clock->flushed_bytes, timer->stream),
                        "emptying the L2");
    if (!status) status = nh_cuda_timer_begin(timer);
    if (!status) status = operation->run(operation, &timed);
    return status ? status : nh_cuda_timer_end(timer, seconds);
}

/* On an H200 every other run takes up to 1 us longer, whatever runs. Of operations that are timed alternately some
 * would always get the slow runs, so short ones run twice and the mean counts. */
static nhood_status run_timed(const struct nh_device *device, void *made,
                              const struct nh_operation *operation, const nhood_io *io,
                              double *ns) {
    const double short_s = 1e-4;
    const struct clock *clock = made;
    struct nh_cuda_scope scope;
    double seconds = 0, again = 0;
    nhood_status status = nh_cuda_enter(device->backend, true, &scope);
    if (status) return status;
    status = flush_and_time(clock, operation, io, &seconds);
    if (!status && seconds < short_s) {
        status = flush_and_time(clock, operation, io, &again);
        seconds = (seconds + again) / 2;
    }
    *ns = 1e9 * seconds;
    nh_cuda_leave(device->backend, &scope);
    return status;
}

const struct nh_timing nh_cuda_timing = {.allocate = allocate,
                                         .release = release,
                                         .write = copy_in,
                                         .clock_create = clock_create,
                                         .clock_destroy = clock_destroy,
                                         .run = run_timed};
