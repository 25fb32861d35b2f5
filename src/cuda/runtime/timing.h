/* Times between two events of a stream, and the functions that MEASURE needs of a backend. */
#ifndef NH_CUDA_TIMING_H
#define NH_CUDA_TIMING_H

#include "cuda.h"

struct nh_cuda_timer {
    const struct nh_driver *driver;
    nh_cu_stream stream;
    nh_cu_event start, end;
};

/* Creates a stream and two events in the current context. Fails with DEVICE; nh_cuda_timer_destroy is to be called in
 * any case. */
nhood_status nh_cuda_timer_create(const struct nh_driver *driver, struct nh_cuda_timer *timer);
void nh_cuda_timer_destroy(struct nh_cuda_timer *timer);

/* begin and end enclose what is put on timer->stream in between; end waits for it and returns its time. */
nhood_status nh_cuda_timer_begin(const struct nh_cuda_timer *timer);
nhood_status nh_cuda_timer_end(const struct nh_cuda_timer *timer, double *seconds);

extern const struct nh_timing nh_cuda_timing;

#endif
