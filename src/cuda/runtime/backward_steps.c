#include "backward_steps.h"

NH_OWN_ARGS_FIT(nh_clear_keys_args, nh_cuda_attended);

void nh_cuda_lanes_per_row(const struct nh_problem *problem, int64_t vector,
                           struct nh_kernel_spec *spec, struct nh_cuda_step *step) {
    enum { THREADS = 128, LANES = 32 };
    int64_t lanes = 1, rows = problem->batch * problem->query_tokens * problem->heads;
    while (lanes < LANES && lanes * vector < problem->dim_v)
        lanes *= 2;
    nh_kernel_define(spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(spec, "NH_VECTOR", vector);
    nh_kernel_define(spec, "NH_VECTORS", nh_ceil_div(problem->dim_v, lanes * vector));
    nh_kernel_define(spec, "NH_GROUP", lanes);
    nh_kernel_define(spec, "NH_RESIDENT", 1);
    nh_kernel_define(spec, "NH_BIASED", 0);
    step->threads = THREADS;
    step->grid[0] = nh_min(nh_ceil_div(rows, THREADS / lanes), (int64_t)1 << 30);
}

void nh_cuda_bind_stats(struct nh_cuda_step *step, const struct nh_problem *problem,
                        size_t offset_bytes) {
    struct nh_cuda_tensor *tensor = &step->args.tensor[NH_DELTA];
    int64_t stride = 4, to_grid = 0;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        tensor->axis[a] = stride;
        to_grid -= problem->axis[a].query.offset * stride;
        stride *= problem->axis[a].query.length;
    }
    tensor->head = stride;
    tensor->batch = stride * problem->heads;
    offset_bytes += (size_t)to_grid * sizeof(float);
    step->binding[NH_DELTA] = (struct nh_cuda_binding){NH_BIND_WORKSPACE, offset_bytes, {0, 0}};
}

nhood_status nh_cuda_add_stats(struct nh_cuda_operation *operation, struct nh_cuda_step *step,
                               const struct nh_problem *problem, int64_t sum_columns) {
    struct nh_kernel_spec spec = {.source = "backward_stats.cu"};
    nh_cuda_lanes_per_row(problem, nh_cuda_vector(problem, NH_BIT(O) | NH_BIT(D_O)), &spec, step);
    nh_kernel_define(&spec, "NH_SUM_COLUMNS", sum_columns);
    return nh_cuda_step_add(operation, step, &spec);
}

void nh_cuda_add_bias_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             int64_t shares, struct nh_cuda_step *step) {
    int64_t head = shares * problem->bias_count;
    size_t bytes = (size_t)(problem->heads * head) * sizeof(float);
    step->args.tensor[NH_D_S].head = head;
    nh_cuda_bind_offset(step, NH_D_S, nh_cuda_reserve(operation, bytes));
    step->outputs |= NH_BIT(D_BIAS);
}

nhood_status nh_cuda_add_bias_sum(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, struct nh_cuda_step step) {
    struct nh_kernel_spec spec = {.source = "bias_sum.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_BIAS_COUNT", problem->bias_count);
    step.outputs = NH_BIT(D_BIAS);
    step.overlaps = true;
    step.regions = false;
    step.periodic = 0;
    step.threads = 32 * NH_BIAS_SUM_WARPS;
    step.shared_bytes = 0;
    step.maps = 0;
    step.grid[0] = nh_ceil_div(problem->bias_count, 32);
    step.grid[1] = problem->heads;
    return nh_cuda_step_add(operation, &step, &spec);
}

nhood_status nh_cuda_add_clear_keys(struct nh_cuda_operation *operation,
                                    const struct nh_problem *problem) {
    enum { THREADS = 128, KEYS = 4, MOST_BLOCKS = 1 << 20 };
    struct nh_kernel_spec spec = {.source = "clear_keys.cu"};
    struct nh_cuda_step step;
    struct nh_cuda_attended attended;
    int64_t vector = nh_cuda_vector(problem, NH_BIT(D_K) | NH_BIT(D_V));
    int64_t threads =
        problem->batch * problem->kv_heads * (nh_max(problem->dim, problem->dim_v) / vector);
    nh_cuda_step_init(&step, problem);
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_box *keys = &problem->axis[a].key_tensor;
        attended.box[a] = step.region[a].key;
        step.region[a].key = (struct nh_cuda_box){keys->offset, keys->length};
        threads *= a + 1 < NH_AXES ? keys->length : nh_ceil_div(keys->length, KEYS);
    }
    nh_cuda_step_set_own(&step, &attended, sizeof attended);
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_VECTOR", vector);
    nh_kernel_define(&spec, "NH_KEYS", KEYS);
    step.outputs = NH_BIT(D_K) | NH_BIT(D_V);
    step.overlaps = true;
    step.periodic = 0; /* rows are stored where they lie: nothing goes around */
    step.threads = THREADS;
    step.grid[0] = nh_min(nh_ceil_div(threads, THREADS), MOST_BLOCKS);
    step.grid[1] = 2; /* dK, dV */
    return nh_cuda_step_add(operation, &step, &spec);
}
