/* The rows that a block owns, and the tiles of columns that they are multiplied with: queries and keys, or the other
 * way round. Rows may also be extra tokens, numbered along the last axis, whose columns are the queries of the whole
 * grid.
 *
 * Rows of a block are a box of NH_TILE_Q0 x NH_TILE_Q1 x NH_TILE_Q2 positions of one dilation group, columns come in
 * tiles of NH_TILE_K0 x NH_TILE_K1 x NH_TILE_K2. As a window is a box, and its ends never move back from one row to the
 * next, the windows of all rows lie in one box, the halo. All positions are inside the dilation group. */
#pragma once

#include "mma.cuh"
#include "region.cuh"

enum {
    NH_ROWS = NH_TILE_Q0 * NH_TILE_Q1 * NH_TILE_Q2,
    NH_COLUMNS = NH_TILE_K0 * NH_TILE_K1 * NH_TILE_K2,
    NH_THREADS = 32 * NH_WARPS,
    NH_WARP_ROWS = NH_ROWS / NH_WARPS
};

NH_DEVICE constexpr int nh_tile_q(int axis) {
    return axis == 0 ? NH_TILE_Q0 : axis == 1 ? NH_TILE_Q1 : NH_TILE_Q2;
}
NH_DEVICE constexpr int nh_tile_k(int axis) {
    return axis == 0 ? NH_TILE_K0 : axis == 1 ? NH_TILE_K1 : NH_TILE_K2;
}

/* The coordinate along an axis of position `index` in a box with these last two extents; the last axis is fastest. */
NH_DEVICE constexpr int nh_box_axis(int index, int axis, int extent1, int extent2) {
    return axis == 2   ? index % extent2
           : axis == 1 ? index / extent2 % extent1
                       : index / (extent2 * extent1);
}
NH_DEVICE constexpr int nh_column_axis(int column, int axis) {
    return nh_box_axis(column, axis, NH_TILE_K1, NH_TILE_K2);
}
NH_DEVICE constexpr int nh_row_axis(int row, int axis) {
    return nh_box_axis(row, axis, NH_TILE_Q1, NH_TILE_Q2);
}

/* The rows of a block: batch entry, heads, and per axis the dilation group, first position and end of the group's
 * rows. */
struct nh_block {
    long long batch;
    int head, kv_head;
    int group[3], origin[3], length[3];
#if NH_REGIONS
    /* rows end at `length`; the group's length in the grid, and the columns that tensors have */
    int grid[3];
    nh_range columns[3];
#endif
};

#if NH_REGIONS
NH_DEVICE const nh_cuda_box &nh_row_box(const nh_cuda_args &args, int axis) {
    return NH_INVERSE ? args.region[axis].key : args.region[axis].query;
}
#endif

/* The number of rows of a dilation group along an axis; with NH_REGIONS, the most that any group has. */
NH_DEVICE int nh_row_count(const nh_cuda_args &args, int axis, int group) {
    if (NH_EXTRA_ROWS) return axis == 2 ? (int)args.extra_tokens : 1;
#if NH_REGIONS
    const int dilation = (int)args.axis[axis].dilation;
    return ((int)nh_row_box(args, axis).length + dilation - 1) / dilation;
#else
    return (int)nh_axis_group_length(args.axis[axis].length, args.axis[axis].dilation, group);
#endif
}

#if NH_REGIONS
/* Moves a block from the first tiles of a box to where its rows are. */
NH_DEVICE void nh_block_place(const nh_cuda_args &args, int axis, struct nh_block &block) {
    const nh_cuda_axis &a = args.axis[axis];
    const nh_cuda_region &region = args.region[axis];
    const int dilation = (int)a.dilation, group = block.group[axis];
    block.grid[axis] = nh_axis_group_length((int)a.length, dilation, group);
    block.columns[axis] = nh_covered(NH_INVERSE ? region.query : region.key, dilation, group);
    if (NH_EXTRA_ROWS) return;
    const nh_range rows = nh_covered(nh_row_box(args, axis), dilation, group);
    block.origin[axis] += rows.begin;
    block.length[axis] = rows.end;
}
#endif

/* Locates a work tile. They are numbered along axis 0 first, then axes 1 and 2: blocks that run at the same time then
 * share most of their keys in the L2. heads: query heads, or key heads if those own the rows. False for a tile beyond
 * the end of a dilation group that is shorter than the first. */
NH_DEVICE bool nh_block_locate(const nh_cuda_args &args, unsigned index, long long heads,
                               struct nh_block &block) {
    bool inside = true;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        int longest = nh_row_count(args, a, 0);
        unsigned tiles = (unsigned)(longest + nh_tile_q(a) - 1) / nh_tile_q(a);
        block.origin[a] = (int)(index % tiles) * nh_tile_q(a);
        index /= tiles;
    }
#pragma unroll
    for (int a = 0; a < 3; a++) {
        unsigned dilation = (unsigned)args.axis[a].dilation;
        block.group[a] = (int)(index % dilation);
        index /= dilation;
        block.length[a] = nh_row_count(args, a, block.group[a]);
#if NH_REGIONS
        nh_block_place(args, a, block);
#endif
        inside = inside && block.origin[a] < block.length[a];
    }
    block.head = (int)(index % (unsigned)heads);
    block.batch = index / (unsigned)heads;
    block.kv_head = block.head / (int)(heads / args.kv_heads);
    return inside;
}

/* Position of a row of the block. Padding rows repeat the last position: they are computed, but not stored. */
NH_DEVICE int nh_row_position(const struct nh_block &block, int row, int axis) {
    int position = block.origin[axis] + nh_row_axis(row, axis);
    return position < block.length[axis] ? position : block.length[axis] - 1;
}

NH_DEVICE bool nh_row_exists(const struct nh_block &block, int row) {
    return block.origin[0] + nh_row_axis(row, 0) < block.length[0] &&
           block.origin[1] + nh_row_axis(row, 1) < block.length[1] &&
           block.origin[2] + nh_row_axis(row, 2) < block.length[2];
}

/* Offset of a position of the block's dilation group in a tensor, in elements. */
NH_DEVICE long long nh_position_offset(const nh_cuda_args &args, const struct nh_block &block,
                                       const nh_cuda_tensor &tensor, int axis, int position) {
    return (position * args.axis[axis].dilation + block.group[axis]) * tensor.axis[axis];
}

NH_DEVICE long long nh_row_offset(const nh_cuda_args &args, const struct nh_block &block,
                                  const nh_cuda_tensor &tensor, int head, int row) {
    long long offset = block.batch * tensor.batch + head * tensor.head;
#pragma unroll
    for (int a = 0; a < 3; a++)
        offset += nh_position_offset(args, block, tensor, a, nh_row_position(block, row, a));
    return offset;
}

/* The same for a column, whose position on a periodic axis may be beyond what tensors have. */
NH_DEVICE long long nh_column_offset(const nh_cuda_args &args, const struct nh_block &block,
                                     const nh_cuda_tensor &tensor, int axis, int position) {
#if NH_PERIODIC
    if (nh_wraps(axis)) nh_find_column(block.columns[axis], true, block.grid[axis], position);
#endif
    return nh_position_offset(args, block, tensor, axis, position);
}

/* The first position of a key tile. */
struct nh_cursor {
    int at[3];
};

struct nh_halo {
    int begin[3], end[3];
};
