/* The library's threads: which signals they take, what happens where they cannot be started, and calls of threads that are
 * cancelled. */
#include "case.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

/* ---- every thread passes here on its way to the C library's function ---- */

static atomic_int created, unmasked; /* threads; those that some signal could interrupt */
static atomic_int room = 1000;       /* threads that may still be started */
static atomic_bool counting;

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

__attribute__((visibility("default"))) int pthread_create(pthread_t *thread,
                                                          const pthread_attr_t *attributes,
                                                          void *(*body)(void *), void *argument) {
    static create_fn *real;
    void *address = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&real, &address, sizeof real);
    if (atomic_load(&counting)) {
        sigset_t mask;
        pthread_sigmask(SIG_BLOCK, NULL, &mask);
        const int signals[] = {SIGINT,  SIGTERM, SIGALRM, SIGCHLD,
                               SIGUSR1, SIGUSR2, SIGPROF, SIGHUP};
        bool masked = true;
        for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
            masked &= sigismember(&mask, signals[i]) == 1;
        masked &= !sigismember(&mask, SIGSEGV) && !sigismember(&mask, SIGBUS);
        atomic_fetch_add(&created, 1);
        atomic_fetch_add(&unmasked, !masked);
        if (atomic_fetch_sub(&room, 1) <= 0) return EAGAIN;
    }
    return real(thread, attributes, body, argument);
}

static char log_text[4096];

static void keep_log(void *user, int32_t level, const char *line) {
    (void)user;
    (void)level;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
}

static nhood_context *create(int32_t threads) {
    nhood_context_options options = {
        .struct_size = sizeof options, .threads = threads, .cache = "", .log = keep_log};
    nhood_context *context = NULL;
    atomic_store(&counting, true);
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    atomic_store(&counting, false);
    return context;
}

static nhood_status measure(nhood_context *context, const char *text, double budget_s) {
    nhood_problem problem;
    nhood_plan_options options = {
        .struct_size = sizeof options, .effort = NHOOD_EFFORT_MEASURE, .budget_s = budget_s};
    nhood_plan *plan = NULL;
    nhood_status status = nhood_problem_parse(text, &problem);
    if (!status) status = nhood_plan_create(context, 0, &problem, &options, &plan);
    nhood_plan_release(plan);
    return status;
}

/* ---- signals ---- */

static atomic_int handled, strangers;
static pthread_t main_thread;

static void handle(int number) {
    (void)number;
    handled++;
    if (!pthread_equal(pthread_self(), main_thread)) strangers++;
}

static void signals(void) {
    struct sigaction action = {.sa_handler = handle};
    sigset_t set;
    struct test_case c;
    main_thread = pthread_self();
    sigaction(SIGUSR1, &action, NULL);
    nhood_context *context = create(4);
    CHECK(atomic_load(&created) == 3, "%d threads of the pool", atomic_load(&created));
    atomic_store(&counting, true);
    CHECK(!measure(context, "fwd:f32:b1h2d16:64x64:w7x7", 0.01), "%s", nhood_last_error());
    atomic_store(&counting, false);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1)
        CHECK(atomic_load(&created) > 3, "measuring starts threads that build");
    CHECK(atomic_load(&unmasked) == 0, "%d threads take signals, or hide their faults",
          atomic_load(&unmasked));
    /* While the application's only thread does not take it, the signal waits. */
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    case_create(&c, "fwd:f32:b2h2d16:40x40:w7x7", 1);
    for (int i = 0; i < 50; i++) {
        kill(getpid(), SIGUSR1);
        CHECK(!case_run(context, &c, NULL), "%s", nhood_last_error());
    }
    CHECK(atomic_load(&handled) == 0, "%d signals were handled", atomic_load(&handled));
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    CHECK(atomic_load(&handled) == 1 && atomic_load(&strangers) == 0,
          "%d handled, %d of them by threads of the library", atomic_load(&handled),
          atomic_load(&strangers));
    sigset_t after;
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    CHECK(!sigismember(&after, SIGINT) && !sigismember(&after, SIGUSR1), "the caller's own mask");
    case_destroy(&c);
    nhood_context_destroy(context);
}

/* ---- threads that cannot be started ---- */

static void no_room(void) {
    for (int allowed = 0; allowed < 4; allowed++) {
        struct test_case c, alone;
        nhood_device_info info = {.struct_size = sizeof info};
        char threads[32], warning[80];
        atomic_store(&room, allowed);
        *log_text = '\0';
        nhood_context *context = create(4);
        atomic_store(&room, 1000);
        nhood_context *single = create(1);
        nhood_device_query(context, 0, &info);
        snprintf(threads, sizeof threads, ", %d thread%s", allowed + 1, allowed ? "s" : "");
        snprintf(warning, sizeof warning, "CPU thread %d of 4 could not be started (", allowed + 2);
        CHECK(info.workers == allowed + 1 && strstr(info.description, threads), "%d workers, '%s'",
              (int)info.workers, info.description);
        CHECK(!strstr(log_text, "could not be started") == (allowed == 3) &&
                  (allowed == 3 || strstr(log_text, warning)),
              "%s", log_text);
        case_create(&c, "bwd:f32:b2h2d16:40x40:w7x7", 1);
        case_create(&alone, "bwd:f32:b2h2d16:40x40:w7x7", 1);
        CHECK(!case_run(context, &c, NULL), "%s", nhood_last_error());
        CHECK(!case_run(single, &alone, NULL), "%s", nhood_last_error());
        CHECK(case_difference(&c, &alone, NHOOD_D_K) == 0, "%d threads started", allowed);
        atomic_store(&room, 0);
        atomic_store(&counting, true);
        CHECK(!measure(context, "fwd:f32:b1h2d16:64x64:w7x7", 0.01), "%s", nhood_last_error());
        atomic_store(&counting, false);
        atomic_store(&room, 1000);
        case_destroy(&c);
        case_destroy(&alone);
        nhood_context_destroy(context);
        nhood_context_destroy(single);
    }
}

/* ---- cancelled threads ---- */

static nhood_context *shared;

static void *execute_always(void *argument) {
    struct test_case *c = argument;
    for (;;) {
        case_run(shared, c, NULL);
        pthread_testcancel();
    }
    return NULL;
}

static void *measure_always(void *argument) {
    for (int64_t i = 0;; i++) {
        char text[64];
        snprintf(text, sizeof text, "fwd:f32:b%lldh1d8:64:w5", 1 + (long long)(i % 20));
        nhood_wisdom_forget(shared, NHOOD_ANY_DEVICE, NULL, NULL);
        measure(shared, text, 0.002);
        nhood_wisdom_save(shared, argument, 0);
        pthread_testcancel();
    }
    return NULL;
}

/* Whatever a thread was doing when it was cancelled, the next calls of others return. What it had allocated itself is lost:
 * its tests' memory, not the library's. */
static void cancellation(void) {
    static struct test_case c[2];
    char folder[] = "/tmp/nhood-cancel-XXXXXX", path[64];
    if (!mkdtemp(folder)) exit(EXIT_FAILURE);
    snprintf(path, sizeof path, "%s/wisdom", folder);
    shared = create(4);
    case_create(&c[0], CANCELLED, 1);
    case_create(&c[1], CANCELLED, 1);
    for (int round = 0; round < 40; round++) {
        pthread_t thread;
        alarm(300);
        if (round % 2) {
            pthread_create(&thread, NULL, measure_always, path);
        } else {
            pthread_create(&thread, NULL, execute_always, &c[0]);
        }
        usleep((useconds_t)(500 + 731 * round % 7000));
        pthread_cancel(thread);
        pthread_join(thread, NULL);
        CHECK(!case_run(shared, &c[1], NULL), "round %d: %s", round, nhood_last_error());
        CHECK(!measure(shared, "fwd:f32:b1h1d8:99:w5", 0.001), "round %d: %s", round,
              nhood_last_error());
    }
    nhood_context_destroy(shared);
    alarm(0);
    case_destroy(&c[0]);
    case_destroy(&c[1]);
    unlink(path);
    CHECK(!rmdir(folder), "files are left in %s", folder);
}

static void timed_out(int number) {
    static const char text[] = "timed out: a call waits for a thread that was cancelled\n";
    (void)number;
    if (write(STDOUT_FILENO, text, sizeof text - 1) < 0) _exit(3);
    _exit(2);
}

int main(void) {
    struct sigaction action = {.sa_handler = timed_out};
    setvbuf(stdout, NULL, _IOLBF, 0);
    sigaction(SIGALRM, &action, NULL);
    alarm(300);
    signals();
    no_room();
    cancellation();
    return test_result();
}
