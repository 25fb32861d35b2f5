/* Products of weights with columns in 16 bits. */
#pragma once

/* Addresses of the lane's columns, for each step, in products that run over columns. */
template <int WIDTH> struct nh_across {
    unsigned start[nh_units(WIDTH) / 2];
};

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
#pragma unroll
    for (int s = 0; s < SUMS / 2; s++) {
        unsigned word[4];
        nh_right columns;
        nh_load_matrices_transposed_at(word, across.start[s] + rows.at[0] * nh_row_bytes(WIDTH));
        nh_right_set(&columns, word);
        nh_multiply(sum + 2 * s, &own, &columns);
    }
}
