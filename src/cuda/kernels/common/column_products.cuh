/* Products of 16 rows with columns in shared memory, on tensor cores of sm_80 and later. A column is whole steps of two
 * units of 16 bytes. The including file defines nh_units(WIDTH) and nh_row_bytes(WIDTH), from column to column. */
#pragma once

#include "gemm_fragment.cuh"
#include "lanes.cuh"

/* The column, of 16, and the half of a step of 16 elements whose address a lane gives to matrix loads. The second
 * operand is columns as they are (NH_AS_LAID) if products run over their elements, and transposed if over columns. */
enum nh_order { NH_AS_LAID, NH_TRANSPOSED };
template <nh_order ORDER> NH_DEVICE int nh_lane_column() {
    int lane = (int)(nh_thread_again() % 32);
    return ORDER == NH_TRANSPOSED ? lane % 16 : lane % 8 + lane / 16 * 8;
}
template <nh_order ORDER> NH_DEVICE int nh_lane_half() {
    int lane = (int)(nh_thread_again() % 32);
    return ORDER == NH_TRANSPOSED ? lane / 16 : lane / 8 % 2;
}

/* Rows as the first operand of products. In f32, wide rows do not fit registers: they are read and split again for each
 * product. swizzle: what the lane's unit numbers are XORed with. */
enum { NH_WIDEST_KEPT = 32 };
template <int WIDTH, bool KEPT = NH_DTYPE != NH_F32 || WIDTH <= NH_WIDEST_KEPT> struct nh_row_operand {
    nh_left kept[nh_units(WIDTH) / 2];
};
template <int WIDTH> struct nh_row_operand<WIDTH, false> {
    unsigned start;
    int swizzle;
};

template <int WIDTH>
NH_DEVICE void nh_keep_step(nh_row_operand<WIDTH, true> &operand, int step, const unsigned (&word)[4]) {
    nh_left_set(&operand.kept[step], word);
}

template <int WIDTH> NH_DEVICE const nh_left &nh_row_step(const nh_row_operand<WIDTH, true> &operand, int step) {
    return operand.kept[step];
}
template <int WIDTH> NH_DEVICE nh_left nh_row_step(const nh_row_operand<WIDTH, false> &operand, int step) {
    unsigned word[4];
    nh_left left;
    const int unit = 2 * step + (int)(nh_thread_again() % 32) / 16;
    nh_load_matrices_at(word, operand.start + ((unit ^ operand.swizzle) << 4));
    nh_left_set(&left, word);
    return left;
}

/* c[0] and c[1] += rows times the 16 columns that are `ahead` rows after the start; the second eight only if `both`. */
template <int WIDTH, bool KEPT, int STEPS>
NH_DEVICE void nh_multiply_columns(float (*c)[4], const nh_row_operand<WIDTH, KEPT> &rows,
                                   const unsigned (&start)[STEPS], int ahead, bool both) {
    NH_UNROLL for (int s = 0; s < STEPS; s++) {
        unsigned word[4] = {0, 0, 0, 0};
        nh_right columns;
        const unsigned from = start[s] + ahead * nh_row_bytes(WIDTH);
        if (both)
            nh_load_matrices_at(word, from);
        else
            nh_load_two_matrices_at(word, from);
        nh_right_set(&columns, word);
        const nh_left &own = nh_row_step(rows, s);
        nh_multiply_half(c[0], &own, &columns, 0);
        if (both) nh_multiply_half(c[1], &own, &columns, 1);
    }
}

/* ---- products of weights with columns ---- */

#if NH_DTYPE == NH_F32 /* each is three products of TF32 parts, or one with NH_TF32 */

/* Addresses of the lane's columns in products that run over columns. No matrix load transposes 32-bit elements, so lane
 * t reads columns 2t and 2t + 1 of each 8, whose weights it holds, and of each of them elements 4g .. 4g + 3 of 32, one
 * for each of four accumulators, whose columns may stand for any elements. WIDTH of a column's ROW elements. */
template <int WIDTH, int ROW = WIDTH> struct nh_across { unsigned start[2]; };

/* The rows of the lane's columns of 16, relative to the start of the columns. */
struct nh_pair_rows {
    int at[4]; /* columns 2t, 2t + 1, 2t + 8, 2t + 9 */
};

/* The weights of 16 columns as the first operand of a product, eight columns per step. */
struct nh_weights {
    nh_left step[2];
};

NH_DEVICE void nh_pack_weights(nh_weights &operand, const float (*c)[4], bool both) {
    NH_UNROLL for (int i = 0; i < (both ? 2 : 1); i++) {
        const unsigned word[4] = {__float_as_uint(c[i][0]), __float_as_uint(c[i][2]), __float_as_uint(c[i][1]),
                                  __float_as_uint(c[i][3])};
        nh_left_set(&operand.step[i], word);
    }
}

/* sum[0 .. 3] += weights of eight columns, the first or second of 16 by `step`, times elements 32 d .. 32 d + 31. */
template <int WIDTH, int ROW>
NH_DEVICE void nh_add_column_step(float (*sum)[4], const nh_weights &weights, const nh_across<WIDTH, ROW> &across,
                                  const nh_pair_rows &rows, int step, int d) {
    unsigned even[4], odd[4];
    nh_load_words_at(even, across.start[0] + rows.at[2 * step] * nh_row_bytes(ROW) + 128 * d);
    nh_load_words_at(odd, across.start[1] + rows.at[2 * step + 1] * nh_row_bytes(ROW) + 128 * d);
    NH_UNROLL for (int n = 0; n < 4; n += 2) {
        const unsigned word[4] = {even[n], odd[n], even[n + 1], odd[n + 1]};
        nh_right columns;
        nh_right_set(&columns, word);
        nh_multiply(&sum[n], &weights.step[step], &columns);
    }
}

/* sum += weights times the 16 columns' elements; of the first eight columns only unless `both`. Tensor cores truncate
 * every sum towards zero, and these errors add up in a chain of products: with NH_LONG_SUMS the products start from
 * zero, and are added to the sums by additions that round to nearest. */
template <int WIDTH, int ROW, int SUMS>
NH_DEVICE void nh_add_columns(float (&sum)[SUMS][4], const nh_weights &weights, const nh_across<WIDTH, ROW> &across,
                              const nh_pair_rows &rows, bool both) {
#if NH_LONG_SUMS
    NH_UNROLL for (int d = 0; d < nh_units(WIDTH) / 8; d++) {
        float part[4][4] = {};
        NH_UNROLL for (int i = 0; i < (both ? 2 : 1); i++)
            nh_add_column_step(part, weights, across, rows, i, d);
        NH_UNROLL for (int n = 0; n < 16; n++)
            sum[4 * d + n / 4][n % 4] += part[n / 4][n % 4];
    }
#else
    NH_UNROLL for (int i = 0; i < (both ? 2 : 1); i++)
        NH_UNROLL for (int d = 0; d < nh_units(WIDTH) / 8; d++)
            nh_add_column_step(&sum[4 * d], weights, across, rows, i, d);
#endif
}

#else

/* Addresses of the lane's columns, for each step, in products that run over columns. */
template <int WIDTH> struct nh_across { unsigned start[nh_units(WIDTH) / 2]; };

/* The row of the lane's column of 16, relative to the start of the columns. */
struct nh_pair_rows {
    int at[1];
};

/* The weights of 16 columns as the first operand of a product. */
struct nh_weights {
    unsigned word[4];
};

NH_DEVICE void nh_pack_weights(nh_weights &operand, const float (*c)[4], bool both) {
    operand.word[0] = nh_pack(c[0][0], c[0][1]);
    operand.word[1] = nh_pack(c[0][2], c[0][3]);
    operand.word[2] = both ? nh_pack(c[1][0], c[1][1]) : 0u;
    operand.word[3] = both ? nh_pack(c[1][2], c[1][3]) : 0u;
}

/* sum += weights times the 16 columns' elements. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_add_columns(float (&sum)[SUMS][4], const nh_weights &weights, const nh_across<WIDTH> &across,
                              const nh_pair_rows &rows, bool) {
    nh_left own;
    nh_left_set(&own, weights.word);
    NH_UNROLL for (int s = 0; s < SUMS / 2; s++) {
        unsigned word[4];
        nh_right columns;
        nh_load_matrices_transposed_at(word, across.start[s] + rows.at[0] * nh_row_bytes(WIDTH));
        nh_right_set(&columns, word);
        nh_multiply(sum + 2 * s, &own, &columns);
    }
}

#endif

template <int COUNT> NH_DEVICE void nh_clear(float (&sum)[COUNT][4]) {
    NH_UNROLL for (int i = 0; i < COUNT; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;
}

/* ---- repair ---- */

/* Whether this thread's sums of row g (half 0) or g + 8 are not all finite. */
template <int COUNT> NH_DEVICE bool nh_needs_repair(const float (&sum)[COUNT][4], int half) {
    float total = 0.f;
    NH_UNROLL for (int u = 0; u < COUNT; u++)
        total += sum[u][2 * half] + sum[u][2 * half + 1];
    return total - total != 0.f;
}
