/* Sums of f32 over thousands of keys and of queries, against the reference's f64: largest error over largest value,
 * against bars that do not grow with the number of terms. The emulated tensor cores cut sums off as real ones do, so a
 * solver that leaves long sums to them, or to one running sum, fails. Extra tokens and shared heads make sums long for
 * few rows; values around 1 make what is cut off add up. */
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { CPU_DEVICE, CUDA_DEVICE };

static double largest_error(const float *values, const float *exact, int64_t elements) {
    double error = 0, largest = 0;
    for (int64_t i = 0; i < elements; i++) {
        double difference = fabs((double)values[i] - exact[i]);
        if (!(difference <= error)) error = difference;
        largest = fmax(largest, fabs((double)exact[i]));
    }
    return error / largest;
}

static int64_t elements_of(const nhood_problem *problem, int tensor) {
    int64_t elements = 0;
    nhood_problem_elements(problem, tensor, &elements);
    return elements;
}

static bool execute(nhood_context *context, int device, const char *solver,
                    const nhood_problem *problem, nhood_io *io) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    CHECK(!nhood_plan_create(context, device, problem, &options, &plan), "%s: %s", solver,
          nhood_last_error());
    if (!plan) return false;
    io->workspace_bytes = nhood_plan_workspace_bytes(plan);
    io->workspace = aligned_alloc(256, (io->workspace_bytes + 256) / 256 * 256);
    bool done = !nhood_plan_execute(plan, io);
    CHECK(done, "%s: %s", solver, nhood_last_error());
    free(io->workspace);
    nhood_plan_release(plan);
    return done;
}

/* Values and gradients of outputs around 1, queries and keys around 0, or with `all_shifted` around 1, too. */
static float *random_tensor(const nhood_problem *problem, int tensor, bool all_shifted,
                            uint64_t *state) {
    int64_t elements = elements_of(problem, tensor);
    bool shifted =
        all_shifted || tensor == NHOOD_V || tensor == NHOOD_EXTRA_V || tensor == NHOOD_D_O;
    float *values = malloc((size_t)elements * sizeof *values);
    for (int64_t i = 0; i < elements; i++)
        values[i] = (float)test_between(state, -1000000, 1000000) * 1e-6f + (float)shifted;
    return values;
}

/* Runs the problem by the solver and by the reference; `output` are the tensors that are compared, bars[i] theirs. */
static void compare_of(nhood_context *context, const char *solver, nhood_problem problem,
                       bool all_shifted, const int *output, const double *bars, int outputs) {
    static const int inputs[] = {NHOOD_Q,       NHOOD_K,       NHOOD_V,
                                 NHOOD_EXTRA_K, NHOOD_EXTRA_V, NHOOD_D_O};
    nhood_problem forward = problem;
    nhood_io io = {.struct_size = sizeof io};
    uint64_t state = 3;
    forward.op = NHOOD_OP_FWD;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (elements_of(&problem, inputs[i]))
            io.data[inputs[i]] = random_tensor(&problem, inputs[i], all_shifted, &state);
    if (problem.op == NHOOD_OP_BWD) {
        io.data[NHOOD_O] = malloc((size_t)elements_of(&forward, NHOOD_O) * sizeof(float));
        io.data[NHOOD_LSE] = malloc((size_t)elements_of(&forward, NHOOD_LSE) * sizeof(float));
        nhood_io first = io;
        first.data[NHOOD_D_O] = NULL;
        execute(context, CPU_DEVICE, "reference", &forward, &first);
    }
    nhood_io exact = io;
    for (int i = 0; i < outputs; i++) {
        size_t bytes = (size_t)elements_of(&problem, output[i]) * sizeof(float);
        io.data[output[i]] = malloc(bytes);
        exact.data[output[i]] = malloc(bytes);
    }
    if (execute(context, CPU_DEVICE, "reference", &problem, &exact) &&
        execute(context, CUDA_DEVICE, solver, &problem, &io))
        for (int i = 0; i < outputs; i++) {
            double error = largest_error(io.data[output[i]], exact.data[output[i]],
                                         elements_of(&problem, output[i]));
            CHECK(error <= bars[i], "%s: tensor %d is off by %.2g of its largest value, bar %.2g",
                  solver, output[i], error, bars[i]);
        }
    for (int i = 0; i < outputs; i++)
        free(exact.data[output[i]]);
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        free(io.data[tensor]);
}

static void compare(nhood_context *context, const char *solver, nhood_problem problem,
                    const int *output, const double *bars, int outputs) {
    compare_of(context, solver, problem, false, output, bars, outputs);
}

static nhood_problem problem_of(const char *text) {
    nhood_problem problem = {.struct_size = sizeof problem};
    CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
    return problem;
}

int main(void) {
    nhood_context_options options = {.struct_size = sizeof options};
    nhood_context *context = NULL;
    if (nhood_context_create(&options, &context)) {
        fprintf(stderr, "%s\n", nhood_last_error());
        return 1;
    }
    static const int forward[] = {NHOOD_O, NHOOD_LSE}, query[] = {NHOOD_D_Q},
                     token[] = {NHOOD_D_EXTRA_K, NHOOD_D_EXTRA_V};
    static const double forward_bars[] = {2e-6, 2e-7}, query_bars[] = {1e-5},
                        token_bars[] = {2e-6, 2e-6};
    static const char *const solvers[][2] = {{"cuda.naive", "cuda.naive"},
                                             {"cuda.fused80", "cuda.split80"}};
    for (size_t i = 0; i < sizeof solvers / sizeof *solvers; i++) {
        compare(context, solvers[i][0], problem_of("fwd:f32:b1h1d32:16:w3:x4000"), forward,
                forward_bars, 2);
        compare(context, solvers[i][1], problem_of("bwd:f32:b1h1d32:16:w3:x2000"), query,
                query_bars, 1);
        compare(context, solvers[i][1], problem_of("bwd:f32:b1h128k1d32:16:w3:x16"), token,
                token_bars, 2);
    }
    /* dP is nearly delta */
    static const double shifted_bar[] = {6e-5};
    compare_of(context, "cuda.split80", problem_of("bwd:f32:b1h1d64:16:w3:x1000"), true, query,
               shifted_bar, 1);
    /* windows beyond 256 keys, of solvers that take no extra tokens */
    static const int gradients[] = {NHOOD_D_Q, NHOOD_D_K, NHOOD_D_V};
    static const double gradient_bars[] = {1e-5, 1e-5, 2e-6};
    static const char *const windowed[] = {"cuda.small", "cuda.short"};
    for (size_t i = 0; i < sizeof windowed / sizeof *windowed; i++) {
        compare(context, windowed[i], problem_of("fwd:f32:b1h1d32:320:w320"), forward, forward_bars,
                2);
        compare(context, windowed[i], problem_of("bwd:f32:b1h1d32:320:w320"), gradients,
                gradient_bars, 3);
    }
    /* LSE over the scale is far larger than the scores that it shifts */
    static const int value[] = {NHOOD_D_V};
    static const double value_bar[] = {1e-6};
    compare(context, "cuda.small", problem_of("bwd:f32:b1h1d64:64:w33"), value, value_bar, 1);
    nhood_context_destroy(context);
    return test_result();
}
