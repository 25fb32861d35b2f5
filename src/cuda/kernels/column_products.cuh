/* Products of 16 rows, in registers, with columns that lie in shared memory row by row: by tensor cores of sm_80 and
 * later, 16 bits. nh_row_bytes(WIDTH), from one of a column's rows to the next, is the includer's. */
#pragma once

#include "mma.cuh"
#include "prelude.cuh"

/* Which of 16 columns, and which half of a step of 16 elements, a lane names in matrix loads. Columns are the second
 * operand of a product as they lie if it runs over their elements, transposed if it runs over columns. */
enum nh_order { NH_AS_LAID, NH_TRANSPOSED };
template <nh_order ORDER> NH_DEVICE int nh_lane_column() {
    int lane = (int)(nh_thread_again() % 32);
    return ORDER == NH_TRANSPOSED ? lane % 16 : lane % 8 + lane / 16 * 8;
}
template <nh_order ORDER> NH_DEVICE int nh_lane_half() {
    int lane = (int)(nh_thread_again() % 32);
    return ORDER == NH_TRANSPOSED ? lane / 16 : lane / 8 % 2;
}

NH_DEVICE void nh_product(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned b[2] = {b0, b1};
    if (NH_DTYPE == NH_F16) {
        nh_mma_f16(c, a, b);
    } else {
        nh_mma_bf16(c, a, b);
    }
}

/* c[0] and c[1] += rows times the 16 columns `ahead` rows from the start; the second eight only if `both`. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_multiply_columns(float (*c)[4], const unsigned (&rows)[STEPS][4],
                                   const unsigned (&start)[STEPS], int ahead, bool both) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned b[4];
        nh_load_matrices_at(b, start[s] + ahead * nh_row_bytes(WIDTH));
        nh_product(c[0], rows[s], b[0], b[1]);
        if (both) nh_product(c[1], rows[s], b[2], b[3]);
    }
}

/* sum += weights times the 16 columns' elements. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_add_columns(float (&sum)[2 * STEPS][4], const unsigned (&weights)[4],
                              const unsigned (&start)[STEPS], int ahead) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned b[4];
        nh_load_matrices_transposed_at(b, start[s] + ahead * nh_row_bytes(WIDTH));
        nh_product(sum[2 * s], weights, b[0], b[1]);
        nh_product(sum[2 * s + 1], weights, b[2], b[3]);
    }
}

NH_DEVICE unsigned nh_pack(float low, float high) {
    unsigned both;
#if NH_DTYPE == NH_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

/* Weights of 16 columns as the first operand of a product. */
NH_DEVICE void nh_pack_weights(unsigned (&operand)[4], const float (*c)[4], bool both) {
    operand[0] = nh_pack(c[0][0], c[0][1]);
    operand[1] = nh_pack(c[0][2], c[0][3]);
    operand[2] = both ? nh_pack(c[1][0], c[1][1]) : 0u;
    operand[3] = both ? nh_pack(c[1][2], c[1][3]) : 0u;
}

template <int COUNT> NH_DEVICE void nh_clear(float (&sum)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;
}

/* ---- rows that come out not finite ---- */

/* Whether the sums of row g (half 0) or g + 8 that this thread has are not all finite. */
template <int COUNT> NH_DEVICE bool nh_spoilt(const float (&sum)[COUNT][4], int half) {
    float total = 0.f;
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        total += sum[u][2 * half] + sum[u][2 * half + 1];
    return total - total != 0.f;
}

/* Calls redo(row), by the whole warp, for rows g (`first`) and g + 8 (`second`) of threads that say so. */
template <typename Redo> NH_DEVICE void nh_for_spoilt_rows(bool first, bool second, const Redo &redo) {
    unsigned lanes[2] = {__ballot_sync(~0u, first), __ballot_sync(~0u, second)};
#pragma unroll 1
    for (int row = 0; row < 16; row++)
        if ((row < 8 ? lanes[0] : lanes[1]) >> row % 8 * 4 & 15) redo(row);
}
