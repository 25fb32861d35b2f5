/* A program as it was built before nhood_problem had regions: compiled against the header of that time (before_regions/nhood.h), it
 * runs on this library, which must neither read nor write beyond the shorter struct. */
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <string.h>

#ifdef nhood_problem_init
#error this is not the header of before regions
#endif

enum { TOKENS = 12, DIM = 4, GUARD_BYTES = 256, GUARD = 0x5a };

struct guarded {
    nhood_problem problem;
    unsigned char guard[GUARD_BYTES];
};

static struct guarded guarded(void) {
    struct guarded g;
    memset(&g, GUARD, sizeof g);
    return g;
}

static void check_guard(const struct guarded *g, const char *what) {
    int written = 0;
    for (int i = 0; i < GUARD_BYTES; i++)
        written += g->guard[i] != GUARD;
    CHECK(!written, "%s wrote %d bytes beyond the problem", what, written);
    CHECK(g->problem.struct_size == sizeof g->problem, "%s: struct_size = %zu", what,
          g->problem.struct_size);
}

/* One head over the whole sequence, against the sums themselves. */
static void check_results(nhood_context *context, const nhood_problem *problem) {
    float q[TOKENS * DIM], k[TOKENS * DIM], v[TOKENS * DIM], out[TOKENS * DIM], lse[TOKENS];
    uint64_t state = 7;
    for (int i = 0; i < TOKENS * DIM; i++) {
        q[i] = (float)test_uniform(&state);
        k[i] = (float)test_uniform(&state);
        v[i] = (float)test_uniform(&state);
    }
    nhood_plan *plan = NULL;
    CHECK(!nhood_plan_create(context, 0, problem, NULL, &plan), "%s", nhood_last_error());
    nhood_io io = {.struct_size = sizeof io};
    io.data[NHOOD_Q] = q;
    io.data[NHOOD_K] = k;
    io.data[NHOOD_V] = v;
    io.data[NHOOD_O] = out;
    io.data[NHOOD_LSE] = lse;
    io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    io.workspace = test_allocate(io.workspace_bytes + 64);
    CHECK(!nhood_plan_execute(plan, &io), "%s", nhood_last_error());
    double worst = 0;
    for (int i = 0; i < TOKENS; i++) {
        double sum = 0, row[DIM] = {0};
        for (int j = 0; j < TOKENS; j++) {
            double score = 0;
            for (int c = 0; c < DIM; c++)
                score += (double)q[i * DIM + c] * (double)k[j * DIM + c] / sqrt(DIM);
            sum += exp(score);
            for (int c = 0; c < DIM; c++)
                row[c] += exp(score) * (double)v[j * DIM + c];
        }
        worst = fmax(worst, fabs(log(sum) - (double)lse[i]));
        for (int c = 0; c < DIM; c++)
            worst = fmax(worst, fabs(row[c] / sum - (double)out[i * DIM + c]));
    }
    CHECK(worst < 1e-5, "off by %g", worst);
    test_free(io.workspace);
    nhood_plan_release(plan);
}

int main(void) {
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(NULL, &context), "%s", nhood_last_error());

    struct guarded made = guarded();
    nhood_problem_init(&made.problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 1);
    check_guard(&made, "nhood_problem_init");
    made.problem.dim = made.problem.dim_v = DIM;
    made.problem.axis[0].length = made.problem.axis[0].window = TOKENS;
    check_results(context, &made.problem);

    struct guarded parsed = guarded();
    CHECK(!nhood_problem_parse("fwd:f32:b1h1d4:12:w12", &parsed.problem), "%s", nhood_last_error());
    check_guard(&parsed, "nhood_problem_parse");
    check_results(context, &parsed.problem);

    char text[128];
    CHECK(!nhood_problem_format(&parsed.problem, text, sizeof text, NULL) &&
              !strcmp(text, "fwd:f32:b1h1d4:12:w12"),
          "%s", text);
    struct guarded part = guarded(); /* a text that the shorter struct has no room for */
    CHECK(nhood_problem_parse("fwd:f32:b1h1d4:12:w3:q0+5", &part.problem) == NHOOD_ERR_ARGUMENT,
          "a region was parsed");
    for (int i = 0; i < GUARD_BYTES; i++)
        CHECK(part.guard[i] == GUARD, "a refused parse wrote byte %d", i);

    const size_t wrong[] = {0, sizeof(nhood_problem) - 8, sizeof(nhood_problem) + 8,
                            2 * sizeof(nhood_problem)};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        nhood_plan *plan = NULL;
        made.problem.struct_size = wrong[i];
        CHECK(nhood_plan_create(context, 0, &made.problem, NULL, &plan) == NHOOD_ERR_ARGUMENT &&
                  strstr(nhood_last_error(), "struct_size"),
              "struct_size %zu: %s", wrong[i], nhood_last_error());
    }
    nhood_context_destroy(context);
    return test_result();
}
