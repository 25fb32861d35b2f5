/* Every driver call and every allocation failing in turn, through opening, planning, executing and timing with every
 * CUDA solver: an error that names what failed, or success where the call is not needed, and nothing left behind. */
#include "fixture.h"
#include "peaks.h"
#include "solver.h"

static const char *const problems[] = {
    "fwd:f16:b1h2d64:16x16:w5x5:x3", "bwd:f16:b1h2d32:16x16:w5x5:rpb",
    "fwd:f16:b1h2d32:16x16:w5x5",    "bwd:f16:b1h2d32:16x16:w5x5",
    "pn:f32:b1h1d32:64:w7",          "fwd:f16:b128h4d32:56x56:w7x7:p01",
    "bwd:f16:b1h2d32:16x16:wr9w5xz5"};

/* What the library asks of a driver where failing must be an error. */
static const char *const calls[] = {"device_count",    "device_get",         "primary_retain",
                                    "context_push",    "library_load",       "library_kernel",
                                    "kernel_function", "kernel_set",         "launch",
                                    "tensor_map",      "memory_allocate",    "memory_write",
                                    "memory_copy",     "memory_set",         "stream_create",
                                    "event_create",    "event_record",       "event_synchronize",
                                    "event_elapsed",   "stream_synchronize", "tensor_map_im2col",
                                    "memory_send"};

/* Calls whose failing the library goes on without. */
static const char *const optional_calls[] = {"device_name", "kernel_get", "context_current",
                                             "context_device", "primary_state"};

/* Plans with one solver, executes once, times once. */
static nhood_status use_solver(const struct fixture *f, const struct nh_solver *solver,
                               const struct nh_problem *problem) {
    const struct nh_device *device = &f->device[0];
    struct nh_operation *operation;
    void *memory = NULL, *clock = NULL;
    double ns = 0;
    nhood_status status = build_first(solver, problem, device, &operation);
    if (status) return status;
    nhood_io io = pretended_io(problem, operation);
    status = operation->run(operation, &io);
    if (!status) status = device->timing->allocate(device, 100, &memory);
    if (!status) status = device->timing->write(device, memory, &ns, sizeof ns);
    if (!status) status = device->timing->clock_create(device, &clock);
    if (!status) status = device->timing->run(device, clock, operation, &io, &ns);
    /* Giving memory back has no way to fail, so what it takes must work. */
    const char *failing = fake.failing;
    fake.failing = NULL;
    if (memory) device->timing->release(device, memory);
    if (clock) device->timing->clock_destroy(device, clock);
    operation->destroy(operation);
    fake.failing = failing;
    return status;
}

static bool took_part[64]; /* by rows of the table of solvers */

static nhood_status measure_ceilings(const struct fixture *f) {
    nhood_ceilings ceilings = {.struct_size = sizeof ceilings};
    return f->count ? nh_cuda_measure(&f->device[0], NHOOD_DTYPE_F16, &ceilings) : NHOOD_OK;
}

/* A whole life of a context. *used counts the solvers that took part. */
static nhood_status use_all(const char *text, int *used, const char *what) {
    struct fixture f;
    struct nh_problem problem;
    read_problem(text, &problem);
    nhood_status status = fixture_open(&f, "");
    if (!status) status = measure_ceilings(&f);
    for (int i = 0; !status && nh_registry_solvers[i]; i++) {
        const struct nh_solver *solver = nh_registry_solvers[i];
        if (!f.count || solver->device_kind != NHOOD_DEVICE_CUDA ||
            refusal_of(solver, &problem, &f.device[0]))
            continue;
        status = use_solver(&f, solver, &problem);
        took_part[i] = true;
        ++*used;
    }
    fake.failing = NULL; /* closing has no way to fail */
    fixture_close(&f, what);
    return status;
}

/* The n-th call of this name fails, for every n there is. Returns how many failures there were. */
static int fail_each(const char *text, const char *call, bool needed) {
    int failures = 0;
    for (int n = 1, reached = 1; reached; n++) {
        int used = 0;
        char what[128];
        snprintf(what, sizeof what, "%s, %s number %d failing", text, call, n);
        fake_driver_reset(90);
        fake.failing = call;
        fake.fail_from = n;
        fake.fail_times = 1;
        nhood_status status = use_all(text, &used, what);
        reached = fake.calls_of_failing >= n;
        if (!needed || !reached) {
            CHECK(!status, "%s: %s", what, nhood_last_error());
            continue;
        }
        failures++;
        bool says = strstr(nhood_last_error(), "CUDA_ERROR_FAKE (made to fail)") ||
                    strstr(nhood_last_error(), "bytes free");
        CHECK((status == NHOOD_ERR_DEVICE || status == NHOOD_ERR_MEMORY) && says, "%s: %d, %s",
              what, (int)status, nhood_last_error());
    }
    return failures;
}

static void check_calls(void) {
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        int failures = 0;
        for (size_t p = 0; p < sizeof problems / sizeof *problems; p++)
            failures += fail_each(problems[p], calls[c], true);
        CHECK(failures > 0, "%s is never called", calls[c]);
    }
    for (size_t c = 0; c < sizeof optional_calls / sizeof *optional_calls; c++)
        fail_each(problems[0], optional_calls[c], false);
}

/* A device whose attributes cannot be read is no device. */
static void check_attributes(void) {
    struct fixture f;
    fake_driver_reset(90);
    fake.failing = "device_attribute";
    fake.fail_from = 1;
    CHECK(fixture_open(&f, "") == NHOOD_OK && f.count == 0, "%d devices", f.count);
    fixture_close(&f, "attributes failing");
}

static void check_allocations(const char *text) {
    int failures = 0, used;
    for (int n = 1, reached = 1; reached; n++) {
        char what[128];
        snprintf(what, sizeof what, "%s, allocation %d failing", text, n);
        fake_driver_reset(90);
        atomic_store(&allocations, 0);
        atomic_store(&failing_allocation, n);
        used = 0;
        nhood_status status = use_all(text, &used, what);
        reached = atomic_load(&allocations) >= n;
        CHECK(status == (reached ? NHOOD_ERR_MEMORY : NHOOD_OK), "%s: %d, %s", what, (int)status,
              nhood_last_error());
        failures += status == NHOOD_ERR_MEMORY;
    }
    atomic_store(&failing_allocation, 0);
    CHECK(failures > 5 && used > 1, "%s: %d failures, %d solvers", text, failures, used);
}

int main(void) {
    check_calls();
    check_attributes();
    for (size_t p = 0; p < sizeof problems / sizeof *problems; p++)
        check_allocations(problems[p]);
    for (int i = 0; nh_registry_solvers[i]; i++)
        CHECK(took_part[i] || nh_registry_solvers[i]->device_kind != NHOOD_DEVICE_CUDA,
              "%s takes none of the problems", nh_registry_solvers[i]->name);
    return test_result();
}
