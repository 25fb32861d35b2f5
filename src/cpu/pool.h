/* Worker threads of a context: a parallel loop with dynamic distribution. */
#ifndef NH_POOL_H
#define NH_POOL_H

#include "base.h"

struct nh_pool;

/* threads counts the caller; fewer, with a warning, where the system starts no more. MEMORY. */
nhood_status nh_pool_create(const struct nh_host *host, int32_t threads, struct nh_pool **pool);
int32_t nh_pool_threads(const struct nh_pool *pool); /* the caller included */
void nh_pool_destroy(struct nh_pool *pool);          /* NULL is fine */

/* Runs body(arg, index, worker) once for every index in [0, count), worker in [0, threads). If another thread
 * holds the pool, or in a forked child (which has no workers), the caller does all the work itself. */
void nh_pool_run(struct nh_pool *pool, int64_t count, nhood_parallel_body body, void *arg);

#endif
