/* Memory that a plan has on the device: what is copied there, where launches find it, captures, faults, and its end. */
#include "cuda_solvers.h"
#include "device_spec.h"
#include "fixture.h"
#include "launch.h"

#include <pthread.h>
#include <stdint.h>

enum { FIRST_BYTES = 300, SECOND_BYTES = 5, SECOND_AT = 512 };

static const char first[FIRST_BYTES] = "the first one", second[SECOND_BYTES] = "more";

/* cuda.naive's steps; their slot for P, which they do not use, gets the second of two things that are kept. */
static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    size_t offset = 1;
    nhood_status status = nh_solver_cuda_naive.add_steps(operation, problem, config);
    if (status) return status;
    void *kept = nh_cuda_keep(operation, FIRST_BYTES, &offset);
    if (!kept) return NHOOD_ERR_MEMORY;
    memcpy(kept, first, FIRST_BYTES);
    CHECK(offset == 0, "the first is kept at %zu", offset);
    if (!(kept = nh_cuda_keep(operation, SECOND_BYTES, &offset))) return NHOOD_ERR_MEMORY;
    memcpy(kept, second, SECOND_BYTES);
    CHECK(offset == SECOND_AT, "the second is kept at %zu", offset);
    operation->step[0]->binding[NH_P] = (struct nh_cuda_binding){NH_BIND_KEPT, offset};
    return NHOOD_OK;
}

static nhood_status build(const struct nh_device *device, struct nh_operation **operation,
                          nhood_io *io) {
    struct nh_solver solver = nh_solver_cuda_naive;
    struct nh_problem problem;
    solver.add_steps = add_steps;
    read_problem("fwd:f32:b1h1d64:64:w17", &problem);
    nhood_status status = build_first(&solver, &problem, device, operation);
    if (!status) *io = pretended_io(&problem, *operation);
    return status;
}

/* Plans, executes and destroys in the caller's context, while `capturing` or not. Memory that a captured graph reads remains. */
static nhood_status use(bool capturing, const char *failing, const char *what) {
    struct fixture f;
    struct nh_operation *operation = NULL;
    nhood_io io;
    fake_driver_reset(90);
    fake.context_current = true;
    fake.capturing = capturing;
    fake.failing = failing;
    fake.fail_from = 1;
    nhood_status status = fixture_open(&f, "");
    if (!status) status = build(&f.device[0], &operation, &io);
    if (!status) {
        CHECK(fake.memory_open == 1 && fake.streams_open == 0 && fake.streams_made == 1,
              "%s: %d allocations, %d streams of %d", what, fake.memory_open, fake.streams_open,
              fake.streams_made);
        CHECK(fake.sends_open == 0, "%s: %d copies nobody waited for", what, fake.sends_open);
        CHECK(fake.sent_bytes == SECOND_AT + SECOND_BYTES &&
                  !memcmp(fake.sent, first, FIRST_BYTES) &&
                  !memcmp(fake.sent + SECOND_AT, second, SECOND_BYTES),
              "%s: %zu bytes were copied", what, fake.sent_bytes);
        CHECK(!operation->run(operation, &io), "%s: %s", what, nhood_last_error());
        CHECK(fake.launch[0].args.tensor[NH_P].data == (void *)(FAKE_MEMORY + SECOND_AT),
              "%s: the launch has %p", what, fake.launch[0].args.tensor[NH_P].data);
        operation->destroy(operation);
        CHECK(fake.memory_open == capturing, "%s: %d allocations are left", what, fake.memory_open);
        fake.memory_open -= capturing;
    }
    if (failing && !strcmp(failing, "stream_synchronize"))
        fake.freed_early = false; /* nothing could be waited for */
    fixture_close(&f, what);
    return status;
}

/* In the primary context, the caller's or not, plans share a stream, and a byte is held besides their memory. */
static void check_primary(bool callers, bool capturing) {
    struct fixture f;
    struct nh_operation *operation[2] = {NULL, NULL};
    nhood_io io;
    fake_driver_reset(90);
    fake.context_current = fake.primary_current = callers;
    fake.capturing = capturing;
    CHECK(!fixture_open(&f, ""), "%s", nhood_last_error());
    for (int i = 0; i < 2; i++) {
        CHECK(!build(&f.device[0], &operation[i], &io), "plan %d: %s", i, nhood_last_error());
        CHECK(fake.memory_open == i + 2 && fake.streams_open == 1 && fake.streams_made == 1,
              "plan %d: %d allocations, %d streams of %d", i, fake.memory_open, fake.streams_open,
              fake.streams_made);
    }
    CHECK(fake.primary_references == 1, "%d references", fake.primary_references);
    fake.context_current = true; /* another context than the device's own */
    fake.primary_current = false;
    for (int i = 0; i < 2; i++)
        operation[i]->destroy(operation[i]);
    CHECK(!build(&f.device[0], &operation[0], &io), "in another context: %s", nhood_last_error());
    CHECK(fake.memory_open == 2 && fake.streams_open == 1 && fake.streams_made == 2,
          "in another context: %d allocations, %d streams of %d", fake.memory_open,
          fake.streams_open, fake.streams_made);
    operation[0]->destroy(operation[0]);
    fixture_close(&f, "plans in the primary context");
}

/* In the primary context, the first execute waits for what planning copies, in whatever context it is; once, if nothing fails. */
static void check_wait(bool capturing) {
    static const struct {
        const char *failing;
        bool other_context;
        nhood_status status;
        int waits;
    } run[] = {{"stream_synchronize", false, NHOOD_ERR_DEVICE, 1},
               {NULL, true, NHOOD_OK, 1},
               {"stream_synchronize", false, NHOOD_OK, 0}};
    struct fixture f;
    struct nh_operation *operation = NULL;
    nhood_io io;
    fake_driver_reset(90);
    fake.capturing = capturing;
    CHECK(!fixture_open(&f, "") && !build(&f.device[0], &operation, &io), "%s", nhood_last_error());
    CHECK(fake.sends_open == 1, "%d copies nobody waited for", fake.sends_open);
    for (size_t i = 0; operation && i < sizeof run / sizeof *run; i++) {
        const int launches = fake.launch_count, sends = fake.sends_open;
        fake.context_current = run[i].other_context;
        fake.failing = run[i].failing;
        fake.fail_from = fake.fail_times = 1;
        fake.calls_of_failing = 0;
        const nhood_status status = operation->run(operation, &io);
        CHECK(status == run[i].status, "run %zu: %d, %s", i, (int)status, nhood_last_error());
        CHECK(!run[i].failing || fake.calls_of_failing == run[i].waits, "run %zu: waits %d times",
              i, fake.calls_of_failing);
        CHECK(fake.launch_count == launches + !status && fake.sends_open == (status ? sends : 0) &&
                  (status || fake.launch[launches].sends_open == 0),
              "run %zu: launched before the copy had ended", i);
    }
    fake.failing = NULL;
    fake.memory_open -= capturing; /* which a captured graph reads */
    if (operation) operation->destroy(operation);
    fixture_close(&f, "waiting for the copy");
}

/* A plan that gets no stream, or cannot use it, leaves the next one able to. */
static void check_primary_fault(const char *call) {
    struct fixture f;
    struct nh_operation *operation = NULL;
    nhood_io io;
    fake_driver_reset(90);
    CHECK(!fixture_open(&f, ""), "%s", nhood_last_error());
    fake.failing = call;
    fake.fail_from = fake.fail_times = 1;
    CHECK(build(&f.device[0], &operation, &io) == NHOOD_ERR_DEVICE, "%s failing: %s", call,
          nhood_last_error());
    CHECK(!build(&f.device[0], &operation, &io), "after %s failed: %s", call, nhood_last_error());
    operation->destroy(operation);
    fixture_close(&f, call);
}

enum { RACERS = 8, RACES = 20 };

static void *plan_on_thread(void *argument) {
    const struct fixture *f = argument;
    struct nh_operation *operation = NULL;
    nhood_io io;
    if (build(&f->device[0], &operation, &io)) return argument;
    operation->destroy(operation);
    return NULL;
}

/* Several threads at once: one stream remains. */
static void check_threads(void) {
    for (int race = 0; race < RACES; race++) {
        struct fixture f;
        pthread_t thread[RACERS];
        void *failed;
        fake_driver_reset(90);
        CHECK(!fixture_open(&f, ""), "%s", nhood_last_error());
        for (int i = 0; i < RACERS; i++)
            pthread_create(&thread[i], NULL, plan_on_thread, &f);
        for (int i = 0; i < RACERS; i++) {
            pthread_join(thread[i], &failed);
            CHECK(!failed, "a thread got no plan");
        }
        CHECK(fake.memory_open == 1 && fake.streams_open == 1,
              "threads: %d allocations, %d streams", fake.memory_open, fake.streams_open);
        fake.freed_early = false; /* plans of other threads were being written */
        fixture_close(&f, "plans by several threads");
    }
}

/* A plan whose kernels are only collected has no memory. */
static void check_collected(void) {
    struct nh_device device[NH_MOST_DESCRIBED], twin;
    struct nh_host host = {.allocate = counted_allocate, .release = counted_release};
    struct nh_cuda *cuda = NULL;
    struct nh_operation *operation = NULL;
    int32_t count = 0;
    nhood_io io;
    const nhood_context_options options = {
        .struct_size = sizeof options, .cache = "", .nvrtc = FAKE_NVRTC};
    fake_driver_reset(90);
    CHECK(!nh_cuda_describe("sm_90", &host, device, &count) && count > 0, "%d GPUs", (int)count);
    CHECK(!nh_cuda_collect_open(&options, &host, &cuda), "%s", nhood_last_error());
    CHECK(!nh_cuda_collect_twin(cuda, &device[0], &twin) && !build(&twin, &operation, &io), "%s",
          nhood_last_error());
    CHECK(fake.memory_open == 0, "%d allocations", fake.memory_open);
    if (operation) operation->destroy(operation);
    nh_release(&host, twin.backend);
    nh_cuda_close(cuda, NULL, 0);
    CHECK(atomic_load(&blocks_live) == 0, "%d blocks kept", atomic_load(&blocks_live));
}

int main(void) {
    static const char *const calls[] = {"memory_allocate", "stream_create", "memory_send",
                                        "stream_synchronize"};
    CHECK(!use(false, NULL, "a plan"), "%s", nhood_last_error());
    CHECK(!use(true, NULL, "a plan while capturing"), "%s", nhood_last_error());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const nhood_status status = use(false, calls[i], calls[i]);
        CHECK(status == (i ? NHOOD_ERR_DEVICE : NHOOD_ERR_MEMORY), "%s failing: %d, %s", calls[i],
              (int)status, nhood_last_error());
    }
    for (int i = 0; i < 4; i++)
        check_primary(i & 1, i & 2);
    check_wait(false);
    check_wait(true);
    check_primary_fault("stream_create");
    check_primary_fault("memory_send");
    check_threads();
    check_collected();
    return test_result();
}
