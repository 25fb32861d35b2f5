/* Fitting a calibration to timings; docs/model.md has the formula. */
#ifndef NH_CALIBRATE_H
#define NH_CALIBRATE_H

#include "calibration.h"

/* One candidate that was timed. */
struct nh_timed {
    int64_t problem; /* from 0; a list has the timings of a problem one after the other */
    const struct nh_solver *solver;
    int preference; /* the solver's, of the config */
    double measured_ns;
    struct nh_work work;
};

/* Completes a timing of a problem whose solver, config, one that it proposes, and time are known. False if the solver tells no work
 * of the config. */
bool nh_timed_work(const struct nh_problem *problem, const struct nh_device *device,
                   const struct nh_config *config, struct nh_timed *timing);

/* One behind the last timing of the problem that begins at `first`; its least time. */
int64_t nh_timed_end(const struct nh_timed *timing, int64_t count, int64_t first,
                     double *fastest_ns);

/* Problems by their numbers modulo `of`: those whose rest is `rest`, or with `others` all but those. */
struct nh_fold {
    int64_t of, rest;
    bool others;
};
static inline bool nh_in_fold(struct nh_fold fold, int64_t problem) {
    return (problem % fold.of == fold.rest) != fold.others;
}

/* Fits the factors to the timings of the fold, as far as they say something. MEMORY. */
nhood_status nh_calibrate(const struct nh_device *device, const struct nh_timed *timing,
                          int64_t count, struct nh_fold fold, double factor[NH_FACTORS]);

#endif
