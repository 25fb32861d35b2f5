/* cuda.gemm's launches: one for an operator; for attention
 *     forward   S = pn(Q, K), P = softmax(S) in S's memory, O = nn(P, V); in parts P = softmax(pn(Q, K)), O = nn(P, V)
 *     backward  P = exp(pn(Q, K) - LSE), dV = in(P, dO), dS = P (pn(dO, V) - delta) in P's memory,
 *               dQ = nn(dS, K), dK = in(dS, Q), dBias = dS summed by offset.
 * The workspace for weights is bounded: attention is computed in equal slabs of batch entries, or of the key heads of
 * one entry, one after the other in the same workspace. */
#include "dtype.h"
#include "gemm.h"

NH_OWN_ARGS_FIT(nh_gemm_part_args, nh_gemm_part_own);

enum { THREADS = 128 };
/* The most bytes of weights in the workspace. With slabs of this size, every launch takes much longer than its launch
 * latency. */
#define SLAB_BYTES ((int64_t)512 << 20)
/* NH_RESULT of gemm_pn.cu */
enum { SCORE, PROBABILITY, SCORE_GRADIENT };

struct builder {
    struct nh_cuda_operation *operation;
    const struct nh_problem *whole;
    /* one slab of the whole, with the same strides */
    const struct nh_problem *problem;
    struct nh_gemm gemm; /* of the slab */
    /* workspace offset of the attention weights */
    size_t weights;
};

/* Sets what a slab adds to the address of the caller's tensor. */
static void step_over(const struct builder *builder, struct nh_cuda_binding *binding) {
    const struct nh_problem *slab = builder->problem;
    int32_t tensor = binding->from;
    int64_t bytes = (int64_t)nh_dtype_bytes(nh_tensor_dtype(slab, tensor));
    int64_t batch_step = slab->strides[tensor].batch, head_step = slab->strides[tensor].head;
    bool of_keys =
        tensor == NHOOD_K || tensor == NHOOD_V || tensor == NHOOD_D_K || tensor == NHOOD_D_V;
    if (tensor == NHOOD_BIAS || tensor == NHOOD_D_BIAS) {
        batch_step = 0;
        head_step = slab->bias_count;
    }
    binding->slab_bytes[0] = slab->batch * batch_step * bytes;
    binding->slab_bytes[1] = (of_keys ? slab->kv_heads : slab->heads) * head_step * bytes;
}

static nhood_status add(const struct builder *builder, struct nh_cuda_step *step,
                        const struct nh_kernel_spec *spec) {
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++)
        if (step->binding[slot].from >= 0) step_over(builder, &step->binding[slot]);
    step->overlaps = true;
    return nh_cuda_step_add(builder->operation, step, spec);
}

/* Starts a launch. row: elements of a query's row of attention weights in the workspace; 0: A is the caller's. */
static void start(const struct builder *builder, int64_t row, struct nh_cuda_step *step) {
    nh_cuda_step_init(step, builder->problem);
    if (row) nh_cuda_bind_workspace(step, builder->problem, NH_A, builder->weights, row);
    /* A dilation beyond the length of its axis has the same effect as one equal to it. */
    for (int a = 0; a < NH_AXES; a++)
        step->args.axis[a].dilation =
            nh_min(step->args.axis[a].dilation, step->args.axis[a].length);
}

/* Binds a slot to another tensor of the caller, with its strides. */
static void rebind(struct nh_cuda_step *step, const struct nh_problem *problem, int slot,
                   int32_t tensor) {
    step->binding[slot] = (struct nh_cuda_binding){.from = tensor};
    step->args.tensor[slot] = nh_cuda_strided(&problem->strides[tensor]);
}

static struct nh_kernel_spec spec_of(const struct builder *builder, const char *source, int64_t dim,
                                     int64_t columns, bool inverse) {
    const struct nh_problem *problem = builder->problem;
    struct nh_kernel_spec spec = {.source = source};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_kernel_define(&spec, "NH_RANK", problem->rank);
    nh_kernel_define_knobs(&spec, nh_gemm_knobs, NH_CONFIG_KNOBS, builder->gemm.config->value);
    nh_kernel_define(&spec, "NH_WIDTH", nh_gemm_width(dim));
    nh_kernel_define(&spec, "NH_VECTOR", nh_cuda_vector(builder->whole, UINT32_MAX));
    nh_kernel_define(&spec, "NH_CAUSAL", nh_problem_causal(problem));
    nh_kernel_define(&spec, "NH_STRIDED", nh_problem_strided(problem));
    nh_kernel_define(&spec, "NH_COLUMNS", columns);
    nh_kernel_define(&spec, "NH_INVERSE", inverse);
    return spec;
}

/* Adds a launch with a block for each tile of so many heads, and two threads per row. */
static nhood_status add_tiles(const struct builder *builder, struct nh_cuda_step *step,
                              const struct nh_kernel_spec *spec, int64_t heads, int64_t team) {
    step->threads = (int32_t)(nh_gemm_rows(builder->gemm.config) * 2 * team);
    step->grid[0] = builder->problem->batch * heads * nh_gemm_tiles(&builder->gemm);
    return add(builder, step, spec);
}

/* Adds the launch for A = products of the rows bound to NH_Q and NH_K, of `dim` elements; result: NH_RESULT of
 * gemm_pn.cu. */
static nhood_status add_pn(const struct builder *builder, struct nh_cuda_step *step, int64_t dim,
                           int result, bool f32_weights) {
    struct nh_kernel_spec spec =
        spec_of(builder, "gemm_pn.cu", dim, builder->gemm.config->value[GEMM_COLUMNS], false);
    nh_kernel_define(&spec, "NH_BIASED", step->args.has_bias);
    nh_kernel_define(&spec, "NH_RESULT", result);
    nh_kernel_define(&spec, "NH_WEIGHT_F32", f32_weights);
    step->args.dim = dim;
    step->shared_bytes = nh_gemm_pn_bytes(&builder->gemm, dim);
    return add_tiles(builder, step, &spec, builder->problem->heads, 1);
}

/* Adds the launch for out = scale * the sums of rows weighted by A, over the keys of a query or, inverse, the queries
 * of a key. `row` as in start(). */
static nhood_status add_band(const struct builder *builder, int64_t row, int32_t rows, int32_t out,
                             double scale, bool inverse) {
    const struct nh_problem *problem = builder->problem;
    bool keys = rows == NHOOD_K || rows == NHOOD_Q;
    int64_t dim = keys ? problem->dim : problem->dim_v;
    struct nh_kernel_spec spec =
        spec_of(builder, "gemm_band.cu", dim, builder->gemm.config->value[GEMM_COLUMNS], inverse);
    struct nh_cuda_step step;
    start(builder, row, &step);
    rebind(&step, problem, NH_V, rows);
    rebind(&step, problem, NH_O, out);
    step.args.dim_v = dim;
    step.args.scale = scale;
    step.outputs = 1u << out;
    step.shared_bytes = nh_gemm_band_bytes(&builder->gemm, dim);
    return add_tiles(builder, &step, &spec, inverse ? problem->kv_heads : problem->heads, 1);
}

/* Queries of all batch entries and heads. */
static int64_t query_rows(const struct nh_problem *problem) {
    return problem->batch * problem->query_tokens * problem->heads;
}

/* Reserves workspace for attention weights, `row` per query. */
static void reserve_weights(struct builder *builder, int64_t row, size_t bytes) {
    builder->weights =
        nh_cuda_reserve(builder->operation, (size_t)(query_rows(builder->problem) * row) * bytes);
}

/* ---- forward ---- */

static nhood_status add_softmax(const struct builder *builder) {
    const struct nh_problem *problem = builder->problem;
    struct nh_kernel_spec spec = {.source = "gemm_softmax.cu"};
    struct nh_cuda_step step;
    int64_t lanes = nh_gemm_lanes(problem->window_count),
            held = nh_ceil_div(problem->window_count, lanes);
    start(builder, problem->window_count, &step);
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_GROUP", lanes);
    nh_kernel_define(&spec, "NH_HELD", held > NH_GEMM_HELD ? 0 : held);
    step.threads = THREADS;
    step.grid[0] = nh_ceil_div(query_rows(problem), THREADS / lanes);
    return add(builder, &step, &spec);
}

static nhood_status add_part(const struct builder *builder, const struct nh_gemm_part *part,
                             int index) {
    enum { COLUMNS_AT_ONCE = 32 };
    const struct nh_problem *problem = builder->problem;
    bool pn = index == NH_GEMM_PART_PN;
    struct nh_kernel_spec spec =
        spec_of(builder, pn ? "gemm_part_pn.cu" : "gemm_part_nn.cu",
                pn ? problem->dim : problem->dim_v, COLUMNS_AT_ONCE, false);
    struct nh_cuda_step step;
    start(builder, part->row, &step);
    if (pn) {
        nh_kernel_define(&spec, "NH_BIASED", step.args.has_bias);
        nh_kernel_define(&spec, "NH_GROUP", part->lanes);
    } else {
        step.args.scale = 1;
    }
    nh_kernel_define(&spec, "NH_PLANES", builder->gemm.config->value[GEMM_PLANES]);
    nh_kernel_define(&spec, "NH_SLOTS", part->slots);
    nh_kernel_define(&spec, "NH_TEAM", part->team[index]);
    step.shared_bytes = part->shared_bytes[index];
    const struct nh_gemm_part_own own = {(int)part->heads, 0};
    nh_cuda_step_set_own(&step, &own, sizeof own);
    return add_tiles(builder, &step, &spec, problem->heads / part->heads, part->team[index]);
}

static nhood_status add_forward(struct builder *builder) {
    const struct nh_problem *problem = builder->problem;
    const size_t bytes = nh_dtype_bytes(problem->dtype);
    struct nh_cuda_step step;
    if (nh_gemm_in_parts(builder->gemm.config)) {
        const struct nh_gemm_part part = nh_gemm_part_of(&builder->gemm);
        reserve_weights(builder, part.row, bytes);
        nhood_status status = add_part(builder, &part, NH_GEMM_PART_PN);
        return status ? status : add_part(builder, &part, NH_GEMM_PART_NN);
    }
    reserve_weights(builder, problem->window_count, sizeof(float));
    start(builder, problem->window_count, &step);
    step.args.flags &= ~(unsigned)NHOOD_FLAG_ZERO_FILL;
    nhood_status status = add_pn(builder, &step, problem->dim, SCORE, true);
    if (!status) status = add_softmax(builder);
    if (status) return status;
    int64_t weights_per_score = (int64_t)(sizeof(float) / bytes);
    return add_band(builder, problem->window_count * weights_per_score, NHOOD_V, NHOOD_O, 1, false);
}

/* ---- backward ---- */

static nhood_status add_delta(const struct builder *builder, size_t delta) {
    struct nh_kernel_spec spec = {.source = "delta.cu"};
    struct nh_cuda_step step;
    start(builder, 0, &step);
    nh_cuda_bind_workspace(&step, builder->problem, NH_DELTA, delta, 1);
    nh_cuda_lanes_per_row(builder->problem, nh_cuda_vector(builder->whole, NH_BIT(O) | NH_BIT(D_O)),
                          &spec, &step);
    return add(builder, &step, &spec);
}

/* Adds the launches for the bias's gradient: one for as many shares of the queries as fill the device, and one that
 * adds these up. */
static nhood_status add_bias_gradient(const struct builder *builder) {
    const struct nh_problem *problem = builder->problem;
    int64_t blocks = nh_ceil_div(problem->bias_count, THREADS) * problem->heads;
    int64_t most = nh_ceil_div(problem->batch * problem->query_tokens, THREADS);
    int64_t shares =
        nh_min(most, nh_ceil_div(8 * (int64_t)builder->operation->device->multiprocessors, blocks));
    int64_t slab_bytes = shares * problem->bias_count * (int64_t)sizeof(float);
    int64_t head_bytes = slab_bytes * (builder->whole->batch / problem->batch);
    struct nh_cuda_binding sums = {
        NH_BIND_WORKSPACE,
        nh_cuda_reserve(builder->operation, (size_t)(builder->whole->heads * head_bytes)),
        {slab_bytes, problem->heads * head_bytes}};
    struct nh_kernel_spec spec = {.source = "gemm_bias_gradient.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    struct nh_cuda_step step;
    start(builder, problem->window_count, &step);
    step.binding[NH_D_BIAS] = sums;
    step.args.tensor[NH_D_BIAS].batch = slab_bytes / (int64_t)sizeof(float);
    step.args.tensor[NH_D_BIAS].head = head_bytes / (int64_t)sizeof(float);
    step.outputs = NH_BIT(D_BIAS);
    step.threads = THREADS;
    step.grid[0] = blocks * shares;
    nhood_status status = add(builder, &step, &spec);
    if (status) return status;
    spec.source = "gemm_bias_sum.cu";
    step.after_slabs = true;
    step.args.heads = builder->whole->heads;
    step.binding[NH_BIAS] = sums;
    step.args.tensor[NH_BIAS] = step.args.tensor[NH_D_BIAS];
    step.binding[NH_D_BIAS] = (struct nh_cuda_binding){.from = NHOOD_D_BIAS};
    step.grid[0] = nh_ceil_div(builder->whole->heads * problem->bias_count, THREADS);
    return add(builder, &step, &spec);
}

static nhood_status add_score_gradient(const struct builder *builder, size_t delta) {
    const struct nh_problem *problem = builder->problem;
    struct nh_cuda_step step;
    start(builder, problem->window_count, &step);
    nh_cuda_bind_workspace(&step, problem, NH_DELTA, delta, 1);
    rebind(&step, problem, NH_Q, NHOOD_D_O);
    rebind(&step, problem, NH_K, NHOOD_V);
    step.args.scale = 1;
    step.args.has_bias = 0;
    step.outputs = NH_BIT(D_Q) | NH_BIT(D_K) | NH_BIT(D_BIAS);
    return add_pn(builder, &step, problem->dim_v, SCORE_GRADIENT, false);
}

static nhood_status add_backward(struct builder *builder) {
    const struct nh_problem *problem = builder->problem;
    const int64_t row = problem->window_count;
    struct nh_cuda_step step;
    size_t delta = nh_cuda_reserve(builder->operation, (size_t)query_rows(problem) * sizeof(float));
    reserve_weights(builder, row, nh_dtype_bytes(problem->dtype));
    start(builder, row, &step);
    nhood_status status = add_pn(builder, &step, problem->dim, PROBABILITY, false);
    if (!status) status = add_band(builder, row, NHOOD_D_O, NHOOD_D_V, 1, true);
    if (!status) status = add_delta(builder, delta);
    if (!status) status = add_score_gradient(builder, delta);
    if (!status) status = add_band(builder, row, NHOOD_K, NHOOD_D_Q, problem->scale, false);
    if (!status) status = add_band(builder, row, NHOOD_Q, NHOOD_D_K, problem->scale, true);
    if (!status && problem->has_bias) status = add_bias_gradient(builder);
    return status;
}

/* ---- slabs ---- */

/* The largest divisor d of `parts` such that d * bytes is within the limit, but at least 1. */
static int64_t parts_within(int64_t parts, int64_t bytes, int64_t limit) {
    int64_t most = nh_max(1, nh_min(parts, limit / bytes));
    while (parts % most)
        most--;
    return most;
}

/* One slab of attention. Operators have no weights in the workspace, so that they are one slab. */
static struct nh_problem slab_of(const struct nh_problem *problem) {
    struct nh_problem slab = *problem;
    if (problem->op >= NHOOD_OP_PN) return slab;
    int64_t group = problem->heads / problem->kv_heads;
    int64_t bytes = nh_gemm_slab_bytes(problem);
    slab.batch = parts_within(problem->batch, problem->kv_heads * bytes, SLAB_BYTES);
    if (slab.batch == 1) slab.kv_heads = parts_within(problem->kv_heads, bytes, SLAB_BYTES);
    slab.heads = slab.kv_heads * group;
    return slab;
}

nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config) {
    struct nh_problem slab = slab_of(problem);
    struct builder builder = {
        operation, problem, &slab, {&slab, operation->device, config}, .weights = 0};
    struct nh_cuda_step step;
    operation->slabs[0] = problem->batch / slab.batch;
    operation->slabs[1] = problem->kv_heads / slab.kv_heads;
    switch (problem->op) {
    case NHOOD_OP_FWD: return add_forward(&builder);
    case NHOOD_OP_BWD: return add_backward(&builder);
    case NHOOD_OP_NN: return add_band(&builder, 0, NHOOD_V, NHOOD_O, 1, false);
    case NHOOD_OP_IN: return add_band(&builder, 0, NHOOD_D_O, NHOOD_D_V, 1, true);
    default: start(&builder, 0, &step); return add_pn(&builder, &step, problem->dim, SCORE, false);
    }
}
