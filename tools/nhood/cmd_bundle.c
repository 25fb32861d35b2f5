/* nhood bundle: compiles the CUDA kernels of problems ahead of time, for GPUs that need not be present. */
#include "commands.h"
#include "message.h"
#include "output.h"
#include "progress.h"
#include "ranges.h"
#include "suite.h"
#include "system.h"
#include "target.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The most problems that are planned at a time. The library limits how many kernels it compiles at a time. */
enum { MOST_THREADS = 64 };

/* The most combinations of all ranges. Planning so many, most of which share kernels, takes minutes. */
enum { MOST_PROBLEMS = 1000000 };

struct bundle_work {
    struct target target;
    const char *output, *solver;
    bool backward, json;
    struct ranges *list;
    size_t count, capacity;
    nhood_bundle *bundle;
    /* the devices to compile for */
    int32_t device[8], devices;
    char device_names[96];
    /* the lock guards the fields below */
    pthread_mutex_t lock;
    size_t at; /* index in the list */
    double total, done;
    int64_t problems, left_out;
    int failed;
};

static int add_text(void *argument, const char *text, const char *origin) {
    struct bundle_work *work = argument;
    if (work->count == work->capacity) {
        size_t capacity = work->capacity ? 2 * work->capacity : 16;
        struct ranges *list = realloc(work->list, capacity * sizeof *list);
        if (!list) return complain(EXIT_FAILURE, "no memory for %zu problems", capacity);
        work->list = list;
        work->capacity = capacity;
    }
    int failed = ranges_parse(&work->list[work->count++], text, origin);
    if (failed) return failed;
    work->total += ranges_total(&work->list[work->count - 1]);
    if (work->total > MOST_PROBLEMS)
        return complain(
            EXIT_USAGE,
            "%s: its ranges, with those before, have %.0f combinations, at most %d are legal",
            origin, work->total, MOST_PROBLEMS);
    return 0;
}

/* Reads the arguments: those with colons are problems, others are files. */
static int read_lists(struct bundle_work *work, int count, char **argument) {
    int failed = 0;
    for (int i = 0; i < count && !failed; i++)
        failed = strchr(argument[i], ':') ? add_text(work, argument[i], argument[i])
                                          : suite_lines(argument[i], add_text, work);
    return failed;
}

static int find_devices(struct bundle_work *work) {
    const char *arch = work->target.describe;
    for (int32_t i = 0; i < nhood_device_count(work->target.context); i++) {
        nhood_device_info info = {.struct_size = sizeof info};
        nhood_status status = nhood_device_query(work->target.context, i, &info);
        if (status) return complain_library(status, "device");
        if (arch ? info.ordinal >= 0 : i != work->target.device) continue;
        size_t used = strlen(work->device_names);
        snprintf(work->device_names + used, sizeof work->device_names - used, "%s%s",
                 used ? ", " : "", info.name);
        work->device[work->devices++] = i;
    }
    return 0;
}

/* What a thread adds next: a problem, or the members of a group. */
struct taken {
    char *text;
    nhood_problem *problem;
    int64_t count, capacity;
    nhood_status status; /* of the member that was parsed last */
    char origin[PROBLEM_BYTES];
};

static int take_member(void *argument, const char *text, const char *origin) {
    struct taken *taken = argument;
    if (taken->count == taken->capacity) {
        const int64_t capacity = taken->capacity ? 2 * taken->capacity : 16;
        nhood_problem *problem = realloc(taken->problem, (size_t)capacity * sizeof *taken->problem);
        if (!problem) return complain(EXIT_FAILURE, "%s: no memory", origin);
        taken->problem = problem;
        taken->capacity = capacity;
    }
    taken->status = nhood_problem_parse(text, &taken->problem[taken->count]);
    snprintf(taken->origin, sizeof taken->origin, "%s", origin);
    if (!taken->status) taken->count++;
    return taken->status ? EXIT_USAGE : 0;
}

/* Takes the next legal problem or group. Illegal ones are left out if they come from ranges, but a text without ranges must be
 * legal. */
static bool take(struct bundle_work *work, struct taken *taken) {
    while (work->at < work->count && !work->failed) {
        struct ranges *ranges = &work->list[work->at];
        char *text = realloc(taken->text, strlen(ranges->text) + 1);
        if (!text) {
            work->failed = complain(EXIT_FAILURE, "no memory for %s", ranges->text);
            break;
        }
        taken->text = text;
        if (!ranges_next(ranges, text)) {
            work->at++;
            continue;
        }
        progress_show(work->done++ / work->total, text);
        taken->count = 0;
        taken->status = NHOOD_OK;
        const int failed = suite_members(text, text, take_member, taken);
        if (!failed) return true;
        if (!taken->status) /* said already: not a group's text, or no memory */
            work->failed = failed;
        else if (!ranges->count)
            work->failed = complain_library(taken->status, taken->origin);
        work->left_out++;
    }
    return false;
}

static nhood_status add_to(const struct bundle_work *work, const struct taken *taken) {
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = work->solver};
    nhood_status status = NHOOD_OK;
    for (int32_t i = 0; i < work->devices && !status; i++)
        status = strchr(taken->text, ';')
                     ? nhood_bundle_add_group(work->bundle, work->device[i], taken->problem,
                                              taken->count, &options)
                     : nhood_bundle_add(work->bundle, work->device[i], taken->problem, &options);
    return status;
}

/* Adds the kernels of a problem or group, of its forward and its backward if both are wanted. */
static nhood_status add(const struct bundle_work *work, struct taken *taken) {
    const nhood_status status = add_to(work, taken);
    if (status || !work->backward || taken->problem->op != NHOOD_OP_FWD) return status;
    for (int64_t i = 0; i < taken->count; i++)
        if (taken->problem[i].op == NHOOD_OP_FWD) taken->problem[i].op = NHOOD_OP_BWD;
    return add_to(work, taken);
}

static void *add_all(void *argument) {
    struct bundle_work *work = argument;
    struct taken taken = {.text = NULL};
    pthread_mutex_lock(&work->lock);
    while (take(work, &taken)) {
        pthread_mutex_unlock(&work->lock);
        nhood_status status = add(work, &taken);
        pthread_mutex_lock(&work->lock);
        work->problems++;
        if (status && !work->failed) work->failed = complain_library(status, taken.text);
    }
    pthread_mutex_unlock(&work->lock);
    free(taken.text);
    free(taken.problem);
    return NULL;
}

static int add_on_threads(struct bundle_work *work) {
    pthread_t thread[MOST_THREADS];
    int64_t wanted = work->target.threads ? work->target.threads : system_cpus();
    int started = 0;
    progress_start();
    while (started + 1 < wanted && started < MOST_THREADS &&
           !pthread_create(&thread[started], NULL, add_all, work))
        started++;
    add_all(work);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    progress_hide();
    if (!work->failed && !work->problems)
        return complain(EXIT_USAGE, "bundle: no problem that is legal was given");
    return work->failed;
}

static void print_result(const struct bundle_work *work, const nhood_kernel_counts *counts) {
    struct stat facts;
    char size[UNIT_BYTES], time[UNIT_BYTES];
    int64_t bytes = stat(work->output, &facts) ? 0 : (int64_t)facts.st_size;
    int64_t kernels = counts->from_store + counts->compiled;
    if (work->json) {
        json_begin();
        json_text("bundle", work->output);
        json_text("devices", work->device_names);
        json_integer("problems", work->problems);
        json_integer("left_out", work->left_out);
        json_integer("kernels", kernels);
        json_integer("compiled", counts->compiled);
        json_number("compile_ns", counts->compile_ns);
        json_integer("bytes", bytes);
        json_end();
        return;
    }
    printf("%s: %lld kernels, %s, for %lld problems on %s", work->output, (long long)kernels,
           size_text((double)bytes, size), (long long)work->problems, work->device_names);
    if (work->left_out) printf(" (%lld of ranges are not legal)", (long long)work->left_out);
    printf("; %lld compiled in %s\n", (long long)counts->compiled,
           time_text(counts->compile_ns, time));
}

/* Before anything is compiled: whether a file can be written where the bundle goes, which then takes the place of one that is
 * there. */
static int check_output(const char *path) {
    struct stat facts;
    char *beside = malloc(strlen(path) + sizeof ".new");
    if (!beside) return complain(EXIT_FAILURE, "no memory");
    strcat(strcpy(beside, path), ".new");
    errno = !stat(path, &facts) && S_ISDIR(facts.st_mode) ? EISDIR : 0;
    FILE *file = errno ? NULL : fopen(beside, "wbx");
    int reason = errno;
    if (file) fclose(file), remove(beside);
    free(beside);
    if (file || reason == EEXIST) return 0;
    return complain(EXIT_USAGE, "--output = '%s' cannot be written: %s", path, strerror(reason));
}

static int make_bundle(struct bundle_work *work) {
    nhood_kernel_counts counts = {.struct_size = sizeof counts};
    nhood_status status = nhood_bundle_create(work->target.context, &work->bundle);
    if (status) return complain_library(status, "bundle");
    int failed = find_devices(work);
    if (!failed) failed = add_on_threads(work);
    if (failed) return failed;
    status = nhood_bundle_save(work->bundle, work->output);
    if (!status) status = nhood_bundle_kernels(work->bundle, &counts);
    if (status) return complain_library(status, "bundle");
    print_result(work, &counts);
    return 0;
}

static int check_options(const struct bundle_work *work, int count) {
    if (!count) return complain(EXIT_USAGE, "bundle: no problem given; see 'nhood bundle --help'");
    if (!work->output) return complain(EXIT_USAGE, "bundle: --output is missing");
    if (!work->target.describe == !strcmp(work->target.device_name, "cpu"))
        return complain(EXIT_USAGE, "bundle: give either --arch or a GPU as --device");
    return 0;
}

int cmd_bundle(int argc, char **argv) {
    struct bundle_work work = {.count = 0};
    target_init(&work.target);
    const struct option options[] = {
        {.name = "arch",
         .text = &work.target.describe,
         .argument = "NAME",
         .help = "sm_80, sm_90 or sm_100, or one GPU: a100, h100, h200, b200",
         .values = "sm_80 sm_90 sm_100 a100 h100 h200 b200"},
        {.name = "output", .text = &work.output, .argument = "FILE", .help = "where it goes"},
        {.name = "backward",
         .flag = &work.backward,
         .help = "also the backward of every forward problem"},
        {.name = "solver",
         .text = &work.solver,
         .argument = "NAME",
         .help = "only this solver (the one that plans would take)"},
        {.name = "json", .flag = &work.json, .help = "print one object"},
        {.name = NULL, .argument = "FILE"}};
    const struct usage usage = {
        "bundle", "--arch NAME --output FILE [options] <problem or file>...",
        "Compiles the CUDA kernels that plans of these problems take, into one file, which a "
        "context\n"
        "reads (NHOOD_BUNDLE, options.bundle) where there is no NVRTC, or no time to wait for it. "
        "No\n"
        "GPU need be here, NVRTC must. What wisdom of the cache folder knows of the GPU decides as "
        "it\n"
        "would there. Files have a problem per line, as suites do; '-' is stdin. A number of a\n"
        "problem may be a range, low..high or low..high/step: all combinations that are legal "
        "count,\n"
        "and at most a million are tried:\n"
        "  fwd:bf16:b1h24d128:9..33x24..68x24..120:w9x24x24\n"
        "A group is a head and members (see 'nhood --help'), whose kernels are all added.\n"
        "For a GPU that is not in the list, run it there with --device cuda:0.",
        options, work.target.options};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    status = check_options(&work, count);
    if (!status) status = read_lists(&work, count, argv);
    pthread_mutex_init(&work.lock, NULL);
    if (!status) status = check_output(work.output);
    if (!status) status = target_open(&work.target);
    if (!status) status = make_bundle(&work);
    nhood_bundle_destroy(work.bundle);
    target_close(&work.target);
    pthread_mutex_destroy(&work.lock);
    for (size_t i = 0; i < work.count; i++)
        ranges_free(&work.list[i]);
    free(work.list);
    return status;
}
