/* cuda.gemm's launch: one for each operator. */
#include "gemm.h"

/* Starts the launch: a block for each tile of so many heads, and two threads per row. */
static void start(const struct nh_gemm *of, const struct gemm_config *config, int64_t heads,
                  struct nh_cuda_step *step) {
    nh_cuda_step_init(step, of->problem);
    /* A dilation beyond the length of its axis has the same effect as one equal to it. */
    for (int a = 0; a < NH_AXES; a++)
        step->args.axis[a].dilation =
            nh_min(step->args.axis[a].dilation, step->args.axis[a].length);
    step->threads = 2 * gemm_rows(config);
    step->grid[0] = of->problem->batch * heads * nh_gemm_tiles(of);
    step->overlaps = true;
}

/* Binds a slot to another tensor of the caller, with its strides. */
static void rebind(struct nh_cuda_step *step, const struct nh_problem *problem, int slot,
                   int32_t tensor) {
    step->binding[slot] = (struct nh_cuda_binding){.from = tensor};
    step->args.tensor[slot] = nh_cuda_strided(&problem->strides[tensor]);
}

static struct nh_kernel_spec spec_of(const struct nh_problem *problem, const char *source,
                                     const struct gemm_config *config) {
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(GEMM_CONFIG);
    static const char *const passes[] = {NH_NAMED(GEMM_PN), NH_NAMED(GEMM_NN), NH_NAMED(GEMM_IN)};
    struct nh_kernel_spec spec = {.source = source};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_kernel_configure(&spec, fields, config);
    nh_kernel_name_value(&spec, "pass", passes[config->pass]);
    return spec;
}

static nhood_status add_pn(struct nh_cuda_operation *operation, const struct nh_gemm *of) {
    const struct gemm_config config = nh_gemm_config(of);
    const struct nh_kernel_spec spec = spec_of(of->problem, "gemm_pn.cu", &config);
    struct nh_cuda_step step;
    start(of, &config, of->problem->heads, &step);
    step.shared_bytes = gemm_pn_bytes(&config);
    return nh_cuda_step_add(operation, &step, &spec);
}

/* Adds the launch for sums of rows weighted by A, over the keys of a query or, for `in`, the queries of a key. */
static nhood_status add_band(struct nh_cuda_operation *operation, const struct nh_gemm *of) {
    const struct nh_problem *problem = of->problem;
    const struct gemm_config config = nh_gemm_config(of);
    const bool inverse = config.pass == GEMM_IN;
    const struct nh_kernel_spec spec = spec_of(problem, "gemm_band.cu", &config);
    struct nh_cuda_step step;
    start(of, &config, inverse ? problem->kv_heads : problem->heads, &step);
    if (inverse) {
        rebind(&step, problem, NH_V, NHOOD_D_O);
        rebind(&step, problem, NH_O, NHOOD_D_V);
    }
    step.args.scale = 1;
    step.shared_bytes = gemm_band_bytes(&config);
    return nh_cuda_step_add(operation, &step, &spec);
}

nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config) {
    const struct nh_gemm of = {problem, operation->device, config};
    return (problem->op == NHOOD_OP_PN ? add_pn : add_band)(operation, &of);
}
