/* A context's CUDA backend over the fake driver and the fake compiler, with every resource counted. */
#ifndef FIXTURE_H
#define FIXTURE_H

#include "cuda.h"
#include "fake_driver.h"
#include "fake_nvrtc.h"
#include "kernel_cache.h"
#include "problem.h"
#include "registry.h"
#include "test.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

enum { MOST_DEVICES = 4 };

struct fixture {
    struct nh_driver driver;
    struct nh_host host;
    struct nh_device device[MOST_DEVICES];
    struct nh_cuda *cuda;
    int32_t count;
};

static atomic_int blocks_live, allocations, failing_allocation, lines_logged;
static char last_line[2048];

static inline void *counted_allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    if (atomic_fetch_add(&allocations, 1) + 1 == atomic_load(&failing_allocation)) return NULL;
    atomic_fetch_add(&blocks_live, 1);
    return aligned_alloc(alignment, bytes);
}

static inline void counted_release(void *user, void *memory) {
    (void)user;
    atomic_fetch_sub(&blocks_live, 1);
    free(memory);
}

static inline void count_line(void *user, int32_t level, const char *line) {
    (void)user;
    if (level == NHOOD_LOG_INFO) return;
    atomic_fetch_add(&lines_logged, 1);
    snprintf(last_line, sizeof last_line, "%s", line);
}

/* The state of the fake compiler, which the library loads under the same path. */
static inline struct fake_nvrtc *fake_compiler(void) {
    static struct fake_nvrtc *state;
    if (!state) state = dlsym(dlopen(FAKE_NVRTC, RTLD_NOW | RTLD_LOCAL), "fake_nvrtc");
    return state;
}

/* Damages a file. */
static inline void flip_last_byte(const char *path) {
    FILE *file = fopen(path, "r+");
    fseek(file, -1, SEEK_END);
    int byte = fgetc(file);
    fseek(file, -1, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
}

/* Opens the devices that `fake` describes. cache: folder, "" for none. */
static inline nhood_status fixture_open(struct fixture *f, const char *cache) {
    nhood_context_options options = {
        .struct_size = sizeof options, .cache = cache, .nvrtc = FAKE_NVRTC};
    *f = (struct fixture){
        .host = {.allocate = counted_allocate, .release = counted_release, .log = count_line}};
    fake_driver_table(&f->driver);
    return nh_cuda_open(&f->driver, &options, &f->host, f->device, MOST_DEVICES, &f->count,
                        &f->cuda);
}

/* Closes, and checks that nothing is left: memory, libraries, contexts, streams, events. */
static inline void fixture_close(struct fixture *f, const char *what) {
    nh_cuda_close(f->cuda, f->device, f->count);
    CHECK(atomic_load(&blocks_live) == 0, "%s: %d blocks kept", what, atomic_load(&blocks_live));
    CHECK(fake.libraries_open == 0, "%s: %d libraries kept", what, fake.libraries_open);
    CHECK(fake.primary_references == 0, "%s: %d contexts kept", what, fake.primary_references);
    CHECK(fake_context_depth() == 0, "%s: %d contexts pushed", what, fake_context_depth());
    CHECK(fake_capture_mode_now() == 0, "%s: capture mode %d", what, fake_capture_mode_now());
    CHECK(fake.memory_open == 0 && fake.streams_open == 0 && fake.events_open == 0,
          "%s: %d allocations, %d streams, %d events kept", what, fake.memory_open,
          fake.streams_open, fake.events_open);
    CHECK(!fake.freed_early, "%s: memory was freed while it was written", what);
    for (int i = 0; i < fake.launch_count && i < FAKE_LAUNCHES; i++)
        CHECK(fake.launch[i].sends_open == 0, "%s: launch %d while a plan's memory was written",
              what, i);
    CHECK(atomic_load(&fake_compiler()->programs_open) == 0, "%s: programs kept", what);
}

/* Aborts the test program on a bad text: that is a bug in the test. */
static inline void read_problem(const char *text, struct nh_problem *problem) {
    nhood_problem given;
    if (nhood_problem_parse(text, &given) || nh_problem_canonical(&given, problem)) {
        printf("%s: %s\n", text, nhood_last_error());
        exit(EXIT_FAILURE);
    }
}

/* A solver's operation for its own first choice of config. */
static inline const char *refusal_of(const struct nh_solver *solver,
                                     const struct nh_problem *problem,
                                     const struct nh_device *device) {
    struct nh_problem room;
    return nh_solver_refusal(solver, nh_solver_view(solver, problem, &room), device);
}

static inline nhood_status build_first(const struct nh_solver *solver,
                                       const struct nh_problem *problem,
                                       const struct nh_device *device,
                                       struct nh_operation **operation) {
    struct nh_config config;
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, problem, &room);
    *operation = NULL;
    if (solver->candidates(view, device, &config, 1) < 1)
        return nh_error(NHOOD_ERR_INTERNAL, "%s proposes nothing", solver->name);
    return solver->build(solver, view, device, &config, operation);
}

/* Tensor t of a pretended execute starts here: so far apart that an address tells the tensor. */
static inline char *address_of(int32_t tensor) {
    return (char *)((uintptr_t)(tensor + 1) << 44);
}

static inline char *workspace_address(void) {
    return (char *)((uintptr_t)1 << 40);
}

/* Every tensor of the problem, optional ones included. */
static inline nhood_io pretended_io(const struct nh_problem *problem,
                                    const struct nh_operation *operation) {
    nhood_io io = {.struct_size = sizeof io,
                   .workspace = workspace_address(),
                   .workspace_bytes = operation->workspace_bytes,
                   .stream = (void *)(uintptr_t)0x5000};
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (nh_problem_role(problem, t) != NH_UNUSED) io.data[t] = address_of(t);
    return io;
}

/* Makes something and unmakes it. Returns what making it did. */
typedef nhood_status fixture_make_fn(void);

/* Checks that it fails if this function of the driver does, and leaves nothing behind. */
static inline void check_failing_call(struct fixture *f, const char *call, fixture_make_fn *make) {
    const bool memory = strcmp(call, "memory_allocate") == 0;
    fake_driver_reset(90);
    CHECK(!fixture_open(f, ""), "%s", nhood_last_error());
    fake.failing = call;
    fake.fail_from = 1;
    const nhood_status status = make();
    CHECK(status == (memory ? NHOOD_ERR_MEMORY : NHOOD_ERR_DEVICE), "%s failing: %d", call,
          (int)status);
    fixture_close(f, call);
}

/* The same for each of its allocations on the host, which may do without some. */
static inline void check_failing_allocations(struct fixture *f, fixture_make_fn *make) {
    nhood_status status = NHOOD_ERR_MEMORY;
    for (int n = 1; status; n++) {
        fake_driver_reset(90);
        CHECK(!fixture_open(f, ""), "%s", nhood_last_error());
        atomic_store(&allocations, 0);
        atomic_store(&failing_allocation, n);
        status = make();
        atomic_store(&failing_allocation, 0);
        fixture_close(f, "without memory");
        CHECK(!status || status == NHOOD_ERR_MEMORY, "allocation %d failing: %d", n, (int)status);
    }
}

#endif
