/* Masks by the tensor cores: an additional product adds a huge negative number to the score of every column that a row
 * does not see. The inner dimension of this product has a place for each reason why a row may not see a column. A row
 * has ones in the places that apply to it, and a column has the negative number in those that hide it. The columns'
 * operand is the same for all warp tiles; a row's ones are ORed from one word per coordinate.
 *
 * SMALL_STARTS: all rows see a run of the window's length on each axis. There is a place for each position in the
 * box at which the run may start; it hides the columns that a run from there does not reach. At most 8 places: one
 * product of depth 8. SMALL_COORDINATES: rows see any box. There is a place for each coordinate of the warp tile's box
 * on each axis, which hides the columns at that coordinate, and one for all rows, which hides the columns that fill up
 * the last 16. At most 32 places. SMALL_KINDS: see small_kinds.cuh. */
#pragma once

#include "small.cuh"

namespace nh_small {

/* The number of places of an axis; 0 if all rows see the same columns along it. */
NH_DEVICE constexpr int nh_axis_places(int axis) {
    constexpr int first = small_axis_places(&C, 0), second = small_axis_places(&C, 1), last = small_axis_places(&C, 2);
    return nh_by_axis(axis, first, second, last);
}
NH_DEVICE constexpr int nh_places_before(int axis) {
    return (axis > 0 ? nh_axis_places(0) : 0) + (axis > 1 ? nh_axis_places(1) : 0) + (axis > 2 ? nh_axis_places(2) : 0);
}

enum {
    NH_PLACES = small_places(&C),
    NH_STEPS_PLACES = small_place_steps(&C),
    NH_ADDITIVE_MASK_WORDS = small_mask_words(&C)
};
static_assert(NH_PLACES <= (C.mask == SMALL_COORDINATES ? 31 : 8), "more places than the product has");

struct alignas(4 * NH_ADDITIVE_MASK_WORDS) nh_additive_mask_operand {
    unsigned word[NH_ADDITIVE_MASK_WORDS];
};
struct nh_additive_masks {
    nh_additive_mask_operand operand[small_mask_pairs(&C)][NH_STEPS_PLACES][32];
};
static_assert(sizeof(nh_additive_masks) == small_additive_masks_bytes(&C), "the host's count");

/* The index of a pair of a chunk in tables of masks. */
NH_DEVICE int nh_mask_pair(int chunk, int pair) {
    return (C.plane_chunks ? 0 : chunk * NH_PAIRS) + pair;
}

NH_DEVICE bool nh_mask_hides(int column, int place) {
    if (column >= NH_TABLE_BOX) return C.mask == SMALL_STARTS || place == NH_PLACES;
    bool hidden = false;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int n = place - nh_places_before(a), at = nh_column_at(column, a);
        if (n >= 0 && n < nh_axis_places(a))
            hidden = C.mask == SMALL_COORDINATES ? at == n : at < n || at >= n + nh_axis_window(a);
    }
    return hidden;
}

/* By all threads; a barrier must follow. */
NH_DEVICE void nh_additive_masks_fill(nh_additive_masks &additive_masks) {
    const unsigned lowest = 0xff7f; /* of bf16 */
    for (int i = (int)nh_thread_again(); i < (int)(sizeof additive_masks / 4); i += NH_THREADS) {
        int word = i % NH_ADDITIVE_MASK_WORDS, lane = i / NH_ADDITIVE_MASK_WORDS % 32;
        int step = i / (32 * NH_ADDITIVE_MASK_WORDS) % NH_STEPS_PLACES;
        int pair = i / (32 * NH_ADDITIVE_MASK_WORDS * NH_STEPS_PLACES);
        int block = C.mask == SMALL_COORDINATES ? word / 2 : word, place = 16 * step + lane % 4 * 2;
        if (C.mask == SMALL_COORDINATES) place += word % 2 * 8;
        int column = 16 * pair + 8 * block + lane / 4;
        ((unsigned *)&additive_masks)[i] = (nh_mask_hides(column, place) ? lowest : 0u) |
                                      (nh_mask_hides(column, place + 1) ? lowest << 16 : 0u);
    }
}

/* bf16 ones in the halves of a word whose bits, the two lowest, are set. */
NH_DEVICE unsigned nh_two_ones(unsigned places) {
    const unsigned one = 0x3f80; /* of bf16 */
    return ((places & 1) | (places & 2) << 15) * one;
}

/* The places of a row for its coordinate on one axis: bits or, with SMALL_STARTS, ones, a word for each lane. */
struct alignas(C.mask == SMALL_STARTS ? 16 : 4) nh_places {
    unsigned word[C.mask == SMALL_STARTS ? 4 : 1];
};

/* The places of a row that sees columns [from, to) of the box along the axis. */
NH_DEVICE nh_places nh_additive_mask_places(int axis, int from, int to) {
    const int place = nh_places_before(axis) + from;
    const unsigned hidden = ((1u << from) - 1) | ~((1u << to) - 1), all = (1u << nh_axis_places(axis)) - 1;
    nh_places places = {};
#pragma unroll
    for (int t = 0; t < (int)(sizeof places / 4); t++)
        places.word[t] = C.mask == SMALL_COORDINATES                          ? (hidden & all) << nh_places_before(axis)
                         : all && place / 2 == t ? nh_two_ones(1u << place % 2)
                                                 : 0u;
    return places;
}

/* Makes the rows' operand from this lane's words of rows g and g + 8. */
NH_DEVICE void nh_additive_mask_rows(unsigned (&operand)[NH_STEPS_PLACES][4], unsigned first, unsigned second) {
    if (C.mask == SMALL_STARTS) {
        operand[0][0] = first;
        operand[0][1] = second;
        return;
    }
    const int shift = (int)(nh_thread_again() % 4) * 2;
    const unsigned always = C.mask == SMALL_COORDINATES ? 1u << NH_PLACES : 0u;
    const unsigned places[2] = {(first | always) >> shift, (second | always) >> shift};
#pragma unroll
    for (int s = 0; s < NH_STEPS_PLACES; s++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            operand[s][i] = nh_two_ones(places[i % 2] >> (16 * s + i / 2 * 8));
}

/* Adds the masks of a pair's 16 columns to their scores; of the first eight only, unless `both`. */
NH_DEVICE void nh_add_mask(float (*scores)[4], const unsigned (&rows)[NH_STEPS_PLACES][4],
                           const nh_additive_masks &additive_masks, int pair, bool both) {
#pragma unroll
    for (int s = 0; s < NH_STEPS_PLACES; s++) {
        nh_additive_mask_operand columns = additive_masks.operand[pair][s][nh_thread_again() % 32];
        if (C.mask == SMALL_COORDINATES) {
            const unsigned first[2] = {columns.word[0], columns.word[1]};
            const unsigned second[2] = {columns.word[2 % NH_ADDITIVE_MASK_WORDS],
                                        columns.word[3 % NH_ADDITIVE_MASK_WORDS]};
            nh_mma_bf16(scores[0], rows[s], first);
            if (both) nh_mma_bf16(scores[1], rows[s], second);
        } else {
            const unsigned starts[2] = {rows[s][0], rows[s][1]};
            nh_mma_bf16_shallow(scores[0], starts, columns.word[0]);
            if (both) nh_mma_bf16_shallow(scores[1], starts, columns.word[1]);
        }
    }
}

} // namespace nh_small
