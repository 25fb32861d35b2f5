/* Time, and what a list of timings says. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stddef.h>

/* Nanoseconds of a clock that never goes back. */
double clock_ns(void);

struct summary {
    double median, minimum;
    /* median of the absolute deviations from the median */
    double mad;
};

/* Sorts the samples; count >= 1. */
struct summary summarise(double *sample, size_t count);

#endif
