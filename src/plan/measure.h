/* Planning with NHOOD_EFFORT_MEASURE: candidates are timed on the planner's own memory, and wisdom keeps the times. */
#ifndef NH_MEASURE_H
#define NH_MEASURE_H

#include "planner.h"
#include "thread.h"

/* Candidates estimated at more than this multiple of the least estimate are not built. On an H200, in 95 of 100 problems some
 * candidate within 2 % of the fastest was estimated at less than 1.24 times the least estimate. */
#define NH_MEASURE_UNLIKELY 4.0

/* Times the candidates of the request's problem, on packed tensors, and adds all timings to the wisdom. Does not time them
 * if another thread has added the problem to the wisdom while they were built. budget_s limits the time spent; with 0 all
 * are timed well. The candidate with the least estimate is timed in any case. `alone` is locked while candidates run, but
 * not while they are built. UNSUPPORTED if the device cannot time or no solver takes the packed problem; MEMORY; if every
 * candidate fails, the status of the last failure. */
nhood_status nh_measure(const struct nh_request *request, double budget_s, pthread_mutex_t *alone);

#endif
