/* Inputs whose batch entries or heads are the same memory, or lie in no order that a tensor map has axes for: the kernels of
 * sm_90 fetch them, and make of them what the CPU makes. On the emulated GPU memory is the host's, so tensors need no copies. */
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { CPU, CUDA_DEVICE };
enum arrangement { HEADS_EXPANDED, BATCH_EXPANDED, APART };

static float value_of(const void *tensor, int64_t at) {
    uint32_t word = (uint32_t)((const uint16_t *)tensor)[at] << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static bool of_values(int tensor) {
    return tensor == NHOOD_V || tensor == NHOOD_O || tensor == NHOOD_D_O || tensor == NHOOD_D_V;
}

/* Lays an input out in this arrangement, in at most twice the memory of a packed one. */
static void arrange(nhood_problem *problem, int tensor, enum arrangement how) {
    const bool keys = tensor == NHOOD_K || tensor == NHOOD_V;
    const int64_t dim = of_values(tensor) && problem->dim_v ? problem->dim_v : problem->dim,
                  heads = keys && problem->kv_heads ? problem->kv_heads : problem->heads;
    nhood_strides *strides = &problem->strides[tensor];
    int64_t step = how == BATCH_EXPANDED ? dim * heads : dim;
    for (int axis = problem->rank - 1; axis >= 0; axis--) {
        strides->axis[axis] = step;
        step *= problem->axis[axis].length;
    }
    strides->head = how == HEADS_EXPANDED ? 0 : how == BATCH_EXPANDED ? dim : step + 8;
    strides->batch = how == HEADS_EXPANDED   ? step
                     : how == BATCH_EXPANDED ? 0
                                             : heads * strides->head + 16;
}

static void make_inputs(const nhood_problem *packed, nhood_io *io) {
    uint64_t state = 7;
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        int64_t elements = 0;
        nhood_problem_elements(packed, tensor, &elements);
        if (!elements) continue;
        io->data[tensor] = test_allocate((size_t)elements * 2 * sizeof(float));
        for (int64_t i = 0; i < 2 * elements; i++)
            if (tensor == NHOOD_LSE)
                ((float *)io->data[tensor])[i] = 5; /* above that of all rows */
            else                                    /* a bf16 of magnitude 0.25 to 0.5 */
                ((uint16_t *)io->data[tensor])[i] =
                    (uint16_t)(0x3e80 + test_between(&state, 0, 127) +
                               (test_between(&state, 0, 1) ? 0x8000 : 0));
    }
    free(io->data[NHOOD_D_LSE]);
    io->data[NHOOD_D_LSE] = NULL;
}

/* Runs the problem into outputs of its own. */
static void run(nhood_context *context, int32_t device, const char *solver,
                const nhood_problem *problem, nhood_io *io) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    if (nhood_plan_create(context, device, problem, &options, &plan)) {
        CHECK(false, "%s: %s", solver, nhood_last_error());
        return;
    }
    io->workspace_bytes = nhood_plan_workspace_bytes(plan);
    io->workspace = test_allocate(io->workspace_bytes + 256);
    CHECK(!nhood_plan_execute(plan, io), "%s: %s", solver, nhood_last_error());
    test_free(io->workspace);
    nhood_plan_release(plan);
}

static void check(nhood_context *context, const char *solver, const char *text, int tensor,
                  enum arrangement how) {
    static const int outputs[2][3] = {{NHOOD_O}, {NHOOD_D_Q, NHOOD_D_K, NHOOD_D_V}};
    nhood_problem problem;
    nhood_io expected = {.struct_size = sizeof expected}, got = {.struct_size = sizeof got};
    CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
    const bool backward = problem.op == NHOOD_OP_BWD;
    make_inputs(&problem, &expected);
    make_inputs(&problem, &got);
    arrange(&problem, tensor, how);
    run(context, CPU, "cpu.fused", &problem, &expected);
    run(context, CUDA_DEVICE, solver, &problem, &got);
    for (int i = 0; i < (backward ? 3 : 1); i++) {
        const int output = outputs[backward][i];
        int64_t elements = 0, wrong = 0;
        nhood_problem_elements(&problem, output, &elements);
        for (int64_t n = 0; n < elements; n++) {
            const float want = value_of(expected.data[output], n);
            wrong +=
                !(fabsf(value_of(got.data[output], n) - want) <= 0x1p-9f + 0x1p-6f * fabsf(want));
        }
        CHECK(!wrong,
              "%s, %s, tensor %d, arrangement %d: %lld of %lld elements of output %d differ",
              solver, text, tensor, how, (long long)wrong, (long long)elements, output);
    }
    for (int i = 0; i < NHOOD_TENSOR_COUNT; i++) {
        test_free(expected.data[i]);
        test_free(got.data[i]);
    }
}

int main(void) {
    static const struct {
        const char *solver, *text;
        int tensor;
        enum arrangement how;
    } row[] = {
        /* values of one head for all, as upsamplers have; a dilation that is an axis of maps, and one that is an origin */
        {"cuda.fused90", "fwd:bf16:b2h4d32v64:20x30:wr10w5xr8w3", NHOOD_V, HEADS_EXPANDED},
        {"cuda.fused90", "fwd:bf16:b3h2d64:90:w13:d5", NHOOD_K, BATCH_EXPANDED},
        {"cuda.fused90", "fwd:bf16:b2h2d32:23x31:w2x3:d11x10", NHOOD_V, HEADS_EXPANDED},
        {"cuda.fused90", "fwd:bf16:b2h2d32:6x8x9:w3x5x5:x3", NHOOD_Q, APART},
        {"cuda.fused90", "fwd:bf16:b2h2d32:6x8x9:w3x5x5", NHOOD_K, APART},
        {"cuda.split90", "bwd:bf16:b2h4d32v64:14x17:w5x7", NHOOD_V, HEADS_EXPANDED},
        {"cuda.split90", "bwd:bf16:b2h2d32:6x8x9:w3x5x5", NHOOD_D_O, APART},
        {"cuda.split90", "bwd:bf16:b3h2d64:90:w13:d5", NHOOD_Q, BATCH_EXPANDED},
        {"cuda.joint90", "bwd:bf16:b3h2d64:90:w13:d5", NHOOD_D_O, BATCH_EXPANDED},
        {"cuda.joint90", "bwd:bf16:b2h2d32:6x8x9:w3x5x5", NHOOD_K, APART},
    };
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(NULL, &context), "%s", nhood_last_error());
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        check(context, row[i].solver, row[i].text, row[i].tensor, row[i].how);
    nhood_context_destroy(context);
    return test_result();
}
