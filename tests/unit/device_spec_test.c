/* GPUs that are only described: what estimates rest on adds up, and nothing can be built. */
#include "nhood.h"
#include "test.h"

#include <string.h>

static const char *const problems[] = {
    "fwd:bf16:b2h4d64:64x64:w13x13",
    "fwd:f16:b1h4k2d128:4096:w512:c1:x40",
    "fwd:bf16:b1h2d128:12x24x24:w6x8x8:s1x4x4",
    "fwd:f32:b1h2d32:50x30:w7x7:d2x3:rpb",
    "bwd:bf16:b2h4d64:64x64:w13x13",
    "bwd:f16:b1h2d32:16x16x16:w3x5x7",
    "pn:f16:b1h2d32:64x64:w7x7",
};

struct rows {
    int64_t taken, counted, chosen;
    double flops;
};

static void check_row(void *user, const nhood_candidate *row) {
    struct rows *rows = user;
    rows->chosen += row->chosen;
    if (row->refusal) return;
    rows->taken++;
    CHECK(row->estimate_ns > 0, "%s %s takes %g ns", row->solver, row->config, row->estimate_ns);
    if (row->tiles <= 0) return;
    rows->counted++;
    CHECK(row->masked_tiles >= 0 && row->masked_tiles <= row->tiles, "%s %s: %g of %g tiles",
          row->solver, row->config, row->masked_tiles, row->tiles);
    CHECK(row->product_flops >= rows->flops * 0.999, "%s %s: %g operations, useful are %g",
          row->solver, row->config, row->product_flops, rows->flops);
    for (int limit = 0; limit < NHOOD_LIMIT_COUNT; limit++) {
        CHECK(row->limit_ns[limit] > 0 || (limit == NHOOD_LIMIT_MASK && row->masked_tiles <= 0),
              "%s %s: limit %d: %g ns", row->solver, row->config, limit, row->limit_ns[limit]);
        CHECK(row->estimate_ns >= row->limit_ns[limit], "%s %s: %g ns, limit %d alone %g",
              row->solver, row->config, row->estimate_ns, limit, row->limit_ns[limit]);
    }
}

static void check_problem(nhood_context *context, int32_t device, const char *text) {
    struct rows rows = {0, 0, 0, 0};
    nhood_problem problem;
    CHECK(!nhood_problem_parse(text, &problem), "%s: %s", text, nhood_last_error());
    nhood_problem_cost(&problem, &rows.flops, NULL);
    /* its causal windows are only shorter than 512 in the first 511 of 4096 rows */
    if (problem.axis[0].causal) rows.flops *= 0.9;
    nhood_status status = nhood_plan_explain(context, device, &problem, NULL, check_row, &rows);
    CHECK(!status && rows.taken > 0 && rows.chosen == 1, "%s: %s", text, nhood_last_error());
    CHECK(rows.counted > 0 || problem.op == NHOOD_OP_PN, "%s: nothing counts tiles", text);
    nhood_plan *plan = NULL;
    status = nhood_plan_create(context, device, &problem, NULL, &plan);
    CHECK(status == NHOOD_ERR_DEVICE && !plan && strstr(nhood_last_error(), "only described"),
          "%s: %s", text, nhood_last_error());
}

static void check_gpu(const char *name, const char *model) {
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .cache = "", .describe = name};
    nhood_context *context = NULL;
    nhood_device_info info = {.struct_size = sizeof info};
    nhood_ceilings ceilings = {.struct_size = sizeof ceilings};
    CHECK(!nhood_context_create(&options, &context), "%s: %s", name, nhood_last_error());
    int32_t device = nhood_device_count(context) - 1;
    CHECK(!nhood_device_query(context, device, &info), "%s", nhood_last_error());
    CHECK(!strcmp(info.name, name) && strstr(info.description, model) && info.ordinal == -1 &&
              info.kind == NHOOD_DEVICE_CUDA,
          "%s: %s", info.name, info.description);
    CHECK(nhood_device_measure(context, device, NHOOD_DTYPE_F32, &ceilings) == NHOOD_ERR_DEVICE,
          "%s was measured", name);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check_problem(context, device, problems[i]);
    nhood_context_destroy(context);
}

/* By the name of an architecture, every GPU of it; and a struct that is too short. */
static void check_architecture(void) {
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .cache = "", .describe = "sm_90"};
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    int32_t count = nhood_device_count(context);
    nhood_device_info one = {.struct_size = sizeof one}, two = one;
    CHECK(count >= 3 && !nhood_device_query(context, count - 2, &one) &&
              !nhood_device_query(context, count - 1, &two) && !strcmp(one.name, "h100") &&
              !strcmp(two.name, "h200"),
          "%d devices, the last two %s and %s", (int)count, one.name, two.name);
    nhood_context_destroy(context);
    nhood_context_options short_struct = options;
    short_struct.struct_size -= sizeof(char *);
    CHECK(nhood_context_create(&short_struct, &context) == NHOOD_ERR_ARGUMENT,
          "too short a struct");
}

static void check_bundle_arguments(void) {
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .cache = "", .nvrtc = "/nowhere"};
    nhood_context *context = NULL;
    nhood_bundle *bundle = NULL;
    nhood_problem problem;
    nhood_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 1);
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    CHECK(nhood_bundle_create(context, &bundle) == NHOOD_ERR_COMPILE && !bundle,
          "a bundle without a compiler");
    CHECK(nhood_bundle_create(NULL, &bundle) == NHOOD_ERR_ARGUMENT &&
              nhood_bundle_create(context, NULL) == NHOOD_ERR_ARGUMENT &&
              nhood_bundle_add(NULL, 0, &problem, NULL) == NHOOD_ERR_ARGUMENT &&
              nhood_bundle_add_group(NULL, 0, &problem, 1, NULL) == NHOOD_ERR_ARGUMENT &&
              nhood_bundle_launches(NULL, 0, &problem, NULL, NULL, NULL) == NHOOD_ERR_ARGUMENT &&
              !strcmp(nhood_last_error(), "report is NULL") &&
              nhood_bundle_save(NULL, "x") == NHOOD_ERR_ARGUMENT &&
              nhood_bundle_kernels(NULL, NULL) == NHOOD_ERR_ARGUMENT,
          "NULL is taken");
    nhood_bundle_destroy(NULL);
    nhood_context_destroy(context);
}

int main(void) {
    check_architecture();
    check_bundle_arguments();
    check_gpu("a100", "A100");
    check_gpu("h100", "H100");
    check_gpu("h200", "H200");
    check_gpu("b200", "B200");
    const nhood_context_options unknown = {
        .struct_size = sizeof unknown, .cache = "", .describe = "v100"};
    nhood_context *context = NULL;
    CHECK(nhood_context_create(&unknown, &context) == NHOOD_ERR_ARGUMENT && !context &&
              strstr(nhood_last_error(), "a100 (sm_80), h100 (sm_90), h200 (sm_90), b200 (sm_100)"),
          "%s", nhood_last_error());
    return test_result();
}
