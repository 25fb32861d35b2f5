/* Work tiles of the small windows: where the boxes of rows and their halos lie. See small.cuh. */
#pragma once

#include "small_roll.cuh"

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
    return NH_DILATED ? (int)args.axis[axis].dilation : 1;
}

struct nh_work_tile {
    int number, batch, head, column_head; /* of the rows; of the columns, with NH_INVERSE the first that shares it */
    /* dilation group, its positions (with NH_REGIONS up to its last row), first positions of rows and halo */
    int group[3], length[3], row[3], column[3];
    nh_roll roll;
#if NH_REGIONS
    nh_covered_group covered[3];
    nh_halo_span span[3];
    bool seam; /* the halo goes on in the next lap of some axis */
#endif
    /* For each tensor: offset of the first row, or of the halo's first column, and elements from one position to the
     * next. (In shared memory, as the compiler would keep products of strides in registers across work tiles.) */
    long long origin[NH_CUDA_TENSORS], step[NH_CUDA_TENSORS][3];
};

/* Whether the halo goes on in the next lap of some axis. */
NH_DEVICE bool nh_has_seam(const nh_work_tile &work_tile) {
#if NH_REGIONS
    return work_tile.seam;
#else
    return false;
#endif
}

/* The position of the first row that tensors have of the group. */
NH_DEVICE int nh_first_row(const nh_work_tile &work_tile, int a) {
#if NH_REGIONS
    return work_tile.covered[a].first;
#else
    return 0;
#endif
}

/* The group, as nh_columns_of needs it. */
#if NH_REGIONS
NH_DEVICE const nh_covered_group &nh_group_of(const nh_work_tile &work_tile, int a) {
    return work_tile.covered[a];
}
#else
NH_DEVICE int nh_group_of(const nh_work_tile &work_tile, int a) {
    return work_tile.length[a];
}
#endif

/* Whether tensors have the position `at` after the halo's first one. Adjusts `at` to where they have it on a periodic
 * axis. */
NH_DEVICE bool nh_halo_position(const nh_work_tile &work_tile, int a, int &at) {
#if NH_REGIONS
    const nh_covered_group &covered = work_tile.covered[a];
    int place = work_tile.span[a].ahead + at;
#if NH_PERIODIC
    while (nh_wraps(a) && place >= covered.grid)
        place -= covered.grid;
    while (nh_wraps(a) && place < 0)
        place += covered.grid;
    at = place - work_tile.span[a].ahead;
#endif
    return place >= 0 && place < covered.columns.end - covered.columns.begin;
#else
    return work_tile.column[a] + at < work_tile.length[a];
#endif
}

/* The distance, in the tensors, of a position of the halo from the halo's first one. */
NH_DEVICE int nh_halo_place(const nh_work_tile &work_tile, int a, int position) {
    int place = position - work_tile.column[a];
#if NH_REGIONS
    nh_halo_position(work_tile, a, place);
#endif
    return place;
}

/* The number of positions from the halo's first one on that tensors have, if it has no seam. */
NH_DEVICE int nh_halo_count(const nh_work_tile &work_tile, int a) {
#if NH_REGIONS
    return work_tile.covered[a].columns.end - work_tile.covered[a].columns.begin - work_tile.span[a].ahead;
#else
    return work_tile.length[a] - work_tile.column[a];
#endif
}

/* Locates a work tile. Called by one warp; lane i computes the origin in tensor i. If a group is too short for its last
 * box of rows, that work tile has padding rows only. first: whether it is the first that a block takes. */
NH_DEVICE void nh_work_tile_locate(const nh_tiled_args &args, const nh_digits &digits, int index, bool first,
                                   nh_work_tile &work_tile, int number = 0) {
    const unsigned keys = 1u << NH_K | 1u << NH_V | 1u << NH_D_K | 1u << NH_D_V;
    int lane = (int)(threadIdx.x % 32), row[3] = {0, 0, 0}, column[3] = {0, 0, 0}, group[3] = {0, 0, 0};
    int length[3] = {1, 1, 1};
#if NH_REGIONS
    nh_covered_group covered[3] = {{1, 0, {0, 1}}, {1, 0, {0, 1}}, {1, 0, {0, 1}}};
    nh_halo_span span[3] = {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
    bool seam = false;
#endif
    unsigned rest = (unsigned)index;
    const int near_head = (int)(rest % NH_NEAR_HEADS), line = (int)(rest /= NH_NEAR_HEADS);
    if (NH_SLOTS) row[NH_FIRST_AXIS] = nh_digit(&rest, digits.tiles[NH_FIRST_AXIS]) * nh_axis_rows(NH_FIRST_AXIS);
#pragma unroll
    for (int a = 2; a >= NH_FIRST_AXIS + (NH_SLOTS > 0); a--)
        row[a] = nh_digit(&rest, digits.tiles[a]) * nh_axis_rows(a) - nh_axis_shift(a);
#pragma unroll
    for (int a = 2; a >= NH_FIRST_AXIS; a--) {
        const nh_cuda_axis &axis = args.axis[a];
        length[a] = (int)axis.length;
        if (NH_DILATED) {
            group[a] = nh_digit(&rest, digits.groups[a]);
            length[a] = (int)nh_quotient((unsigned)(axis.length - group[a] + axis.dilation - 1), digits.groups[a]);
        }
#if NH_REGIONS
        covered[a] = nh_covered_group_of(args, a, group[a], length[a]);
        row[a] += covered[a].first;
        column[a] = nh_columns_of(axis, covered[a], nh_least(row[a], length[a] - 1), nh_wraps(a)).begin;
        const int last = nh_least(row[a] + nh_axis_rows(a), length[a]) - 1;
        span[a] = nh_halo_span_of(axis, covered[a], column[a], last, nh_wraps(a));
        seam |= nh_wraps(a) && !(NH_SLOTS && a == NH_FIRST_AXIS) && nh_has_seam(covered[a], span[a]);
#else
        column[a] = nh_columns_of(axis, length[a], nh_shifted_row(a, nh_least(row[a], length[a] - 1)), false).begin;
#endif
    }
    nh_roll roll = {0, {0, 0}, !NH_PLANES};
#if NH_REGIONS
    const nh_group &chain = covered[NH_FIRST_AXIS];
#else
    const nh_group &chain = length[NH_FIRST_AXIS];
#endif
    if (NH_SLOTS)
        roll = nh_roll_of(args, chain, length[NH_FIRST_AXIS], row[NH_FIRST_AXIS], NH_PLANES ? number : line, first,
                          column[NH_FIRST_AXIS]);
    int row_head;
    if (NH_HEAD_SLOWEST || NH_SLOTS) {
        int batch = nh_digit(&rest, digits.batch);
        row_head = (int)rest * NH_NEAR_HEADS + near_head;
        rest = (unsigned)batch;
    } else {
        row_head = nh_digit(&rest, digits.heads);
    }
    const int column_head = (int)(NH_INVERSE ? (unsigned)row_head * digits.share.base
                                             : nh_quotient((unsigned)row_head, digits.share));
    if (lane < NH_CUDA_TENSORS) {
        const nh_cuda_tensor &t = args.tensor[lane];
        bool of_keys = keys >> lane & 1;
        int head = of_keys == (NH_INVERSE != 0) ? row_head : column_head;
        long long origin = rest * t.batch + head * t.head;
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++) {
#if NH_REGIONS
            int at = of_keys == (NH_INVERSE != 0) ? row[a] : covered[a].columns.begin + span[a].ahead;
#else
            int at = of_keys == (NH_INVERSE != 0) ? row[a] : column[a];
#endif
            origin += (long long)(at * nh_dilation(args, a) + group[a]) * t.axis[a];
            work_tile.step[lane][a] = nh_dilation(args, a) * t.axis[a];
        }
        work_tile.origin[lane] = origin;
    }
    if (lane == 0) {
        work_tile.number = index;
        work_tile.batch = (int)rest;
        work_tile.head = row_head;
        work_tile.column_head = column_head;
        work_tile.roll = roll;
#if NH_REGIONS
        work_tile.seam = seam;
#endif
#pragma unroll
        for (int a = 0; a < 3; a++) {
#if NH_REGIONS
            work_tile.covered[a] = covered[a];
            work_tile.span[a] = span[a];
#endif
            work_tile.group[a] = group[a];
            work_tile.row[a] = row[a];
            work_tile.column[a] = column[a];
            work_tile.length[a] = length[a];
        }
    }
}

/* For tests: notes a warp tile and its box as one pair of tiles. Called by all lanes of a warp. */
NH_DEVICE void nh_note_warp_tile(const nh_tiled_args &args, int index, int warp_tile) {
    if (NH_NOTED && threadIdx.x % 32 == 0) nh_note_tile(args, index, warp_tile, true, !NH_DENSE);
}

NH_DEVICE bool nh_warp_tile_exists(const nh_work_tile &work_tile, int warp_tile) {
    bool exists = true;
#pragma unroll
    for (int a = NH_WHOLE ? 3 : NH_FIRST_AXIS; a < 3; a++)
        exists = exists && work_tile.row[a] + nh_row_at(warp_tile, 0, a) < work_tile.length[a];
    return exists;
}

/* Calls work(warp tile) for each warp tile of this warp that has rows. */
template <typename Work>
NH_DEVICE void nh_for_warp_tiles(const nh_tiled_args &args, const nh_work_tile &work_tile, const Work &work) {
#pragma unroll 1
    for (int warp_tile = (int)(threadIdx.x / 32); warp_tile < NH_WARP_TILES; warp_tile += NH_WARPS)
        if (nh_warp_tile_exists(work_tile, warp_tile)) {
            nh_note_warp_tile(args, work_tile.number, warp_tile);
            work(warp_tile);
        }
}

NH_DEVICE bool nh_row_exists(const nh_work_tile &work_tile, int warp_tile, int row) {
    bool exists = true;
#pragma unroll
    for (int a = NH_WHOLE ? 3 : NH_FIRST_AXIS; a < 3; a++)
        exists = exists && work_tile.row[a] + nh_row_at(warp_tile, row, a) < work_tile.length[a];
#pragma unroll
    for (int a = 0; NH_SHIFTED && a < 3; a++)
        exists = exists && work_tile.row[a] + nh_row_at(warp_tile, row, a) >= 0;
    return exists;
}

/* Whether the warp tile begins before the first row. */
NH_DEVICE bool nh_begins_before(const nh_work_tile &work_tile, int warp_tile) {
    bool before = false;
#pragma unroll
    for (int a = NH_SHIFTED ? 0 : 3; a < 3; a++)
        before = before || work_tile.row[a] + nh_row_at(warp_tile, 0, a) < 0;
    return before;
}

/* Offset of a row in a tensor, in elements. */
NH_DEVICE long long nh_row_offset(const nh_work_tile &work_tile, int slot, int warp_tile, int row) {
    long long offset = work_tile.origin[slot];
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        offset += nh_row_at(warp_tile, row, a) * work_tile.step[slot][a];
    return offset;
}
