/* Small windows in 16 bits: what of column_products16.cuh depends on where rows lie. */
#pragma once

#include "small_gather.cuh"

namespace nh_small {

NH_DEVICE void nh_pace(int) {
}

template <int WIDTH> NH_DEVICE void nh_across_start(nh_across<WIDTH> &across, const char *halo, int first) {
    nh_gather_start<NH_TRANSPOSED, WIDTH>(across.start, halo, first);
}

/* ---- a single block of 8 columns, the last of an odd number ----
 * Its table repeats the rows of these columns 8 columns further (nh_tables_fill). So lanes 16 .. 31 may give the
 * addresses of another step, and a matrix load takes two steps at once. */

/* Loads the elements of steps s and, if there is one, s + 1. start: as nh_gather_start<NH_AS_LAID> set it. */
template <bool TRANSPOSED, int STEPS>
NH_DEVICE void nh_load_block(unsigned (&unit)[4], const unsigned (&start)[STEPS], int s, int bytes) {
    const bool further = s + 1 < STEPS && nh_thread_again() % 32 / 16;
    const unsigned from = (further ? start[(s + 1) % STEPS] : start[s]) + (unsigned)bytes;
    if (TRANSPOSED)
        nh_load_matrices_transposed_at(unit, from);
    else
        nh_load_matrices_at(unit, from);
}

/* c += rows times the block. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_multiply_block(float (&c)[4], const nh_row_operand<WIDTH> &rows, const unsigned (&start)[STEPS],
                                 int ahead) {
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
        unsigned unit[4];
        nh_load_block<false>(unit, start, s, ahead * nh_row_bytes(WIDTH));
#pragma unroll
        for (int i = 0; i < 2 && s + i < STEPS; i++) {
            nh_right two_steps;
            nh_right_set(&two_steps, unit);
            nh_multiply_half(c, &nh_row_step(rows, s + i), &two_steps, i);
        }
    }
}

/* sum += weights times the block's elements. */
template <int WIDTH, int SUMS, int STEPS>
NH_DEVICE void nh_add_block(float (&sum)[SUMS][4], const nh_weights &weights, const unsigned (&start)[STEPS],
                            int ahead, const nh_across<WIDTH> &, const nh_pair_rows &) {
    const unsigned own[2] = {weights.word[0], weights.word[1]};
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
        unsigned unit[4];
        nh_load_block<true>(unit, start, s, ahead * nh_row_bytes(WIDTH));
#pragma unroll
        for (int i = 0; i < 4 && 2 * s + i < SUMS; i++) {
            if (NH_DTYPE == NH_F16)
                nh_mma_f16_shallow(sum[2 * s + i], own, unit[i]);
            else
                nh_mma_bf16_shallow(sum[2 * s + i], own, unit[i]);
        }
    }
}

/* Writes two packed weights: columns 2t and 2t + 1 of row g (g + 8 if i is odd), of the second eight if i > 1. */
NH_DEVICE void nh_lay_two(elem *to, const nh_weights &packed, int i) {
    *(unsigned *)to = packed.word[i];
}

/* Writes a warp tile's sums, times one factor per row, to shared rows. */
template <int ROOM, int SUMS>
NH_DEVICE void nh_stage_rows(char *rows, const float (&sum)[SUMS][4], float first, float second, int warp_tile) {
    const int lane = (int)(nh_thread_again() % 32);
    unsigned packed[SUMS][2];
#pragma unroll
    for (int u = 0; u < SUMS; u++) {
        packed[u][0] = nh_pack(sum[u][0] * first, sum[u][1] * first);
        packed[u][1] = nh_pack(sum[u][2] * second, sum[u][3] * second);
    }
    if constexpr (C.stages > 0) {
        const int row = nh_result_number(warp_tile, lane % 16);
#pragma unroll
        for (int s = 0; s < SUMS / 2; s++) {
            const unsigned fragment[4] = {packed[2 * s][0], packed[2 * s][1], packed[2 * s + 1][0],
                                          packed[2 * s + 1][1]};
            nh_store_matrices(rows + nh_unit_offset(ROOM, row, 2 * s + lane / 16), fragment);
        }
    } else {
        const int row = nh_result_number(warp_tile, lane / 4), below = nh_result_number(warp_tile, lane / 4 + 8);
#pragma unroll
        for (int u = 0; u < SUMS; u++) {
            *(unsigned *)(rows + nh_unit_offset(ROOM, row, u) + lane % 4 * 4) = packed[u][0];
            *(unsigned *)(rows + nh_unit_offset(ROOM, below, u) + lane % 4 * 4) = packed[u][1];
        }
    }
}
} // namespace nh_small
