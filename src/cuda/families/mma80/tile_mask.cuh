/* Masks of partial tiles, as bits.
 *
 * A thread holds columns 8j + 2t and 8j + 2t + 1 of a key tile (t = lane % 4): bits 2j and 2j + 1. A window is a box,
 * so a row's mask is the AND of one range per axis, and a range is the difference of two prefixes. prefix[a][n] marks
 * the columns whose coordinate on axis a is below n: tables that only depend on the tile's shape and are constants of
 * the kernel. */
#pragma once

#include "block_rows.cuh"

namespace nh_mma80 {

static_assert(NH_COLUMNS <= 128, "a thread's columns fit 32 bits");

enum { NH_AXIS_ROWS = mma80_axis_rows(&C), NH_AXIS_PREFIXES = mma80_axis_prefixes(&C) };

struct nh_prefix_tables {
    unsigned prefix[NH_AXIS_PREFIXES][4];
};

struct nh_mask_tables {
    nh_prefix_tables columns;
    /* for each coordinate of the query tile, axis after axis: the range of keys that it sees */
    int begin[NH_AXIS_ROWS], end[NH_AXIS_ROWS];
};

NH_DEVICE constexpr int nh_rows_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? C.rows[0] : C.rows[0] + C.rows[1];
}
NH_DEVICE constexpr int nh_prefixes_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? C.columns[0] + 1 : C.columns[0] + C.columns[1] + 2;
}

NH_DEVICE constexpr nh_prefix_tables nh_prefixes_of_tile() {
    nh_prefix_tables tables = {};
    for (int axis = 0; axis < 3; axis++)
        for (int column = 0; column < NH_COLUMNS; column++) {
            int bit = column / 8 * 2 + column % 2, t = column % 8 / 2;
            for (int below = nh_column_axis(column, axis) + 1; below <= nh_tile_k(axis); below++)
                tables.prefix[nh_prefixes_before(axis) + below][t] |= 1u << bit;
        }
    return tables;
}
static __device__ const nh_prefix_tables nh_tile_prefixes = nh_prefixes_of_tile();

/* The positions along an axis that a row sees: a query's keys, with NH_INVERSE the queries of a key, and for an extra
 * token all. */
NH_DEVICE nh_range nh_partners(const nh_cuda_args &args, const auto &block, int axis, int position) {
    const nh_cuda_axis &a = args.axis[axis];
    if constexpr (NH_REGIONS) {
        if (NH_EXTRA_ROWS) return block.columns[axis];
        const nh_range seen = nh_seen_of_grid(a, nh_wraps(axis), NH_INVERSE, block.grid[axis], position);
        return nh_covered_part(seen, block.columns[axis], block.grid[axis], nh_wraps(axis));
    } else {
        if (NH_EXTRA_ROWS) return {0, (NH_POSITION)a.length};
        return nh_seen_range(block.length[axis], a.window, a.stride, a.causal, false, NH_INVERSE, position);
    }
}

/* Called by the whole block; a barrier must follow. */
NH_DEVICE void nh_mask_tables_fill(const nh_cuda_args &args, const nh_block &block,
                                   nh_mask_tables &tables) {
    const unsigned *prefix = &nh_tile_prefixes.prefix[0][0];
    for (int i = (int)threadIdx.x; i < NH_AXIS_PREFIXES * 4; i += NH_THREADS)
        (&tables.columns.prefix[0][0])[i] = prefix[i];
#pragma unroll
    for (int a = 0; a < 3; a++) {
        for (int i = (int)threadIdx.x; i < nh_tile_q(a); i += NH_THREADS) {
            int last = block.length[a] - 1, position = block.origin[a] + i;
            nh_range range = nh_partners(args, block, a, position < last ? position : last);
            tables.begin[nh_rows_before(a) + i] = (int)range.begin;
            tables.end[nh_rows_before(a) + i] = (int)range.end;
        }
    }
}

NH_DEVICE nh_halo nh_halo_of(const nh_mask_tables &tables) {
    nh_halo halo;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        halo.begin[a] = tables.begin[nh_rows_before(a)];
        halo.end[a] = tables.end[nh_rows_before(a) + nh_tile_q(a) - 1];
    }
    return halo;
}

NH_DEVICE int nh_clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

/* If both tiles have extent 1 along an axis, every tile of the loop is in the window along it. */
NH_DEVICE constexpr bool nh_axis_needs_mask(int axis) {
    return nh_tile_q(axis) > 1 || nh_tile_k(axis) > 1;
}

/* The columns of a tile that a row sees, as bits. */
NH_DEVICE unsigned nh_row_mask(const nh_mask_tables &tables, const nh_cursor &tile,
                               int row) {
    unsigned mask = ~0u;
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        if (!nh_axis_needs_mask(a)) continue;
        int axis_row = nh_rows_before(a) + nh_row_axis(row, a);
        int begin = nh_clamp(tables.begin[axis_row] - tile.at[a], 0, nh_tile_k(a));
        int end = nh_clamp(tables.end[axis_row] - tile.at[a], 0, nh_tile_k(a));
        mask &= tables.columns.prefix[nh_prefixes_before(a) + end][t] &
                ~tables.columns.prefix[nh_prefixes_before(a) + begin][t];
    }
    return mask;
}

} // namespace nh_mma80
