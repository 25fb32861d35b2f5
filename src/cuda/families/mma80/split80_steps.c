/* cuda.split80's launches: statistics of the queries, dQ, dK and dV, and what bias and extra tokens need. */
#include "dtype.h"
#include "split80.h"
#include "tile_count.h"

/* Which gradients a launch sums up, as bits: NH_SUM_FIRST and NH_SUM_SECOND. */
enum { FIRST = 1, SECOND = 2 };

struct builder {
    struct nh_cuda_operation *operation;
    const struct nh_problem *problem;
    /* workspace offset of the queries' LSE and delta */
    size_t stats;
};

/* ---- launches of the kernel ---- */

static void step_init(const struct builder *builder, const int32_t *side, bool inverse,
                      struct nh_cuda_step *step) {
    const struct nh_problem *problem = builder->problem;
    nh_cuda_step_init(step, problem);
    nh_cuda_bind_workspace(step, problem, NH_DELTA, builder->stats, 4);
    step->threads = 32 * side[SPLIT80_WARPS];
    step->overlaps = true;
    step->shared_bytes = nh_split80_shared_bytes(problem, side, inverse);
}

static struct nh_kernel_spec spec_of(const struct builder *builder, const int32_t *side,
                                     bool inverse, int sums) {
    const struct nh_problem *problem = builder->problem;
    struct nh_kernel_spec spec = {.source = "split80_backward.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_DIM", problem->dim);
    nh_kernel_define(&spec, "NH_DIM_V", problem->dim_v);
    nh_kernel_define(&spec, "NH_VECTOR", nh_cuda_vector(problem, UINT32_MAX));
    nh_kernel_define(&spec, "NH_STAGES", SPLIT80_STAGES);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS",
                     nh_split80_residents(problem, builder->operation->device, side, inverse));
    nh_kernel_define(&spec, "NH_INVERSE", inverse);
    nh_kernel_define(&spec, "NH_SUM_FIRST", (sums & FIRST) != 0);
    nh_kernel_define(&spec, "NH_SUM_SECOND", (sums & SECOND) != 0);
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_kernel_define(&spec, "NH_SHARED_BYTES", nh_split80_shared_bytes(problem, side, inverse));
    nh_kernel_define_knobs(&spec, nh_split80_knobs, SPLIT80_SIDE, side);
    return spec;
}

static nhood_status add_kernel(const struct builder *builder, const struct nh_cuda_step *step,
                               struct nh_kernel_spec *spec, int rows, bool extra_tokens) {
    bool extra_rows = rows == NH_SUMS_OVER_ALL;
    bool biased = builder->problem->has_bias && !extra_rows;
    nh_kernel_define(spec, "NH_EXTRA_ROWS", extra_rows);
    nh_cuda_define_long_sums(spec, builder->problem, rows);
    nh_kernel_define(spec, "NH_EXTRA_TOKENS", extra_tokens);
    nh_kernel_define(spec, "NH_BIASED", biased);
    nh_kernel_define(spec, "NH_PRESCALE", biased || !(builder->problem->scale > 0));
    return nh_cuda_step_add(builder->operation, step, spec);
}

/* ---- queries ---- */

static nhood_status add_stats(const struct builder *builder) {
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, builder->problem);
    nh_cuda_bind_workspace(&step, builder->problem, NH_DELTA, builder->stats, 4);
    return nh_cuda_add_stats(builder->operation, &step, builder->problem, 0);
}

static nhood_status add_queries(const struct builder *builder, const int32_t *side) {
    const struct nh_problem *problem = builder->problem;
    struct nh_cuda_step step;
    step_init(builder, side, false, &step);
    struct nh_kernel_spec spec = spec_of(builder, side, false, FIRST);
    int64_t head_tiles = nh_split80_head_tiles(problem, side, false);
    step.outputs = NH_BIT(D_Q);
    step.grid[0] = problem->heads * head_tiles;
    if (problem->has_bias) {
        if (head_tiles > INT32_MAX)
            return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^31 query tiles");
        int64_t shares = nh_split80_bias_shares(problem, builder->operation->device, side);
        int64_t tables = shares * problem->bias_count;
        step.work_tiles = step.own.tiling.work_tiles = (int)head_tiles;
        step.args.tensor[NH_D_S].head = tables;
        step.binding[NH_D_S] = (struct nh_cuda_binding){
            NH_BIND_WORKSPACE,
            nh_cuda_reserve(builder->operation, (size_t)(problem->heads * tables) * sizeof(float)),
            {0, 0}};
        step.outputs |= NH_BIT(D_BIAS);
        step.grid[0] = problem->heads * shares;
    }
    nhood_status status =
        add_kernel(builder, &step, &spec, NH_SUMS_OF_QUERY, problem->extra_tokens > 0);
    if (!status && problem->has_bias)
        status = nh_cuda_add_bias_sum(builder->operation, problem, step);
    return status;
}

/* ---- keys and extra tokens ---- */

static nhood_status add_keys(const struct builder *builder, const int32_t *side, int sums) {
    const struct nh_problem *problem = builder->problem;
    struct nh_cuda_step step;
    step_init(builder, side, true, &step);
    struct nh_kernel_spec spec = spec_of(builder, side, true, sums);
    step.outputs = (sums & FIRST ? NH_BIT(D_K) : 0) | (sums & SECOND ? NH_BIT(D_V) : 0);
    step.grid[0] = problem->kv_heads * nh_split80_head_tiles(problem, side, true);
    return add_kernel(builder, &step, &spec, NH_SUMS_OF_KEY, false);
}

/* Binds extra tokens to the slot where the kernel looks for keys, one after the other along the last axis. */
static void bind_extra(const struct nh_problem *problem, struct nh_cuda_step *step, int slot,
                       int32_t tensor) {
    const nhood_strides *strides = &problem->strides[tensor];
    step->binding[slot] = (struct nh_cuda_binding){.from = tensor};
    step->args.tensor[slot] = (struct nh_cuda_tensor){
        NULL, strides->batch, {0, 0, strides->axis[NH_AXES - problem->rank]}, strides->head};
}

static nhood_status add_extra(const struct builder *builder, const int32_t *keys, int sums) {
    const struct nh_problem *problem = builder->problem;
    int32_t side[SPLIT80_SIDE];
    nh_split80_extra_side(problem, keys, side);
    struct nh_cuda_step step;
    step_init(builder, side, true, &step);
    struct nh_kernel_spec spec = spec_of(builder, side, true, sums);
    bind_extra(problem, &step, NH_K, NHOOD_EXTRA_K);
    bind_extra(problem, &step, NH_V, NHOOD_EXTRA_V);
    bind_extra(problem, &step, NH_D_K, NHOOD_D_EXTRA_K);
    bind_extra(problem, &step, NH_D_V, NHOOD_D_EXTRA_V);
    /* Extra tokens see all queries, in the grid's own order without dilation. */
    for (int a = 0; a < NH_AXES; a++)
        step.args.axis[a].dilation = 1;
    step.periodic = 0;
    step.outputs = (sums & FIRST ? NH_BIT(D_EXTRA_K) : 0) | (sums & SECOND ? NH_BIT(D_EXTRA_V) : 0);
    step.grid[0] = problem->batch * problem->kv_heads *
                   nh_ceil_div(problem->extra_tokens, nh_box_volume(side));
    return add_kernel(builder, &step, &spec, NH_SUMS_OVER_ALL, false);
}

/* Adds the launches for dK and dV, one for both or one each. */
static nhood_status add_both(const struct builder *builder, const int32_t *side,
                             nhood_status (*add)(const struct builder *, const int32_t *, int)) {
    if (!nh_split80_apart(builder->problem)) return add(builder, side, FIRST | SECOND);
    nhood_status status = add(builder, side, FIRST);
    return status ? status : add(builder, side, SECOND);
}

nhood_status nh_split80_add_steps(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem,
                                  const struct nh_config *config) {
    int64_t rows = problem->batch * problem->query_tokens * problem->heads;
    const int32_t *keys = config->value + SPLIT80_SIDE;
    struct builder builder = {operation, problem,
                              nh_cuda_reserve(operation, (size_t)rows * 4 * sizeof(float))};
    nhood_status status = add_stats(&builder);
    if (!status) status = add_queries(&builder, config->value);
    if (!status) status = add_both(&builder, keys, add_keys);
    if (!status && problem->extra_tokens) status = add_both(&builder, keys, add_extra);
    return status;
}
