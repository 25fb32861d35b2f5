/* The worker threads of a context, which run parallel loops with dynamic scheduling. */
#ifndef NH_POOL_H
#define NH_POOL_H

#include "base.h"

struct nh_pool;

/* `threads` includes the caller. If the system cannot start as many, a warning is logged and there are fewer. MEMORY. */
nhood_status nh_pool_create(const struct nh_host *host, int32_t threads, struct nh_pool **pool);
int32_t nh_pool_threads(const struct nh_pool *pool); /* includes the caller */
/* At most so many threads take part in the loops that begin from now on; 0: all. */
void nh_pool_limit(struct nh_pool *pool, int32_t threads);
void nh_pool_destroy(struct nh_pool *pool); /* does nothing for NULL */

/* Runs body(arg, index, worker) once for every index in [0, count), or until the call is interrupted, with worker in [0, threads). If another thread uses the
 * pool, or in a forked child, which has no workers, the caller does all the work itself. */
void nh_pool_run(struct nh_pool *pool, int64_t count, nhood_parallel_body body, void *arg);
/* The same on the caller alone, with worker 0. */
void nh_run_alone(int64_t count, nhood_parallel_body body, void *arg);

#endif
