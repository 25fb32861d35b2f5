/* Scores of a warp's 16 queries with rows of keys in shared memory, by tensor cores. */
#pragma once
#include "gemm_tile.cuh"

namespace nh_gemm {

/* Elements from one row of queries, or of keys, to the next. */
constexpr int SCORE_STRIDE = gemm_stride_along(&C, C.width);
static_assert(SCORE_STRIDE == C.width + NH_PAD_ALONG, "what fragments are read from");

/* Adds products of elements [first, end) of 16 queries and of C.columns keys. */
NH_DEVICE void nh_scores_part(float part[C.columns / 8][4], const elem *q, const elem *k, int first, int end,
                              int lane) {
#pragma unroll 4
    for (int step = first; step < end; step += NH_STEP) {
        nh_left left;
        nh_left_load(&left, q + step, SCORE_STRIDE, lane);
        NH_UNROLL for (int n = 0; n < C.columns / 16; n++) {
            nh_right right;
            nh_right_load_rows(&right, k + n * 16 * SCORE_STRIDE + step, SCORE_STRIDE, lane);
            nh_multiply(part + 2 * n, &left, &right);
        }
    }
}

/* Writes the scores of C.columns keys to the warp's shared memory. */
NH_DEVICE void nh_scores(const elem *q, const elem *k, float *stage, int stage_stride, int lane) {
    float score[C.columns / 8][4] = {};
    if (NH_SHORT_CHAINS && C.width > NH_CHAIN) {
        NH_UNROLL_1 for (int first = 0; first < C.width; first += NH_CHAIN) {
            float part[C.columns / 8][4] = {};
            nh_scores_part(part, q, k, first, first + NH_CHAIN < C.width ? first + NH_CHAIN : C.width, lane);
            NH_UNROLL for (int i = 0; i < C.columns / 2; i++)
                score[i / 4][i % 4] += part[i / 4][i % 4];
        }
    } else {
        nh_scores_part(score, q, k, 0, C.width, lane);
    }
    NH_UNROLL for (int n = 0; n < C.columns / 8; n++) {
        NH_UNROLL for (int i = 0; i < 4; i++)
            stage[(lane / 4 + i / 2 * 8) * stage_stride + n * 8 + lane % 4 * 2 + i % 2] = score[n][i];
    }
}

/* Computes a score again if it is not finite: with f32's three parts, tensor cores turn infinities into NaN. */
NH_DEVICE float nh_repair_if_not_finite(float score, const elem *q, const elem *k, int dim) {
    if (NH_DTYPE == NH_F32 && !(fabsf(score) <= 3.402823466e38f)) {
        score = 0;
        NH_UNROLL_1 for (int c = 0; c < dim; c++)
            score = fmaf(q[c], k[c], score);
    }
    return score;
}

} // namespace nh_gemm
