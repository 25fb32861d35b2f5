/* Long calls that the application interrupts: they end within a second, by an error that says so, and what follows is right. */
#include "case.h"

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

static const char large[] = "fwd:f32:b2h4d32:128x128:w127x127"; /* seconds on a core */
static const char large_backward[] = "bwd:f32:b2h4d32:128x128:w63x63";
static const char small[] = "fwd:f32:b1h2d8:20x20:w5x5";

/* The processor time of all threads, so that other load of the machine does not count. */
static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static struct {
    atomic_bool wanted;
    atomic_int asked, elsewhere; /* how often, and how often by another thread than the caller */
    pthread_t caller;
} application;

static int32_t ask(void *user) {
    CHECK(user == &application, "another user");
    atomic_fetch_add(&application.asked, 1);
    if (!pthread_equal(pthread_self(), application.caller))
        atomic_fetch_add(&application.elsewhere, 1);
    return atomic_load(&application.wanted);
}

struct share {
    int64_t count;
    nhood_parallel_body body;
    void *arg;
};

static void *take_odd(void *argument) {
    const struct share *share = argument;
    for (int64_t i = 1; i < share->count; i += 2)
        share->body(share->arg, i, 1);
    return NULL;
}

static void loop_of_application(void *user, int64_t count, nhood_parallel_body body, void *arg) {
    (void)user;
    struct share share = {count, body, arg};
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, take_odd, &share), "no thread");
    for (int64_t i = 0; i < count; i += 2)
        body(arg, i, 0);
    pthread_join(thread, NULL);
}

static nhood_context *create(int32_t threads, bool own_loop) {
    const nhood_context_options options = {.struct_size = sizeof options,
                                           .threads = threads,
                                           .cache = "",
                                           .user = &application,
                                           .parallel_for = own_loop ? loop_of_application : NULL,
                                           .interrupted = ask};
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    return context;
}

/* The sum of a small problem's results, or NAN. */
static double compute_small(nhood_context *context, const char *solver) {
    struct test_case c;
    case_create(&c, small, 1);
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    double sum = NAN;
    if (!nhood_plan_create(context, 0, &c.problem, &options, &plan)) {
        c.io.workspace_bytes = nhood_plan_workspace_bytes(plan);
        c.io.workspace = test_allocate(c.io.workspace_bytes + 64);
        if (!nhood_plan_execute(plan, &c.io)) sum = 0;
        for (int64_t i = 0; i < c.elements[NHOOD_O]; i++)
            sum += case_get(&c, NHOOD_O, i) * (double)(i % 7);
        test_free(c.io.workspace);
    }
    nhood_plan_release(plan);
    case_destroy(&c);
    return sum;
}

/* Whoever computes asks after each block of queries, which takes up to 0.1 s, and 1 s with sanitizers. */
static void check_end(nhood_status status, double start, const char *what) {
    const double taken = seconds() - start;
    CHECK(status == NHOOD_ERR_INTERRUPTED && strstr(nhood_last_error(), "interrupted") &&
              taken < MOST_SECONDS,
          "%s: %s after %g s, %s", what, nhood_status_name(status), taken, nhood_last_error());
    CHECK(atomic_load(&application.asked) > 0 && !atomic_load(&application.elsewhere),
          "%s: asked %d times, %d by other threads", what, atomic_load(&application.asked),
          atomic_load(&application.elsewhere));
}

static void begin(bool wanted) {
    atomic_store(&application.wanted, wanted);
    atomic_store(&application.asked, 0);
    atomic_store(&application.elsewhere, 0);
}

static void check_execute(const char *text, const char *solver, int32_t threads, bool own_loop,
                          bool group) {
    char what[128];
    snprintf(what, sizeof what, "%s %s, %d threads%s%s", text, solver, (int)threads,
             own_loop ? ", application's loop" : "", group ? ", group" : "");
    nhood_context *context = create(threads, own_loop);
    begin(false);
    const double expected = compute_small(context, solver);
    struct test_case c;
    case_create(&c, text, 2);
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    const nhood_status made =
        group ? nhood_plan_create_group(context, 0, &c.problem, 1, &options, &plan)
              : nhood_plan_create(context, 0, &c.problem, &options, &plan);
    CHECK(!made, "%s: %s", what, nhood_last_error());
    c.io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    c.io.workspace = test_allocate(c.io.workspace_bytes + 64);
    const nhood_group_io members = {.struct_size = sizeof members,
                                    .count = 1,
                                    .member = &c.io,
                                    .workspace = c.io.workspace,
                                    .workspace_bytes = c.io.workspace_bytes};
    for (int turn = 0; turn < 2; turn++) { /* the plan can be used again */
        begin(true);
        const double start = seconds();
        check_end(group ? nhood_plan_execute_group(plan, &members)
                        : nhood_plan_execute(plan, &c.io),
                  start, what);
    }
    begin(false);
    const double got = compute_small(context, solver);
    CHECK(got == expected, "%s: %g, expected %g", what, got, expected);
    test_free(c.io.workspace);
    nhood_plan_release(plan);
    nhood_context_destroy(context);
    case_destroy(&c);
}

static void check_measuring(void) {
    nhood_context *context = create(2, false);
    nhood_problem problem;
    nhood_plan *plan = NULL;
    const nhood_plan_options options = {.struct_size = sizeof options,
                                        .effort = NHOOD_EFFORT_MEASURE};
    CHECK(!nhood_problem_parse(large, &problem), "%s", nhood_last_error());
    begin(true);
    const double start = seconds();
    check_end(nhood_plan_create(context, 0, &problem, &options, &plan), start, "measuring");
    CHECK(!plan, "a plan");
    size_t length = 0;
    nhood_wisdom_export(context, NULL, 0, &length);
    CHECK(length == strlen("nhood-wisdom 1\n"), "a run that was cut off is in wisdom: %zu bytes",
          length);
    nhood_context_destroy(context);
}

int main(void) {
    application.caller = pthread_self();
    CHECK(!strcmp(nhood_status_name(NHOOD_ERR_INTERRUPTED), "NHOOD_ERR_INTERRUPTED"), "name");
    check_execute(large, "cpu.fused", 1, false, false);
    check_execute(large, "cpu.fused", 2, false, false);
    check_execute(large_backward, "cpu.fused", 2, false, false);
    check_execute(large, "cpu.fused", 2, true, false);
    check_execute(large, "cpu.fused", 2, false, true);
    check_execute(large_backward, "cpu.fused", 2, false, true);
    check_execute(large, "reference", 1, false, false);
    check_execute(large_backward, "reference", 1, false, false);
    check_measuring();
    return test_result();
}
