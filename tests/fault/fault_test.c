/* Failing allocations at every call, bad options and environment, bad wisdom, use after fork. */
#include "case.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int live, calls, fail_at;

static void *counted_allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    if (atomic_fetch_add(&calls, 1) == atomic_load(&fail_at)) return NULL;
    atomic_fetch_add(&live, 1);
    return aligned_alloc(alignment, bytes);
}

static void counted_release(void *user, void *memory) {
    (void)user;
    atomic_fetch_sub(&live, 1);
    free(memory);
}

/* Everything a plan allocates, with allocation number n failing, for every n; all is given back. Where only measuring
 * or remembering the choice fails, there is a plan all the same. members: 0, or a plan of a group of so many, of which all but
 * the third are equal. */
static void failing_allocations(const char *text, const char *solver, int32_t effort, int members) {
    nhood_context_options options = {.struct_size = sizeof options,
                                     .threads = 3,
                                     .cache = "",
                                     .allocate = counted_allocate,
                                     .release = counted_release};
    nhood_plan_options plan_options = {
        .struct_size = sizeof plan_options, .solver = solver, .effort = effort, .budget_s = 1e-3};
    nhood_problem problem[3];
    for (int i = 0; i < 3; i++)
        nhood_problem_parse(text, &problem[i]);
    problem[2].batch = 2;
    int failures = 0, spared = 0, whole = 0;
    for (int n = 0; !whole && n < 1000; n++) {
        nhood_context *context = NULL;
        nhood_plan *plan = NULL;
        atomic_store(&calls, 0);
        atomic_store(&fail_at, n);
        nhood_status status = nhood_context_create(&options, &context);
        if (!status)
            status = members ? nhood_plan_create_group(context, 0, problem, members, &plan_options,
                                                       &plan)
                             : nhood_plan_create(context, 0, problem, &plan_options, &plan);
        whole = atomic_load(&calls) <= n;
        failures += status == NHOOD_ERR_MEMORY;
        spared += !status && !whole;
        CHECK(!status || (status == NHOOD_ERR_MEMORY && !plan && !whole), "%s, allocation %d: %s",
              text, n, nhood_last_error());
        nhood_plan_release(plan);
        nhood_context_destroy(context);
        CHECK(atomic_load(&live) == 0, "%s, allocation %d: %d blocks kept", text, n,
              atomic_load(&live));
    }
    CHECK(whole && failures > 1 && (spared == (members ? 2 : 1) || effort == NHOOD_EFFORT_MEASURE),
          "%s: %d failures, %d without effect", text, failures, spared);
}

static void bad_options(void) {
    nhood_context *context = NULL;
    nhood_context_options options = {.struct_size = sizeof options};
#define OPTIONS_REFUSED(part, change)                                                              \
    do {                                                                                           \
        nhood_context_options saved = options;                                                     \
        change;                                                                                    \
        CHECK(nhood_context_create(&options, &context) == NHOOD_ERR_ARGUMENT && !context &&        \
                  strstr(nhood_last_error(), part),                                                \
              "%s", nhood_last_error());                                                           \
        options = saved;                                                                           \
    } while (0)
    OPTIONS_REFUSED("options.struct_size = 1", options.struct_size = 1);
    OPTIONS_REFUSED("options.line_info = 2 is not 0 or 1", options.line_info = 2);
    OPTIONS_REFUSED("options.threads = 1025 is not in [0, 1024]", options.threads = 1025);
    OPTIONS_REFUSED("options.threads = -1", options.threads = -1);
    OPTIONS_REFUSED("options.isa = 'mmx'", options.isa = "mmx");
    OPTIONS_REFUSED("both or neither", options.allocate = counted_allocate);
    setenv("NHOOD_THREADS", "many", 1);
    OPTIONS_REFUSED("NHOOD_THREADS = 'many' is not in [1, 1024]", (void)0);
    setenv("NHOOD_THREADS", "2", 1);
    setenv("NHOOD_ISA", "quantum", 1);
    OPTIONS_REFUSED("NHOOD_ISA = 'quantum' is not one of", (void)0);
    unsetenv("NHOOD_ISA");
    nhood_device_info info = {.struct_size = sizeof info};
    CHECK(!nhood_context_create(&options, &context) && !nhood_device_query(context, 0, &info) &&
              info.workers == 2,
          "%s", nhood_last_error());
    unsetenv("NHOOD_THREADS");
    nhood_ceilings ceilings = {.struct_size = sizeof ceilings};
    CHECK(!nhood_device_measure(context, 0, NHOOD_DTYPE_F32, &ceilings) &&
              ceilings.flops_per_s > 1e7 && ceilings.bytes_per_s > 1e7,
          "%g %g", ceilings.flops_per_s, ceilings.bytes_per_s);
    CHECK(nhood_device_measure(context, 3, NHOOD_DTYPE_F32, &ceilings) == NHOOD_ERR_ARGUMENT,
          "device 3");
    nhood_problem problem;
    nhood_plan_options plan_options = {.struct_size = sizeof plan_options};
    nhood_plan *plan = NULL;
    nhood_problem_parse("fwd:f32:b1h1d8:9:w3", &problem);
#define PLAN_REFUSED(part, change)                                                                 \
    do {                                                                                           \
        nhood_plan_options saved = plan_options;                                                   \
        change;                                                                                    \
        CHECK(nhood_plan_create(context, 0, &problem, &plan_options, &plan) ==                     \
                      NHOOD_ERR_ARGUMENT &&                                                        \
                  !plan && strstr(nhood_last_error(), part),                                       \
              "%s", nhood_last_error());                                                           \
        plan_options = saved;                                                                      \
    } while (0)
    PLAN_REFUSED("options.struct_size = 16", plan_options.struct_size = 16);
    PLAN_REFUSED("options.solver = 'best'", plan_options.solver = "best");
    PLAN_REFUSED("options.effort = 3 is not in [0, 2]", plan_options.effort = 3);
    PLAN_REFUSED("options.effort = -1", plan_options.effort = -1);
    PLAN_REFUSED("options.budget_s = -1 is less than 0", plan_options.budget_s = -1);
    PLAN_REFUSED("options.budget_s = ", plan_options.budget_s = NAN);
    nhood_context_destroy(context);
    nhood_context_destroy(NULL);
    nhood_plan_release(NULL);
}

static char last_log[512];
static void keep_log(void *user, int32_t level, const char *line) {
    (void)user;
    (void)level;
    snprintf(last_log, sizeof last_log, "%s", line);
}

static int logged;
static void count_log(void *user, int32_t level, const char *line) {
    logged++;
    keep_log(user, level, line);
}

static nhood_status plan_once(nhood_context *context, const char *text, int32_t effort,
                              char description[512]) {
    nhood_plan_options options = {
        .struct_size = sizeof options, .effort = effort, .budget_s = 0.005};
    nhood_problem problem;
    nhood_plan *plan = NULL;
    nhood_status status = nhood_problem_parse(text, &problem);
    if (!status) status = nhood_plan_create(context, 0, &problem, &options, &plan);
    snprintf(description, 512, "%s", nhood_plan_description(plan));
    nhood_plan_release(plan);
    return status;
}

static void wisdom(void) {
    nhood_context_options options = {.struct_size = sizeof options, .cache = "", .log = keep_log};
    nhood_context *context = NULL;
    nhood_problem problem;
    char text[64], description[512];
    size_t length = 0;
    int64_t lines = 7;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    CHECK(nhood_wisdom_export(context, NULL, 0, &length) == NHOOD_ERR_ARGUMENT && length > 0,
          "length %zu", length);
    CHECK(!nhood_wisdom_export(context, text, sizeof text, &length) && strlen(text) == length, "%s",
          text);
    CHECK(nhood_wisdom_export(context, text, length, NULL) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "capacity = 15, the text needs 16"),
          "%s", nhood_last_error());
    CHECK(!nhood_wisdom_import(context, text, &lines) && lines == 0, "%s", nhood_last_error());
    CHECK(nhood_wisdom_import(context, "something else", &lines) == NHOOD_ERR_ARGUMENT,
          "a foreign header");
    CHECK(!nhood_wisdom_import(context, "nhood-wisdom 1\n\nwhat is this", &lines) && lines == 0 &&
              strstr(last_log, "line 3 left out: it has 3 fields"),
          "%s", last_log);
    CHECK(plan_once(context, "fwd:f32:b1h1d8:9:w3", NHOOD_EFFORT_WISDOM_ONLY, description) ==
                  NHOOD_ERR_CACHE_MISS &&
              strstr(nhood_last_error(), "wisdom knows nothing of this problem on cpu"),
          "%s", nhood_last_error());
    CHECK(!plan_once(context, "fwd:f32:b1h1d8:9:w3", NHOOD_EFFORT_MEASURE, description) &&
              strstr(description, " expected, by ") && strstr(description, "sample"),
          "%s", description);
    CHECK(!plan_once(context, "fwd:f32:b1h1d8:9:w3", NHOOD_EFFORT_WISDOM_ONLY, description) &&
              strstr(description, "sample"),
          "%s", description);
    CHECK(nhood_wisdom_save(context, NULL, 0) == NHOOD_ERR_CACHE_MISS &&
              nhood_wisdom_load(context, NULL, &lines) == NHOOD_ERR_CACHE_MISS,
          "no cache folder");
    nhood_problem_parse("fwd:f32:b1h1d8:9:w3", &problem);
    CHECK(!nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, &problem, &lines) && lines > 0, "%s",
          nhood_last_error());
    problem.dim = 0;
    CHECK(nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, &problem, &lines) == NHOOD_ERR_ARGUMENT &&
              nhood_wisdom_forget(context, 99, NULL, &lines) == NHOOD_ERR_ARGUMENT,
          "no such problem, no such device");
    CHECK(!nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, NULL, &lines) && lines == 0, "%lld",
          (long long)lines);
    nhood_context_destroy(context);
}

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    if (!file || fputs(text, file) < 0 || fclose(file)) exit(EXIT_FAILURE);
}

/* The cache folder: made when needed, read by every new context, never in the way when it is bad. */
static void wisdom_files(void) {
    char folder[] = "/tmp/nhood-fault-XXXXXX", cache[64], path[80], description[512];
    if (!mkdtemp(folder)) exit(EXIT_FAILURE);
    snprintf(cache, sizeof cache, "%s/a/b", folder);
    snprintf(path, sizeof path, "%s/wisdom", cache);
    nhood_context_options options = {
        .struct_size = sizeof options, .cache = cache, .log = keep_log};
    nhood_context *context = NULL;
    int64_t lines = 0;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    plan_once(context, "fwd:f32:b1h1d8:9:w3", NHOOD_EFFORT_MEASURE, description);
    CHECK(!nhood_wisdom_save(context, NULL, 0), "%s", nhood_last_error());
    nhood_context_destroy(context);
    options.cache = NULL;
    setenv("NHOOD_CACHE", cache, 1);
    CHECK(!nhood_context_create(&options, &context) &&
              !plan_once(context, "fwd:f32:b1h1d8:9:w3", NHOOD_EFFORT_WISDOM_ONLY, description),
          "%s", nhood_last_error());
    nhood_context_destroy(context);
    write_file(path, "garbage");
    CHECK(!nhood_context_create(&options, &context) && strstr(last_log, "wisdom is not used: ") &&
              strstr(last_log, "does not start with"),
          "%s", last_log);
    CHECK(nhood_wisdom_save(context, NULL, 0) == NHOOD_ERR_ARGUMENT &&
              !nhood_wisdom_save(context, NULL, 1),
          "garbage is only replaced on demand: %s", nhood_last_error());
    CHECK(!nhood_wisdom_load(context, NULL, &lines) && lines == 0, "%s", nhood_last_error());
    nhood_context_destroy(context);
    /* A file where the folder should be. */
    snprintf(cache, sizeof cache, "%s/a/b/wisdom", folder);
    setenv("NHOOD_CACHE", cache, 1);
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    CHECK(nhood_wisdom_save(context, NULL, 0) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "Not a directory"),
          "%s", nhood_last_error());
    nhood_context_destroy(context);
    setenv("NHOOD_CACHE", "", 1);
    CHECK(!nhood_context_create(&options, &context) &&
              nhood_wisdom_load(context, NULL, NULL) == NHOOD_ERR_CACHE_MISS,
          "an empty name is no folder");
    nhood_context_destroy(context);
    unlink(path);
    snprintf(path, sizeof path, "%s/a/b", folder);
    rmdir(path);
    snprintf(path, sizeof path, "%s/a", folder);
    CHECK(!rmdir(path) && !rmdir(folder), "files are left in %s", folder);
}

/* A folder that others may write to is neither read nor written, with one warning; a folder that is not known, or whose path is
 * too long, is no reason to fail; '~' stands for the home folder. */
static void cache_folders(void) {
    char folder[] = "/tmp/nhood-fault-XXXXXX", path[80], description[512];
    static char home[5001];
    nhood_context_options options = {.struct_size = sizeof options, .log = count_log};
    nhood_context *context = NULL;
    int64_t lines = 0;
    if (!mkdtemp(folder)) exit(EXIT_FAILURE);
    chmod(folder, 0777);
    snprintf(path, sizeof path, "%s/wisdom", folder);
    write_file(path, "nhood-wisdom 1\nchip fwd:f32:b1h1d8:9:w3 cpu.fused - 100 7\n");
    setenv("NHOOD_CACHE", folder, 1);
    logged = 0;
    CHECK(!nhood_context_create(&options, &context) && logged == 1 &&
              strstr(last_log, "is not used: owner"),
          "%d lines logged, %s", logged, last_log);
    CHECK(!nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, NULL, &lines) && lines == 0,
          "%lld lines were read", (long long)lines);
    plan_once(context, "fwd:f32:b1h1d8:9:w3", NHOOD_EFFORT_MEASURE, description);
    CHECK(nhood_wisdom_save(context, NULL, 1) == NHOOD_ERR_CACHE_MISS &&
              strstr(nhood_last_error(), "the context has no cache folder: '/tmp/nhood-fault-"),
          "%s", nhood_last_error());
    nhood_context_destroy(context);
    chmod(folder, 0700);
    CHECK(!nhood_context_create(&options, &context) &&
              !nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, NULL, &lines) && lines == 1,
          "%lld lines were read: %s", (long long)lines, nhood_last_error());
    nhood_context_destroy(context);

    char *kept = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    setenv("HOME", folder, 1);
    setenv("NHOOD_CACHE", "~", 1);
    CHECK(!nhood_context_create(&options, &context) &&
              !nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, NULL, &lines) && lines == 1,
          "%lld lines were read: %s", (long long)lines, nhood_last_error());
    nhood_context_destroy(context);
    options.cache = "~other/cache";
    CHECK(nhood_context_create(&options, &context) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "options.cache = '~other/cache': only '~' alone"),
          "%s", nhood_last_error());
    options.cache = NULL;
    unsetenv("HOME");
    CHECK(nhood_context_create(&options, &context) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "NHOOD_CACHE = '~', but the home folder is not known"),
          "%s", nhood_last_error());
    unsetenv("NHOOD_CACHE");
    unsetenv("XDG_CACHE_HOME");
    CHECK(!nhood_context_create(&options, &context) &&
              nhood_wisdom_save(context, NULL, 0) == NHOOD_ERR_CACHE_MISS &&
              strstr(nhood_last_error(), "neither XDG_CACHE_HOME nor HOME is an absolute path"),
          "%s", nhood_last_error());
    nhood_context_destroy(context);
    memset(home, '/', sizeof home - 1);
    setenv("HOME", home, 1);
    CHECK(!nhood_context_create(&options, &context) && strstr(last_log, "has 5013 bytes"), "%s",
          last_log);
    nhood_context_destroy(context);
    if (kept) setenv("HOME", kept, 1);
    if (!kept) unsetenv("HOME");
    free(kept);
    setenv("NHOOD_CACHE", "", 1);
    CHECK(!unlink(path) && !rmdir(folder), "files are left in %s", folder);
}

static void after_fork(void) {
    struct test_case c;
    nhood_context_options options = {.struct_size = sizeof options, .threads = 4};
    nhood_context *context = NULL;
    nhood_context_create(&options, &context);
    case_create(&c, "fwd:f32:b4h4d16:30x30:w7x7", 3);
    CHECK(!case_run(context, &c, NULL), "%s", nhood_last_error());
    double before = case_get(&c, NHOOD_O, 1000);
    pid_t child = fork();
    if (child == 0) {
        case_set(&c, NHOOD_O, 1000, 0);
        int bad = case_run(context, &c, NULL) != NHOOD_OK || case_get(&c, NHOOD_O, 1000) != before;
        nhood_context_destroy(context);
        _exit(bad);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a forked child could not execute");
    case_destroy(&c);
    nhood_context_destroy(context);
}

int main(void) {
    setenv("NHOOD_CACHE", "", 1); /* whatever this machine has been tuned for */
    failing_allocations("fwd:f32:b1h2d8:9x9:w3x3:rpb", "cpu.fused", NHOOD_EFFORT_ESTIMATE, 0);
    failing_allocations("bwd:f32:b1h2d8:9x9:w3x3:rpb:x2", "cpu.fused", NHOOD_EFFORT_ESTIMATE, 0);
    failing_allocations("pn:f64:b1h2d8:40:w5", "cpu.unfused", NHOOD_EFFORT_ESTIMATE, 0);
    failing_allocations("in:f32:b1h2d8:4x5x6:w3x3x3", "cpu.unfused", NHOOD_EFFORT_ESTIMATE, 0);
    failing_allocations("bwd:f32:b1h2d8:9x9:w3x3", "reference", NHOOD_EFFORT_ESTIMATE, 0);
    failing_allocations("fwd:f32:b1h2d8:9x9:w3x3:rpb", NULL, NHOOD_EFFORT_MEASURE, 0);
    failing_allocations("bwd:bf16:b1h2d8:9x9:w3x3:x2", NULL, NHOOD_EFFORT_MEASURE, 0);
    failing_allocations("bwd:f32:b1h2d8:9x9:w3x3", "cpu.fused", NHOOD_EFFORT_ESTIMATE, 3);
    failing_allocations("fwd:f32:b1h2d8:9x9:w3x3", "reference", NHOOD_EFFORT_ESTIMATE, 3);
    bad_options();
    wisdom();
    cache_folders();
    wisdom_files();
    after_fork();
    return test_result();
}
