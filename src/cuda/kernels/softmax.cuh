/* Softmax over tiles that come one after the other, in base 2.
 *
 * A row's state is its largest score so far, scaled, and its sum of exponentials relative to that. The start is
 * finite and masked scores are -infinity: a row that has met no key yet needs no special case, since its first key
 * wipes what came before. Both products of a scaled score with the scale are the same rounded number, so that a
 * rounding of large scores cancels. */
#pragma once

#include "tile_product.cuh"

#define NH_LOG2E 1.4426950408889634
#define NH_LN2 0.6931471805599453

/* Per thread, rows g and g + 8 of each block: index 2 * block + half. The sum is this thread's columns only. */
struct nh_softmax {
    float top[2 * NH_BLOCKS], sum[2 * NH_BLOCKS];
};

NH_DEVICE void nh_softmax_start(struct nh_softmax &state) {
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        state.top[r] = -1e30f;
        state.sum[r] = 0.f;
    }
}

/* Over the four lanes that share a row. */
NH_DEVICE float nh_row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
    return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
NH_DEVICE float nh_row_sum(float value) {
    value += __shfl_xor_sync(~0u, value, 1);
    return value + __shfl_xor_sync(~0u, value, 2);
}

/* Scores become weights; output and sums move to the new maximum. scale > 0, in base 2. */
NH_DEVICE void nh_softmax_tile(struct nh_softmax &state, nh_scores &scores, nh_output &output,
                               float scale) {
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        int m = r / 2, half = r % 2 * 2;
        float top = NH_MINUS_INFINITY, sum = 0.f;
#pragma unroll
        for (int n = 0; n < NH_COLUMNS / 8; n++)
            top = fmaxf(top, fmaxf(scores[m][n][half], scores[m][n][half + 1]));
        top = fmaxf(state.top[r], nh_row_max(top) * scale);
        float shrink = nh_exp2(state.top[r] - top);
        state.top[r] = top;
#pragma unroll
        for (int n = 0; n < NH_COLUMNS / 8; n++) {
            scores[m][n][half] = nh_exp2(fmaf(scores[m][n][half], scale, -top));
            scores[m][n][half + 1] = nh_exp2(fmaf(scores[m][n][half + 1], scale, -top));
            sum += scores[m][n][half] + scores[m][n][half + 1];
        }
        state.sum[r] = state.sum[r] * shrink + sum;
#pragma unroll
        for (int n = 0; n < NH_DIM_V_PADDED / 8; n++) {
            output[m][n][half] *= shrink;
            output[m][n][half + 1] *= shrink;
        }
    }
}
