/* Operands and products of small windows: rows of a warp tile times columns that are gathered out of the halo, weights
 * times the same columns, and sums on their way to shared memory. */
#pragma once

#include "small_work_tiles.cuh"

#include "column_products.cuh"

namespace nh_small {

/* ---- addresses of columns in the halo ---- */

/* Sets, for each step, the shared memory address of a lane's elements of the column in halo row `first`; the lane's own
 * columns have numbers that are congruent to the lane's modulo 8. */
template <nh_order ORDER, int WIDTH, int STEPS>
NH_DEVICE void nh_gather_start(unsigned (&start)[STEPS], const char *halo, int first) {
    int swizzle = nh_swizzle(WIDTH, first + (int)(nh_thread_again() % 8));
    NH_UNROLL for (int s = 0; s < STEPS; s++)
        start[s] = nh_shared_address(halo) + first * nh_row_bytes(WIDTH) +
                   (((2 * s + nh_lane_half<ORDER>()) ^ swizzle) << 4);
}

/* The same addresses in the halo of another tensor, which lies `bytes` further. */
template <int STEPS, int STEPS_BEFORE>
NH_DEVICE void nh_gather_further(unsigned (&start)[STEPS], const unsigned (&before)[STEPS_BEFORE], int bytes) {
    NH_UNROLL for (int s = 0; s < STEPS; s++)
        start[s] = before[s % STEPS_BEFORE] + (unsigned)bytes;
}

/* The same as nh_gather_start, but reuses the addresses of another tensor if its rows are as wide. */
template <nh_order ORDER, int WIDTH, int STEPS, int STEPS_BEFORE>
NH_DEVICE void nh_gather_start_beside(unsigned (&start)[STEPS], const unsigned (&before)[STEPS_BEFORE], int bytes,
                                      const char *halo, int first) {
    if (C.dim != C.dim_v) {
        nh_gather_start<ORDER, WIDTH, STEPS>(start, halo, first);
    } else {
        nh_gather_further(start, before, bytes);
    }
}

#if NH_DTYPE == NH_F32

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
    NH_UNROLL for (int i = 0; i < 2; i++)
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
    NH_UNROLL for (int c = 0; c < 2; c++)
        to[c] = __uint_as_float(step.high[i % 2 + 2 * c]) + (NH_TF32 ? 0.f : __uint_as_float(step.low[i % 2 + 2 * c]));
}

/* Writes a warp tile's sums, times one factor per row, to shared rows. */
template <int ROOM, int SUMS>
NH_DEVICE void nh_stage_rows(char *rows, const float (&sum)[SUMS][4], float first, float second, int warp_tile) {
    const int lane = (int)(nh_thread_again() % 32);
    NH_UNROLL for (int i = 0; i < 4; i++) {
        const int row = nh_result_number(warp_tile, lane / 4 + i / 2 * 8);
        const float factor = i / 2 ? second : first;
        NH_UNROLL for (int d = 0; d < SUMS / 4; d++)
            *(float4 *)(rows + nh_unit_offset(ROOM, row, 8 * d + lane % 4 * 2 + i % 2)) =
                make_float4(sum[4 * d][i] * factor, sum[4 * d + 1][i] * factor, sum[4 * d + 2][i] * factor,
                            sum[4 * d + 3][i] * factor);
    }
}

#else

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
    NH_UNROLL for (int s = 0; s < STEPS; s += 2) {
        unsigned unit[4];
        nh_load_block<false>(unit, start, s, ahead * nh_row_bytes(WIDTH));
        NH_UNROLL for (int i = 0; i < 2 && s + i < STEPS; i++) {
            nh_right two_steps;
            nh_right_set(&two_steps, unit);
            nh_multiply_half(c, &nh_row_step(rows, s + i), &two_steps, i);
        }
    }
}

/* sum += weights times the block's elements. */
template <int WIDTH, int SUMS, int STEPS>
NH_DEVICE void nh_add_block(float (&sum)[SUMS][4], const nh_weights &weights, const unsigned (&start)[STEPS], int ahead,
                            const nh_across<WIDTH> &, const nh_pair_rows &) {
    const unsigned own[2] = {weights.word[0], weights.word[1]};
    NH_UNROLL for (int s = 0; s < STEPS; s += 2) {
        unsigned unit[4];
        nh_load_block<true>(unit, start, s, ahead * nh_row_bytes(WIDTH));
        NH_UNROLL for (int i = 0; i < 4 && 2 * s + i < SUMS; i++) {
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
    NH_UNROLL for (int u = 0; u < SUMS; u++) {
        packed[u][0] = nh_pack(sum[u][0] * first, sum[u][1] * first);
        packed[u][1] = nh_pack(sum[u][2] * second, sum[u][3] * second);
    }
    if constexpr (C.stages > 0) {
        const int row = nh_result_number(warp_tile, lane % 16);
        NH_UNROLL for (int s = 0; s < SUMS / 2; s++) {
            const unsigned fragment[4] = {packed[2 * s][0], packed[2 * s][1], packed[2 * s + 1][0],
                                          packed[2 * s + 1][1]};
            nh_store_matrices(rows + nh_unit_offset(ROOM, row, 2 * s + lane / 16), fragment);
        }
    } else {
        const int row = nh_result_number(warp_tile, lane / 4), below = nh_result_number(warp_tile, lane / 4 + 8);
        NH_UNROLL for (int u = 0; u < SUMS; u++) {
            *(unsigned *)(rows + nh_unit_offset(ROOM, row, u) + lane % 4 * 4) = packed[u][0];
            *(unsigned *)(rows + nh_unit_offset(ROOM, below, u) + lane % 4 * 4) = packed[u][1];
        }
    }
}

#endif

/* scores += rows times the columns of a pair, `ahead` rows after the start; of its first block only, unless `both`. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_multiply_pair(float (&scores)[2][4], const nh_row_operand<WIDTH> &rows,
                                const unsigned (&start)[STEPS], int ahead, bool both) {
    if (both)
        nh_multiply_columns(scores, rows, start, ahead, true);
    else
        nh_multiply_block(scores[0], rows, start, ahead);
}

/* sum += weights times the columns of a pair (the first block unless `both`), which start and ahead tell, as above. */
template <int WIDTH, int SUMS, int STEPS>
NH_DEVICE void nh_add_pair(float (&sum)[SUMS][4], const nh_weights &weights, const nh_across<WIDTH> &across,
                           const nh_pair_rows &rows, const unsigned (&start)[STEPS], int ahead, bool both) {
    if (both)
        nh_add_columns(sum, weights, across, rows, true);
    else
        nh_add_block(sum, weights, start, ahead, across, rows);
}

/* Loads a warp tile's rows from shared rows with room for ROOM elements. */
template <int ROOM, int WIDTH>
NH_DEVICE void nh_load_rows(nh_row_operand<WIDTH, true> &operand, const char *rows, int warp_tile) {
    int lane = (int)(nh_thread_again() % 32), row = nh_row_number(warp_tile, lane % 16);
    NH_UNROLL for (int s = 0; s < nh_units(WIDTH) / 2; s++) {
        unsigned word[4];
        nh_load_matrices(word, rows + nh_unit_offset(ROOM, row, 2 * s + lane / 16));
        nh_keep_step(operand, s, word);
    }
}

/* The same addresses as nh_across_start, from those of another tensor whose halo lies `bytes` before. */
template <int WIDTH, int WIDTH_BEFORE>
NH_DEVICE void nh_across_start_beside(nh_across<WIDTH> &across, const nh_across<WIDTH_BEFORE> &before, int bytes,
                                      const char *halo, int first) {
    if (C.dim != C.dim_v) {
        nh_across_start(across, halo, first);
    } else {
        nh_gather_further(across.start, before.start, bytes);
    }
}

} // namespace nh_small
