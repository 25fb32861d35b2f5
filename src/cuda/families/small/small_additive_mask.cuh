/* Masks by the tensor cores: a product that adds a huge negative number to the score of every column that a row does
 * not see. Places along the inner dimension of that product stand for what may keep a row from seeing a column: a row
 * has ones in the places that concern it, a column penalties in those that hide it. Columns' penalties never change; a
 * row's ones are ORed from one word per coordinate.
 *
 * NH_PENALTY 1: all rows see a run of one window's length on each axis. A place per start that the run may have in the
 * box; it hides the columns that a run from there does not reach. At most 8 places, one shallow product.
 * NH_PENALTY 2: rows see any box. A place per coordinate of the subtile's box on each axis, which hides the columns at
 * that coordinate, and one for all rows, which hides columns that only fill up the last 16. At most 32 places.
 * NH_PENALTY 3: see small_kinds.cuh. */
#pragma once

#include "small.cuh"

NH_DEVICE constexpr int nh_axis_window(int axis) {
    return axis == 0 ? NH_W0 : axis == 1 ? NH_W1 : NH_W2;
}
/* None for an axis on which all rows see the same. */
NH_DEVICE constexpr int nh_axis_places(int axis) {
    return axis < NH_FIRST_AXIS || NH_PENALTY == 0          ? 0
           : NH_PENALTY == 3                                ? nh_axis_subtile(axis)
           : NH_PENALTY == 2                                ? nh_axis_columns(axis)
           : nh_axis_columns(axis) > nh_axis_window(axis)   ? nh_axis_columns(axis) - nh_axis_window(axis) + 1
                                                            : 0;
}
NH_DEVICE constexpr int nh_places_before(int axis) {
    return (axis > 0 ? nh_axis_places(0) : 0) + (axis > 1 ? nh_axis_places(1) : 0) + (axis > 2 ? nh_axis_places(2) : 0);
}

enum {
    NH_PLACES = nh_places_before(3),
    NH_STEPS_PLACES = NH_PENALTY == 2 ? NH_PLACES / 16 + 1 : 1,
    /* of second operands per lane and step, for 16 columns */
    NH_PENALTY_WORDS = NH_PENALTY == 2 ? 4 : 2
};
static_assert(NH_PLACES <= (NH_PENALTY == 2 ? 31 : 8), "more places than the product has");

struct alignas(4 * NH_PENALTY_WORDS) nh_penalty_operand {
    unsigned word[NH_PENALTY_WORDS];
};
struct nh_penalties {
    nh_penalty_operand operand[NH_PENALTY && NH_PENALTY != 3 ? NH_PAIRS * NH_CHUNKS : 1][NH_STEPS_PLACES][32];
};

NH_DEVICE bool nh_penalized(int column, int place) {
    if (column >= NH_BOX) return NH_PENALTY == 1 || place == NH_PLACES;
    bool penalized = false;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int n = place - nh_places_before(a), at = nh_column_at(column, a);
        if (n >= 0 && n < nh_axis_places(a))
            penalized = NH_PENALTY == 2 ? at == n : at < n || at >= n + nh_axis_window(a);
    }
    return penalized;
}

/* By all threads; a barrier must follow. */
NH_DEVICE void nh_penalties_fill(nh_penalties &penalties) {
    const unsigned lowest = 0xff7f; /* of bf16 */
    for (int i = (int)nh_thread_again(); i < (int)(sizeof penalties / 4); i += NH_THREADS) {
        int word = i % NH_PENALTY_WORDS, lane = i / NH_PENALTY_WORDS % 32;
        int step = i / (32 * NH_PENALTY_WORDS) % NH_STEPS_PLACES;
        int pair = i / (32 * NH_PENALTY_WORDS * NH_STEPS_PLACES);
        int block = NH_PENALTY == 2 ? word / 2 : word, place = 16 * step + lane % 4 * 2;
        if (NH_PENALTY == 2) place += word % 2 * 8;
        int column = 16 * pair + 8 * block + lane / 4;
        ((unsigned *)&penalties)[i] = (nh_penalized(column, place) ? lowest : 0u) |
                                      (nh_penalized(column, place + 1) ? lowest << 16 : 0u);
    }
}

/* Ones in two places, from the two lowest bits. */
NH_DEVICE unsigned nh_two_ones(unsigned places) {
    const unsigned one = 0x3f80; /* of bf16 */
    return ((places & 1) | (places & 2) << 15) * one;
}

/* Places of a row at a coordinate of the axis. NH_PENALTY 1: as ones, a word for each of its four lanes; 2: as bits. */
struct alignas(NH_PENALTY == 1 ? 16 : 4) nh_places {
    unsigned word[NH_PENALTY == 1 ? 4 : 1];
};

/* Where the row sees columns [from, to) of the box. */
NH_DEVICE nh_places nh_penalty_places(int axis, int from, int to) {
    const int place = nh_places_before(axis) + from;
    const unsigned hidden = ((1u << from) - 1) | ~((1u << to) - 1), all = (1u << nh_axis_places(axis)) - 1;
    nh_places places = {};
#pragma unroll
    for (int t = 0; t < (int)(sizeof places / 4); t++)
        places.word[t] = NH_PENALTY == 2                          ? (hidden & all) << nh_places_before(axis)
                         : all && place / 2 == t ? nh_two_ones(1u << place % 2)
                                                 : 0u;
    return places;
}

/* The first operand, from this lane's words of rows g and g + 8. */
NH_DEVICE void nh_penalty_rows(unsigned (&operand)[NH_STEPS_PLACES][4], unsigned first, unsigned second) {
    if (NH_PENALTY == 1) {
        operand[0][0] = first;
        operand[0][1] = second;
        return;
    }
    const int shift = (int)(nh_thread_again() % 4) * 2;
    const unsigned always = NH_PENALTY == 2 ? 1u << NH_PLACES : 0u;
    const unsigned places[2] = {(first | always) >> shift, (second | always) >> shift};
#pragma unroll
    for (int s = 0; s < NH_STEPS_PLACES; s++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            operand[s][i] = nh_two_ones(places[i % 2] >> (16 * s + i / 2 * 8));
}

/* Adds their penalties to the scores of the 16 columns of a pair; of the first eight unless `both`. */
NH_DEVICE void nh_penalize(float (*scores)[4], const unsigned (&rows)[NH_STEPS_PLACES][4],
                           const nh_penalties &penalties, int pair, bool both) {
#pragma unroll
    for (int s = 0; s < NH_STEPS_PLACES; s++) {
        nh_penalty_operand columns = penalties.operand[pair][s][nh_thread_again() % 32];
        if (NH_PENALTY == 2) {
            const unsigned first[2] = {columns.word[0], columns.word[1]};
            const unsigned second[2] = {columns.word[2 % NH_PENALTY_WORDS], columns.word[3 % NH_PENALTY_WORDS]};
            nh_mma_bf16(scores[0], rows[s], first);
            if (both) nh_mma_bf16(scores[1], rows[s], second);
        } else {
            const unsigned starts[2] = {rows[s][0], rows[s][1]};
            nh_mma_bf16_shallow(scores[0], starts, columns.word[0]);
            if (both) nh_mma_bf16_shallow(scores[1], starts, columns.word[1]);
        }
    }
}
