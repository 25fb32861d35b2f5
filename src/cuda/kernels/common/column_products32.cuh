/* Products of weights with columns in f32: each is three products of TF32 parts, or one with NH_TF32. */
#pragma once

/* Addresses of the lane's columns in products that run over columns. No matrix load transposes 32-bit elements, so lane
 * t reads columns 2t and 2t + 1 of each 8, whose weights it holds, and of each of them elements 4g .. 4g + 3 of 32, one
 * for each of four accumulators, whose columns may stand for any elements. WIDTH of a column's ROW elements. */
template <int WIDTH, int ROW = WIDTH> struct nh_across {
    unsigned start[2];
};

/* The rows of the lane's columns of 16, relative to the start of the columns. */
struct nh_pair_rows {
    int at[4]; /* columns 2t, 2t + 1, 2t + 8, 2t + 9 */
};

/* The weights of 16 columns as the first operand of a product, eight columns per step. */
struct nh_weights {
    nh_left step[2];
};

NH_DEVICE void nh_pack_weights(nh_weights &operand, const float (*c)[4], bool both) {
#pragma unroll
    for (int i = 0; i < (both ? 2 : 1); i++) {
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
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
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
NH_DEVICE void nh_add_columns(float (&sum)[SUMS][4], const nh_weights &weights,
                              const nh_across<WIDTH, ROW> &across, const nh_pair_rows &rows, bool both) {
#if NH_LONG_SUMS
#pragma unroll
    for (int d = 0; d < nh_units(WIDTH) / 8; d++) {
        float part[4][4] = {};
#pragma unroll
        for (int i = 0; i < (both ? 2 : 1); i++)
            nh_add_column_step(part, weights, across, rows, i, d);
#pragma unroll
        for (int n = 0; n < 16; n++)
            sum[4 * d + n / 4][n % 4] += part[n / 4][n % 4];
    }
#else
#pragma unroll
    for (int i = 0; i < (both ? 2 : 1); i++)
#pragma unroll
        for (int d = 0; d < nh_units(WIDTH) / 8; d++)
            nh_add_column_step(&sum[4 * d], weights, across, rows, i, d);
#endif
}
