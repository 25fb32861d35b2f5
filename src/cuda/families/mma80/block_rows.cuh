/* The rows that a block owns, and the columns that they are multiplied with: queries and keys, or the other way
 * round. Rows may also be extra tokens, numbered along the last axis, whose columns are the queries of the whole
 * grid.
 *
 * Rows of a block are a box of C.rows positions of one dilation group, columns come in tiles of C.columns. As a
 * window is a box, and its ends never move back from one row to the next, the windows of all rows lie in one box,
 * the halo. All positions are inside the dilation group. */
#pragma once

#include "mma80.cuh"

namespace nh_mma80 {

/* The first position of a tile of columns. */
struct nh_cursor {
    int at[3];
};

struct nh_halo {
    int begin[3], end[3];
};

/* With NH_REGIONS rows end at `length`: the group's length in the grid, and the columns that tensors have. On periodic
 * axes also the start of the lap of columns in which the halo's first position is. */
struct nh_region_block {
    int grid[3];
    nh_range columns[3];
};
struct nh_lap_block : nh_region_block {
    int lap[3];
};
template <bool REGIONS, bool PERIODIC> struct nh_more_of_block {};
template <> struct nh_more_of_block<true, false> : nh_region_block {};
template <> struct nh_more_of_block<true, true> : nh_lap_block {};

/* A work tile: batch entry, heads, and per axis the dilation group, first position and end of the group's rows. Then,
 * set by nh_halo_set, what its loop goes over: the halo, and tiles of extra tokens. */
struct nh_block : nh_more_of_block<NH_REGIONS, NH_PERIODIC != 0> {
    long long batch;
    int head, kv_head;
    int group[3], origin[3], length[3];
    nh_halo halo;
    int extra_tiles;
};

/* Where a block's rows are, in local memory while a loop runs that does not ask: products of f32 take all registers.
 * The members are volatile because the compiler would otherwise keep them in a dozen registers throughout the loop. */
struct nh_kept_place {
    volatile long long batch;
    volatile int head, group[3], origin[3], length[3];
};

/* Copies these members from a block, or back. */
NH_DEVICE void nh_place_copy(const auto &from, auto &to) {
    to.batch = from.batch, to.head = from.head;
#pragma unroll
    for (int a = 0; a < 3; a++)
        to.group[a] = from.group[a], to.origin[a] = from.origin[a], to.length[a] = from.length[a];
}

NH_DEVICE const nh_cuda_box &nh_row_box(const auto &args, int axis) {
    return NH_INVERSE ? args.region[axis].key : args.region[axis].query;
}

/* The number of rows of a dilation group along an axis; with NH_REGIONS, the most that any group has. */
NH_DEVICE int nh_row_count(const auto &args, int axis, int group) {
    const int dilation = (int)args.axis[axis].dilation;
    if constexpr (NH_EXTRA_ROWS)
        return axis == 2 ? (int)args.extra_tokens : 1;
    else if constexpr (NH_REGIONS)
        return ((int)nh_row_box(args, axis).length + dilation - 1) / dilation;
    else
        return (int)nh_axis_group_length(args.axis[axis].length, args.axis[axis].dilation, group);
}

/* Moves a block from the first tiles of a box to where its rows are. */
NH_DEVICE void nh_block_place(const auto &args, int axis, auto &block) {
    const int dilation = (int)args.axis[axis].dilation, group = block.group[axis];
    block.grid[axis] = nh_axis_group_length((int)args.axis[axis].length, dilation, group);
    block.columns[axis] = nh_covered(NH_INVERSE ? args.region[axis].query : args.region[axis].key, dilation, group);
    if (NH_EXTRA_ROWS) return;
    const nh_range rows = nh_covered(nh_row_box(args, axis), dilation, group);
    block.origin[axis] += rows.begin;
    block.length[axis] = rows.end;
}

/* Locates a work tile. They are numbered along axis 0 first, then axes 1 and 2: blocks that run at the same time then
 * share most of their keys in the L2. False for a tile beyond the end of a dilation group that is shorter than the
 * first. */
NH_DEVICE bool nh_block_locate(const auto &args, unsigned index, nh_block &block) {
    const long long heads = NH_INVERSE ? args.kv_heads : args.heads;
    bool inside = true;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        const unsigned tiles = (unsigned)(nh_row_count(args, a, 0) + nh_tile_q(a) - 1) / nh_tile_q(a);
        block.origin[a] = (int)(index % tiles) * nh_tile_q(a);
        index /= tiles;
    }
    NH_UNROLL for (int a = 0; a < 3; a++) {
        const unsigned dilation = (unsigned)args.axis[a].dilation;
        block.group[a] = (int)(index % dilation);
        index /= dilation;
        block.length[a] = nh_row_count(args, a, block.group[a]);
        if constexpr (NH_REGIONS) nh_block_place(args, a, block);
        inside = inside && block.origin[a] < block.length[a];
    }
    block.head = (int)(index % (unsigned)heads);
    block.batch = index / (unsigned)heads;
    block.kv_head = block.head / (int)(heads / args.kv_heads);
    return inside;
}

/* Position of a row of the block. Padding rows repeat the last position: they are computed, but not stored. */
NH_DEVICE int nh_row_position(const nh_block &block, int row, int axis) {
    const int position = block.origin[axis] + nh_row_axis(row, axis);
    return position < block.length[axis] ? position : block.length[axis] - 1;
}

NH_DEVICE bool nh_row_exists(const nh_block &block, int row) {
    return block.origin[0] + nh_row_axis(row, 0) < block.length[0] &&
           block.origin[1] + nh_row_axis(row, 1) < block.length[1] &&
           block.origin[2] + nh_row_axis(row, 2) < block.length[2];
}

/* Offset of a position of the block's dilation group in a tensor, in elements. */
NH_DEVICE long long nh_position_offset(const nh_cuda_args &args, const nh_block &block, const nh_cuda_tensor &tensor,
                                       int axis, int position) {
    return (position * args.axis[axis].dilation + block.group[axis]) * tensor.axis[axis];
}

NH_DEVICE long long nh_row_offset(const nh_cuda_args &args, const nh_block &block, const nh_cuda_tensor &tensor,
                                  int row) {
    long long offset = block.batch * tensor.batch + block.head * tensor.head;
    NH_UNROLL for (int a = 0; a < 3; a++)
        offset += nh_position_offset(args, block, tensor, a, nh_row_position(block, row, a));
    return offset;
}

/* The same for a column, whose position on a periodic axis may be beyond what tensors have. */
NH_DEVICE long long nh_column_offset(const nh_cuda_args &args, const auto &block, const nh_cuda_tensor &tensor,
                                     int head, const int (&at)[3]) {
    long long offset = block.batch * tensor.batch + head * tensor.head;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        int position = at[a];
        if constexpr (NH_PERIODIC != 0)
            if (nh_wraps(a)) nh_find_column(block.columns[a], true, block.grid[a], position);
        offset += nh_position_offset(args, block, tensor, a, position);
    }
    return offset;
}

/* An extra token as a column. */
NH_DEVICE const elem *nh_extra_row(const nh_cuda_args &args, const nh_block &block, int slot, long long token) {
    const nh_cuda_tensor &extra = args.tensor[slot];
    return (const elem *)extra.data + block.batch * extra.batch + block.kv_head * extra.head +
           token * extra.axis[3 - args.rank];
}

/* left: the number of tiles of the loop that are left, including the current one. */
NH_DEVICE bool nh_is_extra(const nh_block &block, int left) {
    return C.extra && left <= block.extra_tiles;
}

NH_DEVICE long long nh_extra_first(const nh_block &block, int left) {
    return (long long)(block.extra_tiles - left) * NH_COLUMNS;
}

} // namespace nh_mma80
