/* nhood tune: times the candidates of problems and keeps the times as wisdom. It can be interrupted. */
#include "candidates.h"
#include "clock.h"
#include "commands.h"
#include "interrupt.h"
#include "message.h"
#include "output.h"
#include "progress.h"
#include "suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Wisdom is saved this often, or less if saving would take more than a twentieth of the time. */
#define SAVE_EVERY_NS 5e9
#define SAVE_SHARE 20

struct tune {
    struct target target;
    struct target untaught; /* the same device without wisdom, to ask for the choice by estimate */
    const char *suite, *file;
    double budget_s, each_s; /* each_s: 0 where it was not given */
    bool again, json;
    int text_width;
    double start_ns, next_save_ns;
    /* numbers of problems: in wisdom before, measured now, failed to be measured */
    size_t known, measured, failed;
    size_t left; /* candidates, see count_left */
    /* per problem, the time of the choice by estimate over that of the fastest */
    double *behind;
    size_t behind_count;
};

static int save(struct tune *tune) {
    double start = clock_ns();
    nhood_status status = nhood_wisdom_save(tune->target.context, tune->file, 0);
    double end = clock_ns();
    tune->next_save_ns = end + fmax(SAVE_EVERY_NS, SAVE_SHARE * (end - start));
    return status ? complain_library(status, "wisdom was not saved") : 0;
}

/* Before anything is measured: whether that can be kept. */
static int try_to_save(struct tune *tune) {
    int failed = save(tune);
    if (failed) complain(failed, "nothing was measured; --file FILE keeps wisdom elsewhere");
    return failed;
}

/* How many candidates were not timed that may be the fastest, as estimates err by a tenth. */
static size_t count_left(const struct candidates *candidates) {
    const double most_ns = 1.1 * candidates_estimated(candidates)->estimate_ns;
    size_t left = 0;
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        left += !row->refusal && !row->samples && row->estimate_ns <= most_ns;
    }
    return left;
}

static void print_result(const struct tune *tune, const struct suite_problem *problem,
                         const struct candidates *candidates, const struct candidate *expected,
                         bool known) {
    const struct candidate *best = candidates_fastest(candidates);
    const size_t left = count_left(candidates);
    size_t timed = 0;
    for (size_t i = 0; i < candidates->count; i++)
        timed += candidates->row[i].samples > 0;
    if (tune->json) {
        json_begin();
        json_text("problem", problem->text);
        json_text("device", tune->target.info.name);
        json_text("description", tune->target.info.description);
        json_text("solver", best->solver);
        json_text("config", best->config);
        json_number("median_ns", best->measured_ns);
        json_integer("samples", best->samples);
        json_integer("candidates_timed", (int64_t)timed);
        json_integer("candidates_left", (int64_t)left);
        json_text("estimate_solver", expected->solver);
        json_text("estimate_config", expected->config);
        json_number("estimate_median_ns", expected->samples ? expected->measured_ns : NAN);
        json_flag("known_before", known);
        json_end();
        return;
    }
    char time[UNIT_BYTES], behind[32] = "-";
    if (expected->samples)
        snprintf(behind, sizeof behind, "%+.1f %%",
                 100 * (expected->measured_ns / best->measured_ns - 1));
    progress_hide();
    printf("%-*s  %-12s %10s %5zu %4zu %9s  %s%s\n", tune->text_width, problem->text, best->solver,
           time_text(best->measured_ns, time), timed, left, behind, best->config,
           known ? " (known)" : "");
    fflush(stdout);
}

/* Seconds for the next problem, of so many that are left: a second, or more where the budget has more for each. */
static double seconds_left(const struct tune *tune, size_t problems) {
    const double each_s = tune->each_s > 0 ? tune->each_s : 1;
    if (tune->budget_s <= 0) return each_s;
    const double left = tune->budget_s - (clock_ns() - tune->start_ns) * 1e-9;
    const double share = tune->each_s > 0 ? each_s : fmax(each_s, left / (double)problems);
    return fmin(left, share);
}

static int explain(const struct target *target, const struct suite_problem *problem,
                   struct candidates *candidates) {
    nhood_status status = candidates_explain(target, &problem->problem, NULL, candidates);
    return status ? complain_library(status, problem->text) : 0;
}

/* Finds the candidate that a plan would take without wisdom. It need not have the least estimate: among those that take about
 * as long, a plan takes the one that its solver prefers. */
static int find_expected(const struct tune *tune, const struct suite_problem *problem,
                         const struct candidates *candidates, const struct candidate **expected) {
    struct candidates untaught;
    int failed = explain(&tune->untaught, problem, &untaught);
    const struct candidate *chosen = failed ? NULL : candidates_chosen(&untaught);
    *expected = chosen ? candidates_find(candidates, chosen->solver, chosen->config) : NULL;
    if (!failed && !*expected)
        failed = complain(EXIT_FAILURE, "%s: the choice by estimate is not among the candidates",
                          problem->text);
    candidates_free(&untaught);
    return failed;
}

static int measure(const struct tune *tune, const struct suite_problem *problem, double seconds) {
    nhood_plan_options options = {.struct_size = sizeof options,
                                  .effort = NHOOD_EFFORT_MEASURE,
                                  .budget_s = fmax(1e-3, seconds)};
    nhood_plan *plan = NULL;
    nhood_status status = nhood_plan_create(tune->target.context, tune->target.device,
                                            &problem->problem, &options, &plan);
    nhood_plan_release(plan);
    if (status == NHOOD_ERR_INTERRUPTED) return EXIT_FAILURE; /* interrupt_end says so */
    return status ? complain_library(status, problem->text) : 0;
}

static int tune_problem(struct tune *tune, const struct suite_problem *problem, double seconds) {
    struct candidates candidates;
    const struct candidate *expected;
    if (!candidates_exist(&problem->problem, problem->text)) {
        tune->failed++;
        return EXIT_FAILURE;
    }
    int failed = explain(&tune->target, problem, &candidates);
    const struct candidate *chosen = candidates_chosen(&candidates);
    bool known = !failed && chosen->samples > 0;
    if (!failed && !known) {
        candidates_free(&candidates);
        failed = measure(tune, problem, seconds);
        if (!failed) failed = explain(&tune->target, problem, &candidates);
    }
    if (!failed) failed = find_expected(tune, problem, &candidates, &expected);
    if (!failed && candidates_fastest(&candidates)) {
        *(known ? &tune->known : &tune->measured) += 1;
        tune->left += count_left(&candidates);
        if (expected->samples)
            tune->behind[tune->behind_count++] =
                expected->measured_ns / candidates_fastest(&candidates)->measured_ns;
        print_result(tune, problem, &candidates, expected, known);
    } else {
        tune->failed++;
        if (!failed) failed = complain(EXIT_FAILURE, "%s: was not measured", problem->text);
    }
    candidates_free(&candidates);
    return failed;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double percent_within(const struct tune *tune, double limit) {
    size_t within = 0;
    for (size_t i = 0; i < tune->behind_count; i++)
        within += tune->behind[i] <= limit;
    return 100 * (double)within / (double)tune->behind_count;
}

/* Prints how good the choices by estimate were for the problems that were tuned. */
static void print_summary(struct tune *tune, size_t all) {
    size_t done = tune->known + tune->measured, left = all - done - tune->failed;
    if (tune->json) return;
    printf("%zu of %zu problems are known", done, all);
    if (tune->known) printf(", %zu of them were before", tune->known);
    printf("%s\n", left ? "; the same command goes on with the others" : "");
    if (tune->left)
        printf("%zu candidates estimated within 10 %% of the best of their problem were not timed; "
               "--again --each S gives each problem more time\n",
               tune->left);
    size_t count = tune->behind_count;
    if (!count) return;
    qsort(tune->behind, count, sizeof *tune->behind, ascending);
    printf("the choice by estimate is within 10 %% of the fastest for %.1f %% of them, within 15 "
           "%% for "
           "%.1f %%; median %+.1f %%, worst %+.1f %%\n",
           percent_within(tune, 1.10), percent_within(tune, 1.15),
           100 * (tune->behind[count / 2] - 1), 100 * (tune->behind[count - 1] - 1));
}

static int tune_suite(struct tune *tune, const struct suite *suite) {
    int failed = 0;
    for (size_t i = 0; i < suite->count; i++)
        if ((int)strlen(suite->problem[i].text) > tune->text_width)
            tune->text_width = (int)strlen(suite->problem[i].text);
    if (!tune->json)
        printf("%s: %s\n%-*s  %-12s %10s %5s %4s %9s  %s\n", tune->target.info.name,
               tune->target.info.description, tune->text_width, "problem", "fastest", "median",
               "timed", "left", "estimate", "config");
    progress_start();
    tune->start_ns = clock_ns();
    tune->next_save_ns = tune->start_ns + SAVE_EVERY_NS;
    for (size_t i = 0; i < suite->count && !interrupt_came(); i++) {
        const double seconds = seconds_left(tune, suite->count - i);
        if (seconds <= 0) break;
        progress_show((double)i / (double)suite->count, suite->problem[i].text);
        int status = tune_problem(tune, &suite->problem[i], seconds);
        if (status) failed = status;
        if (clock_ns() > tune->next_save_ns && (status = save(tune))) return status;
    }
    progress_hide();
    int status = save(tune);
    print_summary(tune, suite->count);
    return status ? status : failed;
}

/* Removes what is known of the problems on this device, in the context and in the file. */
static int forget(struct tune *tune, const struct suite *suite) {
    for (size_t i = 0; i < suite->count; i++) {
        nhood_status status = nhood_wisdom_forget(tune->target.context, tune->target.device,
                                                  &suite->problem[i].problem, NULL);
        if (status) return complain_library(status, suite->problem[i].text);
    }
    nhood_status status = nhood_wisdom_save(tune->target.context, tune->file, 1);
    return status ? complain_library(status, "wisdom was not saved") : 0;
}

/* Reads wisdom from --file, if that is given. Otherwise the context has read that of the cache folder. */
static int open_wisdom(struct tune *tune) {
    if (!tune->file) return 0;
    nhood_status status = nhood_wisdom_load(tune->target.context, tune->file, NULL);
    return status && status != NHOOD_ERR_CACHE_MISS ? complain_library(status, "wisdom") : 0;
}

static int run(struct tune *tune, int count, char **texts) {
    struct suite suite = {.count = 0};
    int failed = suite_load(&suite, "tune", count, texts, tune->suite);
    suite_drop_equal(&suite);
    tune->untaught = tune->target;
    tune->untaught.quiet = true;
    /* With --file, wisdom from elsewhere must not count. */
    if (!failed) failed = (tune->file ? target_open_untaught : target_open)(&tune->target);
    if (!failed) failed = target_open_untaught(&tune->untaught);
    if (!failed) failed = open_wisdom(tune);
    if (!failed) failed = tune->again ? forget(tune, &suite) : try_to_save(tune);
    if (!failed) {
        tune->behind = calloc(suite.count, sizeof *tune->behind);
        interrupt_catch();
        failed = tune->behind ? tune_suite(tune, &suite)
                              : complain(EXIT_FAILURE, "no memory for %zu problems", suite.count);
    }
    free(tune->behind);
    target_close(&tune->untaught);
    target_close(&tune->target);
    suite_free(&suite);
    interrupt_end();
    return failed;
}

int cmd_tune(int argc, char **argv) {
    struct tune tune = {.each_s = 0};
    target_init(&tune.target);
    const struct option options[] = {
        {.name = "suite",
         .text = &tune.suite,
         .argument = "FILE",
         .help = "problems from a file, one per line; # comments; - for stdin"},
        {.name = "budget",
         .number = &tune.budget_s,
         .low = 1e-3,
         .high = 1e9,
         .argument = "S",
         .help = "seconds for all of it; what is left is for the next time"},
        {.name = "each",
         .number = &tune.each_s,
         .low = 1e-3,
         .high = 1e6,
         .argument = "S",
         .help =
             "seconds for one problem, more or less (1, or its share of --budget if that is more)"},
        {.name = "again",
         .flag = &tune.again,
         .help = "forget what is known of these problems first"},
        {.name = "file",
         .text = &tune.file,
         .argument = "FILE",
         .help = "wisdom of this file instead of the cache folder's"},
        {.name = "json", .flag = &tune.json, .help = "print one object per problem"},
        {.name = NULL}};
    const struct usage usage = {
        "tune", "[options] <problem>...|--suite FILE",
        "Times the candidates of each problem, and of each member of a group, that wisdom does "
        "not\n"
        "know yet, and saves what it\n"
        "learns every few seconds. After an interrupt (exit status 130) the same command\n"
        "goes on where it was.\n"
        "Later plans on this machine use it. Prints the fastest candidate, its median, how many\n"
        "were timed, how many were not that are estimated within 10 % of the best, and how much\n"
        "slower the choice by estimate is.",
        options, tune.target.options};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    return run(&tune, count, argv);
}
