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
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
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

#if NH_DTYPE == NH_F32
#include "column_products32.cuh"
#else
#include "column_products16.cuh"
#endif

template <int COUNT> NH_DEVICE void nh_clear(float (&sum)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;
}

/* ---- repair ---- */

/* Whether this thread's sums of row g (half 0) or g + 8 are not all finite. */
template <int COUNT> NH_DEVICE bool nh_needs_repair(const float (&sum)[COUNT][4], int half) {
    float total = 0.f;
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        total += sum[u][2 * half] + sum[u][2 * half + 1];
    return total - total != 0.f;
}
