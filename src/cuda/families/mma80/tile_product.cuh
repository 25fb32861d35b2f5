/* The two products of a warp's rows: scores = A B^T, as Q K^T, and output += weights B, as P V. Matrix loads move 16
 * bytes per row whatever the type, so for A B^T rows of f32 are loaded as those of 16 bits are, with half the elements
 * per step. They cannot transpose rows of f32: for weights B lane t loads keys 2t and 2t + 1, for which it already
 * holds P, as keys may be summed in any order. */
#pragma once

#include "mma80.cuh"

namespace nh_mma80 {

typedef float nh_scores[NH_BLOCKS][NH_COLUMNS / 8][4];
typedef float nh_output[NH_BLOCKS][NH_DIM_V_PADDED / 8][4];

/* A product of f32: of one TF32 term with C.tf32, else of three. */
NH_DEVICE void nh_product32(float c[4], const unsigned a[4], const unsigned b[2]) {
    unsigned a_high[4], a_low[4], b_high[2], b_low[2];
    NH_UNROLL for (int i = 0; i < 4; i++)
        nh_split_tf32(__uint_as_float(a[i]), &a_high[i], &a_low[i]);
    NH_UNROLL for (int i = 0; i < 2; i++)
        nh_split_tf32(__uint_as_float(b[i]), &b_high[i], &b_low[i]);
    if (!C.tf32) {
        nh_mma_tf32(c, a_low, b_high);
        nh_mma_tf32(c, a_high, b_low);
    }
    nh_mma_tf32(c, a_high, b_high);
}

NH_DEVICE void nh_product(float c[4], const unsigned a[4], const unsigned b[2]) {
    if (NH_DTYPE == NH_F32)
        nh_product32(c, a, b);
    else if (NH_DTYPE == NH_F16)
        nh_mma_f16(c, a, b);
    else
        nh_mma_bf16(c, a, b);
}

/* Multiplies the warp's rows a with columns b, both of DEPTH elements. ONTO: adds to the scores, which else start at 0.
 * Operands are loaded a step ahead, as the compiler would load most of them right before the products that use them. */
template <int DEPTH, int PITCH_A, int PITCH_B, bool ONTO = false>
NH_DEVICE void nh_multiply(nh_scores &scores, const elem *a_rows, const elem *b_rows) {
    const int steps = NH_COLUMNS / 16;
    int lane = (int)threadIdx.x % 32;
    a_rows += lane % 16 * PITCH_A + lane / 16 * NH_QUARTER;
    b_rows += (lane % 8 + lane / 16 * 8) * PITCH_B + lane / 8 % 2 * NH_QUARTER;
    unsigned a[2][NH_BLOCKS][4], b[2][4];
    NH_UNROLL for (int m = 0; m < NH_BLOCKS; m++) {
        nh_load_matrices(a[0][m], a_rows + m * 16 * PITCH_A);
        NH_UNROLL for (int i = 0; !ONTO && i < NH_COLUMNS / 2; i++)
            scores[m][i / 4][i % 4] = 0.f;
    }
    nh_load_matrices(b[0], b_rows);
    NH_UNROLL for (int d = 0; d < DEPTH; d += NH_STEP) {
        const int now = d / NH_STEP % 2;
        NH_UNROLL for (int n = 0; n < steps; n++) {
            const int step = d / NH_STEP * steps + n, next_n = (n + 1) % steps;
            const int next_d = next_n ? d : d + NH_STEP;
            if (next_d < DEPTH) nh_load_matrices(b[(step + 1) % 2], b_rows + next_n * 16 * PITCH_B + next_d);
            NH_UNROLL for (int m = 0; m < NH_BLOCKS; m++) {
                if (n == steps / 2 && d + NH_STEP < DEPTH)
                    nh_load_matrices(a[1 - now][m], a_rows + m * 16 * PITCH_A + d + NH_STEP);
                nh_product(scores[m][2 * n], a[now][m], b[step % 2]);
                nh_product(scores[m][2 * n + 1], a[now][m], b[step % 2] + 2);
            }
        }
    }
}

template <int WIDTH, int PITCH>
NH_DEVICE void nh_accumulate32(float (&output)[NH_BLOCKS][WIDTH / 8][4], const nh_scores &weights, const elem *values) {
    int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
    values += 2 * t * PITCH + g;
    NH_UNROLL for (int k = 0; k < NH_COLUMNS / 8; k++) {
        unsigned a[NH_BLOCKS][4];
        NH_UNROLL for (int m = 0; m < NH_BLOCKS; m++)
            NH_UNROLL for (int i = 0; i < 4; i++)
                a[m][i] = __float_as_uint(weights[m][k][i % 2 * 2 + i / 2]);
        NH_UNROLL for (int n = 0; n < WIDTH / 8; n++) {
            const elem *pair = values + k * 8 * PITCH + n * 8;
            unsigned b[2] = {__float_as_uint(pair[0]), __float_as_uint(pair[PITCH])};
            NH_UNROLL for (int m = 0; m < NH_BLOCKS; m++)
                nh_product(output[m][n], a[m], b);
        }
    }
}
/* The weights of keys 16k .. 16k + 15 in the accumulators' layout are an operand once they are packed. */
NH_DEVICE void nh_weight_operand(unsigned a[4], const float (&weights)[NH_COLUMNS / 8][4], int k) {
    NH_UNROLL for (int i = 0; i < 4; i++)
        a[i] = nh_pack(weights[2 * k + i / 2][i % 2 * 2], weights[2 * k + i / 2][i % 2 * 2 + 1]);
}

template <int WIDTH, int PITCH>
NH_DEVICE void nh_accumulate16(float (&output)[NH_BLOCKS][WIDTH / 8][4], const nh_scores &weights, const elem *values) {
    const int steps = WIDTH / 16;
    int lane = (int)threadIdx.x % 32;
    values += lane % 16 * PITCH + lane / 16 * NH_QUARTER;
    unsigned b[2][4];
    nh_load_matrices_transposed(b[0], values);
    NH_UNROLL for (int k = 0; k < NH_COLUMNS / 16; k++) {
        unsigned a[NH_BLOCKS][4];
        NH_UNROLL for (int m = 0; m < NH_BLOCKS; m++)
            nh_weight_operand(a[m], weights[m], k);
        NH_UNROLL for (int n = 0; n < steps; n++) {
            const int step = k * steps + n, next_n = (n + 1) % steps, next_k = next_n ? k : k + 1;
            if (next_k < NH_COLUMNS / 16)
                nh_load_matrices_transposed(b[(step + 1) % 2], values + next_k * 16 * PITCH + next_n * 16);
            NH_UNROLL for (int m = 0; m < NH_BLOCKS; m++) {
                nh_product(output[m][2 * n], a[m], b[step % 2]);
                nh_product(output[m][2 * n + 1], a[m], b[step % 2] + 2);
            }
        }
    }
}

/* output += weights times the values of the tile's columns. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_accumulate(float (&output)[NH_BLOCKS][WIDTH / 8][4], const nh_scores &weights, const elem *values) {
    if constexpr (NH_DTYPE == NH_F32)
        nh_accumulate32<WIDTH, PITCH>(output, weights, values);
    else
        nh_accumulate16<WIDTH, PITCH>(output, weights, values);
}

NH_DEVICE void nh_store_pair(elem *to, float first, float second) {
    if (NH_DTYPE == NH_F32)
        *(float2 *)to = make_float2(first, second);
    else
        *(unsigned *)to = nh_pack(first, second);
}

} // namespace nh_mma80
