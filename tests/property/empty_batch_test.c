/* Problems without batch entries, on every device of the context, whose memory must be the host's (an emulated GPU's is): plans are
 * made, need no workspace and no pointers, and write nothing but zeros to what all batch entries share. */
#include "nhood.h"
#include "nhood_norm_rope.h"
#include "test.h"

#include <stdbool.h>
#include <string.h>

enum { MOST_BYTES = 1 << 16 };

static void count_rows(void *user, const nhood_candidate *candidate) {
    (void)candidate;
    ++*(int *)user;
}

/* Whether bytes [0, zeros) are 0 and all others still 0xa5. */
static bool zeroed(const unsigned char *memory, size_t zeros) {
    bool right = true;
    for (size_t i = 0; i < MOST_BYTES; i++)
        right &= memory[i] == (i < zeros ? 0 : 0xa5);
    return right;
}

static void executes(nhood_context *context, int32_t device, const char *text, int32_t effort,
                     const char *solver) {
    static unsigned char memory[MOST_BYTES];
    nhood_problem problem;
    nhood_plan *plan = NULL;
    nhood_plan_options options = {.struct_size = sizeof options, .effort = effort};
    options.solver = solver;
    double flops = -1, bytes;
    int rows = 0;
    CHECK(!nhood_problem_parse(text, &problem), "%s: %s", text, nhood_last_error());
    CHECK(!nhood_problem_cost(&problem, &flops, &bytes) && flops == 0, "%s: %g operations", text,
          flops);
    CHECK(!nhood_plan_explain(context, device, &problem, &options, count_rows, &rows) && !rows,
          "%s: %d rows, %s", text, rows, nhood_last_error());
    CHECK(!nhood_plan_create(context, device, &problem, &options, &plan), "%s: %s", text,
          nhood_last_error());
    if (!plan) return;
    CHECK(!strncmp(nhood_plan_description(plan), text, strlen(text)), "%s",
          nhood_plan_description(plan));
    CHECK(nhood_plan_workspace_bytes(plan) == 0, "%s: a workspace", text);
    nhood_io io = {.struct_size = sizeof io};
    int64_t shared = 0;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        int64_t elements = -1;
        CHECK(!nhood_problem_elements(&problem, t, &elements), "%s", nhood_last_error());
        CHECK(elements == 0 || t == NHOOD_BIAS || t == NHOOD_D_BIAS, "%s: %lld elements of %d",
              text, (long long)elements, t);
        if (t == NHOOD_BIAS && elements) io.data[t] = memory; /* which is read by nobody */
        if (t == NHOOD_D_BIAS) shared = elements;
    }
    const size_t element = problem.dtype == NHOOD_DTYPE_F64   ? 8
                           : problem.dtype == NHOOD_DTYPE_F32 ? 4
                                                              : 2;
    memset(memory, 0xa5, sizeof memory);
    CHECK(!nhood_plan_execute(plan, &io) && zeroed(memory, 0), "%s: %s", text, nhood_last_error());
    if (shared) {
        static unsigned char bias[MOST_BYTES];
        io.data[NHOOD_BIAS] = bias;
        io.data[NHOOD_D_BIAS] = memory;
        CHECK(!nhood_plan_execute(plan, &io) && zeroed(memory, (size_t)shared * element), "%s: %s",
              text, nhood_last_error());
        io.data[NHOOD_D_BIAS] = memory + 1;
        CHECK(nhood_plan_execute(plan, &io) == NHOOD_ERR_ARGUMENT, "%s: misaligned", text);
    }
    nhood_plan_release(plan);
}

/* What is refused for one batch entry is refused for none. */
static void refuses(nhood_context *context, int32_t device) {
    nhood_problem problem;
    nhood_plan *plan = NULL;
    nhood_plan_options options = {.struct_size = sizeof options, .solver = "cpu.fusd"};
    CHECK(!nhood_problem_parse("fwd:f32:b0h1d8:9:w3", &problem), "%s", nhood_last_error());
    CHECK(nhood_plan_create(context, device, &problem, &options, &plan) == NHOOD_ERR_ARGUMENT,
          "an unknown solver");
    options.solver = "cpu.unfused";
    const nhood_status status = nhood_plan_create(context, device, &problem, &options, &plan);
    CHECK(status == NHOOD_ERR_UNSUPPORTED || (device && status), "cpu.unfused takes fwd");
    problem.axis[0].window = 10;
    CHECK(nhood_plan_create(context, device, &problem, NULL, &plan) == NHOOD_ERR_ARGUMENT,
          "a window of 10 on 9 tokens");
    problem.axis[0].window = 3;
    problem.batch = -1;
    CHECK(nhood_plan_create(context, device, &problem, NULL, &plan) == NHOOD_ERR_ARGUMENT,
          "a batch of -1");
}

static void norm_rope(nhood_context *context, int32_t device, int32_t op, int32_t norm) {
    static unsigned char memory[MOST_BYTES];
    nhood_norm_rope_problem problem;
    nhood_norm_rope_plan *plan = NULL;
    nhood_norm_rope_problem_init(&problem, op, NHOOD_DTYPE_BF16, 2);
    problem.batch = 0;
    problem.heads = 3;
    problem.length[0] = 4;
    problem.length[1] = 5;
    problem.rotated[0] = 8;
    problem.norm = norm;
    problem.has_weight = norm != NHOOD_NORM_NONE;
    problem.weight_dtype = NHOOD_DTYPE_F32;
    CHECK(!nhood_norm_rope_plan_create(context, device, &problem, &plan), "%s", nhood_last_error());
    if (!plan) return;
    CHECK(nhood_norm_rope_workspace_bytes(plan) == 0, "a workspace");
    memset(memory, 0xa5, sizeof memory);
    nhood_norm_rope_io io = {.struct_size = sizeof io};
    CHECK(!nhood_norm_rope_execute(plan, &io), "%s", nhood_last_error());
    io.d_weight = memory;
    const size_t channels = norm == NHOOD_NORM_TOKEN ? 96 : norm == NHOOD_NORM_HEAD ? 32 : 0;
    CHECK(!nhood_norm_rope_execute(plan, &io) &&
              zeroed(memory, op == NHOOD_OP_BWD ? channels * sizeof(float) : 0),
          "operation %d, norm %d: %s", op, norm, nhood_last_error());
    nhood_norm_rope_plan_destroy(plan);
}

int main(void) {
    static const char *const texts[] = {
        "fwd:f32:b0h2d8:9:w3",
        "fwd:bf16:b0h4k2d16v24:9x7:w3x5:d2x1:c10:x3",
        "fwd:f16:b0h1d32:5x6x7:w3x3x5",
        "fwd:f64:b0h1d8:12:w5:p1:q3+4:k1+7",
        "bwd:f32:b0h2d8:9:w3",
        "bwd:bf16:b0h2k1d16:9x7:w3x5:x3:rpb",
        "bwd:f16:b0h3d32:5x6x7:w3x3x5:rpb",
        "bwd:f64:b0h2d8:12:w5:rpb",
        "pn:f32:b0h2d8:9:w3:rpb",
        "nn:bf16:b0h2k1d8:9x9:w3x3",
        "in:f16:b0h2d8:9x9:w3x3",
    };
    nhood_context *context = NULL;
    const nhood_context_options options = {.struct_size = sizeof options, .cache = ""};
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    for (int32_t device = 0; device < nhood_device_count(context); device++) {
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            executes(context, device, texts[i], NHOOD_EFFORT_ESTIMATE, NULL);
            executes(context, device, texts[i], NHOOD_EFFORT_WISDOM_ONLY, NULL);
        }
        executes(context, device, texts[0], NHOOD_EFFORT_MEASURE, device ? NULL : "reference");
        refuses(context, device);
        for (int32_t norm = NHOOD_NORM_NONE; norm <= NHOOD_NORM_TOKEN; norm++) {
            norm_rope(context, device, NHOOD_OP_FWD, norm);
            norm_rope(context, device, NHOOD_OP_BWD, norm);
        }
    }
    nhood_context_destroy(context);
    return test_result();
}
