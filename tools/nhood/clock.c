#include "clock.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

double clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double middle(const double *sorted, size_t count) {
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

struct summary summarise(double *sample, size_t count) {
    qsort(sample, count, sizeof *sample, ascending);
    struct summary summary = {.median = middle(sample, count), .minimum = sample[0]};
    for (size_t i = 0; i < count; i++)
        sample[i] = fabs(sample[i] - summary.median);
    qsort(sample, count, sizeof *sample, ascending);
    summary.mad = middle(sample, count);
    return summary;
}
