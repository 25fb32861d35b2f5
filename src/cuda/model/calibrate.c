/* Least squares with Huber's loss, by Gauss-Newton steps with Levenberg-Marquardt damping. The parameters are
 * logarithms of the factors. A timing depends on few of them: those of the whole GPU, and those of its own kernels. */
#include "calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TOUCHED = NH_FACTOR_KERNEL + NH_MOST_LAUNCHES, MOST_STEPS = 30, MOST_DAMPINGS = 10 };

/* deviation: how far the logarithm of a prediction is typically off for a problem. All its candidates are off together,
 * so that many timings of one problem say little more than one. near: how much slower than the fastest, as a share, a
 * candidate is whose squared error has half the weight. outlier: the error from which the loss grows linearly. The last
 * two are those of bench/model/fit.py. */
static const double deviation = 0.3, near = 0.3, outlier = 0.5;

/* The prior of the logarithms of factors, which pulls them to 0: their standard deviation for factors of the whole GPU,
 * and for factors of kernels. */
static const double spread_of_gpu = 1, spread_of_kernel = 0.5;

static const double step_of_derivative = 1e-4, least_gain = 1e-4, longest_step = 1;

struct fit {
    const struct nh_cuda_device *device;
    const struct nh_timed *timing;
    int64_t count;
    struct nh_fold fold;
    double *weight; /* square root of each timing's weight; 0: not of the fold */
    struct nh_coefficients
        *moved; /* for each factor, the coefficients with that one moved by step_of_derivative */
};

/* The cost at some parameters, with its gradient and the Gauss-Newton approximation of its Hessian, both without a
 * factor of 2. */
struct equations {
    double cost, gradient[NH_FACTORS], matrix[NH_FACTORS][NH_FACTORS];
};

bool nh_timed_work(const struct nh_problem *problem, const struct nh_device *device,
                   const struct nh_config *config, struct nh_timed *timing) {
    const struct nh_solver *solver = timing->solver;
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, problem, &room);
    if (!solver->work) return false;
    timing->preference = solver->preference ? solver->preference(solver, config) : 0;
    return solver->work(view, device, config, &timing->work) &&
           isfinite(nh_predict_by(&nh_built_in, device->backend, &timing->work));
}

/* ---- least squares ---- */

static double spread_of(int factor) {
    return factor < NH_FACTOR_KERNEL ? spread_of_gpu : spread_of_kernel;
}

static void scale(const double parameter[NH_FACTORS], struct nh_coefficients *coefficients) {
    double factor[NH_FACTORS];
    for (int i = 0; i < NH_FACTORS; i++)
        factor[i] = exp(parameter[i]);
    nh_coefficients_scale(factor, coefficients);
}

/* Lists the factors on which a prediction may depend, each once. */
static int touched_by(const struct nh_work *work, int touched[MOST_TOUCHED]) {
    int count = NH_FACTOR_KERNEL;
    for (int i = 0; i < count; i++)
        touched[i] = i;
    for (int i = 0; i < work->launches; i++) {
        int factor = NH_FACTOR_KERNEL + (int)work->launch[i].kernel, at = NH_FACTOR_KERNEL;
        while (at < count && touched[at] != factor)
            at++;
        if (at == count) touched[count++] = factor;
    }
    return count;
}

/* The weighted error of a timing, transformed so that its square is Huber's loss. */
static double residual(const struct fit *fit, int64_t i,
                       const struct nh_coefficients *coefficients) {
    const struct nh_timed *timing = &fit->timing[i];
    double error =
        log(nh_predict_by(coefficients, fit->device, &timing->work) / timing->measured_ns);
    if (fabs(error) > outlier) error = copysign(sqrt(outlier * (2 * fabs(error) - outlier)), error);
    return fit->weight[i] * error;
}

static void add_derivatives(const struct fit *fit, int64_t row, double value,
                            struct equations *equations) {
    int touched[MOST_TOUCHED], count = touched_by(&fit->timing[row].work, touched);
    double derivative[MOST_TOUCHED];
    for (int i = 0; i < count; i++) {
        derivative[i] = (residual(fit, row, &fit->moved[touched[i]]) - value) / step_of_derivative;
        equations->gradient[touched[i]] += derivative[i] * value;
        for (int j = 0; j <= i; j++) {
            double product = derivative[i] * derivative[j];
            equations->matrix[touched[i]][touched[j]] += product;
            if (i != j) equations->matrix[touched[j]][touched[i]] += product;
        }
    }
}

/* Computes the cost at these parameters and, if `whole`, gradient and matrix. */
static void set_up(struct fit *fit, const double parameter[NH_FACTORS], bool whole,
                   struct equations *equations) {
    struct nh_coefficients coefficients;
    scale(parameter, &coefficients);
    memset(equations, 0, sizeof *equations);
    for (int i = 0; whole && i < NH_FACTORS; i++) {
        double moved[NH_FACTORS];
        memcpy(moved, parameter, sizeof moved);
        moved[i] += step_of_derivative;
        scale(moved, &fit->moved[i]);
    }
    for (int64_t i = 0; i < fit->count; i++) {
        if (fit->weight[i] <= 0) continue;
        double value = residual(fit, i, &coefficients);
        equations->cost += value * value;
        if (whole) add_derivatives(fit, i, value, equations);
    }
    for (int i = 0; i < NH_FACTORS; i++) {
        double pull = deviation / spread_of(i);
        equations->cost += pull * pull * parameter[i] * parameter[i];
        equations->gradient[i] += pull * pull * parameter[i];
        equations->matrix[i][i] += pull * pull;
    }
}

/* Solves the equations, their diagonal damped, by Cholesky decomposition: the prior makes the matrix positive. */
static void solve(const struct equations *equations, double damping, double step[NH_FACTORS]) {
    double root[NH_FACTORS][NH_FACTORS];
    for (int i = 0; i < NH_FACTORS; i++) {
        double rest = -equations->gradient[i];
        for (int j = 0; j <= i; j++) {
            double sum = equations->matrix[i][j] * (i == j ? 1 + damping : 1);
            for (int k = 0; k < j; k++)
                sum -= root[i][k] * root[j][k];
            root[i][j] = i == j ? sqrt(sum) : sum / root[j][j];
            if (j < i) rest -= root[i][j] * step[j];
        }
        step[i] = rest / root[i][i];
    }
    for (int i = NH_FACTORS - 1; i >= 0; i--) {
        for (int j = i + 1; j < NH_FACTORS; j++)
            step[i] -= root[j][i] * step[j];
        step[i] /= root[i][i];
    }
}

/* Moves to parameters of lower cost. Returns by which share the cost fell; 0 if no damping found a lower one. */
static double improve(struct fit *fit, double parameter[NH_FACTORS], double *damping) {
    struct equations equations, next;
    set_up(fit, parameter, true, &equations);
    for (int i = 0; i < MOST_DAMPINGS; i++, *damping *= 4) {
        double step[NH_FACTORS], moved[NH_FACTORS];
        solve(&equations, *damping, step);
        for (int p = 0; p < NH_FACTORS; p++)
            moved[p] = parameter[p] + fmax(-longest_step, fmin(longest_step, step[p]));
        set_up(fit, moved, false, &next);
        if (!(next.cost < equations.cost)) continue;
        memcpy(parameter, moved, sizeof moved);
        *damping = fmax(*damping / 5, 1e-6);
        return 1 - next.cost / equations.cost;
    }
    return 0;
}

/* ---- timings ---- */

/* Returns the index after the last timing of the problem that begins at `first`, and sets the least time of that problem. */
static int64_t problem_end(const struct nh_timed *timing, int64_t count, int64_t first,
                           double *fastest_ns) {
    int64_t end = first;
    *fastest_ns = INFINITY;
    for (; end < count && timing[end].problem == timing[first].problem; end++)
        *fastest_ns = fmin(*fastest_ns, timing[end].measured_ns);
    return end;
}

static bool in_fold(struct nh_fold fold, int64_t problem) {
    return (problem % fold.of == fold.rest) != fold.others;
}

/* Candidates that are far behind the fastest are never chosen, so they get less weight. */
static void weigh(struct fit *fit) {
    for (int64_t i = 0, end; i < fit->count; i = end) {
        double fastest_ns;
        end = problem_end(fit->timing, fit->count, i, &fastest_ns);
        if (!in_fold(fit->fold, fit->timing[i].problem)) continue;
        for (int64_t j = i; j < end; j++)
            fit->weight[j] = 1 / sqrt(1 + (fit->timing[j].measured_ns / fastest_ns - 1) / near);
    }
}

nhood_status nh_calibrate(const struct nh_device *device, const struct nh_timed *timing,
                          int64_t count, struct nh_fold fold, double factor[NH_FACTORS]) {
    const struct nh_host *host = device->host;
    struct fit fit = {device->backend, timing, count, fold, NULL, NULL};
    double parameter[NH_FACTORS] = {0}, damping = 1, gain = 1;
    fit.weight = nh_allocate(host, (size_t)count * sizeof *fit.weight);
    fit.moved = nh_allocate(host, NH_FACTORS * sizeof *fit.moved);
    if (fit.weight && fit.moved) {
        weigh(&fit);
        for (int i = 0; i < MOST_STEPS && gain > least_gain; i++)
            gain = improve(&fit, parameter, &damping);
        for (int i = 0; i < NH_FACTORS; i++)
            factor[i] = exp(parameter[i]);
        nh_calibration_limit(factor);
    }
    nhood_status status = fit.weight && fit.moved ? NHOOD_OK : NHOOD_ERR_MEMORY;
    nh_release(host, fit.moved);
    nh_release(host, fit.weight);
    return status;
}

/* ---- judging ---- */

/* The share of time that a calibration has to save: two series of the same timings differ by as much. */
static const double least_saving = 0.001;

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
        if (timing[i].solver != solver || ns[i] > nh_about_as_long(least_ns) * least_ns) continue;
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
        end = problem_end(timing, count, i, &fastest_ns);
        if (in_fold(fold, timing[i].problem))
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
        comparison->better = comparison->after.lost + least_saving < comparison->before.lost;
    }
    nh_release(device->host, before);
    return status;
}
