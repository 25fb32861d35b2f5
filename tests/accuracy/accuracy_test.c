/* The accuracy of f32 on long windows and long sums: outputs and gradients against the same problem in f64, with bars that do
 * not grow with the window. `accuracy_test [-v] ISA LONGEST SOLVER..` checks the named solvers, with CPU kernels up to ISA, on
 * the problems whose longest sums have at most LONGEST terms. With -v it prints every error.
 *
 * Solvers "cuda.." run on the first CUDA device, whose memory must be the host's, as that of the emulated one is. */
#include "case.h"

#include <math.h>
#include <stdbool.h>

struct line {
    const char *problem; /* without op and type */
    int terms;           /* of its longest sums */
    bool weights;        /* small enough for the unfused operations, whose weights are a tensor */
};

static const struct line lines[] = {
    /* every token attends to all */
    {"b1h2d64:3:w3", 3, true},
    {"b1h1d64:61:w61", 61, true},
    {"b1h1d64:256:w256", 256, true},
    {"b1h1d32:1024:w1024", 1024, true},
    {"b1h1d8:4096:w4096", 4096, false},
    /* planes, with bias tables and extra tokens */
    {"b1h1d16:40x40:w39x39:rpb:x3", 1600, false},
    /* causal windows, and rows so short that several share a vector: slots that some queries leave unused */
    {"b1h1d16:300:w200:c1", 200, true},
    {"b2h2k1d24:9x7:w3x5:x3:c10", 126, false},
    /* short windows: 16,000 extra tokens of few queries; few of 16,384 queries, whose bias tables are short as well */
    {"b1h1d32:24:w3:x16000", 16000, false},
    {"b1h1d32:16384:w3:rpb:x3", 16384, false},
    {"b4h2k1d16:2048:w3:rpb:x3", 16384, false},
};

/* Mean of Q, K, V and dO around a standard deviation of 1, scale of the scores (0: the usual one), and the bars: the largest error
 * over the largest element. These are two to three times what the CPU's kernels reach on any instruction set. At a mean of
 * 100 the usual scale leaves all weight to one key and hardly a gradient; with its own, dP and delta agree in four digits and
 * what is left of dQ is the difference of such differences, unless delta is taken from P and dP, not from O, which is rounded. */
struct level {
    double mean, scale;
    double o;   /* and A */
    double lse; /* of the largest, itself beside its rounding to f32, 6e-8 */
    double d_v, d_k, d_q;
    double d_q_of_o; /* dQ where delta is rowsum(dO * O), as on CUDA */
};

static const struct level levels[] = {
    {0, 0, 1.5e-6, 3e-7, 1.6e-6, 2e-6, 2.5e-6, 2.5e-6},
    {1, 0, 1.5e-6, 3e-7, 2e-6, 4e-6, 1.2e-5, 2e-5},
    {100, 1e-3, 1.5e-6, 3e-7, 4e-5, 2e-4, 3e-4, 0.7},
};

static bool verbose;

/* Both cases get the same numbers, all of which f32 holds. */
static void fill(struct test_case *narrow, struct test_case *wide, double mean, uint64_t seed) {
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        const bool small = tensor == NHOOD_BIAS || tensor == NHOOD_D_LSE;
        for (int64_t i = 0; i < narrow->elements[tensor]; i++) {
            double x = test_uniform(&state); /* a sum of three has a variance of 1 */
            if (!small) x += test_uniform(&state) + test_uniform(&state) + mean;
            case_set(narrow, tensor, i, x);
            case_set(wide, tensor, i, case_get(narrow, tensor, i));
        }
    }
}

static bool is_result(int32_t op, int tensor) {
    switch (op) {
    case NHOOD_OP_FWD: return tensor == NHOOD_O || tensor == NHOOD_LSE;
    case NHOOD_OP_BWD: return tensor >= NHOOD_D_Q && tensor <= NHOOD_D_EXTRA_V;
    case NHOOD_OP_PN: return tensor == NHOOD_A;
    case NHOOD_OP_NN: return tensor == NHOOD_O;
    default: return tensor == NHOOD_D_V;
    }
}

static bool on_cuda(const char *solver) {
    return !strncmp(solver, "cuda.", 5);
}

static double bar_of(const struct level *level, const char *solver, int tensor) {
    switch (tensor) {
    case NHOOD_LSE: return level->lse;
    case NHOOD_D_Q: return on_cuda(solver) ? level->d_q_of_o : level->d_q;
    case NHOOD_D_K:
    case NHOOD_D_EXTRA_K:
    case NHOOD_D_BIAS: return level->d_k;
    case NHOOD_D_V:
    case NHOOD_D_EXTRA_V: return level->d_v;
    default: return level->o;
    }
}

static void compare(const struct test_case *narrow, const struct test_case *wide,
                    const struct level *level, const char *solver, const char *what) {
    static const char *const name[NHOOD_TENSOR_COUNT] = {[NHOOD_O] = "O",
                                                         [NHOOD_LSE] = "LSE",
                                                         [NHOOD_A] = "A",
                                                         [NHOOD_D_Q] = "dQ",
                                                         [NHOOD_D_K] = "dK",
                                                         [NHOOD_D_V] = "dV",
                                                         [NHOOD_D_BIAS] = "dBias",
                                                         [NHOOD_D_EXTRA_K] = "dExtraK",
                                                         [NHOOD_D_EXTRA_V] = "dExtraV"};
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        if (!is_result(narrow->problem.op, tensor) || !narrow->elements[tensor]) continue;
        double largest = 0;
        for (int64_t i = 0; i < wide->elements[tensor]; i++) {
            const double size = fabs(case_get(wide, tensor, i));
            if (isfinite(size)) largest = fmax(largest, size); /* unused slots of A are -infinity */
        }
        const double error = case_difference(narrow, wide, tensor) / largest;
        if (verbose)
            printf("%-60s mean %3.0f %-7s %.1e of %.1e\n", what, level->mean, name[tensor], error,
                   bar_of(level, solver, tensor));
        CHECK(error <= bar_of(level, solver, tensor),
              "%s, mean %.0f: error of %s %.2e, at most %.1e", what, level->mean, name[tensor],
              error, bar_of(level, solver, tensor));
    }
}

static void parse(struct test_case *c, const char *op, const char *type, const char *problem,
                  const struct level *level) {
    char text[96];
    snprintf(text, sizeof text, "%s:%s:%s", op, type, problem);
    case_create(c, text, 1);
    if (level->scale > 0) c->problem.scale = level->scale;
}

/* What the backward pass takes from the forward one: of the solver itself or, if it has none, of the planner's choice. */
static bool take_results(nhood_context *context, int32_t device, struct test_case *backward,
                         const char *solver) {
    struct test_case forward = *backward;
    forward.problem.op = NHOOD_OP_FWD;
    return case_run_on(context, device, &forward, solver) == NHOOD_OK ||
           case_run_on(context, device, &forward, NULL) == NHOOD_OK;
}

/* False if the solver does not take the operation. */
static bool check(nhood_context *context, int32_t device, nhood_context *exact, const char *solver,
                  const char *op, const char *problem, const struct level *level) {
    struct test_case narrow, wide;
    char what[160];
    parse(&narrow, op, "f32", problem, level);
    parse(&wide, op, "f64", problem, level);
    snprintf(what, sizeof what, "%s %s:f32:%s", solver, op, problem);
    fill(&narrow, &wide, level->mean, 7);
    const bool backward = narrow.problem.op == NHOOD_OP_BWD;
    bool made = !backward || take_results(context, device, &narrow, solver);
    CHECK(made, "%s: no forward pass: %s", what, nhood_last_error());
    const nhood_status status = case_run_on(context, device, &narrow, solver);
    CHECK(status == NHOOD_OK || status == NHOOD_ERR_UNSUPPORTED, "%s: %s", what,
          nhood_last_error());
    if (status == NHOOD_OK) {
        made = (!backward || take_results(exact, 0, &wide, NULL)) &&
               case_run_on(exact, 0, &wide, NULL) == NHOOD_OK;
        CHECK(made, "%s: %s", what, nhood_last_error());
        compare(&narrow, &wide, level, solver, what);
    }
    case_destroy(&narrow);
    case_destroy(&wide);
    return status == NHOOD_OK;
}

static int check_line(nhood_context *context, int32_t device, nhood_context *exact,
                      const char *solver, const struct line *line) {
    static const char *const ops[] = {"fwd", "bwd", "pn", "nn", "in"};
    int taken = 0;
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++)
        for (int op = 0; op < (line->weights ? 5 : 2); op++)
            taken += check(context, device, exact, solver, ops[op], line->problem, &levels[l]);
    return taken;
}

static nhood_context *context_of(const char *isa) {
    const nhood_context_options options = {.struct_size = sizeof options, .isa = isa, .cache = ""};
    nhood_context *context = NULL;
    if (nhood_context_create(&options, &context)) {
        printf("%s\n", nhood_last_error());
        exit(EXIT_FAILURE);
    }
    return context;
}

int main(int count, char **argument) {
    verbose = count > 1 && !strcmp(argument[1], "-v");
    argument += verbose;
    count -= verbose;
    if (count < 4) {
        printf("usage: accuracy_test [-v] ISA LONGEST SOLVER..\n");
        return EXIT_FAILURE;
    }
    nhood_context *context = context_of(argument[1]), *exact = context_of(NULL);
    const int longest = atoi(argument[2]);
    for (int i = 3; i < count; i++) {
        const int32_t device = on_cuda(argument[i]);
        int taken = 0;
        for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++)
            if (lines[n].terms <= longest)
                taken += check_line(context, device, exact, argument[i], &lines[n]);
        CHECK(taken > 0, "%s took no problem", argument[i]);
    }
    nhood_context_destroy(context);
    nhood_context_destroy(exact);
    return test_result();
}
