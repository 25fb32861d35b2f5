/* Masks of the forward pass by the tensor cores: one shallow product that adds a huge negative number to the score of
 * every column that a row does not see.
 *
 * What a row sees of its subtile's box is a run of one window's length on each axis, so all that varies is where the run
 * starts. Each start of each axis gets one of 8 places: a row has ones in the places of its starts, a column penalties
 * in those of the starts that do not reach it. Columns' penalties never change, rows' starts are known per coordinate. */
#pragma once

#include "small_sight.cuh"

/* By pair of blocks and lane: second operands. */
struct nh_penalties {
    uint2 operand[NH_PENALTY ? NH_PAIRS * NH_CHUNKS : 1][32];
};

NH_DEVICE constexpr int nh_axis_window(int axis) {
    return axis == 0 ? NH_W0 : axis == 1 ? NH_W1 : NH_W2;
}
/* Starts of an axis where there is more than one, and the first of their places. */
NH_DEVICE constexpr int nh_axis_starts(int axis) {
    return nh_axis_columns(axis) > nh_axis_window(axis)
               ? nh_axis_columns(axis) - nh_axis_window(axis) + 1
               : 0;
}
NH_DEVICE constexpr int nh_places_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? nh_axis_starts(0) : nh_axis_starts(0) + nh_axis_starts(1);
}
static_assert(!NH_PENALTY || nh_places_before(2) + nh_axis_starts(2) <= 8, "8 places");

NH_DEVICE bool nh_penalized(int column, int place) {
    bool penalized = column >= NH_BOX;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int start = place - nh_places_before(a), at = nh_column_at(column, a) - start;
        if (start >= 0 && start < nh_axis_starts(a))
            penalized = penalized || at < 0 || at >= nh_axis_window(a);
    }
    return penalized;
}

/* By all threads; a barrier must follow. */
NH_DEVICE void nh_penalties_fill(nh_penalties &penalties) {
    const unsigned lowest = 0xff7f; /* of bf16 */
    for (int i = (int)threadIdx.x; i < 64 * NH_PAIRS * NH_CHUNKS; i += NH_THREADS) {
        int block = i / 64 * 2 + i % 2, lane = i / 2 % 32, column = 8 * block + lane / 4;
        int place = lane % 4 * 2;
        ((unsigned *)penalties.operand)[i] = (nh_penalized(column, place) ? lowest : 0u) |
                                             (nh_penalized(column, place + 1) ? lowest << 16 : 0u);
    }
}

/* Ones in the places of two rows' starts: the first operand. */
NH_DEVICE void nh_penalty_rows(unsigned (&operand)[2], const nh_sight &sight, int subtile) {
    const unsigned one = 0x3f80; /* of bf16 */
    int lane = (int)(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned places = 0;
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++)
            if (nh_axis_starts(a))
                places |= 1u << (nh_places_before(a) +
                                 sight.start[nh_rows_before(a) +
                                             nh_row_at(subtile, lane / 4 + 8 * half, a)]);
        places >>= lane % 4 * 2;
        operand[half] = (places & 1) * one | (places >> 1 & 1) * (one << 16);
    }
}

/* Scores of a chunk start with their penalties. */
NH_DEVICE void nh_penalize(float (*scores)[4], const unsigned (&rows)[2], const nh_penalties &penalties,
                           int chunk) {
#pragma unroll
    for (int b = 0; b < NH_BLOCKS; b += 2) {
        uint2 two = penalties.operand[chunk * NH_PAIRS + b / 2][threadIdx.x % 32];
        nh_mma_bf16_shallow(scores[b], rows, two.x);
        if (b + 1 < NH_BLOCKS) nh_mma_bf16_shallow(scores[b + 1], rows, two.y);
    }
}
