/* Masks by the tensor cores: an additional product adds a huge negative number to the score of every column that a row
 * does not see. The inner dimension of this product has a place for each reason why a row may not see a column. A row
 * has ones in the places that apply to it, and a column has the negative number in those that hide it. The columns'
 * operand is the same for all warp tiles; a row's ones are ORed from one word per coordinate.
 *
 * SMALL_STARTS: all rows see a run of the window's length on each axis. There is a place for each position in the
 * box at which the run may start; it hides the columns that a run from there does not reach. At most 8 places: one
 * product of depth 8. SMALL_COORDINATES: rows see any box. There is a place for each coordinate of the warp tile's box
 * on each axis, which hides the columns at that coordinate, and one for all rows, which hides the columns that fill up
 * the last 16. At most 32 places. SMALL_KINDS: see below. */
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
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int n = place - nh_places_before(a), at = nh_column_at(column, a);
        if (n >= 0 && n < nh_axis_places(a))
            hidden = C.mask == SMALL_COORDINATES ? at == n : at < n || at >= n + nh_axis_window(a);
    }
    return hidden;
}

/* Returns when all threads that fill tables have called this: those that compute and, where they need the tables, the
 * producers. */
NH_DEVICE void nh_sync_tables() {
    if (C.fetchers)
        asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(NH_BITS ? NH_THREADS : NH_CONSUMERS) : "memory");
    else
        __syncthreads();
}

/* By all threads that compute; nh_sync_tables must follow. */
NH_DEVICE void nh_additive_masks_fill(nh_additive_masks &additive_masks) {
    const unsigned lowest = 0xff7f; /* of bf16 */
    for (int i = (int)nh_thread_again(); i < (int)(sizeof additive_masks / 4); i += NH_CONSUMERS) {
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
    NH_UNROLL for (int t = 0; t < (int)(sizeof places / 4); t++)
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
    NH_UNROLL for (int s = 0; s < NH_STEPS_PLACES; s++)
        NH_UNROLL for (int i = 0; i < 4; i++)
            operand[s][i] = nh_two_ones(places[i % 2] >> (16 * s + i / 2 * 8));
}

/* Adds the masks of a pair's 16 columns to their scores; of the first eight only, unless `both`. */
NH_DEVICE void nh_add_mask(float (*scores)[4], const unsigned (&rows)[NH_STEPS_PLACES][4],
                           const nh_additive_masks &additive_masks, int pair, bool both) {
    NH_UNROLL for (int s = 0; s < NH_STEPS_PLACES; s++) {
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

/* SMALL_KINDS: masks by the tensor cores where what a row sees depends on the border, as with inverse neighborhoods.
 * There is a place for each coordinate of a warp tile's rows on each axis, 8 at most. A row has ones at its own
 * coordinates, the same in every warp tile; a column has the negative number at coordinates of rows that do not see it.
 * On an axis without strides this depends only on how far the warp tile is from either border, of the grid or of what
 * tensors have, and not at all if that is more than a window. So warp tiles at the front, at the back and between them
 * are of a few kinds, each with a table. Where tensors end so that more rows are near a border, the host asks for other
 * masks. */

/* The kinds at the front: of warp tiles with a row nearer to it than a window. At the back there may be one more. */
NH_DEVICE constexpr int nh_front_kinds(int axis) {
    constexpr int first = small_front_kinds(&C, 0), second = small_front_kinds(&C, 1), last = small_front_kinds(&C, 2);
    return nh_by_axis(axis, first, second, last);
}
NH_DEVICE constexpr int nh_axis_kinds(int axis) {
    constexpr int first = small_axis_kinds(&C, 0), second = small_axis_kinds(&C, 1), last = small_axis_kinds(&C, 2);
    return C.mask != SMALL_KINDS ? 0 : nh_by_axis(axis, first, second, last);
}
NH_DEVICE constexpr int nh_kinds_before(int axis) {
    return (axis > 0 ? nh_axis_kinds(0) : 0) + (axis > 1 ? nh_axis_kinds(1) : 0) + (axis > 2 ? nh_axis_kinds(2) : 0);
}
enum {
    NH_KINDS = C.mask == SMALL_KINDS ? small_kinds(&C) : 1,
    NH_KIND_PAIRS = C.mask == SMALL_KINDS ? NH_PAIRS * NH_TABLE_CHUNKS : 1
};

struct nh_kinds {
    /* the rows' operand by lane: places of rows g and g + 8 */
    uint2 rows[32];
    /* The columns' operand for the two blocks of a pair, for the lanes that hold places of the kind's axis: eight
     * columns by pairs of places. Those of the upper lanes are shifted by eight entries, into other banks. */
    uint2 columns[NH_KINDS][NH_KIND_PAIRS][16];
    /* for each row coordinate of a kind: the columns of the box that it sees along the axis */
    nh_range seen[NH_KINDS][C.mask == SMALL_KINDS ? 4 : 1];
};
static_assert(sizeof(nh_kinds) == small_kinds_bytes(&C), "the host's count");

NH_DEVICE int nh_warp_tile_count(int axis, int length) {
    return (length + nh_axis_warp_tile(axis) - 1) / nh_axis_warp_tile(axis);
}

/* The kind of the number-th of `count` warp tiles along the axis. */
NH_DEVICE int nh_kind_of(int axis, int number, int count) {
    const int front = nh_front_kinds(axis), back = nh_axis_kinds(axis) - (count - number);
    return nh_kinds_before(axis) + (number < front ? number : back > front ? back : front);
}

/* With C.ends: the kind of the warp tile at a position of an axis with several work tiles, the last of which begins at
 * `last`. Those before it are not near the end, and those in it are counted from the end. */
NH_DEVICE int nh_kind_with_end(int axis, int position, int length, int last) {
    const int front = nh_front_kinds(axis), rows = nh_axis_warp_tile(axis), number = position / rows;
    const int back = nh_axis_kinds(axis) - nh_warp_tile_count(axis, length - position);
    return nh_kinds_before(axis) + (position < last ? nh_least(number, front) : back > front ? back : front);
}

/* Where the box of the warp tile at a position begins; all dilation groups are alike. length: behind the last row. */
NH_DEVICE int nh_kind_box(const nh_tiled_args &args, int axis, const nh_group &group, int length, int position) {
    if (C.slots && axis == NH_FIRST_AXIS) return nh_roll_box(args, group, length, position).begin;
    const int first = nh_group_first(group) - nh_axis_shift(axis), rows = nh_axis_rows(axis);
    int work_tile = nh_shifted_row(axis, first + (position - first) / rows * rows);
    if (nh_axis_ends(axis)) {
        const int last = nh_last_work_tile(axis, length, args.tiling.tiles[axis]);
        if (position >= last) work_tile = last;
    }
    return nh_least(nh_columns_of(args.axis[axis], group, nh_shifted_row(axis, position), nh_axis_wraps(axis)).begin,
                    nh_columns_of(args.axis[axis], group, work_tile, nh_axis_wraps(axis)).begin + nh_axis_halo(axis) -
                        nh_axis_columns(axis));
}

/* Fills in what the rows of each kind see, as some warp tile of that kind does; kinds without one are left out. */
NH_DEVICE void nh_kind_ranges(const nh_tiled_args &args, int axis, nh_kinds &kinds) {
    const int front = nh_front_kinds(axis), rows = nh_axis_warp_tile(axis);
    int length = (int)(args.axis[axis].length / args.axis[axis].dilation);
    const nh_group group = nh_first_group(args, axis, length);
    const int first = nh_group_first(group) - nh_axis_shift(axis), count = nh_warp_tile_count(axis, length - first);
    for (int i = (int)threadIdx.x; i < nh_axis_kinds(axis) * rows; i += NH_CONSUMERS) {
        const int kind = i / rows, number = kind <= front ? kind : count - (nh_axis_kinds(axis) - kind);
        if (number < 0 || number >= count) continue;
        int position = first + number * rows;
        if (nh_axis_ends(axis) && kind > front && args.tiling.tiles[axis] > 1) {
            const int last = nh_last_work_tile(axis, length, args.tiling.tiles[axis]);
            position = last + (nh_warp_tile_count(axis, length - last) - (nh_axis_kinds(axis) - kind)) * rows;
            if (position < last) continue;
        }
        const int begin = nh_kind_box(args, axis, group, length, position);
        const nh_range own =
            nh_columns_of(args.axis[axis], group, nh_shifted_row(axis, nh_least(position + i % rows, length - 1)),
                          nh_axis_wraps(axis));
        kinds.seen[nh_kinds_before(axis) + kind][i % rows] = {own.begin - begin, own.end - begin};
    }
}

NH_DEVICE unsigned nh_kind_word(const nh_kinds &kinds, int axis, int kind, int column, int row) {
    const unsigned lowest = 0xff7f; /* of bf16 */
    const int at = nh_column_at(column, axis);
    unsigned word = 0;
    NH_UNROLL for (int i = 0; i < 2; i++) {
        const nh_range seen = kinds.seen[kind][row + i];
        word |= (column >= NH_TABLE_BOX || at < seen.begin || at >= seen.end ? lowest : 0u) << (16 * i);
    }
    return word;
}

/* By all threads that compute; nh_sync_tables must follow. */
NH_DEVICE void nh_kinds_fill(const nh_tiled_args &args, nh_kinds &kinds) {
    NH_UNROLL for (int a = NH_MASKED_AXIS; a < 3; a++)
        nh_kind_ranges(args, a, kinds);
    nh_sync_tables();
    NH_UNROLL for (int a = NH_MASKED_AXIS; a < 3; a++) {
        const int pairs_of_rows = nh_axis_warp_tile(a) / 2, first = nh_places_before(a) / 2;
        for (int i = (int)threadIdx.x; i < nh_axis_kinds(a) * NH_KIND_PAIRS * 8 * pairs_of_rows; i += NH_CONSUMERS) {
            const int local = i % pairs_of_rows, g = i / pairs_of_rows % 8;
            const int pair = i / (8 * pairs_of_rows) % NH_KIND_PAIRS;
            const int kind = nh_kinds_before(a) + i / (8 * pairs_of_rows * NH_KIND_PAIRS), column = 16 * pair + g;
            kinds.columns[kind][pair][(g * pairs_of_rows + local + (first >= 2 ? 8 : 0)) % 16] = {
                nh_kind_word(kinds, a, kind, column, 2 * local), nh_kind_word(kinds, a, kind, column + 8, 2 * local)};
        }
        for (int i = (int)threadIdx.x; i < 32; i += NH_CONSUMERS) {
            const int t = i % 4, local = t - first;
            if (local < 0 || local >= pairs_of_rows) continue;
            unsigned ones[2];
            NH_UNROLL for (int half = 0; half < 2; half++) {
                const int at = nh_row_at(0, (unsigned)(i / 4 + 8 * half), a);
                ones[half] = at / 2 == local ? 0x3f80u << (at % 2 * 16) : 0u; /* of bf16 */
            }
            kinds.rows[i] = {ones[0], ones[1]};
        }
    }
}

/* Fills the tables of the kernel's kind of masks. By all threads that compute; nh_sync_tables must follow. */
NH_DEVICE void nh_masks_fill(const nh_tiled_args &args, nh_additive_masks &additive_masks, nh_kinds &kinds) {
    if (C.mask == SMALL_KINDS) {
        nh_kinds_fill(args, kinds);
    } else if (NH_ADDS_MASK) {
        nh_additive_masks_fill(additive_masks);
    }
}

/* The lane's words of a warp tile's columns' operand; pairs are 16 entries apart. kind: by coordinate of rows. */
NH_DEVICE const uint2 *nh_kind_columns(const nh_kinds &kinds, const nh_places *kind, int warp_tile) {
    const int lane = (int)(nh_thread_again() % 32), t = lane % 4;
    int number = 0, entry = 0;
    NH_UNROLL for (int a = NH_MASKED_AXIS; a < 3; a++) {
        const int pairs_of_rows = nh_axis_warp_tile(a) / 2, first = nh_places_before(a) / 2;
        if (t < first) continue;
        number = (int)kind[nh_rows_before(a) + nh_row_at(warp_tile, 0, a)].word[0];
        entry = (lane / 4 * pairs_of_rows + t - first + (first >= 2 ? 8 : 0)) % 16;
    }
    return &kinds.columns[number][0][entry];
}

} // namespace nh_small
