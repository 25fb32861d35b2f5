/* The softmax of 16 rows of a warp, all of whose scores meet one reference. Fragments as in mma.cuh: a thread has to do
 * with rows g and g + 8. */
#pragma once

#include "column_products.cuh"
#include "lanes.cuh"

/* Rows g and g + 8: scores relative to what are weights, and the weights' sums; in base 2. */
struct nh_state {
    float reference[2], sum[2];
};

/* What the four threads of a row have summed up. */
NH_DEVICE void nh_finish_sums(nh_state &state) {
#pragma unroll
    for (int half = 0; half < 2; half++)
        state.sum[half] = nh_quad_sum(state.sum[half]);
}

/* Between these are sums of weights relative to 1 that the storage type and the sums can hold: of all rows whose
 * scores do not lie far from 0. */
constexpr float NH_LEAST_SUM = NH_DTYPE == NH_F16 ? 0x1p-4f : 0x1p-100f;
constexpr float NH_MOST_SUM = NH_DTYPE == NH_F16 ? 0x1p15f : 0x1p100f;

NH_DEVICE float nh_lse(const nh_state &state, int half) {
    return (state.reference[half] + nh_log2(state.sum[half])) * (float)NH_LN2;
}
NH_DEVICE float2 nh_lse_of(const nh_state &state) {
    return make_float2(nh_lse(state, 0), nh_lse(state, 1));
}
