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
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        state.top[r] = NH_LOWEST;
        state.sum[r] = 0.f;
    }
}

/* Raises the maxima to these scores. shrink: the factor of earlier weights, row by row. scale > 0, in base 2. */
NH_DEVICE void nh_softmax_raise(nh_softmax &state, const nh_scores &scores, float scale,
                                float (&shrink)[2 * NH_BLOCKS]) {
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        float top = NH_MINUS_INFINITY;
        NH_UNROLL for (int i = 0; i < NH_COLUMNS / 4; i++)
            top = fmaxf(top, scores[r / 2][i / 2][r % 2 * 2 + i % 2]);
        top = fmaxf(state.top[r], nh_quad_max(top) * scale);
        shrink[r] = nh_exp2(state.top[r] - top);
        state.top[r] = top;
    }
}

/* Scales earlier sums to the raised maximum. Soon, no row's maximum changes in most tiles: there is nothing to do. */
NH_DEVICE void nh_softmax_shrink(nh_softmax &state, nh_output &output, const float (&shrink)[2 * NH_BLOCKS]) {
    bool moved = false;
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++)
        moved = moved || shrink[r] != 1.f;
    if (!__any_sync(~0u, moved)) return;
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        state.sum[r] *= shrink[r];
        NH_UNROLL for (int i = 0; i < NH_DIM_V_PADDED / 4; i++)
            output[r / 2][i / 2][r % 2 * 2 + i % 2] *= shrink[r];
    }
}

NH_DEVICE void nh_softmax_weights(nh_softmax &state, nh_scores &scores, float scale) {
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        float sum = 0.f;
        NH_UNROLL for (int i = 0; i < NH_COLUMNS / 4; i++) {
            float &score = scores[r / 2][i / 2][r % 2 * 2 + i % 2];
            score = nh_exp2(fmaf(score, scale, -state.top[r]));
            sum += score;
        }
        state.sum[r] += sum;
    }
}

/* Sums over many columns in f32. Tensor cores truncate every sum towards zero, and these errors add up in a chain of
 * products. So the accumulators are added to totals every few tiles, by additions that round to nearest, and start from
 * zero again. The totals lie in local memory, as the products of tiles take all registers. */

enum {
    /* tiles with 128 columns together, half of what nh_cuda_define_long_sums allows in one chain */
    NH_CHAIN_TILES = NH_COLUMNS < 128 ? 128 / NH_COLUMNS : 1
};

/* Totals of the accumulators for WIDTH elements of rows. They are volatile because the compiler would otherwise keep
 * them in registers throughout the loop, which then lacks registers for loading operands ahead. */
template <int WIDTH> struct nh_totals { volatile float sum[NH_BLOCKS][WIDTH / 8][4]; };

/* Calls visit(m, n, i) for all indices of such sums. */
template <int WIDTH> NH_DEVICE void nh_for_sums(const auto &visit) {
    NH_UNROLL for (int i = 0; i < NH_BLOCKS * WIDTH / 2; i++)
        visit(i / (WIDTH / 2), i / 4 % (WIDTH / 8), i % 4);
}

template <int WIDTH> NH_DEVICE void nh_totals_start(nh_totals<WIDTH> &totals) {
    nh_for_sums<WIDTH>([&](int m, int n, int i) { totals.sum[m][n][i] = 0.f; });
}

/* Adds the totals to the sums, times a factor per row of the thread. */
template <int WIDTH>
NH_DEVICE void nh_totals_take(const nh_totals<WIDTH> &totals, const float (&factor)[2 * NH_BLOCKS],
                              float (&sum)[NH_BLOCKS][WIDTH / 8][4]) {
    nh_for_sums<WIDTH>(
        [&](int m, int n, int i) { sum[m][n][i] = fmaf(totals.sum[m][n][i], factor[2 * m + i / 2], sum[m][n][i]); });
}

/* Stores the sums as totals, and clears them. */
template <int WIDTH> NH_DEVICE void nh_totals_put(nh_totals<WIDTH> &totals, float (&sum)[NH_BLOCKS][WIDTH / 8][4]) {
    nh_for_sums<WIDTH>([&](int m, int n, int i) {
        totals.sum[m][n][i] = sum[m][n][i];
        sum[m][n][i] = 0.f;
    });
}

/* The same as nh_totals_take with factors of 1. */
template <int WIDTH>
NH_DEVICE void nh_totals_add(const nh_totals<WIDTH> &totals, float (&sum)[NH_BLOCKS][WIDTH / 8][4]) {
    float one[2 * NH_BLOCKS];
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++)
        one[r] = 1.f;
    nh_totals_take(totals, one, sum);
}

/* The totals of a softmax: outputs and sums of weights, relative to the largest scores at that time. */
struct nh_softmax_totals {
    nh_totals<NH_DIM_V_PADDED> output;
    volatile float top[2 * NH_BLOCKS], sum[2 * NH_BLOCKS];
};

NH_DEVICE void nh_softmax_totals_start(nh_softmax_totals &totals) {
    nh_totals_start(totals.output);
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++)
        totals.top[r] = NH_LOWEST, totals.sum[r] = 0.f;
}

NH_DEVICE void nh_softmax_totals_take(nh_softmax_totals &totals, nh_softmax &state, nh_output &output) {
    float shrink[2 * NH_BLOCKS];
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        shrink[r] = nh_exp2(totals.top[r] - state.top[r]);
        state.sum[r] = fmaf(totals.sum[r], shrink[r], state.sum[r]);
    }
    nh_totals_take(totals.output, shrink, output);
}

NH_DEVICE void nh_softmax_totals_put(nh_softmax_totals &totals, nh_softmax &state, nh_output &output) {
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        totals.top[r] = state.top[r], totals.sum[r] = state.sum[r];
        state.sum[r] = 0.f;
    }
    nh_totals_put(totals.output, output);
}

} // namespace nh_mma80
