/* Public functions on problems. */
#include "problem.h"

nhood_status nhood_problem_cost(const nhood_problem *problem, double *flops, double *bytes) {
    struct nh_problem canonical;
    nhood_status status = nh_problem_canonical(problem, &canonical);
    if (status) return status;
    if (flops) *flops = nh_problem_flops(&canonical);
    if (bytes) *bytes = canonical.bytes;
    return NHOOD_OK;
}

nhood_status nhood_problem_elements(const nhood_problem *problem, int32_t tensor,
                                    int64_t *elements) {
    struct nh_problem canonical;
    nhood_status status = nh_problem_canonical(problem, &canonical);
    if (status) return status;
    if (tensor < 0 || tensor >= NHOOD_TENSOR_COUNT)
        return nh_error(NHOOD_ERR_ARGUMENT, "tensor = %d is not in [0, %d)", (int)tensor,
                        NHOOD_TENSOR_COUNT);
    if (!elements) return nh_error(NHOOD_ERR_ARGUMENT, "elements is NULL");
    *elements = nh_tensor_elements(&canonical, tensor);
    return NHOOD_OK;
}

nhood_status nhood_window(const nhood_axis *axis, int64_t index, int64_t *first, int64_t *count) {
    if (!axis) return nh_error(NHOOD_ERR_ARGUMENT, "axis is NULL");
    nhood_problem problem;
    nhood_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 1);
    problem.axis[0] = *axis;
    struct nh_problem canonical;
    nhood_status status = nh_problem_canonical(&problem, &canonical);
    if (status) return status;
    if (index < 0 || index >= axis->length)
        return nh_error(NHOOD_ERR_ARGUMENT, "index = %lld is not in [0, %lld)", (long long)index,
                        (long long)axis->length);
    struct nh_range range = nh_axis_window(&canonical.axis[NH_AXES - 1], index);
    if (first) *first = range.begin * axis->dilation + index % axis->dilation;
    if (count) *count = range.end - range.begin;
    return NHOOD_OK;
}
