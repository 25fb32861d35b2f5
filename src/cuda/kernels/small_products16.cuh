/* Small windows in 16 bits: products as column_products.cuh has them. */
#pragma once

/* Rows of a subtile as the first operand of products. */
template <int WIDTH, bool KEPT = true> struct nh_row_operand {
    unsigned kept[nh_units(WIDTH) / 2][4];
};

template <int WIDTH>
NH_DEVICE void nh_keep_step(nh_row_operand<WIDTH> &operand, int step, const unsigned (&word)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        operand.kept[step][i] = word[i];
}

NH_DEVICE void nh_pace(int) {
}

/* c[0] and c[1] += rows times the 16 columns `ahead` rows from the start; the second eight only if `both`. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_multiply_columns(float (*c)[4], const nh_row_operand<WIDTH> &rows, const unsigned (&start)[STEPS],
                                   int ahead, bool both) {
    nh_multiply_columns<WIDTH, STEPS>(c, rows.kept, start, ahead, both);
}

/* Where columns are in products that run over them: as nh_gather_start has it. */
template <int WIDTH> struct nh_across {
    unsigned start[nh_units(WIDTH) / 2];
};

template <int WIDTH> NH_DEVICE void nh_across_start(nh_across<WIDTH> &across, const char *halo, int first) {
    nh_gather_start<NH_TRANSPOSED, WIDTH>(across.start, halo, first);
}

/* Halo row of the lane's column in a pair, from the box's first. */
struct nh_pair_rows {
    int at[1];
};

/* Weights of 16 columns as the first operand of a product. */
struct nh_weights {
    unsigned word[4];
};

NH_DEVICE void nh_pack_weights(nh_weights &operand, const float (*c)[4], bool both) {
    nh_pack_weights(operand.word, c, both);
}

/* Of what has been packed the two weights in columns 2t and 2t + 1 of row g (+ 8 if i is odd), in the second eight
 * columns if i > 1. */
NH_DEVICE void nh_lay_two(elem *to, const nh_weights &packed, int i) {
    *(unsigned *)to = packed.word[i];
}

/* sum += weights times the 16 columns' elements. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_add_columns(float (&sum)[SUMS][4], const nh_weights &weights, const nh_across<WIDTH> &across,
                              const nh_pair_rows &rows, bool) {
    nh_add_columns<WIDTH, SUMS / 2>(sum, weights.word, across.start, rows.at[0]);
}

/* A subtile's sums, times one factor per row, into shared rows. */
template <int ROOM, int SUMS>
NH_DEVICE void nh_stage_rows(char *rows, const float (&sum)[SUMS][4], float first, float second, int subtile) {
    const int lane = (int)(nh_thread_again() % 32);
    unsigned packed[SUMS][2];
#pragma unroll
    for (int u = 0; u < SUMS; u++) {
        packed[u][0] = nh_pack(sum[u][0] * first, sum[u][1] * first);
        packed[u][1] = nh_pack(sum[u][2] * second, sum[u][3] * second);
    }
#if NH_STAGES
    const int row = nh_result_number(subtile, lane % 16);
#pragma unroll
    for (int s = 0; s < SUMS / 2; s++) {
        const unsigned fragment[4] = {packed[2 * s][0], packed[2 * s][1], packed[2 * s + 1][0], packed[2 * s + 1][1]};
        nh_store_matrices(rows + nh_unit_offset(ROOM, row, 2 * s + lane / 16), fragment);
    }
#else
    const int row = nh_result_number(subtile, lane / 4), below = nh_result_number(subtile, lane / 4 + 8);
#pragma unroll
    for (int u = 0; u < SUMS; u++) {
        *(unsigned *)(rows + nh_unit_offset(ROOM, row, u) + lane % 4 * 4) = packed[u][0];
        *(unsigned *)(rows + nh_unit_offset(ROOM, below, u) + lane % 4 * 4) = packed[u][1];
    }
#endif
}
