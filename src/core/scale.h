/* The scales that kernels in f32 arithmetic take. */
#ifndef NH_SCALE_H
#define NH_SCALE_H

#include "problem.h"

#include <math.h>

/* Kernels in f32 multiply by the scale and log2(e) early, and some divide by the scale: beyond these limits either may leave the
 * range of f32 though the scores do not. Returns NULL, or the reason of a refusal. */
static inline const char *nh_scale_refusal(const struct nh_problem *problem) {
    const double size = fabs(problem->scale);
    if (problem->dtype == NHOOD_DTYPE_F64 || size == 0 || (size >= 0x1p-100 && size <= 0x1p100))
        return NULL;
    return "the scale is beyond what f32 takes: its size is not 0 and not in [2^-100, 2^100]";
}

#endif
