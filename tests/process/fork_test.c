/* Forks while other threads plan, measure, execute, import and save: each child plans, measures and executes in time. */
#include "case.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FORKS = 150, LEAST_FORKS = 25, SECONDS = 4, CHILD_SECONDS = 120, TEXT_BYTES = 1 << 20 };

static nhood_context *context;
static atomic_bool stop;

static nhood_context *create(void) {
    nhood_context_options options = {.struct_size = sizeof options, .threads = 3, .cache = ""};
    nhood_context *created = NULL;
    if (nhood_context_create(&options, &created)) exit(EXIT_FAILURE);
    return created;
}

static nhood_status plan(nhood_context *on, int64_t length, int32_t effort) {
    nhood_problem problem;
    nhood_plan_options options = {
        .struct_size = sizeof options, .effort = effort, .budget_s = 0.003};
    nhood_plan *made = NULL;
    nhood_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 1);
    problem.axis[0].length = length;
    problem.axis[0].window = 3;
    nhood_status status = nhood_plan_create(on, 0, &problem, &options, &made);
    nhood_plan_release(made);
    return status;
}

static void *plan_on(void *argument) {
    for (int64_t length = 10; !atomic_load(&stop); length = length % 5000 + 1 + 10)
        CHECK(!plan(context, length, NHOOD_EFFORT_ESTIMATE), "%s", nhood_last_error());
    return argument;
}

static void *measure_on(void *argument) {
    for (int64_t length = 10; !atomic_load(&stop); length++) {
        CHECK(!plan(context, length, NHOOD_EFFORT_MEASURE), "%s", nhood_last_error());
        if (length % 8 == 0) nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, NULL, NULL);
    }
    return argument;
}

static void *execute_on(void *argument) {
    struct test_case c;
    case_create(&c, "fwd:f32:b2h2d16:40x40:w7x7", 1);
    while (!atomic_load(&stop))
        CHECK(!case_run(context, &c, NULL), "%s", nhood_last_error());
    case_destroy(&c);
    return argument;
}

/* Contexts come and go, with their locks. */
static void *remember_on(void *argument) {
    static char text[TEXT_BYTES];
    while (!atomic_load(&stop)) {
        nhood_context *other = create();
        nhood_status status = nhood_wisdom_export(context, text, sizeof text, NULL);
        if (!status) status = nhood_wisdom_import(other, text, NULL);
        if (!status) status = nhood_wisdom_forget(other, NHOOD_ANY_DEVICE, NULL, NULL);
        CHECK(!status, "%s", nhood_last_error());
        nhood_context_destroy(other);
        usleep(1000);
    }
    return argument;
}

/* What a child does; returns what went wrong. */
static int live(int number, struct test_case *c, double expected) {
    static char text[TEXT_BYTES];
    alarm(CHILD_SECONDS);
    if (plan(context, 20000 + number, NHOOD_EFFORT_ESTIMATE)) return 2;
    if (plan(context, 30000 + number, NHOOD_EFFORT_MEASURE)) return 3;
    case_set(c, NHOOD_O, 1000, 0);
    if (case_run(context, c, NULL) || case_get(c, NHOOD_O, 1000) != expected) return 4;
    if (nhood_wisdom_export(context, text, sizeof text, NULL)) return 5;
    nhood_context *other = create();
    if (case_run(other, c, NULL) || case_get(c, NHOOD_O, 1000) != expected) return 6;
    nhood_context_destroy(other);
    nhood_context_destroy(context);
    return 0;
}

int main(void) {
    void *(*const work[])(void *) = {plan_on,    plan_on,    measure_on,
                                     measure_on, execute_on, remember_on};
    enum { THREADS = sizeof work / sizeof work[0] };
    pthread_t thread[THREADS];
    struct test_case c;
    context = create();
    case_create(&c, "fwd:f32:b4h4d16:30x30:w7x7", 3);
    CHECK(!case_run(context, &c, NULL), "%s", nhood_last_error());
    double expected = case_get(&c, NHOOD_O, 1000);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, work[i], NULL);
    const time_t start = time(NULL);
    for (int i = 0; i < MOST_FORKS && !test_failed; i++) {
        if (i >= LEAST_FORKS && time(NULL) - start > SECONDS) break;
        pid_t child = fork();
        if (child == 0) _exit(live(i, &c, expected));
        int status = 0;
        waitpid(child, &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child %d: %s %d", i,
              WIFEXITED(status) ? "exit status" : "signal",
              WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    case_destroy(&c);
    nhood_context_destroy(context);
    return test_result();
}
