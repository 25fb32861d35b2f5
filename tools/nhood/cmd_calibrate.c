/* nhood calibrate: times a sample of problems on a GPU and fits the library's estimates to the times. */
#include "candidates.h"
#include "clock.h"
#include "commands.h"
#include "interrupt.h"
#include "message.h"
#include "output.h"
#include "paper_suite.h"
#include "progress.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* The sample takes TURNS problems of each rank, forward and backward in turn, and in every fourth turn also of f32. They are
 * STRIDE apart in the suites, which are ordered by size. */
enum { TURNS = 40, STRIDE = 17, TURNS_OF_F32 = 4 };
static const char *const suites[] = {"paper-1d", "paper-2d", "paper-3d"};
static const int32_t ops[] = {NHOOD_OP_FWD, NHOOD_OP_BWD};
enum { SUITES = sizeof suites / sizeof *suites, OPS = sizeof ops / sizeof *ops };

/* The most operations of a problem. Even cuda.naive computes so many in a few milliseconds. */
static const double most_gflop = 30;

/* Seconds for timing the candidates of one solver. Other kernels are compiled meanwhile, which takes about a second. */
static const double each_s = 0.3;

/* A solver whose least estimate exceeds this multiple of the least of all is not timed, as with NHOOD_EFFORT_MEASURE. */
static const double unlikely = 4;

/* The number of problems at a time. While the candidates of one are timed, those of the others are compiled, which takes
 * longer. */
enum { PROBLEMS_AT_A_TIME = 3 };

static const double save_every_ns = 5e9;

struct calibrate {
    struct target target;
    const char *timings;
    double seconds;
    bool dry_run, json;
    double start_ns, saved_ns;
    struct suite sample;
    pthread_mutex_t lock; /* guards the two fields below, saved_ns and the progress bar */
    size_t next;          /* index of the next problem of the sample */
    int failed;
};

static int save(struct calibrate *calibrate) {
    nhood_status status = nhood_wisdom_save(calibrate->target.context, NULL, 0);
    calibrate->saved_ns = clock_ns();
    return status ? complain_library(status, "timings were not saved") : 0;
}

static bool time_is_left(const struct calibrate *calibrate) {
    return !interrupt_came() && (clock_ns() - calibrate->start_ns) * 1e-9 < calibrate->seconds;
}

/* ---- the sample ---- */

/* Adds TURNS problems of each suite for an operation and type. */
static int add_suites(struct suite *suite, int32_t op, int32_t dtype) {
    const struct paper_options options = {
        .op = op, .dtype = dtype, .sample = TURNS, .most_gflop = most_gflop};
    int failed = 0;
    for (int i = 0; !failed && i < SUITES; i++)
        failed = paper_suite_add(suite, suites[i], &options);
    return failed;
}

static int add_turns(struct suite *sample, const struct suite *all) {
    const int lists = (int)all->count / TURNS;
    int failed = 0;
    for (int turn = 0; turn < TURNS; turn++)
        for (int list = 0; !failed && list < lists; list++) {
            const bool f32 = list >= lists / 2;
            const char *text = all->problem[list * TURNS + turn * STRIDE % TURNS].text;
            if (!f32 || turn % TURNS_OF_F32 == 0) failed = suite_add(sample, text, text);
        }
    return failed;
}

static int make_sample(struct suite *sample) {
    static const int32_t dtypes[] = {NHOOD_DTYPE_F16, NHOOD_DTYPE_F32};
    struct suite all = {.count = 0};
    int failed = 0;
    for (int d = 0; d < 2; d++)
        for (int o = 0; !failed && o < OPS; o++)
            failed = add_suites(&all, ops[o], dtypes[d]);
    if (!failed) failed = add_turns(sample, &all);
    suite_free(&all);
    return failed;
}

/* ---- timing ---- */

static bool is_timed(const struct candidates *candidates, const char *solver) {
    for (size_t i = 0; i < candidates->count; i++)
        if (candidates->row[i].samples && !strcmp(candidates->row[i].solver, solver)) return true;
    return false;
}

/* Times the candidates of each solver separately, because the estimates, which cannot be trusted yet, must not decide which
 * solvers are timed. */
static int time_problem(struct calibrate *calibrate, const struct suite_problem *problem) {
    struct candidates candidates;
    nhood_status status =
        candidates_explain(&calibrate->target, &problem->problem, NULL, &candidates);
    const struct candidate *least = candidates_estimated(&candidates);
    for (size_t i = 0; !status && i < candidates.count && time_is_left(calibrate); i++) {
        const struct candidate *row = &candidates.row[i];
        if (row->refusal || !candidates_is_best_of_solver(&candidates, i) ||
            row->estimate_ns > unlikely * least->estimate_ns || is_timed(&candidates, row->solver))
            continue;
        const nhood_plan_options options = {.struct_size = sizeof options,
                                            .effort = NHOOD_EFFORT_MEASURE,
                                            .budget_s = each_s,
                                            .solver = row->solver};
        nhood_plan *plan = NULL;
        /* A solver that fails here is left out of the fit. The log has the reason. */
        if (nhood_plan_create(calibrate->target.context, calibrate->target.device,
                              &problem->problem, &options, &plan))
            complain(0, "%s, %s: not timed: %s", problem->text, row->solver, nhood_last_error());
        nhood_plan_release(plan);
    }
    candidates_free(&candidates);
    return status ? complain_library(status, problem->text) : 0;
}

/* The next problem; NULL if there is none or the time is up. */
static const struct suite_problem *take_problem(struct calibrate *calibrate) {
    const struct suite *sample = &calibrate->sample;
    if (calibrate->failed || calibrate->next == sample->count || !time_is_left(calibrate))
        return NULL;
    const struct suite_problem *problem = &sample->problem[calibrate->next++];
    double done = (clock_ns() - calibrate->start_ns) * 1e-9 / calibrate->seconds;
    progress_show(fmax(done, (double)(calibrate->next - 1) / (double)sample->count), problem->text);
    return problem;
}

static void *time_problems(void *argument) {
    struct calibrate *calibrate = argument;
    const struct suite_problem *problem;
    pthread_mutex_lock(&calibrate->lock);
    while ((problem = take_problem(calibrate))) {
        pthread_mutex_unlock(&calibrate->lock);
        int failed = time_problem(calibrate, problem);
        pthread_mutex_lock(&calibrate->lock);
        if (!failed && clock_ns() - calibrate->saved_ns > save_every_ns) failed = save(calibrate);
        if (failed) calibrate->failed = failed;
    }
    pthread_mutex_unlock(&calibrate->lock);
    return NULL;
}

static int time_sample(struct calibrate *calibrate) {
    pthread_t thread[PROBLEMS_AT_A_TIME - 1];
    int started = 0;
    int unwritable = save(calibrate); /* found out before minutes of timings */
    if (unwritable) return unwritable;
    calibrate->failed = make_sample(&calibrate->sample);
    interrupt_catch();
    progress_start();
    calibrate->start_ns = calibrate->saved_ns = clock_ns();
    pthread_mutex_init(&calibrate->lock, NULL);
    while (started + 1 < PROBLEMS_AT_A_TIME &&
           !pthread_create(&thread[started], NULL, time_problems, calibrate))
        started++;
    time_problems(calibrate);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    pthread_mutex_destroy(&calibrate->lock);
    progress_hide();
    suite_free(&calibrate->sample);
    return calibrate->failed ? calibrate->failed : save(calibrate);
}

/* ---- the fit ---- */

/* Prints which estimates contexts that are created from now on use for the device. */
static void print_estimates(const struct calibrate *calibrate) {
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .describe = calibrate->target.describe};
    nhood_context *context = NULL;
    const char *text = "";
    if (!nhood_context_create(&options, &context))
        text = nhood_device_estimates(context, calibrate->target.device);
    if (calibrate->json) {
        json_text("estimates", text);
    } else {
        printf("estimates  %s\n", text);
    }
    nhood_context_destroy(context);
}

static void print_json(const struct calibrate *calibrate, const nhood_calibration *fit) {
    json_begin();
    json_text("device", calibrate->target.info.name);
    json_text("description", calibrate->target.info.description);
    json_integer("problems", fit->problems);
    json_integer("timings", fit->timings);
    json_number("within_before", fit->within_before);
    json_number("within_after", fit->within_after);
    json_number("worst_before", fit->worst_before);
    json_number("worst_after", fit->worst_after);
    json_number("lost_before", fit->lost_before);
    json_number("lost_after", fit->lost_after);
    json_flag("better", fit->better);
    json_flag("written", fit->written);
    print_estimates(calibrate);
    json_end();
}

static void print_text(const struct calibrate *calibrate, const nhood_calibration *fit) {
    const char *outcome = fit->written  ? "written"
                          : fit->better ? "better, and not written (--dry-run)"
                                        : "not written: it is not better";
    printf("device     %s, %s\n", calibrate->target.info.name, calibrate->target.info.description);
    printf("timings    %lld of %lld problems\n", (long long)fit->timings, (long long)fit->problems);
    printf("choices    within 10 %% of the fastest   worst         time lost\n");
    printf("  before   %5.1f %%                       %.2f times    %.1f %%\n",
           100 * fit->within_before, fit->worst_before, 100 * fit->lost_before);
    printf("  after    %5.1f %%                       %.2f times    %.1f %%\n",
           100 * fit->within_after, fit->worst_after, 100 * fit->lost_after);
    printf("           (each problem is judged by a fit to the others)\n");
    printf("fit        %s\n", outcome);
    print_estimates(calibrate);
}

static int fit(const struct calibrate *calibrate) {
    nhood_calibration result = {.struct_size = sizeof result};
    nhood_status status = nhood_device_calibrate(
        calibrate->target.context, calibrate->target.device, calibrate->dry_run, &result);
    if (status) return complain_library(status, "calibrate");
    (calibrate->json ? print_json : print_text)(calibrate, &result);
    return 0;
}

static int run(struct calibrate *calibrate) {
    int failed = target_open(&calibrate->target);
    if (!failed && calibrate->target.info.kind != NHOOD_DEVICE_CUDA)
        failed = complain(EXIT_USAGE, "calibrate: %s is no GPU", calibrate->target.info.name);
    if (!failed && calibrate->timings) {
        nhood_status status =
            nhood_wisdom_load(calibrate->target.context, calibrate->timings, NULL);
        if (status) failed = complain_library(status, "timings");
    } else if (!failed && calibrate->target.info.ordinal < 0) {
        failed = complain(EXIT_USAGE, "calibrate: --gpu needs --timings: %s is not here",
                          calibrate->target.info.name);
    } else if (!failed) {
        failed = time_sample(calibrate);
    }
    if (!failed && !interrupt_came()) failed = fit(calibrate);
    target_close(&calibrate->target);
    interrupt_end();
    return failed;
}

int cmd_calibrate(int argc, char **argv) {
    struct calibrate calibrate = {.seconds = 300};
    target_init(&calibrate.target);
    calibrate.target.describe_option = "gpu";
    calibrate.target.device_name = "cuda:0";
    calibrate.target.options[0].help = "device, by its name in 'nhood info' (cuda:0)";
    const struct option options[] = {
        {.name = "seconds",
         .number = &calibrate.seconds,
         .low = 1,
         .high = 1e6,
         .argument = "S",
         .help = "time the sample for so long (300)"},
        {.name = "timings",
         .text = &calibrate.timings,
         .argument = "FILE",
         .help = "time nothing: use this wisdom, too"},
        {.name = "gpu",
         .text = &calibrate.target.describe,
         .argument = "NAME",
         .help = "with --timings: a GPU that need not be here, as in 'nhood simulate'",
         .values = "a100 h100 h200 b200"},
        {.name = "dry-run", .flag = &calibrate.dry_run, .help = "write no calibration"},
        {.name = "json", .flag = &calibrate.json, .help = "print one object"},
        {.name = NULL}};
    const struct usage usage = {
        "calibrate", "[options]",
        "Times a sample of problems on a GPU, and fits the estimates by which the library chooses\n"
        "to these and all other timings that wisdom has of it. What is better goes to a file in\n"
        "the cache folder, which later contexts follow. Timings are kept as wisdom every few\n"
        "seconds: after an interrupt (exit status 130) the same command continues.",
        options, calibrate.target.options};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    if (count > 0)
        return complain(EXIT_USAGE, "calibrate: takes no argument, but there is '%s'", argv[0]);
    if (calibrate.target.describe) calibrate.target.device_name = calibrate.target.describe;
    return run(&calibrate);
}
