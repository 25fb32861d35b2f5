/* A NaN or infinity in keys and values outside a query's window leaves its output alone, for the CUDA solvers that promise
 * that (docs/numerics.md). On the emulated GPU memory is the host's, so tensors need no copies. */
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { CUDA_DEVICE = 1, TENSORS = NHOOD_O + 1 };
static const uint16_t NAN_BITS = 0x7fc0, INFINITY_BITS = 0x7f80;

static float value_of(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* bf16 of magnitude 0.25 to 0.5. */
static uint16_t random_bits(uint64_t *state) {
    return (uint16_t)(0x3e80 + test_between(state, 0, 127) +
                      (test_between(state, 0, 1) ? 0x8000 : 0));
}

/* Runs a forward problem of one head in one dimension; token `poisoned` of K and V is not finite, none if negative. */
static uint16_t *output_of(nhood_context *context, const char *solver, const char *text,
                           int64_t poisoned) {
    nhood_problem problem;
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    nhood_io io = {.struct_size = sizeof io};
    uint64_t state = 7;
    CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
    for (int tensor = NHOOD_Q; tensor < TENSORS; tensor++) {
        int64_t elements = 0;
        nhood_problem_elements(&problem, tensor, &elements);
        uint16_t *data = malloc(2 * (size_t)elements);
        for (int64_t i = 0; i < elements; i++)
            data[i] = random_bits(&state);
        for (int64_t i = 0; poisoned >= 0 && i < problem.dim; i++)
            if (tensor == NHOOD_K || tensor == NHOOD_V)
                data[poisoned * problem.dim + i] = i & 1 ? INFINITY_BITS : NAN_BITS;
        io.data[tensor] = data;
    }
    if (nhood_plan_create(context, CUDA_DEVICE, &problem, &options, &plan)) {
        CHECK(false, "%s", nhood_last_error());
    } else {
        io.workspace_bytes = nhood_plan_workspace_bytes(plan);
        io.workspace = aligned_alloc(256, (io.workspace_bytes + 256) / 256 * 256);
        memset(io.workspace, 0xff, io.workspace_bytes);
        CHECK(!nhood_plan_execute(plan, &io), "%s", nhood_last_error());
        free(io.workspace);
        nhood_plan_release(plan);
    }
    for (int tensor = NHOOD_Q; tensor < NHOOD_O; tensor++)
        free(io.data[tensor]);
    return io.data[NHOOD_O];
}

static void nan_stays_outside(nhood_context *context, const char *solver, const char *text,
                              int64_t poisoned) {
    uint16_t *clean = output_of(context, solver, text, -1);
    uint16_t *dirty = output_of(context, solver, text, poisoned);
    nhood_problem problem;
    nhood_problem_parse(text, &problem);
    const nhood_axis *axis = &problem.axis[0];
    for (int64_t token = 0; token < axis->length; token++) {
        int64_t first = 0, count = 0, good = 0;
        nhood_window(axis, token, &first, &count);
        bool inside = false;
        for (int64_t n = 0; n < count; n++)
            inside = inside || first + n * axis->dilation == poisoned;
        /* A row made again may round another way: one unit in the last place below 1 is 2^-8. */
        for (int64_t i = token * problem.dim; i < (token + 1) * problem.dim; i++)
            good += fabsf(value_of(dirty[i]) - value_of(clean[i])) <= 0x1p-8f;
        CHECK(inside ? good == 0 : good == problem.dim,
              "%s, %s: token %lld, poisoned %lld: %lld elements as without", solver, text,
              (long long)token, (long long)poisoned, (long long)good);
    }
    free(clean);
    free(dirty);
}

int main(void) {
    static const char *const solvers[] = {"cuda.small", "cuda.fused80", "cuda.gemm", "cuda.naive"};
    nhood_context *context = NULL;
    if (nhood_context_create(NULL, &context)) {
        printf("%s\n", nhood_last_error());
        return EXIT_FAILURE;
    }
    for (size_t i = 0; i < sizeof solvers / sizeof *solvers; i++)
        for (int64_t poisoned = 0; poisoned < 60; poisoned += 29) {
            nan_stays_outside(context, solvers[i], "fwd:bf16:b1h1d32:70:w9", poisoned);
            nan_stays_outside(context, solvers[i], "fwd:bf16:b1h1d32:60:w8:c1", poisoned);
            nan_stays_outside(context, solvers[i], "fwd:bf16:b1h1d32:60:w6:s4:d3", poisoned);
        }
    nhood_context_destroy(context);
    return test_result();
}
