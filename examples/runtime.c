/* As a language model's runtime would call the library: causal grouped-query attention on a packed projection
 * [B, N, (H + 2 Hkv) D] without a copy, sink tokens that every query attends, results heads first, the runtime's own
 * threads, and wisdom carried as text. Compared with plain loops. */
#include <nhood.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, TOKENS = 300, HEADS = 8, KV_HEADS = 2, DIM = 64, SINKS = 4, WINDOW = 64 };
enum { ROW = (HEADS + 2 * KV_HEADS) * DIM, THREADS = 4 };

/* ---- the runtime's threads: the library hands out indices 0 .. count-1 ---- */

struct loop {
    nhood_parallel_body body;
    void *arg;
    int64_t count;
    _Atomic int64_t next;
};
struct worker {
    struct loop *loop;
    int32_t number; /* no two that run at the same time may have the same */
};

static void *work(void *argument) {
    const struct worker *worker = argument;
    struct loop *loop = worker->loop;
    for (int64_t i; (i = atomic_fetch_add(&loop->next, 1)) < loop->count;)
        loop->body(loop->arg, i, worker->number);
    return NULL;
}

static void parallel_for(void *user, int64_t count, nhood_parallel_body body, void *arg) {
    (void)user;
    struct loop loop = {body, arg, count, 0};
    struct worker workers[THREADS];
    pthread_t threads[THREADS];
    int started = 0;
    for (int t = 0; t < THREADS; t++)
        workers[t] = (struct worker){&loop, t};
    while (started < THREADS - 1 &&
           !pthread_create(&threads[started], NULL, work, &workers[started]))
        started++;
    work(&workers[THREADS - 1]); /* the calling thread takes part */
    for (int t = 0; t < started; t++)
        pthread_join(threads[t], NULL);
}

/* ---- the problem ---- */

static nhood_problem make_problem(void) {
    nhood_problem problem;
    nhood_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 1);
    problem.batch = BATCH;
    problem.heads = HEADS;
    problem.kv_heads = KV_HEADS;
    problem.dim = DIM;
    problem.extra_tokens = SINKS;
    problem.axis[0].length = TOKENS;
    problem.axis[0].window = WINDOW;
    problem.axis[0].causal = 1;
    const nhood_strides packed = {.batch = (int64_t)TOKENS * ROW, .axis = {ROW}, .head = DIM};
    problem.strides[NHOOD_Q] = problem.strides[NHOOD_K] = problem.strides[NHOOD_V] = packed;
    problem.strides[NHOOD_O] = (nhood_strides){
        .batch = (int64_t)HEADS * TOKENS * DIM, .axis = {DIM}, .head = (int64_t)TOKENS * DIM};
    return problem;
}

struct tensors {
    float *packed, *sink_keys, *sink_values, *out;
};

static void fill(float *values, int64_t count, unsigned seed) {
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
}

static int make_tensors(struct tensors *tensors) {
    const size_t row = sizeof(float) * ROW, sinks = sizeof(float) * BATCH * SINKS * KV_HEADS * DIM;
    tensors->packed = malloc(row * BATCH * TOKENS);
    tensors->sink_keys = malloc(sinks);
    tensors->sink_values = malloc(sinks);
    tensors->out = malloc(sizeof(float) * BATCH * HEADS * TOKENS * DIM);
    if (!tensors->packed || !tensors->sink_keys || !tensors->sink_values || !tensors->out) return 0;
    fill(tensors->packed, (int64_t)BATCH * TOKENS * ROW, 1);
    fill(tensors->sink_keys, (int64_t)BATCH * SINKS * KV_HEADS * DIM, 2);
    fill(tensors->sink_values, (int64_t)BATCH * SINKS * KV_HEADS * DIM, 3);
    return 1;
}

static int execute(const nhood_plan *plan, const struct tensors *tensors) {
    nhood_io io = {.struct_size = sizeof io, .workspace_bytes = nhood_plan_workspace_bytes(plan)};
    io.workspace = aligned_alloc(64, io.workspace_bytes);
    io.data[NHOOD_Q] = tensors->packed;
    io.data[NHOOD_K] = tensors->packed + HEADS * DIM;
    io.data[NHOOD_V] = tensors->packed + (HEADS + KV_HEADS) * DIM;
    io.data[NHOOD_EXTRA_K] = tensors->sink_keys;
    io.data[NHOOD_EXTRA_V] = tensors->sink_values;
    io.data[NHOOD_O] = tensors->out;
    int status = nhood_plan_execute(plan, &io);
    free(io.workspace);
    return status;
}

/* ---- the same by plain loops ---- */

static const float *row_of(const struct tensors *tensors, int is_value, int b, int64_t token,
                           int64_t sink, int kv_head) {
    if (sink >= 0)
        return (is_value ? tensors->sink_values : tensors->sink_keys) +
               ((b * SINKS + sink) * KV_HEADS + kv_head) * DIM;
    return tensors->packed + (b * TOKENS + token) * ROW +
           (HEADS + is_value * KV_HEADS + kv_head) * DIM;
}

static double row_difference(const struct tensors *tensors, const nhood_axis *axis, int b, int head,
                             int64_t token) {
    const float *query = tensors->packed + (b * TOKENS + token) * ROW + head * DIM;
    const float *found = tensors->out + ((b * HEADS + head) * TOKENS + token) * DIM;
    int64_t first = 0, count = 0;
    double sum = 0, out[DIM] = {0}, worst = 0;
    nhood_window(axis, token, &first, &count); /* the keys that this query attends */
    for (int64_t n = 0; n < count + SINKS; n++) {
        int64_t sink = n < count ? -1 : n - count;
        const float *key = row_of(tensors, 0, b, first + n, sink, head / (HEADS / KV_HEADS));
        const float *value = row_of(tensors, 1, b, first + n, sink, head / (HEADS / KV_HEADS));
        double logit = 0;
        for (int c = 0; c < DIM; c++)
            logit += (double)query[c] * (double)key[c];
        double weight = exp(logit / sqrt(DIM));
        sum += weight;
        for (int c = 0; c < DIM; c++)
            out[c] += weight * (double)value[c];
    }
    for (int c = 0; c < DIM; c++)
        worst = fmax(worst, fabs(out[c] / sum - (double)found[c]));
    return worst;
}

static double largest_difference(const struct tensors *tensors, const nhood_problem *problem) {
    double worst = 0;
    for (int b = 0; b < BATCH; b++)
        for (int head = 0; head < HEADS; head++)
            for (int64_t token = 0; token < TOKENS; token++)
                worst = fmax(worst, row_difference(tensors, &problem->axis[0], b, head, token));
    return worst;
}

/* ---- wisdom as text: what one process of a job has measured, for the others ---- */

static char *measured_text(nhood_context *context, const nhood_problem *problem) {
    const nhood_plan_options measure = {
        .struct_size = sizeof measure, .effort = NHOOD_EFFORT_MEASURE, .budget_s = 0.05};
    nhood_plan *plan = NULL;
    size_t length = 0;
    if (nhood_plan_create(context, 0, problem, &measure, &plan)) return NULL;
    nhood_plan_release(plan);
    nhood_wisdom_export(context, NULL, 0, &length); /* ARGUMENT, and the length */
    char *text = malloc(length + 1);
    if (text && !nhood_wisdom_export(context, text, length + 1, NULL)) return text;
    free(text);
    return NULL;
}

/* A plan that knows what the other context has measured; NULL with an error text. */
static nhood_plan *plan_by_text(nhood_context *context, const nhood_problem *problem,
                                const char *text) {
    const nhood_plan_options known = {.struct_size = sizeof known,
                                      .effort = NHOOD_EFFORT_WISDOM_ONLY};
    nhood_plan *plan = NULL;
    if (nhood_wisdom_import(context, text, NULL)) return NULL;
    return nhood_plan_create(context, 0, problem, &known, &plan) ? NULL : plan;
}

static void log_line(void *user, int32_t level, const char *line) {
    (void)user;
    if (level <= NHOOD_LOG_WARNING) fprintf(stderr, "nhood: %s\n", line);
}

int main(void) {
    const nhood_context_options options = {.struct_size = sizeof options,
                                           .threads = THREADS,
                                           .cache = "", /* nothing from or to the disk */
                                           .log = log_line,
                                           .parallel_for = parallel_for};
    const nhood_problem problem = make_problem();
    nhood_context *first = NULL, *second = NULL;
    nhood_plan *plan = NULL;
    struct tensors tensors = {0};
    char *text = NULL;
    double difference = INFINITY;
    int ok = make_tensors(&tensors) && !nhood_context_create(&options, &first) &&
             !nhood_context_create(&options, &second);
    ok = ok && (text = measured_text(first, &problem)) != NULL &&
         (plan = plan_by_text(second, &problem, text)) != NULL && !execute(plan, &tensors);
    if (ok) {
        difference = largest_difference(&tensors, &problem);
        printf("%s\nlargest difference %.1e\n", nhood_plan_description(plan), difference);
    } else {
        fprintf(stderr, "%s\n", nhood_last_error());
    }
    free(text);
    free(tensors.packed);
    free(tensors.sink_keys);
    free(tensors.sink_values);
    free(tensors.out);
    nhood_plan_release(plan);
    nhood_context_destroy(first);
    nhood_context_destroy(second);
    return difference < 1e-5 ? 0 : 1;
}
