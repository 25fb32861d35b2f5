#include "value_parts.h"

#include "dtype.h"

int nh_value_parts(const struct nh_problem *problem) {
    return (int)nh_ceil_div(problem->dim_v, NH_MOST_VALUES_AT_ONCE);
}

/* The columns of all parts but the last. */
static int64_t part_columns(const struct nh_problem *problem) {
    enum { STEP = 16 };
    const int64_t even = nh_ceil_div(problem->dim_v, nh_value_parts(problem));
    return nh_ceil_div(even, STEP) * STEP;
}

const struct nh_problem *nh_value_part(const struct nh_problem *problem, int part,
                                       struct nh_problem *room) {
    const int64_t columns = part_columns(problem);
    if (nh_value_parts(problem) == 1) return problem;
    *room = *problem;
    room->dim_v = nh_min(columns, problem->dim_v - part * columns);
    return room;
}

void nh_value_part_bind(struct nh_cuda_step *step, const struct nh_problem *problem, int part) {
    static const int of_values[] = {NH_V, NH_O, NH_EXTRA_V, NH_D_V, NH_D_O, NH_D_EXTRA_V};
    const size_t first = (size_t)part * (size_t)part_columns(problem);
    for (size_t i = 0; i < sizeof of_values / sizeof *of_values; i++)
        step->binding[of_values[i]].offset_bytes += first * nh_dtype_bytes(problem->dtype);
}
