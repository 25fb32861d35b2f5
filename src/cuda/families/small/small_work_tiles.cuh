/* Work tiles of the small windows: where the boxes of rows and their halos lie. See small.cuh. */
#pragma once

#include "small_roll.cuh"

namespace nh_small {

/* A divisor that is fixed for the launch: dividends below 2^31 are multiplied by its reciprocal instead. */
struct nh_divisor {
    unsigned base, factor, shift;
};

NH_DEVICE nh_divisor nh_divisor_of(unsigned base) {
    unsigned shift = 31;
    while (1ull << (shift - 31) < base)
        shift++;
    return {base, (unsigned)(((1ull << shift) + base - 1) / base), shift};
}

NH_DEVICE unsigned nh_quotient(unsigned number, const nh_divisor &by) {
    return (unsigned)((unsigned long long)number * by.factor >> by.shift);
}

NH_DEVICE int nh_digit(unsigned *index, const nh_divisor &base) {
    const unsigned quotient = nh_quotient(*index, base);
    const int digit = (int)(*index - quotient * base.base);
    *index = quotient;
    return digit;
}

/* The bases of the digits of a work tile's number. */
struct nh_digits {
    nh_divisor tiles[3], groups[3], batch, heads, share; /* heads: of the rows; share: query heads per key head */
};

/* Called by all threads; a barrier must follow. */
NH_DEVICE void nh_digits_start(const nh_tiled_args &args, nh_digits &digits) {
    const int i = (int)threadIdx.x;
    if (i >= (int)(sizeof digits / sizeof(nh_divisor))) return;
    const long long heads = NH_INVERSE ? args.kv_heads : args.heads;
    ((nh_divisor *)&digits)[i] = nh_divisor_of(i < 3    ? (unsigned)args.tiling.tiles[i]
                                               : i < 6  ? (unsigned)args.axis[i - 3].dilation
                                               : i == 6 ? (unsigned)args.batch
                                               : i == 7 ? (unsigned)heads
                                                        : (unsigned)(args.heads / args.kv_heads));
}

/* A constant 1 if no axis is dilated, so that the compiler leaves out divisions. */
NH_DEVICE int nh_dilation(const nh_tiled_args &args, int axis) {
    return C.dilated ? (int)args.axis[axis].dilation : 1;
}

struct nh_work_tile_place {
    int number, batch, head, column_head; /* of the rows; of the columns, by keys the first that shares it */
    /* dilation group, its positions (with NH_REGIONS up to its last row), first positions of rows and halo */
    int group[3], length[3], row[3], column[3];
    nh_roll roll;
};
/* With NH_REGIONS. */
struct nh_covered_place : nh_work_tile_place {
    nh_covered_group covered[3];
    nh_halo_span span[3];
    bool seam; /* the halo goes on in the next lap of some axis */
};
/* With C.ends. */
struct nh_ending_place : nh_work_tile_place {
    int rows_end[3]; /* behind the work tile's last row: the group's end, or where the last work tile begins */
};
typedef nh_choose<NH_REGIONS, nh_covered_place, nh_choose<NH_HAS_ENDS, nh_ending_place, nh_work_tile_place>::type>::type
    nh_located;
struct nh_work_tile : nh_located {
    /* For each tensor: offset of the first row, or of the halo's first column, and elements from one position to the
     * next. (In shared memory, as the compiler would keep products of strides in registers across work tiles.) */
    long long origin[NH_CUDA_TENSORS], step[NH_CUDA_TENSORS][3];
};
static_assert(sizeof(nh_work_tile) == small_work_tile_bytes(&C), "the host's count");

/* Whether the halo goes on in the next lap of some axis. */
NH_DEVICE bool nh_has_seam(const auto &work_tile) {
    if constexpr (NH_REGIONS) return work_tile.seam;
    return false;
}

/* The position of the first row that tensors have of the group. */
NH_DEVICE int nh_first_row(const auto &work_tile, int a) {
    if constexpr (NH_REGIONS) return work_tile.covered[a].first;
    return 0;
}

/* The position behind the last row that the work tile may have. */
NH_DEVICE int nh_rows_end(const auto &work_tile, int a) {
    if constexpr (NH_HAS_ENDS) return work_tile.rows_end[a];
    return work_tile.length[a];
}

/* The group, as nh_columns_of needs it. */
NH_DEVICE const nh_group &nh_group_of(const auto &work_tile, int a) {
    if constexpr (NH_REGIONS)
        return work_tile.covered[a];
    else
        return work_tile.length[a];
}

/* Whether tensors have the position `at` after the halo's first; on a periodic axis `at` is moved there. */
NH_DEVICE bool nh_halo_position(const auto &work_tile, int a, int &at) {
    if constexpr (NH_REGIONS) {
        const nh_covered_group &covered = work_tile.covered[a];
        int place = work_tile.span[a].ahead + at;
        if constexpr (NH_PERIODIC != 0) {
            while (nh_axis_wraps(a) && place >= covered.grid)
                place -= covered.grid;
            while (nh_axis_wraps(a) && place < 0)
                place += covered.grid;
            at = place - work_tile.span[a].ahead;
        }
        return place >= 0 && place < covered.columns.end - covered.columns.begin;
    } else {
        return work_tile.column[a] + at < work_tile.length[a];
    }
}

/* The distance, in the tensors, of a position of the halo from the halo's first one. */
NH_DEVICE int nh_halo_place(const nh_work_tile &work_tile, int a, int position) {
    int place = position - work_tile.column[a];
    if (NH_REGIONS) nh_halo_position(work_tile, a, place);
    return place;
}

/* The number of positions from the halo's first one on that tensors have, if it has no seam. */
NH_DEVICE int nh_halo_count(const auto &work_tile, int a) {
    if constexpr (NH_REGIONS)
        return work_tile.covered[a].columns.end - work_tile.covered[a].columns.begin - work_tile.span[a].ahead;
    else
        return work_tile.length[a] - work_tile.column[a];
}

/* A halo begins so many positions after what its rows see or, the last ones of a sweep, before. */
NH_DEVICE void nh_halo_moved(auto &at, int a, int by) {
    if constexpr (NH_REGIONS) at.span[a].ahead += by;
}

/* With C.ends: moves the last work tile along an axis to where it begins, and ends the one before there. */
NH_DEVICE void nh_place_end(const nh_tiled_args &args, auto &at, int a) {
    if constexpr (NH_HAS_ENDS) {
        const int tiles = args.tiling.tiles[a], last = nh_last_work_tile(a, at.length[a], tiles);
        const int left = tiles - 1 - at.row[a] / nh_axis_rows(a);
        at.rows_end[a] = nh_axis_ends(a) && left == 1 ? last : at.length[a];
        if (nh_axis_ends(a) && left == 0) at.row[a] = last;
    }
}

/* Sets where a work tile lies in its dilation group on each axis: rows, halo and, in regions, what tensors have. `rest`
 * is its number less what is known already, and becomes that of what follows. */
NH_DEVICE void nh_place_axes(const nh_tiled_args &args, const nh_digits &digits, auto &at, unsigned &rest) {
    if (C.slots) at.row[NH_FIRST_AXIS] = nh_digit(&rest, digits.tiles[NH_FIRST_AXIS]) * nh_axis_rows(NH_FIRST_AXIS);
    NH_UNROLL for (int a = 2; a >= NH_FIRST_AXIS + (C.slots > 0); a--)
        at.row[a] = nh_digit(&rest, digits.tiles[a]) * nh_axis_rows(a) - nh_axis_shift(a);
    NH_UNROLL for (int a = 2; a >= 0; a--) {
        at.length[a] = 1;
        if constexpr (NH_REGIONS) at.covered[a] = {1, 0, {0, 1}};
        if constexpr (NH_HAS_ENDS) at.rows_end[a] = 1;
        if (a < NH_FIRST_AXIS) continue;
        const nh_cuda_axis &axis = args.axis[a];
        at.length[a] = (int)axis.length;
        if (C.dilated) {
            at.group[a] = nh_digit(&rest, digits.groups[a]);
            const unsigned rounded = (unsigned)(axis.length - at.group[a] + axis.dilation - 1);
            at.length[a] = (int)nh_quotient(rounded, digits.groups[a]);
        }
        nh_place_end(args, at, a);
        if constexpr (NH_REGIONS) {
            const bool wraps = nh_axis_wraps(a);
            at.covered[a] = nh_covered_group_of(args, a, at.group[a], at.length[a]);
            at.row[a] += at.covered[a].first;
            at.column[a] = nh_columns_of(axis, at.covered[a], nh_least(at.row[a], at.length[a] - 1), wraps).begin;
            const int last = nh_least(at.row[a] + nh_axis_rows(a), at.length[a]) - 1;
            at.span[a] = nh_halo_span_of(axis, at.covered[a], at.column[a], last, wraps);
            at.seam |= wraps && !(C.slots && a == NH_FIRST_AXIS) && nh_span_has_seam(at.covered[a], at.span[a]);
        } else {
            const int first = nh_shifted_row(a, nh_least(at.row[a], at.length[a] - 1));
            at.column[a] = nh_columns_of(axis, at.length[a], first, false).begin;
        }
    }
}

/* Sets the origin of a tensor, and its steps. */
NH_DEVICE void nh_place_tensor(const nh_tiled_args &args, const auto &at, int tensor, nh_work_tile &work_tile) {
    const unsigned keys = 1u << NH_K | 1u << NH_V | 1u << NH_D_K | 1u << NH_D_V;
    const nh_cuda_tensor &t = args.tensor[tensor];
    const bool of_rows = (keys >> tensor & 1) == (NH_INVERSE != 0);
    long long origin = (unsigned)at.batch * t.batch + (of_rows ? at.head : at.column_head) * t.head;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int first = of_rows ? at.row[a] : at.column[a];
        if constexpr (NH_REGIONS)
            if (!of_rows) first = at.covered[a].columns.begin + at.span[a].ahead;
        origin += (long long)(first * nh_dilation(args, a) + at.group[a]) * t.axis[a];
        work_tile.step[tensor][a] = nh_dilation(args, a) * t.axis[a];
    }
    work_tile.origin[tensor] = origin;
}

/* Locates a work tile. Called by one warp; lane i computes the origin in tensor i. If a group is too short for its last
 * box of rows, that work tile has padding rows only. first: whether it is the first that a block takes. */
NH_DEVICE void nh_work_tile_locate(const nh_tiled_args &args, const nh_digits &digits, int index, bool first,
                                   nh_work_tile &work_tile, int number = 0) {
    const int lane = (int)(threadIdx.x % 32);
    unsigned rest = (unsigned)index;
    const int near_head = (int)(rest % C.near_heads), line = (int)(rest /= C.near_heads);
    nh_located at = {};
    at.number = index;
    nh_place_axes(args, digits, at, rest);
    at.roll = {0, {0, 0}, !NH_PLANES};
    if (C.slots) {
        int &begin = at.column[NH_FIRST_AXIS];
        const int seen = begin;
        at.roll = nh_roll_of(args, nh_group_of(at, NH_FIRST_AXIS), at.length[NH_FIRST_AXIS], at.row[NH_FIRST_AXIS],
                             NH_PLANES ? number : line, first, begin);
        nh_halo_moved(at, NH_FIRST_AXIS, begin - seen);
    }
    if (C.pass == SMALL_BY_QUERY && C.bias_count || C.slots) {
        at.batch = nh_digit(&rest, digits.batch);
        at.head = (int)rest * C.near_heads + near_head;
    } else {
        at.head = nh_digit(&rest, digits.heads);
        at.batch = (int)rest;
    }
    at.column_head = (int)(NH_INVERSE ? (unsigned)at.head * digits.share.base
                                      : nh_quotient((unsigned)at.head, digits.share));
    if (lane < NH_CUDA_TENSORS) nh_place_tensor(args, at, lane, work_tile);
    if (lane == 0) static_cast<nh_located &>(work_tile) = at;
}

/* For tests: notes a warp tile and its box as one pair of tiles. Called by all lanes of a warp. */
NH_DEVICE void nh_note_warp_tile(const nh_tiled_args &args, int index, int warp_tile) {
    if (NH_NOTED && threadIdx.x % 32 == 0) nh_note_tile(args, index, warp_tile, true, C.mask != SMALL_NO_MASK);
}

NH_DEVICE bool nh_warp_tile_exists(const nh_work_tile &work_tile, int warp_tile) {
    bool exists = true;
    NH_UNROLL for (int a = C.whole ? 3 : NH_FIRST_AXIS; a < 3; a++)
        exists = exists && work_tile.row[a] + nh_row_at(warp_tile, 0, a) < nh_rows_end(work_tile, a);
    return exists;
}

/* Calls work(warp tile) for each warp tile of this warp that has rows. */
template <typename Work>
NH_DEVICE void nh_for_warp_tiles(const nh_tiled_args &args, const nh_work_tile &work_tile, const Work &work) {
    NH_UNROLL_1 for (int warp_tile = (int)(threadIdx.x / 32); warp_tile < NH_WARP_TILES; warp_tile += C.warps)
        if (nh_warp_tile_exists(work_tile, warp_tile)) {
            nh_note_warp_tile(args, work_tile.number, warp_tile);
            work(warp_tile);
        }
}

NH_DEVICE bool nh_row_exists(const nh_work_tile &work_tile, int warp_tile, int row) {
    bool exists = true;
    NH_UNROLL for (int a = C.whole ? 3 : NH_FIRST_AXIS; a < 3; a++)
        exists = exists && work_tile.row[a] + nh_row_at(warp_tile, row, a) < nh_rows_end(work_tile, a);
    NH_UNROLL for (int a = 0; NH_SHIFTED && a < 3; a++)
        exists = exists && work_tile.row[a] + nh_row_at(warp_tile, row, a) >= 0;
    return exists;
}

NH_DEVICE bool nh_begins_before(const nh_work_tile &work_tile, int warp_tile) {
    bool before = false;
    NH_UNROLL for (int a = NH_SHIFTED ? 0 : 3; a < 3; a++)
        before = before || work_tile.row[a] + nh_row_at(warp_tile, 0, a) < 0;
    return before;
}

/* With C.ends: whether the warp tile goes on with rows of the last work tile, which computes these. */
NH_DEVICE bool nh_ends_within(const nh_work_tile &work_tile, int warp_tile) {
    bool within = false;
    NH_UNROLL for (int a = NH_HAS_ENDS ? 0 : 3; a < 3; a++)
        within = within || (nh_rows_end(work_tile, a) < work_tile.length[a] &&
                            work_tile.row[a] + nh_row_at(warp_tile, 0, a) + nh_axis_warp_tile(a) >
                                nh_rows_end(work_tile, a));
    return within;
}

/* Offset of a row in a tensor, in elements. */
NH_DEVICE long long nh_row_offset(const nh_work_tile &work_tile, int tensor, int warp_tile, int row) {
    long long offset = work_tile.origin[tensor];
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        offset += nh_row_at(warp_tile, row, a) * work_tile.step[tensor][a];
    return offset;
}

} // namespace nh_small
