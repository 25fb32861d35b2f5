/* Small windows in f32: what of column_products32.cuh depends on where rows lie. */
#pragma once

#include "small_gather.cuh"

namespace nh_small {

static_assert(C.dim % 32 == 0 && C.dim_v % 32 == 0, "lanes take four elements at a time");

template <int ROOM, int WIDTH>
NH_DEVICE void nh_load_rows(nh_row_operand<WIDTH, false> &operand, const char *rows, int warp_tile) {
    static_assert(!C.stages || WIDTH == 0, "rows that are not kept must stay in shared memory");
    const int row = nh_row_number(warp_tile, (int)(nh_thread_again() % 16));
    operand.start = nh_shared_address(rows) + row * nh_row_bytes(ROOM);
    operand.swizzle = nh_swizzle(ROOM, row);
}

/* Called before a pair's products. It keeps the compiler from reading rows that are not kept once for all pairs. */
NH_DEVICE void nh_pace(int pair) {
    if (C.dim > NH_WIDEST_KEPT && pair) __syncwarp();
}

/* unit: the one of each 8 units that the lane reads. */
template <int WIDTH, int ROW>
NH_DEVICE void nh_across_start(nh_across<WIDTH, ROW> &across, const char *halo, int first, int unit) {
    const int t = (int)(nh_thread_again() % 4);
#pragma unroll
    for (int i = 0; i < 2; i++)
        across.start[i] = nh_shared_address(halo) + first * nh_row_bytes(ROW) +
                          ((unit ^ nh_swizzle(ROW, first + 2 * t + i)) << 4);
}
template <int WIDTH> NH_DEVICE void nh_across_start(nh_across<WIDTH> &across, const char *halo, int first) {
    nh_across_start(across, halo, first, (int)(nh_thread_again() % 32) / 4);
}

/* ---- a single block of 8 columns, the last of an odd number ---- */

template <int WIDTH, int STEPS>
NH_DEVICE void nh_multiply_block(float (&c)[4], const nh_row_operand<WIDTH> &rows, const unsigned (&start)[STEPS],
                                 int ahead) {
    nh_multiply_columns(&c, rows, start, ahead, false);
}

template <int WIDTH, int SUMS, int STEPS>
NH_DEVICE void nh_add_block(float (&sum)[SUMS][4], const nh_weights &weights, const unsigned (&)[STEPS], int,
                            const nh_across<WIDTH> &across, const nh_pair_rows &rows) {
    nh_add_columns(sum, weights, across, rows, false);
}

/* Writes two packed weights: columns 2t and 2t + 1 of row g (g + 8 if i is odd), of the second eight if i > 1. */
NH_DEVICE void nh_lay_two(elem *to, const nh_weights &packed, int i) {
    const nh_left &step = packed.step[i / 2];
#pragma unroll
    for (int c = 0; c < 2; c++)
        to[c] = __uint_as_float(step.high[i % 2 + 2 * c]) + (NH_TF32 ? 0.f : __uint_as_float(step.low[i % 2 + 2 * c]));
}

/* Writes a warp tile's sums, times one factor per row, to shared rows. */
template <int ROOM, int SUMS>
NH_DEVICE void nh_stage_rows(char *rows, const float (&sum)[SUMS][4], float first, float second, int warp_tile) {
    const int lane = (int)(nh_thread_again() % 32);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = nh_result_number(warp_tile, lane / 4 + i / 2 * 8);
        const float factor = i / 2 ? second : first;
#pragma unroll
        for (int d = 0; d < SUMS / 4; d++)
            *(float4 *)(rows + nh_unit_offset(ROOM, row, 8 * d + lane % 4 * 2 + i % 2)) =
                make_float4(sum[4 * d][i] * factor, sum[4 * d + 1][i] * factor, sum[4 * d + 2][i] * factor,
                            sum[4 * d + 3][i] * factor);
    }
}

} // namespace nh_small
