/* One step of a warp's matrix product, 16 x 16 += 16 x NH_STEP . NH_STEP x 16, in the arithmetic of NH_DTYPE: f16 and
 * bf16 directly; f32 rounded to TF32 (NH_TF32), or in three products of TF32 parts, which keeps f32's accuracy except
 * for the product of the two low parts. */
#pragma once

#include "mma.cuh"
#include "prelude.cuh"

/* Tensor cores truncate what they add to a sum towards zero: harmless compared with 16-bit rounding, but in f32 chains
 * have at most NH_CHAIN products, and are added up outside of tensor cores. */
#define NH_SHORT_CHAINS (NH_DTYPE == NH_F32 && !NH_TF32)
#define NH_CHAIN 64

#if NH_DTYPE == NH_F32

#define NH_STEP 8
/* Elements added to a row so that rows start in different banks, for fragments read along rows and down columns. */
#define NH_PAD_ALONG 4
#define NH_PAD_DOWN 8

struct nh_left {
    unsigned high[4], low[4];
};
struct nh_right {
    unsigned high[2][2], low[2][2];
};

/* Splits a lane's words, in their order. */
NH_DEVICE void nh_left_set(struct nh_left *left, const unsigned word[4]) {
    for (int i = 0; i < 4; i++)
        nh_split_tf32(__uint_as_float(word[i]), &left->high[i], &left->low[i]);
}
NH_DEVICE void nh_right_set(struct nh_right *right, const unsigned word[4]) {
    for (int i = 0; i < 4; i++)
        nh_split_tf32(__uint_as_float(word[i]), &right->high[i / 2][i % 2], &right->low[i / 2][i % 2]);
}

/* tile: the first of 16 rows and NH_STEP columns of a row-major matrix. Matrix loads are for 16-bit elements, so four
 * words of a row count as eight elements. */
NH_DEVICE void nh_left_load(struct nh_left *left, const float *tile, int stride, int lane) {
    unsigned word[4];
    nh_load_matrices(word, tile + lane % 16 * stride + lane / 16 * 4);
    nh_left_set(left, word);
}

/* tile: 16 rows of NH_STEP columns; the factor is its transpose. */
NH_DEVICE void nh_right_load_rows(struct nh_right *right, const float *tile, int stride, int lane) {
    unsigned word[4];
    nh_load_matrices(word, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 4);
    nh_right_set(right, word);
}

/* tile: NH_STEP rows of 16 columns. */
NH_DEVICE void nh_right_load_columns(struct nh_right *right, const float *tile, int stride, int lane) {
    for (int n = 0; n < 2; n++)
        for (int k = 0; k < 2; k++)
            nh_split_tf32(tile[(4 * k + lane % 4) * stride + 8 * n + lane / 4], &right->high[n][k], &right->low[n][k]);
}

/* Multiplies with half of the right factor's columns; small products first, before the sum is large. */
NH_DEVICE void nh_multiply_half(float c[4], const struct nh_left *left, const struct nh_right *right, int half) {
#if !NH_TF32
    nh_mma_tf32(c, left->low, right->high[half]);
    nh_mma_tf32(c, left->high, right->low[half]);
#endif
    nh_mma_tf32(c, left->high, right->high[half]);
}

#else

#define NH_STEP 16
#define NH_PAD_ALONG 8
#define NH_PAD_DOWN 8

struct nh_left {
    unsigned x[4];
};
struct nh_right {
    unsigned x[4];
};

NH_DEVICE void nh_left_set(struct nh_left *left, const unsigned word[4]) {
    for (int i = 0; i < 4; i++)
        left->x[i] = word[i];
}
NH_DEVICE void nh_right_set(struct nh_right *right, const unsigned word[4]) {
    for (int i = 0; i < 4; i++)
        right->x[i] = word[i];
}

NH_DEVICE void nh_left_load(struct nh_left *left, const elem *tile, int stride, int lane) {
    nh_load_matrices(left->x, tile + lane % 16 * stride + lane / 16 * 8);
}

NH_DEVICE void nh_right_load_rows(struct nh_right *right, const elem *tile, int stride, int lane) {
    nh_load_matrices(right->x, tile + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}

NH_DEVICE void nh_right_load_columns(struct nh_right *right, const elem *tile, int stride, int lane) {
    nh_load_matrices_transposed(right->x, tile + lane % 16 * stride + lane / 16 * 8);
}

NH_DEVICE void nh_multiply_half(float c[4], const struct nh_left *left, const struct nh_right *right, int half) {
#if NH_DTYPE == NH_F16
    nh_mma_f16(c, left->x, right->x + 2 * half);
#else
    nh_mma_bf16(c, left->x, right->x + 2 * half);
#endif
}

#endif

NH_DEVICE void nh_multiply(float c[2][4], const struct nh_left *left, const struct nh_right *right) {
    for (int n = 0; n < 2; n++)
        nh_multiply_half(c[n], left, right, n);
}
