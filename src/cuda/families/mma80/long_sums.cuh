/* Sums over many columns in f32. Tensor cores truncate every sum towards zero, and these errors add up in a chain of
 * products. So the accumulators are added to totals every few tiles, by additions that round to nearest, and start from
 * zero again. The totals lie in local memory, as the products of tiles take all registers. */
#pragma once

#include "softmax.cuh"

namespace nh_mma80 {

enum {
    /* tiles with 128 columns together, half of what nh_cuda_define_long_sums allows in one chain */
    NH_CHAIN_TILES = NH_COLUMNS < 128 ? 128 / NH_COLUMNS : 1
};

/* Totals of the accumulators for WIDTH elements of rows. They are volatile because the compiler would otherwise keep
 * them in registers throughout the loop, which then lacks registers for loading operands ahead. */
template <int WIDTH> struct nh_totals { volatile float sum[NH_BLOCKS][WIDTH / 8][4]; };

/* Calls visit(m, n, i) for all indices of such sums. */
template <int WIDTH> NH_DEVICE void nh_for_sums(const auto &visit) {
#pragma unroll
    for (int i = 0; i < NH_BLOCKS * WIDTH / 2; i++)
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
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++)
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
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++)
        totals.top[r] = NH_LOWEST, totals.sum[r] = 0.f;
}

NH_DEVICE void nh_softmax_totals_take(nh_softmax_totals &totals, nh_softmax &state, nh_output &output) {
    float shrink[2 * NH_BLOCKS];
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        shrink[r] = nh_exp2(totals.top[r] - state.top[r]);
        state.sum[r] = fmaf(totals.sum[r], shrink[r], state.sum[r]);
    }
    nh_totals_take(totals.output, shrink, output);
}

NH_DEVICE void nh_softmax_totals_put(nh_softmax_totals &totals, nh_softmax &state, nh_output &output) {
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        totals.top[r] = state.top[r], totals.sum[r] = state.sum[r];
        state.sum[r] = 0.f;
    }
    nh_totals_put(totals.output, output);
}

} // namespace nh_mma80
