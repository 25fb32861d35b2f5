/* The softmax of a warp's 16 rows with one reference for all scores of a row. Fragments are as in mma.cuh: a thread has
 * elements of rows g and g + 8. */
#pragma once

#include "column_products.cuh"
#include "lanes.cuh"

/* Rows g and g + 8: the score relative to which weights are computed, in base 2, and the sum of weights. */
struct nh_state {
    float reference[2], sum[2];
};

/* Combines the sums of a row's four threads. */
NH_DEVICE void nh_finish_sums(nh_state &state) {
    NH_UNROLL for (int half = 0; half < 2; half++)
        state.sum[half] = nh_quad_sum(state.sum[half]);
}

/* The range of sums of weights relative to 1 for which the storage type and the sums are accurate. It holds for all
 * rows whose scores are not far from 0. */
constexpr float NH_LEAST_SUM = NH_DTYPE == NH_F16 ? 0x1p-4f : 0x1p-100f;
constexpr float NH_MOST_SUM = NH_DTYPE == NH_F16 ? 0x1p15f : 0x1p100f;

/* The largest magnitude of this thread's sums of row g (half 0) or g + 8, NaN if one is NaN. */
template <int COUNT> NH_DEVICE float nh_largest(const float (&sum)[COUNT][4], int half) {
    float largest = fabsf(sum[0][2 * half]);
    NH_UNROLL for (int i = 1; i < 2 * COUNT; i++)
        largest = nh_larger(largest, sum[i / 2][2 * half + i % 2]);
    return largest;
}

/* Whether a row's sum of weights is in range, and what comes of its sums of weighted values, the largest of which is
 * given, is finite where it is stored. The latter may fail where values are near the largest number, although their
 * mean is no larger: sums come before the division, and weights are rounded, but not their sum. */
NH_DEVICE bool nh_row_held(const nh_state &state, float largest, int half) {
    const float sum = state.sum[half];
    return sum > NH_LEAST_SUM && sum < NH_MOST_SUM && largest < NH_BEYOND_STORAGE * sum;
}

NH_DEVICE float nh_lse(const nh_state &state, int half) {
    return (state.reference[half] + nh_log2(state.sum[half])) * (float)NH_LN2;
}
NH_DEVICE float2 nh_lse_of(const nh_state &state) {
    return make_float2(nh_lse(state, 0), nh_lse(state, 1));
}
