/* Executes CUDA plans inside a graph capture, on many streams and threads at once, and one after the other in one workspace, and
 * plans while a capture runs. Results must have the same bits as those of a plain execute.
 *
 * usage: capture_test [solver..]; without solvers, all of them. */
#include "cuda_api.h"
#include "test.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 25, TURNS = 3 };

/* The last one is for a solver that refuses "det". It fits one of its tiles, so there is only one order of additions. */
static const char *const problems[] = {
    "fwd:f16:b2h4k2d64:33x30:w7x7:det", "fwd:bf16:b1h2d128:9x12x14:w3x5x5:s1x2x2:det",
    "fwd:f32:b2h2d32:500:w31:c1:det",   "bwd:f16:b2h4k2d64:33x30:w7x7:det",
    "bwd:f32:b1h2d32:300:w31:rpb:det",  "pn:f16:b2h2d64:33x30:w5x5:det",
    "nn:f16:b2h2d64:33x30:w5x5:det",    "in:f16:b2h2d64:33x30:w5x5:det",
    "fwd:f16:b4h4d64:256:w101:det",     "bwd:f16:b1h2d64:16x16:w11x11:det",
    "bwd:bf16:b2h4d64:100:w31"};

/* The tensors and the workspace of an execute on the device. */
struct execution {
    nhood_io io;
    size_t bytes[NHOOD_TENSOR_COUNT];
};

/* Fills memory with bits that are numbers near 1 in every dtype. Equal seeds give equal bits. */
static void fill(void *memory, size_t bytes, uint64_t seed) {
    uint16_t *host = malloc(bytes + 2);
    for (size_t i = 0; i < (bytes + 1) / 2; i++)
        host[i] = (uint16_t)((test_random(&seed) & 0x81ff) | 0x3e00);
    MUST(write(address_in(memory), host, bytes));
    free(host);
}

static void execution_create(struct execution *e, const nhood_problem *problem,
                             const nhood_plan *plan, uint64_t seed) {
    memset(e, 0, sizeof *e);
    e->io.struct_size = sizeof e->io;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        int64_t elements = 0;
        nhood_problem_elements(problem, t, &elements);
        if (!elements) continue;
        e->bytes[t] = (size_t)elements * 8; /* whatever the dtype */
        e->io.data[t] = device_allocate(e->bytes[t]);
        fill(e->io.data[t], e->bytes[t], seed + (uint64_t)t + 1);
    }
    e->io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    e->io.workspace = device_allocate(e->io.workspace_bytes);
    MUST(fill(address_in(e->io.workspace), 0xff, e->io.workspace_bytes));
}

static void execution_destroy(struct execution *e) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        device_free(e->io.data[t]);
    device_free(e->io.workspace);
}

/* Whether all tensors of `a` and `b` have the same bits, including inputs and the memory that an output's dtype does not use. */
static int same_bits(const struct execution *a, const struct execution *b) {
    int same = 1;
    for (int32_t t = 0; same && t < NHOOD_TENSOR_COUNT; t++) {
        if (!a->bytes[t]) continue;
        char *x = malloc(a->bytes[t]), *y = malloc(a->bytes[t]);
        MUST(read(x, address_in(a->io.data[t]), a->bytes[t]));
        MUST(read(y, address_in(b->io.data[t]), a->bytes[t]));
        same = memcmp(x, y, a->bytes[t]) == 0;
        free(x);
        free(y);
    }
    return same;
}

static void check_capture(const char *name, const nhood_problem *problem, const nhood_plan *plan,
                          const struct execution *expected) {
    struct execution e;
    void *graph = NULL, *runnable = NULL, *stream;
    size_t nodes = 0;
    execution_create(&e, problem, plan, 0);
    MUST(stream_create(&stream, STREAM_NON_BLOCKING));
    e.io.stream = stream;
    MUST(capture_begin(stream, CAPTURE_GLOBAL));
    nhood_status status = nhood_plan_execute(plan, &e.io);
    int captured = cuda.capture_end(stream, &graph);
    CHECK(!status && !captured && graph, "%s: %s", name, nhood_last_error());
    if (!status && !captured) {
        MUST(graph_nodes(graph, NULL, &nodes));
        CHECK(nodes > 0, "%s: an empty graph", name);
        CHECK(!same_bits(&e, expected), "%s: something ran while it was captured", name);
        MUST(graph_instantiate(&runnable, graph, 0));
        for (int i = 0; i < 2; i++)
            MUST(graph_launch(runnable, stream));
        MUST(stream_synchronize(stream));
        CHECK(same_bits(&e, expected), "%s: the graph's result differs", name);
        MUST(graph_exec_destroy(runnable));
    }
    if (graph) MUST(graph_destroy(graph));
    MUST(stream_destroy(stream));
    execution_destroy(&e);
}

/* Enqueues rounds of executes in one workspace, each on tensors of its own, without anything between them. Checks that none
 * begins before the previous one has ended, and that results are complete when they are read. */
static void check_turns(const char *name, const nhood_problem *problem, const nhood_plan *plan) {
    struct execution alone[TURNS] = {0}, turn[TURNS] = {0};
    void *workspace[TURNS] = {0};
    nhood_status status = NHOOD_OK;
    for (int i = 0; !status && i < TURNS; i++) {
        execution_create(&alone[i], problem, plan, 100 * (uint64_t)i);
        execution_create(&turn[i], problem, plan, 100 * (uint64_t)i);
        workspace[i] = turn[i].io.workspace;
        turn[i].io.workspace = workspace[0];
        status = nhood_plan_execute(plan, &alone[i].io);
        MUST(synchronize());
    }
    for (int i = 0; !status && i < ROUNDS * TURNS; i++)
        status = nhood_plan_execute(plan, &turn[i % TURNS].io);
    CHECK(!status, "%s: %s", name, nhood_last_error());
    for (int i = TURNS - 1; i >= 0; i--) {
        CHECK(same_bits(&turn[i], &alone[i]), "%s: turn %d of %d differs", name, i, TURNS);
        turn[i].io.workspace = workspace[i];
        execution_destroy(&turn[i]);
        execution_destroy(&alone[i]);
    }
}

struct worker {
    const nhood_plan *plan;
    struct execution execution;
    nhood_status status;
};

static void *work(void *argument) {
    struct worker *worker = argument;
    MUST(set_current(cuda.context));
    for (int i = 0; !worker->status && i < ROUNDS; i++)
        worker->status = nhood_plan_execute(worker->plan, &worker->execution.io);
    MUST(stream_synchronize(worker->execution.io.stream));
    return NULL;
}

static void check_threads(const char *name, const nhood_problem *problem, const nhood_plan *plan,
                          const struct execution *expected) {
    static struct worker worker[THREADS];
    pthread_t thread[THREADS];
    for (int i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){.plan = plan};
        execution_create(&worker[i].execution, problem, plan, 0);
        MUST(stream_create(&worker[i].execution.io.stream, STREAM_NON_BLOCKING));
    }
    MUST(synchronize());
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread[i], NULL, work, &worker[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK(!worker[i].status && same_bits(&worker[i].execution, expected),
              "%s: thread %d of %d differs", name, i, THREADS);
        MUST(stream_destroy(worker[i].execution.io.stream));
        execution_destroy(&worker[i].execution);
    }
}

/* Checks planning with a new context, which has no kernels and so compiles and loads some, while this thread captures in the
 * strictest mode. */
static void check_planning(const char *name, const nhood_problem *problem,
                           const nhood_plan_options *options) {
    nhood_context_options cold = {.struct_size = sizeof cold, .cache = ""};
    nhood_context *context;
    nhood_plan *plan = NULL;
    void *graph = NULL, *stream;
    CHECK(nhood_context_create(&cold, &context) == NHOOD_OK, "%s", nhood_last_error());
    MUST(stream_create(&stream, STREAM_NON_BLOCKING));
    MUST(capture_begin(stream, CAPTURE_GLOBAL));
    nhood_status status = nhood_plan_create(context, CUDA_DEVICE, problem, options, &plan);
    int captured = cuda.capture_end(stream, &graph);
    CHECK(!status && !captured && graph, "%s: planning broke the capture: %s", name,
          status ? nhood_last_error() : "");
    if (graph) MUST(graph_destroy(graph));
    MUST(stream_destroy(stream));
    nhood_plan_release(plan);
    nhood_context_destroy(context);
}

/* Returns whether the solver takes the problem. */
static int check_problem(nhood_context *context, const char *solver, const char *text) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_problem problem;
    nhood_plan *plan;
    struct execution expected;
    char name[256];
    snprintf(name, sizeof name, "%s, %s", solver, text);
    CHECK(nhood_problem_parse(text, &problem) == NHOOD_OK, "%s", nhood_last_error());
    nhood_status status = nhood_plan_create(context, CUDA_DEVICE, &problem, &options, &plan);
    if (status == NHOOD_ERR_UNSUPPORTED) return 0;
    CHECK(!status, "%s: %s", name, nhood_last_error());
    if (status) return 1;
    execution_create(&expected, &problem, plan, 0);
    status = nhood_plan_execute(plan, &expected.io);
    CHECK(!status, "%s: %s", name, nhood_last_error());
    MUST(synchronize());
    check_capture(name, &problem, plan, &expected);
    check_threads(name, &problem, plan, &expected);
    check_turns(name, &problem, plan);
    check_planning(name, &problem, &options);
    execution_destroy(&expected);
    nhood_plan_release(plan);
    return 1;
}

static int is_wanted(const char *solver, int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], solver) == 0) return 1;
    return argc < 2;
}

int main(int argc, char **argv) {
    nhood_context *context = open_context();
    int32_t kind;
    const char *solver;
    for (int32_t i = 0; (solver = nhood_solver_name(i, &kind)); i++) {
        if (kind != NHOOD_DEVICE_CUDA || !is_wanted(solver, argc, argv)) continue;
        int taken = 0;
        for (size_t p = 0; p < sizeof problems / sizeof *problems; p++)
            taken += check_problem(context, solver, problems[p]);
        printf("%s: %d problems\n", solver, taken);
    }
    nhood_context_destroy(context);
    return test_result();
}
