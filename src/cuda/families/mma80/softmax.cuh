/* Softmax over successive tiles (online softmax), in base 2. The state of a row is its largest score so far, scaled,
 * and its sum of exponentials relative to that. It starts with the lowest number for a maximum, and masked scores are
 * -infinity: a row's first key scales down to zero what came before. A scaled score is rounded in the same way in the
 * maximum and in the exponent, so that the rounding of large scores cancels. */
#pragma once

#include "lanes.cuh"
#include "tile_product.cuh"

namespace nh_mma80 {

/* Per thread: rows g and g + 8 of each block, at index 2 * block + half. The sum is over this thread's columns only. */
struct nh_softmax {
    float top[2 * NH_BLOCKS], sum[2 * NH_BLOCKS];
};

NH_DEVICE void nh_softmax_start(nh_softmax &state) {
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        state.top[r] = NH_LOWEST;
        state.sum[r] = 0.f;
    }
}

/* Raises the maxima to these scores. shrink: the factor of earlier weights, row by row. scale > 0, in base 2. */
NH_DEVICE void nh_softmax_raise(nh_softmax &state, const nh_scores &scores, float scale,
                                float (&shrink)[2 * NH_BLOCKS]) {
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        float top = NH_MINUS_INFINITY;
#pragma unroll
        for (int i = 0; i < NH_COLUMNS / 4; i++)
            top = fmaxf(top, scores[r / 2][i / 2][r % 2 * 2 + i % 2]);
        top = fmaxf(state.top[r], nh_quad_max(top) * scale);
        shrink[r] = nh_exp2(state.top[r] - top);
        state.top[r] = top;
    }
}

/* Scales earlier sums to the raised maximum. Soon, no row's maximum changes in most tiles: there is nothing to do. */
NH_DEVICE void nh_softmax_shrink(nh_softmax &state, nh_output &output, const float (&shrink)[2 * NH_BLOCKS]) {
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++)
        moved = moved || shrink[r] != 1.f;
    if (!__any_sync(~0u, moved)) return;
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        state.sum[r] *= shrink[r];
#pragma unroll
        for (int i = 0; i < NH_DIM_V_PADDED / 4; i++)
            output[r / 2][i / 2][r % 2 * 2 + i % 2] *= shrink[r];
    }
}

NH_DEVICE void nh_softmax_weights(nh_softmax &state, nh_scores &scores, float scale) {
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < NH_COLUMNS / 4; i++) {
            float &score = scores[r / 2][i / 2][r % 2 * 2 + i % 2];
            score = nh_exp2(fmaf(score, scale, -state.top[r]));
            sum += score;
        }
        state.sum[r] += sum;
    }
}

} // namespace nh_mma80
