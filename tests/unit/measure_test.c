/* Measuring on a device whose times are made up: who is timed how often, what is remembered, and what a failure
 * anywhere leaves behind. */
#include "measure.h"

#include "test.h"

#include "fake_solvers.h"

#include <time.h>

/* ---- a device ---- */

/* What each solver's configs take; 0: running it fails. */
static double quick_ns[FAKE_CONFIGS], other_ns[FAKE_CONFIGS];
static int runs, memory_live, clocks_live, allocations, failing_allocation = -1;
static double run_lasts_s, build_lasts_s;
static bool write_fails, clock_fails;

static void pause_for(double seconds) {
    struct timespec pause = {0, (long)(seconds * 1e9)};
    if (seconds > 0) nanosleep(&pause, NULL);
}

static nhood_status device_allocate(const struct nh_device *device, size_t bytes, void **memory) {
    (void)device;
    if (allocations++ == failing_allocation) return nh_error(NHOOD_ERR_MEMORY, "no room");
    *memory = test_allocate(bytes);
    memory_live++;
    return NHOOD_OK;
}

static void device_release(const struct nh_device *device, void *memory) {
    (void)device;
    memory_live--;
    test_free(memory);
}

static nhood_status device_write(const struct nh_device *device, void *memory, const void *data,
                                 size_t bytes) {
    (void)device;
    if (write_fails) return nh_error(NHOOD_ERR_DEVICE, "no copy");
    memcpy(memory, data, bytes);
    return NHOOD_OK;
}

static double mean_square(const float *data, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)data[i] * (double)data[i];
    return sum / (double)count;
}

static nhood_status device_clock(const struct nh_device *device, void **clock) {
    (void)device;
    if (clock_fails) return nh_error(NHOOD_ERR_DEVICE, "no clock");
    clocks_live++;
    *clock = &clocks_live;
    return NHOOD_OK;
}

static void device_clock_destroy(const struct nh_device *device, void *clock) {
    (void)device;
    CHECK(clock == &clocks_live && clocks_live-- == 1, "one clock");
}

static nhood_status device_run(const struct nh_device *device, void *clock,
                               const struct nh_operation *operation, const nhood_io *io,
                               double *ns) {
    (void)device;
    CHECK(clock == &clocks_live && clocks_live == 1, "the clock of this contest");
    const struct fake_operation *fake = (const struct fake_operation *)operation;
    CHECK(io->workspace_bytes >= operation->workspace_bytes && io->workspace, "workspace");
    double square = mean_square(io->data[NHOOD_Q], 9 * 8);
    CHECK(square > 0.6 && square < 1.5 && io->data[NHOOD_LSE] && !io->data[NHOOD_BIAS] &&
              !io->data[NHOOD_D_Q],
          "inputs of variance %g", square);
    *ns = (strcmp(fake->solver, "quick") ? other_ns : quick_ns)[fake->config];
    /* The first run of all is a slow one: a warm-up that must not count. */
    if (runs++ == 0) *ns *= 1000;
    pause_for(run_lasts_s);
    return *ns > 0 ? NHOOD_OK : nh_error(NHOOD_ERR_DEVICE, "it does not run");
}

static const struct nh_timing timing = {device_allocate, device_release,       device_write,
                                        device_clock,    device_clock_destroy, device_run};

/* ---- solvers ---- */

static atomic_int strided_builds;
static bool quick_compiles;
static double far_ns;

static nhood_status build_quick(const struct nh_solver *solver, const struct nh_problem *given,
                                const struct nh_device *device, const struct nh_config *config,
                                struct nh_operation **operation) {
    (void)solver;
    (void)device;
    strided_builds += given->strides[NHOOD_Q].head != 8;
    pause_for(build_lasts_s);
    if (!quick_compiles) return nh_error(NHOOD_ERR_COMPILE, "syntax error");
    return fake_build("quick", config, operation);
}

static nhood_status build_other(const struct nh_solver *solver, const struct nh_problem *given,
                                const struct nh_device *device, const struct nh_config *config,
                                struct nh_operation **operation) {
    (void)solver;
    (void)given;
    (void)device;
    return fake_build("other", config, operation);
}

static double soon(const struct nh_solver *solver, const struct nh_problem *given,
                   const struct nh_device *device, const struct nh_config *config,
                   struct nh_count *count) {
    (void)solver;
    (void)given;
    (void)device;
    (void)count;
    return 100 + config->value[0];
}

static double later(const struct nh_solver *solver, const struct nh_problem *given,
                    const struct nh_device *device, const struct nh_config *config,
                    struct nh_count *count) {
    (void)solver;
    (void)given;
    (void)device;
    (void)count;
    return 200 + config->value[0];
}

static double far_off(const struct nh_solver *solver, const struct nh_problem *given,
                      const struct nh_device *device, const struct nh_config *config,
                      struct nh_count *count) {
    (void)solver;
    (void)given;
    (void)device;
    (void)count;
    (void)config;
    return far_ns;
}

static const struct nh_solver quick = {
    "quick", 0,           0,    fake_knobs, NULL, fake_takes, fake_candidates,
    soon,    build_quick, NULL, NULL,       NULL, NULL,       NULL};
static const struct nh_solver other = {
    "other", 0,           0,    fake_knobs, NULL, fake_takes, fake_candidates,
    later,   build_other, NULL, NULL,       NULL, NULL,       NULL};
static const struct nh_solver hopeless = {
    "hopeless", 0,           0,    fake_knobs, NULL, fake_takes, fake_candidates,
    far_off,    build_other, NULL, NULL,       NULL, NULL,       NULL};
static const struct nh_solver *const table[] = {&quick, &other, &hopeless, NULL};

static struct nh_host host;
static struct nh_device device = {
    .info = {.name = "test", .description = "a chip"}, .host = &host, .timing = &timing};
static struct nh_problem problem;

static void restore(void) {
    for (int i = 0; i < FAKE_CONFIGS; i++) {
        quick_ns[i] = 1000 + i;
        other_ns[i] = 900 + 100 * i;
    }
    runs = allocations = 0;
    fake_built = 0;
    failing_allocation = -1;
    run_lasts_s = build_lasts_s = 0;
    write_fails = clock_fails = false;
    quick_compiles = true;
    far_ns = 1e6;
}

struct counts {
    int records;
    int64_t least_samples, most_samples;
};

static void count_record(void *user, const struct nh_wisdom_record *record) {
    struct counts *counts = user;
    counts->records++;
    counts->least_samples = nh_min(counts->least_samples, record->samples);
    counts->most_samples = nh_max(counts->most_samples, record->samples);
}

/* Measures with wisdom of its own, and ranks by it. */
static nhood_status measured(double budget_s, const char *only, struct counts *counts,
                             struct nh_choice *winner) {
    struct nh_wisdom *wisdom = NULL;
    struct nh_wisdom_key key;
    nh_wisdom_create(&host, &wisdom);
    struct nh_request request = {table, &device, &problem, only, wisdom};
    pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER;
    nhood_status status = nh_measure(&request, budget_s, &alone);
    *counts = (struct counts){0, INT64_MAX, 0};
    nh_wisdom_key(&device, &problem, &key);
    nh_wisdom_visit(wisdom, &key, count_record, counts);
    nh_planner_choose(&request, winner);
    nh_wisdom_destroy(wisdom);
    CHECK(strided_builds == 0, "%d operations on tensors that are not packed", (int)strided_builds);
    CHECK(fake_live == 0 && memory_live == 0 && clocks_live == 0,
          "%d operations and %d blocks kept", (int)fake_live, memory_live);
    return status;
}

static void contests(void) {
    struct counts counts;
    struct nh_choice winner;
    restore();
    CHECK(!measured(0, NULL, &counts, &winner), "%s", nhood_last_error());
    CHECK(counts.records == 6 && winner.solver == &other && winner.config.value[0] == 0 &&
              winner.measured_ns == 900 && counts.least_samples >= 7,
          "%d records, %s, %lld ns, at least %lld samples", counts.records, winner.solver->name,
          (long long)winner.measured_ns, (long long)counts.least_samples);
    CHECK(fake_built == 6, "the hopeless are not even built: %d", (int)fake_built);

    restore();
    other_ns[1] = 2500;
    other_ns[2] = 9500;
    measured(0, NULL, &counts, &winner);
    CHECK(counts.records == 6 && counts.least_samples == 1 && counts.most_samples >= 7,
          "who is far behind drops out, but is remembered: %lld to %lld samples",
          (long long)counts.least_samples, (long long)counts.most_samples);

    restore();
    measured(0, "other", &counts, &winner);
    CHECK(counts.records == 3 && fake_built == 3 && winner.solver == &other, "one solver alone");

    restore();
    run_lasts_s = 0.02;
    measured(1e-6, NULL, &counts, &winner);
    CHECK(counts.records == 1 && counts.most_samples == 1 && winner.solver == &quick && runs == 2,
          "without time, the likeliest is timed once: %d runs", runs);
    /* A machine that stops for longer than a few runs take has no time for a second one: then all takes longer. */
    for (double longer = 1; longer < 50; longer *= 4) {
        restore();
        run_lasts_s = 0.02 * longer;
        measured(0.15 * longer, NULL, &counts, &winner);
        if (counts.records > 1) break;
    }
    CHECK(counts.records > 1 && runs < 6 * 8, "the budget ends it: %d records, %d runs",
          counts.records, runs);
}

/* Builds that take long run on several threads; what comes out is the same. */
static void slow_builds(void) {
    struct counts counts;
    struct nh_choice winner;
    restore();
    build_lasts_s = 0.02;
    CHECK(!measured(0, NULL, &counts, &winner) && counts.records == 6 && fake_built == 6 &&
              winner.solver == &other && winner.config.value[0] == 0,
          "%d records, %d built", counts.records, (int)fake_built);
    restore();
    build_lasts_s = 0.02;
    quick_ns[0] = quick_ns[1] = quick_ns[2] = 500;
    CHECK(!measured(1e-6, NULL, &counts, &winner) && counts.records == 1 && fake_built == 1 &&
              winner.solver == &quick,
          "no time for a second: %d built", (int)fake_built);
    restore();
    build_lasts_s = 0.2;
    CHECK(!measured(0.15, NULL, &counts, &winner) && counts.records == fake_built,
          "builds that outlast the budget: %d made, %d timed", (int)fake_built, counts.records);
    restore();
    build_lasts_s = 0.02;
    quick_compiles = false;
    CHECK(!measured(0, NULL, &counts, &winner) && counts.records == 3 && fake_built == 3,
          "%d records", counts.records);
    CHECK(measured(0, "quick", &counts, &winner) == NHOOD_ERR_COMPILE &&
              !strcmp(nhood_last_error(), "syntax error"),
          "another thread's reason: %s", nhood_last_error());
}

struct waiting {
    struct nh_wisdom *wisdom;
    pthread_mutex_t alone;
    nhood_status status;
};

static void *measure_waiting(void *argument) {
    struct waiting *waiting = argument;
    struct nh_request request = {table, &device, &problem, NULL, waiting->wisdom};
    waiting->status = nh_measure(&request, 0, &waiting->alone);
    return NULL;
}

/* While another contest runs, candidates are built and none is run; once another thread has measured the problem, none is at all. */
static void another_contest(void) {
    for (int known = 0; known < 2; known++) {
        struct waiting waiting = {NULL, PTHREAD_MUTEX_INITIALIZER, NHOOD_ERR_INTERNAL};
        struct nh_wisdom_key key;
        pthread_t thread;
        restore();
        nh_wisdom_create(&host, &waiting.wisdom);
        nh_wisdom_key(&device, &problem, &key);
        pthread_mutex_lock(&waiting.alone);
        pthread_create(&thread, NULL, measure_waiting, &waiting);
        for (int turn = 0; turn < 5000 && fake_built < 6; turn++)
            pause_for(1e-3);
        CHECK(fake_built == 6 && runs == 0, "%d built, %d runs", (int)fake_built, runs);
        const struct nh_wisdom_record record = {key.device, key.problem, "quick", "size=0", 1, 7};
        if (known) nh_wisdom_add(waiting.wisdom, &record);
        pthread_mutex_unlock(&waiting.alone);
        pthread_join(thread, NULL);
        CHECK(!waiting.status && (runs == 0) == known && fake_live == 0 && memory_live == 0,
              "known %d: %d runs, %d operations kept", known, runs, (int)fake_live);
        nh_wisdom_destroy(waiting.wisdom);
    }
}

static void failures(void) {
    struct counts counts;
    struct nh_choice winner;
    restore();
    quick_compiles = false;
    CHECK(!measured(0, NULL, &counts, &winner) && counts.records == 3, "%d records",
          counts.records);
    restore();
    quick_ns[0] = other_ns[0] = 0;
    CHECK(!measured(0, NULL, &counts, &winner) && counts.records == 4 && winner.solver == &other &&
              winner.config.value[0] == 1,
          "%d records", counts.records);
    restore();
    memset(quick_ns, 0, sizeof quick_ns);
    CHECK(measured(0, "quick", &counts, &winner) == NHOOD_ERR_DEVICE && counts.records == 0 &&
              winner.samples == 0,
          "nothing runs: %s", nhood_last_error());
    restore();
    write_fails = true;
    CHECK(measured(0, NULL, &counts, &winner) == NHOOD_ERR_DEVICE && counts.records == 0,
          "no way in");
    restore();
    clock_fails = true;
    CHECK(measured(0, NULL, &counts, &winner) == NHOOD_ERR_DEVICE && counts.records == 0,
          "no clock");
    /* Q, K, V, O and LSE are allocated first: without them nothing runs, without workspace others do. */
    for (int n = 0; n < 8; n++) {
        restore();
        failing_allocation = n;
        nhood_status status = measured(0, NULL, &counts, &winner);
        CHECK(n < 5 ? status == NHOOD_ERR_MEMORY && counts.records == 0
                    : status == NHOOD_OK && counts.records == 5,
              "allocation %d: %s, %d records", n, nhood_status_name(status), counts.records);
    }
    device.timing = NULL;
    CHECK(measured(0, NULL, &counts, &winner) == NHOOD_ERR_UNSUPPORTED &&
              strstr(nhood_last_error(), "on test cannot be timed"),
          "%s", nhood_last_error());
    device.timing = &timing;
}

int main(void) {
    nhood_problem text;
    nhood_problem_parse("fwd:f32:b1h1d8:9:w3", &text);
    /* Slices of a packed QKV projection: wisdom is about packed tensors. */
    text.strides[NHOOD_Q] = (nhood_strides){.batch = 9 * 24, .axis = {24}, .head = 24};
    CHECK(!nh_problem_canonical(&text, &problem), "%s", nhood_last_error());
    contests();
    slow_builds();
    another_contest();
    failures();
    return test_result();
}
