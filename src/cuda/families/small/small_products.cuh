/* Operands and products of small windows: rows of a warp tile times columns that are gathered out of the halo, weights
 * times the same columns, and sums on their way to shared memory. */
#pragma once

#include "small_gather.cuh"

#if NH_DTYPE == NH_F32
#include "small_products32.cuh"
#else
#include "small_products16.cuh"
#endif

namespace nh_small {

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
#pragma unroll
    for (int s = 0; s < nh_units(WIDTH) / 2; s++) {
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
