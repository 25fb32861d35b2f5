/* Fits a calibration to timings (docs/model.md has the formula), and judges choices by timings: how good they are, and whether
 * a calibration improves them. */
#ifndef NH_CALIBRATE_H
#define NH_CALIBRATE_H

#include "calibration.h"

struct nh_timed {
    int64_t problem; /* its number from 0; a list has all timings of a problem next to each other */
    const struct nh_solver *solver;
    int preference; /* what the solver's `preference` says of the config */
    double measured_ns;
    struct nh_work work;
};

/* Sets work and preference of a timing whose problem number, solver and time are set. config: one that the solver
 * proposed. False if the solver has no work for the config, or no time is predicted for it. */
bool nh_timed_work(const struct nh_problem *problem, const struct nh_device *device,
                   const struct nh_config *config, struct nh_timed *timing);

/* A set of problems, for cross-validation: those with number % of == rest or, with `others`, all but those. */
struct nh_fold {
    int64_t of, rest;
    bool others;
};

/* Fits the factors to the timings of the fold. Factors about which the timings say little stay near 1; all are within
 * nh_calibration_limit. Fails with MEMORY. */
nhood_status nh_calibrate(const struct nh_device *device, const struct nh_timed *timing,
                          int64_t count, struct nh_fold fold, double factor[NH_FACTORS]);

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
