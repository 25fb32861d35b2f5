/* MEASURE: candidates run against each other on memory of the planner's own; wisdom remembers. */
#ifndef NH_MEASURE_H
#define NH_MEASURE_H

#include "planner.h"
#include "thread.h"

/* Candidates estimated at so many times the least are not worth building. On an H200, 95 of 100 problems have one within 2 %
 * of the fastest among those estimated at less than 1.24 times the least. */
#define NH_MEASURE_UNLIKELY 4.0

/* Times the candidates of the request's problem, on packed tensors, and adds every timing to the wisdom; nothing if the
 * wisdom knows the problem once they are built. budget_s bounds the time spent, 0: until all have been timed well; the candidate
 * of the least estimate is timed in any case. `alone` is held while they run: others may build theirs meanwhile.
 * UNSUPPORTED if the device cannot time or every candidate fails, MEMORY, DEVICE. */
nhood_status nh_measure(const struct nh_request *request, double budget_s, pthread_mutex_t *alone);

#endif
