/* nhood bench: times problems, and measures the machine's peak rates at about the same time. */
#include "clock.h"
#include "commands.h"
#include "cuda.h"
#include "message.h"
#include "output.h"
#include "problem_data.h"
#include "progress.h"
#include "suite.h"
#include "target.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, CONFIG_BYTES = 256, LEAST_CALLS = 3 };
enum { DATA_SEED = 1 };
#define WARM_UP_NS 2e7

struct bench {
    struct target target;
    const char *solver, *suite;
    int64_t repeat;
    double min_time_s, tune_s;
    bool json;
    /* progress */
    double parts_done, parts;
    int text_width;
};

struct measurement {
    char solver[NAME_BYTES], config[CONFIG_BYTES];
    double plan_ns, workspace_bytes;
    nhood_ceilings ceilings;
    double *sample_ns;
    size_t count, capacity;
};

/* Where different solvers compute the members of a group, none is named. */
static void note_choice(void *user, const nhood_candidate *candidate) {
    struct measurement *measurement = user;
    if (!candidate->chosen) return;
    const bool first = !*measurement->solver;
    if (first || strcmp(measurement->solver, candidate->solver) != 0)
        snprintf(measurement->solver, sizeof measurement->solver, "%s",
                 first ? candidate->solver : "several");
    if (first || strcmp(measurement->config, candidate->config) != 0)
        snprintf(measurement->config, sizeof measurement->config, "%s",
                 first ? candidate->config : "");
}

/* The problem, or the members of the group that begins with it, in memory. */
struct work {
    size_t members;
    nhood_problem *problem;
    struct problem_data *data;
    nhood_io *io; /* by member */
    nhood_plan *plan;
};

static void free_work(struct work *work) {
    nhood_plan_release(work->plan);
    for (size_t i = 0; work->data && i < work->members; i++)
        data_free(&work->data[i]);
    free(work->problem);
    free(work->data);
    free(work->io);
}

/* Fills the tensors; a backward pass needs the O and LSE of its inputs. Returns 0, or the exit status after a message. */
static int create_work(const struct target *target, const struct suite_problem *first,
                       struct work *work) {
    const size_t members = first->members;
    *work = (struct work){.members = members,
                          .problem = calloc(members, sizeof *work->problem),
                          .data = calloc(members, sizeof *work->data),
                          .io = calloc(members, sizeof *work->io)};
    if (!work->problem || !work->data || !work->io)
        return complain(EXIT_FAILURE, "no memory for %zu problems", members);
    for (size_t i = 0; i < members; i++) {
        struct problem_data *data = &work->data[i];
        work->problem[i] = first[i].problem;
        if (!data_create(data, &target->info, &first[i].problem) || !data_fill(data, DATA_SEED))
            return EXIT_FAILURE;
        int failed = 0;
        if (data->problem.op == NHOOD_OP_BWD)
            failed = data_run(data, target->context, target->device, NHOOD_OP_FWD, NULL);
        if (failed) return failed;
    }
    return 0;
}

/* Measures the peak rates and keeps the largest values, since other programs and lower clocks can only reduce them. */
static int raise_ceilings(const struct target *target, const nhood_problem *problem,
                          nhood_ceilings *ceilings) {
    /* A CPU computes 16-bit types in f32. */
    bool narrow = target->info.kind == NHOOD_DEVICE_CPU && problem->dtype > NHOOD_DTYPE_F32;
    int32_t dtype = narrow ? NHOOD_DTYPE_F32 : problem->dtype;
    nhood_ceilings now = {.struct_size = sizeof now};
    nhood_status status = nhood_device_measure(target->context, target->device, dtype, &now);
    if (status == NHOOD_ERR_UNSUPPORTED) return 0;
    if (status) return complain_library(status, "measuring the device");
    ceilings->flops_per_s = fmax(ceilings->flops_per_s, now.flops_per_s);
    ceilings->bytes_per_s = fmax(ceilings->bytes_per_s, now.bytes_per_s);
    return 0;
}

static bool add_sample(struct measurement *measurement, double ns) {
    if (measurement->count == measurement->capacity) {
        size_t capacity = measurement->capacity ? 2 * measurement->capacity : 1024;
        double *sample = realloc(measurement->sample_ns, capacity * sizeof *sample);
        if (!sample) {
            complain(EXIT_FAILURE, "no memory for %zu timings", capacity);
            return false;
        }
        measurement->sample_ns = sample;
        measurement->capacity = capacity;
    }
    measurement->sample_ns[measurement->count++] = ns;
    return true;
}

/* Times one call. On CUDA that is the time between two events on the device, after its caches were overwritten. */
static nhood_status time_call(const struct bench *bench, const struct work *work, double *ns) {
    const nhood_io *io = work->io;
    const nhood_group_io group = {.struct_size = sizeof group,
                                  .count = (int64_t)work->members,
                                  .member = io,
                                  .workspace = io->workspace,
                                  .workspace_bytes = io->workspace_bytes};
    bool cuda = bench->target.info.kind == NHOOD_DEVICE_CUDA;
    double start = clock_ns();
    if (cuda) {
        cuda_flush();
        cuda_timer_begin();
    }
    nhood_status status = work->members > 1 ? nhood_plan_execute_group(work->plan, &group)
                                            : nhood_plan_execute(work->plan, io);
    *ns = clock_ns() - start;
    if (cuda && !cuda_timer_end(ns) && !status) status = NHOOD_ERR_DEVICE;
    return status;
}

static int time_calls(const struct bench *bench, const struct suite_problem *problem,
                      const struct work *work, struct measurement *measurement) {
    double start = clock_ns(), now = start, limit_ns = bench->min_time_s * 1e9;
    nhood_status status;
    double ns;
    do {
        status = time_call(bench, work, &ns);
    } while (!status && clock_ns() - start < WARM_UP_NS);
    start = clock_ns();
    for (int64_t calls = 0; !status && (calls < LEAST_CALLS || now - start < limit_ns); calls++) {
        status = time_call(bench, work, &ns);
        now = clock_ns();
        if (!status && !add_sample(measurement, ns)) return EXIT_FAILURE;
        double part = fmin(1, (now - start) / limit_ns);
        progress_show((bench->parts_done + part) / bench->parts, problem->text);
    }
    return status ? complain_library(status, problem->text) : 0;
}

static nhood_status create_plan(const struct bench *bench, struct work *work,
                                const nhood_plan_options *options) {
    const struct target *target = &bench->target;
    if (work->members == 1)
        return nhood_plan_create(target->context, target->device, work->problem, options,
                                 &work->plan);
    return nhood_plan_create_group(target->context, target->device, work->problem,
                                   (int64_t)work->members, options, &work->plan);
}

static int time_plan(const struct bench *bench, const struct suite_problem *problem,
                     struct work *work, struct measurement *measurement) {
    const struct target *target = &bench->target;
    nhood_plan_options options = {
        .struct_size = sizeof options,
        .solver = bench->solver,
        .effort = bench->tune_s > 0 ? NHOOD_EFFORT_MEASURE : NHOOD_EFFORT_ESTIMATE,
        .budget_s = bench->tune_s,
    };
    double start = clock_ns();
    nhood_status status = create_plan(bench, work, &options);
    measurement->plan_ns = clock_ns() - start;
    /* Ask after planning, as measuring may have changed the choice. */
    *measurement->solver = '\0';
    for (size_t i = 0; !status && i < work->members; i++)
        status = nhood_plan_explain(target->context, target->device, &work->problem[i], &options,
                                    note_choice, measurement);
    if (status) return complain_library(status, problem->text);
    measurement->workspace_bytes = (double)nhood_plan_workspace_bytes(work->plan);
    if (!data_prepare(&work->data[0], work->plan)) return EXIT_FAILURE;
    for (size_t i = 0; i < work->members; i++)
        work->io[i] = work->data[i].io;
    return time_calls(bench, problem, work, measurement);
}

/* One round of one problem, between two measurements of the peak rates. */
static int measure(const struct bench *bench, const struct suite_problem *problem,
                   struct measurement *measurement) {
    const struct target *target = &bench->target;
    struct work work;
    progress_show(bench->parts_done / bench->parts, problem->text);
    int failed = create_work(target, problem, &work);
    if (!failed) failed = raise_ceilings(target, &problem->problem, &measurement->ceilings);
    if (!failed) failed = time_plan(bench, problem, &work, measurement);
    if (!failed) failed = raise_ceilings(target, &problem->problem, &measurement->ceilings);
    free_work(&work);
    return failed;
}

struct result {
    struct summary time;
    size_t calls;
    double flops_per_s, bytes_per_s;
    /* shares of the peak rates; NaN if these are unknown */
    double flops_share, bytes_share;
};

static struct result evaluate(const struct suite_problem *problem,
                              struct measurement *measurement) {
    double flops = 0, bytes = 0;
    for (size_t i = 0; i < problem->members; i++) {
        double own_flops = 0, own_bytes = 0;
        nhood_problem_cost(&problem[i].problem, &own_flops, &own_bytes);
        flops += own_flops;
        bytes += own_bytes;
    }
    struct result result = {.time = summarise(measurement->sample_ns, measurement->count),
                            .calls = measurement->count};
    double seconds = result.time.median * 1e-9;
    const nhood_ceilings *ceilings = &measurement->ceilings;
    result.flops_per_s = flops / seconds;
    result.bytes_per_s = bytes / seconds;
    result.flops_share =
        ceilings->flops_per_s > 0 ? result.flops_per_s / ceilings->flops_per_s : NAN;
    result.bytes_share =
        ceilings->bytes_per_s > 0 ? result.bytes_per_s / ceilings->bytes_per_s : NAN;
    return result;
}

static void print_result_json(const struct bench *bench, const struct suite_problem *problem,
                              const struct measurement *measurement, const struct result *result) {
    char *text = suite_group_text(problem);
    json_begin();
    json_text("problem", text ? text : problem->text);
    if (problem->members > 1) json_integer("members", (int64_t)problem->members);
    json_text("device", bench->target.info.name);
    json_text("description", bench->target.info.description);
    json_integer("workers", bench->target.info.workers);
    json_text("version", nhood_version());
    json_text("solver", measurement->solver);
    json_text("config", measurement->config);
    json_integer("calls", (int64_t)result->calls);
    json_number("median_ns", result->time.median);
    json_number("mad_ns", result->time.mad);
    json_number("min_ns", result->time.minimum);
    json_number("flops_per_s", result->flops_per_s);
    json_number("bytes_per_s", result->bytes_per_s);
    json_number("peak_flops_per_s", measurement->ceilings.flops_per_s);
    json_number("copy_bytes_per_s", measurement->ceilings.bytes_per_s);
    json_number("share_of_peak", result->flops_share);
    json_number("share_of_copy", result->bytes_share);
    json_number("plan_ns", measurement->plan_ns);
    json_number("workspace_bytes", measurement->workspace_bytes);
    json_end();
    free(text);
}

static void print_header(const struct bench *bench) {
    printf("%s: %s\n", bench->target.info.name, bench->target.info.description);
    printf("%-*s  %-12s %10s %9s %8s %7s %7s %7s\n", bench->text_width, "problem", "solver",
           "median ms", "+- MAD", "GFLOP/s", "of peak", "GB/s", "of copy");
}

static const char *percent(double share, char text[16]) {
    snprintf(text, 16, isfinite(share) ? "%.1f %%" : "-", share * 100);
    return text;
}

static void print_result(const struct bench *bench, const struct suite_problem *problem,
                         const struct measurement *measurement, const struct result *result) {
    char peak[16], copy[16];
    progress_hide();
    if (problem->members > 1) printf("group of %zu, first\n", problem->members);
    printf("%-*s  %-12s %10.4g %9.2g %8.2f %7s %7.2f %7s\n", bench->text_width, problem->text,
           *measurement->solver ? measurement->solver : "-", result->time.median * 1e-6,
           result->time.mad * 1e-6, result->flops_per_s * 1e-9, percent(result->flops_share, peak),
           result->bytes_per_s * 1e-9, percent(result->bytes_share, copy));
    if (bench->target.verbose)
        printf("%*s  config %s, %zu calls, fastest %.4g ms, peak %.1f GFLOP/s, copy %.2f GB/s\n", 2,
               "", *measurement->config ? measurement->config : "none", result->calls,
               result->time.minimum * 1e-6, measurement->ceilings.flops_per_s * 1e-9,
               measurement->ceilings.bytes_per_s * 1e-9);
    fflush(stdout);
}

/* Runs rounds over the whole list, so that a slow phase of the machine does not affect one problem alone. */
static int measure_all(struct bench *bench, const struct suite *suite,
                       struct measurement *measurements) {
    int failed = 0;
    for (size_t i = 0; i < suite->count; i++)
        bench->parts += suite->problem[i].members ? (double)bench->repeat : 0;
    if (!bench->json) print_header(bench);
    progress_start();
    for (int64_t round = 0; round < bench->repeat; round++) {
        for (size_t i = 0; i < suite->count; i++) {
            const struct suite_problem *problem = &suite->problem[i];
            if (!problem->members) continue; /* it was measured with its group */
            bool dropped = round > 0 && measurements[i].count == 0;
            int status = dropped ? 0 : measure(bench, problem, &measurements[i]);
            if (status) {
                failed = status;
                measurements[i].count = 0;
            }
            bench->parts_done++;
            if (round + 1 < bench->repeat || measurements[i].count == 0) continue;
            struct result result = evaluate(problem, &measurements[i]);
            (bench->json ? print_result_json : print_result)(bench, problem, &measurements[i],
                                                             &result);
        }
    }
    progress_hide();
    return failed;
}

static int bench_suite(struct bench *bench, const struct suite *suite) {
    for (size_t i = 0; i < suite->count; i++)
        if ((int)strlen(suite->problem[i].text) > bench->text_width)
            bench->text_width = (int)strlen(suite->problem[i].text);
    struct measurement *measurements = calloc(suite->count, sizeof *measurements);
    if (!measurements) return complain(EXIT_FAILURE, "no memory for %zu problems", suite->count);
    int failed = measure_all(bench, suite, measurements);
    for (size_t i = 0; i < suite->count; i++)
        free(measurements[i].sample_ns);
    free(measurements);
    return failed;
}

int cmd_bench(int argc, char **argv) {
    struct bench bench = {.repeat = 1, .min_time_s = 0.5};
    struct suite suite = {.count = 0};
    target_init(&bench.target);
    const struct option options[] = {
        {.name = "suite",
         .text = &bench.suite,
         .argument = "FILE",
         .help = "problems from a file, one per line; # comments; - for stdin"},
        {.name = "solver",
         .text = &bench.solver,
         .argument = "NAME",
         .help = "this solver instead of the one chosen"},
        {.name = "tune",
         .number = &bench.tune_s,
         .low = 1e-3,
         .high = 1e6,
         .argument = "S",
         .help = "first time the candidates for S seconds, where wisdom knows none; not saved"},
        {.name = "min-time",
         .number = &bench.min_time_s,
         .low = 1e-3,
         .high = 3600,
         .argument = "S",
         .help = "seconds of timing per problem and round (0.5)"},
        {.name = "repeat",
         .integer = &bench.repeat,
         .low = 1,
         .high = 1e6,
         .argument = "N",
         .help = "rounds over all problems, timings pooled (1)"},
        {.name = "json", .flag = &bench.json, .help = "print one object per problem"},
        {.name = NULL}};
    const struct usage usage = {
        "bench", "[options] <problem>...|--suite FILE",
        "Times each problem on packed tensors of random numbers, the same in every call. Prints\n"
        "the median of the calls and the median deviation from it (MAD), useful operations and\n"
        "least bytes per second, and their shares of the device's ceilings (fused multiply-adds\n"
        "in registers, copying), which are measured before and after each problem. On CUDA a "
        "call's\n"
        "time is that between two events on the device, with its caches emptied before. A group,\n"
        "<op>:<dtype>:<b..h..d..>;<member>;.., is one call for all members.",
        options, bench.target.options};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    status = suite_load(&suite, "bench", count, argv, bench.suite);
    if (!status) status = target_open(&bench.target);
    if (!status && bench.solver && target_find_solver(&bench.target, bench.solver) < 0)
        status = EXIT_USAGE;
    if (!status) status = bench_suite(&bench, &suite);
    target_close(&bench.target);
    suite_free(&suite);
    return status;
}
