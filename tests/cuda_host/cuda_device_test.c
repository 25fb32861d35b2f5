/* Devices and contexts: which devices are taken, whose context is used, what is left behind. */
#include "cuda_solvers.h"
#include "fixture.h"

#include <pthread.h>

static void check_opened(void) {
    struct fixture f;
    fake_driver_reset(90);
    CHECK(fixture_open(&f, "") == NHOOD_OK && f.count == 1, "%s", nhood_last_error());
    CHECK(strcmp(f.device[0].info.name, "cuda:0") == 0 &&
              strcmp(f.device[0].info.description,
                     "Fake 0, compute capability 9.0, 132 multiprocessors") == 0,
          "%s: %s", f.device[0].info.name, f.device[0].info.description);
    CHECK(fake.primary_references == 0, "opening holds a context");
    fixture_close(&f, "one device");
}

/* No device is not an error: the CPU goes on. */
static void check_none(void) {
    struct fixture f;
    fake_driver_reset(90);
    fake.devices = 0;
    CHECK(fixture_open(&f, "") == NHOOD_OK && f.count == 0 && f.cuda, "%d devices", f.count);
    fixture_close(&f, "no device");
}

/* Older devices are left out, and the others keep the driver's numbers. */
static void check_old(void) {
    struct fixture f;
    fake_driver_reset(80);
    fake.devices = 3;
    fake.old_devices = 1;
    CHECK(fixture_open(&f, "") == NHOOD_OK && f.count == 2, "%d devices", f.count);
    CHECK(f.device[0].info.ordinal == 1 && strcmp(f.device[1].info.name, "cuda:2") == 0,
          "ordinal %d, %s", (int)f.device[0].info.ordinal, f.device[1].info.name);
    fixture_close(&f, "an old device");
    fake.old_devices = 3;
    CHECK(fixture_open(&f, "") == NHOOD_OK && f.count == 0, "%d old devices taken", f.count);
    fixture_close(&f, "old devices only");
    fake.old_devices = 0;
    fake.devices = MOST_DEVICES + 2;
    CHECK(fixture_open(&f, "") == NHOOD_OK && f.count == MOST_DEVICES, "%d devices", f.count);
    fixture_close(&f, "more devices than there is room for");
}

static nhood_status build_small(struct fixture *f, int device, struct nh_operation **operation,
                                nhood_io *io) {
    struct nh_problem problem;
    read_problem("fwd:f32:b1h1d32:64:w7", &problem);
    nhood_status status =
        build_first(&nh_solver_cuda_naive, &problem, &f->device[device], operation);
    if (!status) *io = pretended_io(&problem, *operation);
    return status;
}

/* Without a context of the caller, planning retains the primary one, once, and executing pushes it. */
static void check_primary(void) {
    struct fixture f;
    struct nh_operation *first = NULL, *second = NULL;
    nhood_io io;
    fake_driver_reset(90);
    CHECK(fixture_open(&f, "") == NHOOD_OK, "%s", nhood_last_error());
    CHECK(build_small(&f, 0, &first, &io) == NHOOD_OK &&
              build_small(&f, 0, &second, &io) == NHOOD_OK,
          "%s", nhood_last_error());
    CHECK(fake.primary_references == 1, "%d references", fake.primary_references);
    if (first)
        CHECK(first->run(first, &io) == NHOOD_OK && fake_context_depth() == 0, "depth %d",
              fake_context_depth());
    if (first) first->destroy(first);
    if (second) second->destroy(second);
    fixture_close(&f, "primary context");
}

/* With the caller's own context current nothing is retained or pushed. */
static void check_callers(void) {
    struct fixture f;
    struct nh_operation *operation = NULL;
    nhood_io io;
    fake_driver_reset(90);
    fake.context_current = true;
    CHECK(fixture_open(&f, "") == NHOOD_OK && build_small(&f, 0, &operation, &io) == NHOOD_OK, "%s",
          nhood_last_error());
    if (!operation) return;
    fake.failing = "context_push";
    fake.fail_from = 1;
    CHECK(operation->run(operation, &io) == NHOOD_OK, "%s", nhood_last_error());
    CHECK(fake.primary_references == 0 && !fake.calls_of_failing, "%d references, %d pushes",
          fake.primary_references, fake.calls_of_failing);
    /* On a thread that has no context there is none to fall back to, and executing makes none. */
    fake.context_current = false;
    int launched = fake.launch_count;
    CHECK(operation->run(operation, &io) == NHOOD_ERR_DEVICE &&
              strcmp(nhood_last_error(), "execute: no CUDA context of the plan's device is current "
                                         "on this thread") == 0,
          "%s", nhood_last_error());
    CHECK(fake.launch_count == launched && fake.primary_references == 0, "launched or retained");
    operation->destroy(operation);
    fixture_close(&f, "caller's context");
}

/* Planning in the caller's context knows the primary one, and what is made there is used by threads that have none. */
static void check_callers_primary(void) {
    static const char *const failing[] = {NULL, "primary_state", "primary_retain"};
    for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
        struct fixture f;
        struct nh_operation *operation = NULL;
        nhood_io io;
        fake_driver_reset(90);
        fake.context_current = fake.primary_current = true;
        fake.failing = failing[i];
        fake.fail_from = 1;
        CHECK(!fixture_open(&f, "") && !build_small(&f, 0, &operation, &io), "%s",
              nhood_last_error());
        if (!operation) return;
        CHECK(fake.primary_references == !failing[i] && fake_context_depth() == 0,
              "%d references, depth %d", fake.primary_references, fake_context_depth());
        fake.context_current = fake.primary_current = false;
        const nhood_status status = operation->run(operation, &io);
        CHECK(status == (failing[i] ? NHOOD_ERR_DEVICE : NHOOD_OK), "%s", nhood_last_error());
        fake.failing = NULL;
        operation->destroy(operation);
        fixture_close(&f, "caller's primary context");
    }
}

/* A plan of another device than the current context's runs on its own device's primary context. */
static void check_other_device(void) {
    struct fixture f;
    struct nh_operation *operation = NULL;
    nhood_io io;
    fake_driver_reset(90);
    fake.context_current = true;
    fake.devices = 3;
    CHECK(fixture_open(&f, "") == NHOOD_OK && build_small(&f, 2, &operation, &io) == NHOOD_OK, "%s",
          nhood_last_error());
    if (!operation) return;
    CHECK(operation->run(operation, &io) == NHOOD_OK && fake.launch[0].device == 2, "device %d",
          fake.launch[0].device);
    CHECK(fake.primary_references == 1 && fake_context_depth() == 0, "%d references, depth %d",
          fake.primary_references, fake_context_depth());
    operation->destroy(operation);
    fixture_close(&f, "another device");
}

/* Launches overlap where the device and, in graphs, the driver can. */
static void check_overlaps(void) {
    static const struct {
        int arch;
        const char *version;
        bool overlaps;
    } row[] = {
        {90, "12030", true}, {120, "13000", true}, {90, "12020", false}, {89, "13000", false}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct fixture f;
        fake_driver_reset(row[i].arch);
        setenv("FAKE_VERSION", row[i].version, 1);
        CHECK(fixture_open(&f, "") == NHOOD_OK, "%s", nhood_last_error());
        const struct nh_cuda_device *device = f.device[0].backend;
        CHECK(device->overlaps == row[i].overlaps, "arch %d, driver %s", row[i].arch,
              row[i].version);
        fixture_close(&f, "overlaps");
    }
    unsetenv("FAKE_VERSION");
}

static void *plan_on_thread(void *argument) {
    struct nh_operation *operation;
    nhood_io io;
    bool good = build_small(argument, 0, &operation, &io) == NHOOD_OK;
    if (good) {
        good = operation->run(operation, &io) == NHOOD_OK && fake_context_depth() == 0;
        operation->destroy(operation);
    }
    return good ? argument : NULL;
}

static void check_threads(void) {
    enum { THREADS = 8 };
    struct fixture f;
    pthread_t thread[THREADS];
    fake_driver_reset(90);
    CHECK(fixture_open(&f, "") == NHOOD_OK, "%s", nhood_last_error());
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, plan_on_thread, &f);
    for (int i = 0; i < THREADS; i++) {
        void *good = NULL;
        pthread_join(thread[i], &good);
        CHECK(good, "thread %d failed", i);
    }
    CHECK(fake.primary_references == 1, "%d references of %d threads", fake.primary_references,
          THREADS);
    fixture_close(&f, "threads");
}

/* A thread that captures a graph in the default mode may plan, and keeps its mode. */
static void check_capturing(void) {
    struct fixture f;
    struct nh_operation *operation = NULL;
    nhood_io io;
    fake_driver_reset(90);
    fake.context_current = fake.capturing = true;
    CHECK(fixture_open(&f, "") == NHOOD_OK && build_small(&f, 0, &operation, &io) == NHOOD_OK, "%s",
          nhood_last_error());
    CHECK(fake_capture_mode_now() == 0, "capture mode %d", fake_capture_mode_now());
    if (operation) operation->destroy(operation);
    fixture_close(&f, "planning while capturing");
}

int main(void) {
    check_opened();
    check_none();
    check_old();
    check_primary();
    check_callers();
    check_callers_primary();
    check_other_device();
    check_overlaps();
    check_threads();
    check_capturing();
    return test_result();
}
