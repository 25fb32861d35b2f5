/* The CPU device: its kernels and its threads. */
#ifndef NH_CPU_H
#define NH_CPU_H

#include "solver.h"

#include "pool.h"

struct nh_kernels;

struct nh_cpu {
    const struct nh_host *host;
    /* of the chosen instruction set; the rows after it are those of lesser instruction sets */
    const struct nh_kernels *kernels;
    struct nh_pool *pool;
    int32_t threads;
};

nhood_status nh_cpu_open(const nhood_context_options *options, const struct nh_host *host,
                         struct nh_device *device);
void nh_cpu_close(struct nh_device *device);
/* How many threads take part in a loop at most; 0: all. */
void nh_cpu_limit_threads(const struct nh_device *device, int32_t threads);
extern const struct nh_timing nh_cpu_timing;
/* Calls body(arg, index, worker) for every index in [0, count), on the context's workers, or on this thread if `alone` is
 * set or there is only one index or worker. */
void nh_cpu_run(const struct nh_cpu *cpu, bool alone, int64_t count, nhood_parallel_body body,
                void *arg);
nhood_status nh_cpu_measure(const struct nh_device *device, int32_t dtype,
                            nhood_ceilings *ceilings);

#endif
