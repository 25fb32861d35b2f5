/* SMALL_KINDS: masks by the tensor cores where what a row sees depends on the border, as with inverse neighborhoods.
 * There is a place for each coordinate of a warp tile's rows on each axis, 8 at most. A row has ones at its own
 * coordinates, the same in every warp tile; a column has the negative number at coordinates of rows that do not see it.
 * On an axis without strides this depends only on how far the warp tile is from either border, of the grid or of what
 * tensors have, and not at all if that is more than a window. So warp tiles at the front, at the back and between them
 * are of a few kinds, each with a table. Where tensors end so that more rows are near a border, the host asks for other
 * masks. */
#pragma once

#include "small_additive_mask.cuh"

namespace nh_small {

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

/* The kind of the number-th of `count` warp tiles along the axis. */
NH_DEVICE int nh_kind_of(int axis, int number, int count) {
    const int front = nh_front_kinds(axis), back = nh_axis_kinds(axis) - (count - number);
    return nh_kinds_before(axis) + (number < front ? number : back > front ? back : front);
}

NH_DEVICE int nh_warp_tile_count(int axis, int length) {
    return (length + nh_axis_warp_tile(axis) - 1) / nh_axis_warp_tile(axis);
}

/* Where the box of the warp tile at a position begins; all dilation groups are alike. length: behind the last row. */
NH_DEVICE int nh_kind_box(const nh_tiled_args &args, int axis, const nh_group &group, int length, int position) {
    if (C.slots && axis == NH_FIRST_AXIS) return nh_roll_box(args, group, length, position).begin;
    const int first = nh_group_first(group) - nh_axis_shift(axis), rows = nh_axis_rows(axis);
    const int work_tile = nh_shifted_row(axis, first + (position - first) / rows * rows);
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
    for (int i = (int)threadIdx.x; i < nh_axis_kinds(axis) * rows; i += NH_THREADS) {
        const int kind = i / rows, number = kind <= front ? kind : count - (nh_axis_kinds(axis) - kind);
        if (number < 0 || number >= count) continue;
        const int position = first + number * rows;
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
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const nh_range seen = kinds.seen[kind][row + i];
        word |= (column >= NH_TABLE_BOX || at < seen.begin || at >= seen.end ? lowest : 0u) << (16 * i);
    }
    return word;
}

/* Called by all threads; a barrier must follow. */
NH_DEVICE void nh_kinds_fill(const nh_tiled_args &args, nh_kinds &kinds) {
#pragma unroll
    for (int a = NH_MASKED_AXIS; a < 3; a++)
        nh_kind_ranges(args, a, kinds);
    __syncthreads();
#pragma unroll
    for (int a = NH_MASKED_AXIS; a < 3; a++) {
        const int pairs_of_rows = nh_axis_warp_tile(a) / 2, first = nh_places_before(a) / 2;
        for (int i = (int)threadIdx.x; i < nh_axis_kinds(a) * NH_KIND_PAIRS * 8 * pairs_of_rows; i += NH_THREADS) {
            const int local = i % pairs_of_rows, g = i / pairs_of_rows % 8;
            const int pair = i / (8 * pairs_of_rows) % NH_KIND_PAIRS;
            const int kind = nh_kinds_before(a) + i / (8 * pairs_of_rows * NH_KIND_PAIRS), column = 16 * pair + g;
            kinds.columns[kind][pair][(g * pairs_of_rows + local + (first >= 2 ? 8 : 0)) % 16] =
                {nh_kind_word(kinds, a, kind, column, 2 * local),
                           nh_kind_word(kinds, a, kind, column + 8, 2 * local)};
        }
        for (int i = (int)threadIdx.x; i < 32; i += NH_THREADS) {
            const int t = i % 4, local = t - first;
            if (local < 0 || local >= pairs_of_rows) continue;
            unsigned ones[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int at = nh_row_at(0, (unsigned)(i / 4 + 8 * half), a);
                ones[half] = at / 2 == local ? 0x3f80u << (at % 2 * 16) : 0u; /* of bf16 */
            }
            kinds.rows[i] = {ones[0], ones[1]};
        }
    }
}

/* Fills the tables of the kernel's kind of masks. Called by all threads; a barrier must follow. */
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
#pragma unroll
    for (int a = NH_MASKED_AXIS; a < 3; a++) {
        const int pairs_of_rows = nh_axis_warp_tile(a) / 2, first = nh_places_before(a) / 2;
        if (t < first) continue;
        number = (int)kind[nh_rows_before(a) + nh_row_at(warp_tile, 0, a)].word[0];
        entry = (lane / 4 * pairs_of_rows + t - first + (first >= 2 ? 8 : 0)) % 16;
    }
    return &kinds.columns[number][0][entry];
}

} // namespace nh_small
