/* Small windows in f32: a product is three of TF32 halves, or with NH_TF32 one. */
#pragma once

static_assert(NH_DIM % 32 == 0 && NH_DIM_V % 32 == 0, "lanes take four elements at a time");

/* Rows of a subtile as the first operand of products. Wide ones are read, and split, for each product: registers do
 * not hold them. */
enum { NH_WIDEST_KEPT = 32 };
template <int WIDTH, bool KEPT = WIDTH <= NH_WIDEST_KEPT> struct nh_row_operand {
    nh_left kept[WIDTH / NH_STEP];
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

template <int ROOM, int WIDTH>
NH_DEVICE void nh_load_rows(nh_row_operand<WIDTH, false> &operand, const char *rows, int subtile) {
    static_assert(!NH_STAGES || WIDTH == 0, "rows that are not kept must stay in shared memory");
    const int row = nh_row_number(subtile, (int)(nh_thread_again() % 16));
    operand.start = nh_shared_address(rows) + row * nh_row_bytes(ROOM);
    operand.swizzle = nh_swizzle(ROOM, row);
}

/* Before a pair's products: the compiler would read rows that are not kept once for all pairs. */
NH_DEVICE void nh_pace(int pair) {
    if (NH_DIM > NH_WIDEST_KEPT && pair) __syncwarp();
}

/* c[0] and c[1] += rows times the 16 columns `ahead` rows from the start; the second eight only if `both`. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_multiply_columns(float (*c)[4], const nh_row_operand<WIDTH> &rows, const unsigned (&start)[STEPS],
                                   int ahead, bool both) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned word[4];
        nh_right columns;
        nh_load_matrices_at(word, start[s] + ahead * nh_row_bytes(WIDTH));
        nh_right_set(&columns, word);
        const nh_left &own = nh_row_step(rows, s);
        nh_multiply_half(c[0], &own, &columns, 0);
        if (both) nh_multiply_half(c[1], &own, &columns, 1);
    }
}

/* Where columns are in products that run over them: no matrix load transposes 32-bit elements. Lane t takes columns
 * 2t and 2t + 1 of each 8, as it holds their weights, and of each of them elements 4g .. 4g + 3 of 32, an element of
 * four accumulators each: which element an accumulator's column stands for is free. */
template <int WIDTH> struct nh_across {
    unsigned start[2];
};

template <int WIDTH> NH_DEVICE void nh_across_start(nh_across<WIDTH> &across, const char *halo, int first) {
    const int lane = (int)(nh_thread_again() % 32);
#pragma unroll
    for (int i = 0; i < 2; i++)
        across.start[i] = nh_shared_address(halo) + first * nh_row_bytes(WIDTH) +
                          ((lane / 4 ^ nh_swizzle(WIDTH, first + lane % 4 * 2 + i)) << 4);
}

/* Halo rows of the lane's columns in a pair, from the box's first. */
struct nh_pair_rows {
    int at[4]; /* columns 2t, 2t + 1, 2t + 8, 2t + 9 */
};

/* Weights of 16 columns as the first operand of a product, eight columns a step. */
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

/* Of what has been packed the two weights in columns 2t and 2t + 1 of row g (+ 8 if i is odd), in the second eight
 * columns if i > 1. */
NH_DEVICE void nh_lay_two(elem *to, const nh_weights &packed, int i) {
    const nh_left &step = packed.step[i / 2];
#pragma unroll
    for (int c = 0; c < 2; c++)
        to[c] = __uint_as_float(step.high[i % 2 + 2 * c]) + (NH_TF32 ? 0.f : __uint_as_float(step.low[i % 2 + 2 * c]));
}

/* sum += weights times the 16 columns' elements; of the first eight columns only unless `both`. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_add_columns(float (&sum)[SUMS][4], const nh_weights &weights,
                              const nh_across<WIDTH> &across, const nh_pair_rows &rows, bool both) {
#pragma unroll
    for (int i = 0; i < (both ? 2 : 1); i++)
#pragma unroll
        for (int d = 0; d < WIDTH / 32; d++) {
            unsigned even[4], odd[4];
            nh_load_words_at(even, across.start[0] + rows.at[2 * i] * nh_row_bytes(WIDTH) + 128 * d);
            nh_load_words_at(odd, across.start[1] + rows.at[2 * i + 1] * nh_row_bytes(WIDTH) + 128 * d);
#pragma unroll
            for (int n = 0; n < 4; n += 2) {
                const unsigned word[4] = {even[n], odd[n], even[n + 1], odd[n + 1]};
                nh_right columns;
                nh_right_set(&columns, word);
                nh_multiply(&sum[4 * d + n], &weights.step[i], &columns);
            }
        }
}

/* A subtile's sums, times one factor per row, into shared rows. */
template <int ROOM, int SUMS>
NH_DEVICE void nh_stage_rows(char *rows, const float (&sum)[SUMS][4], float first, float second, int subtile) {
    const int lane = (int)(nh_thread_again() % 32);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = nh_result_number(subtile, lane / 4 + i / 2 * 8);
        const float factor = i / 2 ? second : first;
#pragma unroll
        for (int d = 0; d < SUMS / 4; d++)
            *(float4 *)(rows + nh_unit_offset(ROOM, row, 8 * d + lane % 4 * 2 + i % 2)) =
                make_float4(sum[4 * d][i] * factor, sum[4 * d + 1][i] * factor, sum[4 * d + 2][i] * factor,
                            sum[4 * d + 3][i] * factor);
    }
}
