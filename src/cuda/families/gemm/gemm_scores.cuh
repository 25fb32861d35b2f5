/* Scores of a warp's 16 queries with rows of keys in shared memory, by tensor cores. */
#pragma once
#include "gemm_fragment.cuh"
#include "gemm_tile.cuh"

/* Elements from one row of queries, or of keys, to the next. */
#define NH_SCORE_STRIDE (NH_WIDTH + NH_PAD_ALONG)

/* Adds products of elements [first, end) of 16 queries and of NH_COLUMNS keys. */
NH_DEVICE void nh_scores_part(float part[NH_COLUMNS / 8][4], const elem *q, const elem *k, int first, int end,
                              int lane) {
#pragma unroll 4
    for (int step = first; step < end; step += NH_STEP) {
        nh_left left;
        nh_left_load(&left, q + step, NH_SCORE_STRIDE, lane);
#pragma unroll
        for (int n = 0; n < NH_COLUMNS / 16; n++) {
            nh_right right;
            nh_right_load_rows(&right, k + n * 16 * NH_SCORE_STRIDE + step, NH_SCORE_STRIDE, lane);
            nh_multiply(part + 2 * n, &left, &right);
        }
    }
}

/* Writes the scores of NH_COLUMNS keys to the warp's shared memory. */
NH_DEVICE void nh_scores(const elem *q, const elem *k, float *stage, int stage_stride, int lane) {
    float score[NH_COLUMNS / 8][4] = {};
#if NH_SHORT_CHAINS && NH_WIDTH > NH_CHAIN
#pragma unroll 1
    for (int first = 0; first < NH_WIDTH; first += NH_CHAIN) {
        float part[NH_COLUMNS / 8][4] = {};
        nh_scores_part(part, q, k, first, min(first + NH_CHAIN, NH_WIDTH), lane);
#pragma unroll
        for (int i = 0; i < NH_COLUMNS / 2; i++)
            score[i / 4][i % 4] += part[i / 4][i % 4];
    }
#else
    nh_scores_part(score, q, k, 0, NH_WIDTH, lane);
#endif
#pragma unroll
    for (int n = 0; n < NH_COLUMNS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            stage[(lane / 4 + i / 2 * 8) * stage_stride + n * 8 + lane % 4 * 2 + i % 2] =
                score[n][i];
    }
}

/* Computes a score again if it is not finite: with f32's three parts, tensor cores turn infinities into NaN. */
NH_DEVICE float nh_repair_if_not_finite(float score, const elem *q, const elem *k, int dim) {
#if NH_DTYPE == NH_F32
    if (!(fabsf(score) <= 3.402823466e38f)) {
        score = 0;
#pragma unroll 1
        for (int c = 0; c < dim; c++)
            score = fmaf(q[c], k[c], score);
    }
#endif
    return score;
}
