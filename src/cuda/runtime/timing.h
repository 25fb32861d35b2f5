/* Time on the device, between two events of a stream, and what MEASURE needs of a backend. */
#ifndef NH_CUDA_TIMING_H
#define NH_CUDA_TIMING_H

#include "cuda.h"

struct nh_cuda_timer {
    const struct nh_driver *driver;
    nh_cu_stream stream;
    nh_cu_event start, end;
};

/* In the current context. DEVICE; to be destroyed in any case. */
nhood_status nh_cuda_timer_create(const struct nh_driver *driver, struct nh_cuda_timer *timer);
void nh_cuda_timer_destroy(struct nh_cuda_timer *timer);

/* Around what is asked of the stream in between; end waits for it. */
nhood_status nh_cuda_timer_begin(const struct nh_cuda_timer *timer);
nhood_status nh_cuda_timer_end(const struct nh_cuda_timer *timer, double *seconds);

extern const struct nh_timing nh_cuda_timing;

#endif
