/* How good choices by estimate are, judged by timings, and whether a calibration improves them. */
#ifndef NH_JUDGE_H
#define NH_JUDGE_H

#include "calibrate.h"

/* For each problem of the fold, sets slower[problem] to the measured time of the candidate that the planner would
 * choose with these coefficients, divided by the time of the fastest candidate. */
void nh_judge(const struct nh_cuda_device *device, const struct nh_timed *timing, int64_t count,
              struct nh_fold fold, const struct nh_coefficients *coefficients, double *slower);

/* Over all problems: within is the share whose choice takes at most NH_CLOSE times the fastest, worst the largest
 * ratio, and lost the geometric mean of the ratios, less 1. */
#define NH_CLOSE 1.1
struct nh_verdict {
    double within, worst, lost;
};
struct nh_verdict nh_verdict_of(const double *slower, int64_t problems);

/* before: the coefficients that the device uses now; after: coefficients fitted to its timings, where each problem is
 * judged by a fit that has not seen it. */
struct nh_comparison {
    struct nh_verdict before, after;
    bool better; /* `after` loses clearly less time than `before` */
};
/* Fails with MEMORY. */
nhood_status nh_compare(const struct nh_device *device, const struct nh_timed *timing,
                        int64_t count, int64_t problems, struct nh_comparison *comparison);

#endif
