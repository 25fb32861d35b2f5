/* The range of scales that kernels with f32 arithmetic take. */
#ifndef NH_SCALE_H
#define NH_SCALE_H

#include "problem.h"

#include <math.h>

/* Returns NULL, or why such kernels refuse the scale. They multiply by the scale and log2(e) early, and some divide by the
 * scale: beyond these limits, either may leave the range of f32 even if the scores do not. */
static inline const char *nh_scale_refusal(const struct nh_problem *problem) {
    const double size = fabs(problem->scale);
    if (problem->dtype == NHOOD_DTYPE_F64 || size == 0 || (size >= 0x1p-100 && size <= 0x1p100))
        return NULL;
    return "the scale is beyond what f32 takes: its size is not 0 and not in [2^-100, 2^100]";
}

#endif
