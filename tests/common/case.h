/* A problem with its tensors in memory. Inputs are random, or those of another case. */
#ifndef CASE_H
#define CASE_H

#include "nhood.h"
#include "test.h"

#include <string.h>

struct test_case {
    nhood_problem problem;
    nhood_io io;
    int64_t elements[NHOOD_TENSOR_COUNT];
};

static inline size_t case_element_bytes(const nhood_problem *problem, int tensor) {
    if (problem->dtype == NHOOD_DTYPE_F64) return 8;
    if (problem->dtype == NHOOD_DTYPE_F32 || tensor == NHOOD_LSE || tensor == NHOOD_D_LSE) return 4;
    return 2;
}

static inline double case_get(const struct test_case *c, int tensor, int64_t i) {
    if (case_element_bytes(&c->problem, tensor) == 8)
        return ((const double *)c->io.data[tensor])[i];
    return (double)((const float *)c->io.data[tensor])[i];
}

static inline void case_set(struct test_case *c, int tensor, int64_t i, double value) {
    if (case_element_bytes(&c->problem, tensor) == 8) {
        ((double *)c->io.data[tensor])[i] = value;
    } else {
        ((float *)c->io.data[tensor])[i] = (float)value;
    }
}

/* Creates a case with packed tensors for an f32 or f64 problem. Aborts the program if the text is not legal, as that is a bug in
 * the test. */
static inline void case_create(struct test_case *c, const char *text, uint64_t seed) {
    memset(c, 0, sizeof *c);
    if (nhood_problem_parse(text, &c->problem)) {
        printf("%s: %s\n", text, nhood_last_error());
        exit(EXIT_FAILURE);
    }
    c->io.struct_size = sizeof c->io;
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        nhood_problem_elements(&c->problem, tensor, &c->elements[tensor]);
        if (!c->elements[tensor]) continue;
        c->io.data[tensor] =
            malloc((size_t)c->elements[tensor] * case_element_bytes(&c->problem, tensor));
        for (int64_t i = 0; i < c->elements[tensor]; i++)
            case_set(c, tensor, i, test_uniform(&state));
    }
}

static inline void case_destroy(struct test_case *c) {
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        free(c->io.data[tensor]);
}

/* Plans a case (by the planner's choice if `solver` is NULL) and executes it once, with a workspace full of NaN. */
static inline nhood_status case_run_on(nhood_context *context, int32_t device, struct test_case *c,
                                       const char *solver) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    nhood_status status = nhood_plan_create(context, device, &c->problem, &options, &plan);
    if (status) return status;
    c->io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    c->io.workspace = c->io.workspace_bytes ? test_allocate(c->io.workspace_bytes) : NULL;
    if (c->io.workspace) memset(c->io.workspace, 0xff, c->io.workspace_bytes);
    status = nhood_plan_execute(plan, &c->io);
    test_free(c->io.workspace);
    c->io.workspace = NULL;
    nhood_plan_release(plan);
    return status;
}

static inline nhood_status case_run(nhood_context *context, struct test_case *c,
                                    const char *solver) {
    return case_run_on(context, 0, c, solver);
}

/* The largest difference of a tensor between two cases of the same shape; infinite if either has a NaN. */
static inline double case_difference(const struct test_case *a, const struct test_case *b,
                                     int tensor) {
    double worst = 0;
    for (int64_t i = 0; i < a->elements[tensor]; i++) {
        double x = case_get(a, tensor, i), y = case_get(b, tensor, i);
        double error = x > y ? x - y : x == y ? 0 : y - x;
        if (!(error <= worst)) worst = error == error ? error : 1e300;
    }
    return worst;
}

#endif
