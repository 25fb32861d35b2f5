/* Sums over many columns in f32. Tensor cores cut every sum off, towards zero, which adds up in a chain of products:
 * every few tiles the accumulators are added to totals by additions that round to nearest, and start from zero again.
 * Totals lie in local memory, as registers are all taken by the products of tiles. */
#pragma once

#include "softmax.cuh"

enum {
    /* tiles of 128 columns in all, half of what nh_cuda_define_long_sums takes for one chain */
    NH_CHAIN_TILES = NH_COLUMNS < 128 ? 128 / NH_COLUMNS : 1
};

/* Totals of the accumulators of WIDTH elements of rows. */
template <int WIDTH> struct nh_totals {
    float4 sum[NH_BLOCKS * WIDTH / 8];
};

/* Where they lie: the compiler does not know that blocks have one axis, and so cannot take them into registers. */
template <int WIDTH> NH_DEVICE float4 *nh_totals_at(struct nh_totals<WIDTH> &totals) {
    return totals.sum + threadIdx.y;
}

template <int WIDTH> NH_DEVICE void nh_totals_start(struct nh_totals<WIDTH> &totals) {
    float4 *total = nh_totals_at(totals);
#pragma unroll
    for (int i = 0; i < NH_BLOCKS * WIDTH / 8; i++)
        total[i] = make_float4(0.f, 0.f, 0.f, 0.f);
}

/* Adds the totals, times factors of the thread's rows, to the sums. */
template <int WIDTH>
NH_DEVICE void nh_totals_take(struct nh_totals<WIDTH> &totals, const float (&factor)[2 * NH_BLOCKS],
                              float (&sum)[NH_BLOCKS][WIDTH / 8][4]) {
    const float4 *total = nh_totals_at(totals);
#pragma unroll
    for (int m = 0; m < NH_BLOCKS; m++)
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            const float4 add = total[m * (WIDTH / 8) + n];
            sum[m][n][0] = fmaf(add.x, factor[2 * m], sum[m][n][0]);
            sum[m][n][1] = fmaf(add.y, factor[2 * m], sum[m][n][1]);
            sum[m][n][2] = fmaf(add.z, factor[2 * m + 1], sum[m][n][2]);
            sum[m][n][3] = fmaf(add.w, factor[2 * m + 1], sum[m][n][3]);
        }
}

/* The sums become the totals, and zero. */
template <int WIDTH>
NH_DEVICE void nh_totals_put(struct nh_totals<WIDTH> &totals, float (&sum)[NH_BLOCKS][WIDTH / 8][4]) {
    float4 *total = nh_totals_at(totals);
#pragma unroll
    for (int m = 0; m < NH_BLOCKS; m++)
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            float(&own)[4] = sum[m][n];
            total[m * (WIDTH / 8) + n] = make_float4(own[0], own[1], own[2], own[3]);
            own[0] = own[1] = own[2] = own[3] = 0.f;
        }
}

/* Sums that no factor changes. */
template <int WIDTH>
NH_DEVICE void nh_totals_add(struct nh_totals<WIDTH> &totals, float (&sum)[NH_BLOCKS][WIDTH / 8][4]) {
    float one[2 * NH_BLOCKS];
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++)
        one[r] = 1.f;
    nh_totals_take(totals, one, sum);
}

/* The totals of a softmax: outputs and sums of weights, relative to the largest scores of then. */
struct nh_softmax_totals {
    struct nh_totals<NH_DIM_V_PADDED> output;
    float4 row[2 * NH_BLOCKS]; /* largest score, sum of weights */
};

NH_DEVICE void nh_softmax_totals_start(struct nh_softmax_totals &totals) {
    nh_totals_start(totals.output);
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++)
        (totals.row + threadIdx.y)[r] = make_float4(-1e30f, 0.f, 0.f, 0.f);
}

NH_DEVICE void nh_softmax_totals_take(struct nh_softmax_totals &totals, struct nh_softmax &state, nh_output &output) {
    float shrink[2 * NH_BLOCKS];
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        const float4 row = (totals.row + threadIdx.y)[r];
        shrink[r] = nh_exp2(row.x - state.top[r]);
        state.sum[r] = fmaf(row.y, shrink[r], state.sum[r]);
    }
    nh_totals_take(totals.output, shrink, output);
}

NH_DEVICE void nh_softmax_totals_put(struct nh_softmax_totals &totals, struct nh_softmax &state, nh_output &output) {
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        (totals.row + threadIdx.y)[r] = make_float4(state.top[r], state.sum[r], 0.f, 0.f);
        state.sum[r] = 0.f;
    }
    nh_totals_put(totals.output, output);
}
