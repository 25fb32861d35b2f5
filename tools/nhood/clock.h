/* Time, and the statistics of timings. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stddef.h>

/* Nanoseconds of a clock that never goes back. */
double clock_ns(void);

struct summary {
    double median, minimum;
    /* the median of the absolute deviations from the median */
    double mad;
};

/* Summarises count >= 1 samples, and sorts them. */
struct summary summarise(double *sample, size_t count);

#endif
