/* How good choices by estimate are, by timings; and whether a calibration makes them better. */
#ifndef NH_JUDGE_H
#define NH_JUDGE_H

#include "calibrate.h"

/* Sets, for each problem of the fold, slower[problem]: the time of what the planner would choose by the coefficients, among the candidates
 * that were timed, over the fastest's. */
void nh_judge(const struct nh_cuda_device *device, const struct nh_timed *timing, int64_t count,
              struct nh_fold fold, const struct nh_coefficients *coefficients, double *slower);

/* Over all problems: the share whose choice is close to the fastest, the worst, and the geometric mean less 1. */
#define NH_CLOSE 1.1
struct nh_verdict {
    double within, worst, lost;
};
struct nh_verdict nh_verdict_of(const double *slower, int64_t problems);

/* The coefficients that serve the device, and fits to its timings, each judged by problems that it has not seen. */
struct nh_comparison {
    struct nh_verdict before, after;
    bool better; /* less time is lost */
};
/* MEMORY. */
nhood_status nh_compare(const struct nh_device *device, const struct nh_timed *timing,
                        int64_t count, int64_t problems, struct nh_comparison *comparison);

#endif
