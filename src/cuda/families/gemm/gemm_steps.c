/* cuda.gemm's launch: one for each operator. */
#include "gemm.h"

/* Starts the launch: a block for each tile of so many heads, and two threads per row. */
static void start(const struct nh_gemm *of, int64_t heads, struct nh_cuda_step *step) {
    nh_cuda_step_init(step, of->problem);
    /* A dilation beyond the length of its axis has the same effect as one equal to it. */
    for (int a = 0; a < NH_AXES; a++)
        step->args.axis[a].dilation =
            nh_min(step->args.axis[a].dilation, step->args.axis[a].length);
    step->threads = (int32_t)(2 * nh_gemm_rows(of->config));
    step->grid[0] = of->problem->batch * heads * nh_gemm_tiles(of);
    step->overlaps = true;
}

/* Binds a slot to another tensor of the caller, with its strides. */
static void rebind(struct nh_cuda_step *step, const struct nh_problem *problem, int slot,
                   int32_t tensor) {
    step->binding[slot] = (struct nh_cuda_binding){.from = tensor};
    step->args.tensor[slot] = nh_cuda_strided(&problem->strides[tensor]);
}

static struct nh_kernel_spec spec_of(const struct nh_gemm *of, const char *source, int64_t dim) {
    const struct nh_problem *problem = of->problem;
    struct nh_kernel_spec spec = {.source = source};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_kernel_define(&spec, "NH_RANK", problem->rank);
    nh_kernel_define_knobs(&spec, nh_gemm_knobs, NH_CONFIG_KNOBS, of->config->value);
    nh_kernel_define(&spec, "NH_WIDTH", nh_gemm_width(dim));
    nh_kernel_define(&spec, "NH_VECTOR", nh_cuda_vector(problem, UINT32_MAX));
    nh_kernel_define(&spec, "NH_CAUSAL", nh_problem_causal(problem));
    nh_kernel_define(&spec, "NH_STRIDED", nh_problem_strided(problem));
    nh_kernel_define(&spec, "NH_INVERSE", problem->op == NHOOD_OP_IN);
    return spec;
}

static nhood_status add_pn(struct nh_cuda_operation *operation, const struct nh_gemm *of) {
    struct nh_kernel_spec spec = spec_of(of, "gemm_pn.cu", of->problem->dim);
    struct nh_cuda_step step;
    start(of, of->problem->heads, &step);
    nh_kernel_define(&spec, "NH_BIASED", step.args.has_bias);
    step.shared_bytes = nh_gemm_pn_bytes(of, of->problem->dim);
    return nh_cuda_step_add(operation, &step, &spec);
}

/* Adds the launch for sums of rows weighted by A, over the keys of a query or, for `in`, the queries of a key. */
static nhood_status add_band(struct nh_cuda_operation *operation, const struct nh_gemm *of) {
    const struct nh_problem *problem = of->problem;
    bool inverse = problem->op == NHOOD_OP_IN;
    struct nh_kernel_spec spec = spec_of(of, "gemm_band.cu", problem->dim_v);
    struct nh_cuda_step step;
    start(of, inverse ? problem->kv_heads : problem->heads, &step);
    if (inverse) {
        rebind(&step, problem, NH_V, NHOOD_D_O);
        rebind(&step, problem, NH_O, NHOOD_D_V);
    }
    step.args.scale = 1;
    step.shared_bytes = nh_gemm_band_bytes(of, problem->dim_v);
    return nh_cuda_step_add(operation, &step, &spec);
}

nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config) {
    const struct nh_gemm of = {problem, operation->device, config};
    return (problem->op == NHOOD_OP_PN ? add_pn : add_band)(operation, &of);
}
