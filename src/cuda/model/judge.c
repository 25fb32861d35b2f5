#include "judge.h"

#include "predict.h"

#include <math.h>

/* The share of time that a calibration has to save: two series of the same timings differ by as much. */
static const double least_gain = 0.001;

enum { MOST_CANDIDATES = 512 };

/* The folds of cross-validation: each part of the problems is judged by a fit to the others. */
enum { FOLDS = 4 };

/* The config that the planner would choose of one solver: among those predicted to take about as long as its fastest,
 * the most preferred, and of equally preferred ones the fastest. *choice_ns is its predicted time. */
static const struct nh_timed *choose_of_solver(const struct nh_timed *timing, const double *ns,
                                               int64_t count, const struct nh_solver *solver,
                                               double *choice_ns) {
    const struct nh_timed *best = NULL;
    double least_ns = INFINITY;
    for (int64_t i = 0; i < count; i++)
        if (timing[i].solver == solver) least_ns = fmin(least_ns, ns[i]);
    for (int64_t i = 0; i < count; i++) {
        if (timing[i].solver != solver || ns[i] > NH_ABOUT_AS_LONG * least_ns) continue;
        if (best && (timing[i].preference > best->preference ||
                     (timing[i].preference == best->preference && ns[i] >= *choice_ns)))
            continue;
        best = &timing[i];
        *choice_ns = ns[i];
    }
    return best;
}

/* The planner's choice among the first MOST_CANDIDATES timings of a problem; in practice a problem has at most 128.
 * Timings of a solver follow each other, so that each solver is looked at once. */
static const struct nh_timed *choose(const struct nh_cuda_device *device,
                                     const struct nh_timed *timing, int64_t count,
                                     const struct nh_coefficients *coefficients) {
    const struct nh_timed *choice = NULL;
    double ns[MOST_CANDIDATES], least_ns = INFINITY;
    count = nh_min(count, MOST_CANDIDATES);
    for (int64_t i = 0; i < count; i++)
        ns[i] = nh_predict_by(coefficients, device, &timing[i].work);
    for (int64_t i = 0; i < count; i++) {
        if (i > 0 && timing[i].solver == timing[i - 1].solver) continue;
        double own_ns = INFINITY;
        const struct nh_timed *own = choose_of_solver(timing, ns, count, timing[i].solver, &own_ns);
        if (own_ns >= least_ns) continue;
        choice = own;
        least_ns = own_ns;
    }
    return choice;
}

void nh_judge(const struct nh_cuda_device *device, const struct nh_timed *timing, int64_t count,
              struct nh_fold fold, const struct nh_coefficients *coefficients, double *slower) {
    for (int64_t i = 0, end; i < count; i = end) {
        double fastest_ns;
        end = nh_timed_end(timing, count, i, &fastest_ns);
        if (nh_in_fold(fold, timing[i].problem))
            slower[timing[i].problem] =
                choose(device, &timing[i], end - i, coefficients)->measured_ns / fastest_ns;
    }
}

struct nh_verdict nh_verdict_of(const double *slower, int64_t problems) {
    struct nh_verdict verdict = {0, 0, 0};
    for (int64_t i = 0; i < problems; i++) {
        verdict.within += slower[i] <= NH_CLOSE;
        verdict.worst = fmax(verdict.worst, slower[i]);
        verdict.lost += log(slower[i]);
    }
    verdict.within /= (double)problems;
    verdict.lost = exp(verdict.lost / (double)problems) - 1;
    return verdict;
}

nhood_status nh_compare(const struct nh_device *device, const struct nh_timed *timing,
                        int64_t count, int64_t problems, struct nh_comparison *comparison) {
    const struct nh_cuda_device *backend = device->backend;
    const struct nh_fold whole = {.of = 1};
    double *before = nh_allocate(device->host, 2 * (size_t)problems * sizeof *before);
    if (!before) return NHOOD_ERR_MEMORY;
    double *after = before + problems;
    nhood_status status = NHOOD_OK;
    nh_judge(backend, timing, count, whole, nh_coefficients_of(backend), before);
    for (int i = 0; !status && i < FOLDS; i++) {
        double factor[NH_FACTORS];
        struct nh_coefficients fitted;
        const struct nh_fold judged = {FOLDS, i, false}, others = {FOLDS, i, true};
        status = nh_calibrate(device, timing, count, others, factor);
        if (status) break;
        nh_coefficients_scale(factor, &fitted);
        nh_judge(backend, timing, count, judged, &fitted, after);
    }
    if (!status) {
        comparison->before = nh_verdict_of(before, problems);
        comparison->after = nh_verdict_of(after, problems);
        comparison->better = comparison->after.lost + least_gain < comparison->before.lost;
    }
    nh_release(device->host, before);
    return status;
}
