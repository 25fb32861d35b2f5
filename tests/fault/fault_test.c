/* Failing allocations at every call, bad options and environment, use after fork. */
#include "case.h"

#include <stdatomic.h>
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

/* Everything a plan allocates, with allocation number n failing, for every n; all is given back. */
static void failing_allocations(const char *text, const char *solver) {
    nhood_context_options options = {.struct_size = sizeof options,
                                     .threads = 3,
                                     .allocate = counted_allocate,
                                     .release = counted_release};
    nhood_plan_options plan_options = {.struct_size = sizeof plan_options, .solver = solver};
    nhood_problem problem;
    nhood_problem_parse(text, &problem);
    int failures = 0, made = 0;
    for (int n = 0; !made && n < 1000; n++) {
        nhood_context *context = NULL;
        nhood_plan *plan = NULL;
        atomic_store(&calls, 0);
        atomic_store(&fail_at, n);
        nhood_status status = nhood_context_create(&options, &context);
        if (!status) status = nhood_plan_create(context, 0, &problem, &plan_options, &plan);
        made = status == NHOOD_OK;
        failures += !made;
        CHECK(made || (status == NHOOD_ERR_MEMORY && !plan), "%s, allocation %d: %s", text, n,
              nhood_last_error());
        nhood_plan_release(plan);
        nhood_context_destroy(context);
        CHECK(atomic_load(&live) == 0, "%s, allocation %d: %d blocks kept", text, n,
              atomic_load(&live));
    }
    CHECK(made && failures > 1, "%s: %d failures", text, failures);
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
    OPTIONS_REFUSED("options.threads = 1025 is not in [0, 1024]", options.threads = 1025);
    OPTIONS_REFUSED("options.threads = -1", options.threads = -1);
    OPTIONS_REFUSED("options.isa = 'mmx'", options.isa = "mmx");
    OPTIONS_REFUSED("both or neither", options.allocate = counted_allocate);
    setenv("NHOOD_THREADS", "many", 1);
    OPTIONS_REFUSED("NHOOD_THREADS = 'many' is not in [1, 1024]", (void)0);
    setenv("NHOOD_THREADS", "2", 1);
    setenv("NHOOD_ISA", "quantum", 1);
    OPTIONS_REFUSED("'quantum'", (void)0);
    unsetenv("NHOOD_ISA");
    nhood_device_info info = {.struct_size = sizeof info};
    CHECK(!nhood_context_create(&options, &context) && !nhood_device_query(context, 0, &info) &&
              info.workers == 2,
          "%s", nhood_last_error());
    unsetenv("NHOOD_THREADS");
    nhood_ceilings ceilings = {.struct_size = sizeof ceilings};
    CHECK(!nhood_device_measure(context, 0, NHOOD_DTYPE_F32, &ceilings) &&
              ceilings.flops_per_s > 1e8 && ceilings.bytes_per_s > 1e7,
          "%g %g", ceilings.flops_per_s, ceilings.bytes_per_s);
    CHECK(nhood_device_measure(context, 3, NHOOD_DTYPE_F32, &ceilings) == NHOOD_ERR_ARGUMENT,
          "device 3");
    nhood_context_destroy(context);
    nhood_context_destroy(NULL);
    nhood_plan_release(NULL);
}

static int logged;
static void count_log(void *user, int32_t level, const char *line) {
    (void)user;
    (void)level;
    logged += strstr(line, "line 3") != NULL;
}

static void wisdom(void) {
    nhood_context_options options = {.struct_size = sizeof options, .log = count_log};
    nhood_context *context = NULL;
    char text[64];
    size_t length = 0;
    int64_t accepted = 7;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    CHECK(nhood_wisdom_export(context, NULL, 0, &length) == NHOOD_ERR_ARGUMENT && length > 0,
          "length %zu", length);
    CHECK(!nhood_wisdom_export(context, text, sizeof text, &length) && strlen(text) == length, "%s",
          text);
    CHECK(!nhood_wisdom_import(context, text, &accepted) && accepted == 0, "%s",
          nhood_last_error());
    CHECK(nhood_wisdom_import(context, "something else", &accepted) == NHOOD_ERR_ARGUMENT,
          "a foreign header");
    CHECK(!nhood_wisdom_import(context, "nhood-wisdom 1\n\nwhat is this", &accepted) && logged == 1,
          "%d lines", logged);
    nhood_context_destroy(context);
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
    failing_allocations("fwd:f32:b1h2d8:9x9:w3x3:rpb", "cpu.fused");
    failing_allocations("bwd:f32:b1h2d8:9x9:w3x3:rpb:x2", "cpu.fused");
    failing_allocations("pn:f64:b1h2d8:40:w5", "cpu.unfused");
    failing_allocations("in:f32:b1h2d8:4x5x6:w3x3x3", "cpu.unfused");
    failing_allocations("bwd:f32:b1h2d8:9x9:w3x3", "reference");
    bad_options();
    wisdom();
    after_fork();
    return test_result();
}
