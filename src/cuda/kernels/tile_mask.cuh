/* Masks of partial tiles, as bits.
 *
 * Of a key tile, a thread holds columns 8j + 2t and 8j + 2t + 1 (t = lane % 4): bits 2j and 2j + 1. A window is a
 * box, so a row's mask is the AND of one range per axis, and a range is the difference of two prefixes. prefix[a][n]
 * marks the columns whose coordinate on axis a is below n: tables of the tile's shape alone, made once per block. */
#pragma once

#include "tile_walk.cuh"

static_assert(NH_COLUMNS <= 128, "a thread's columns fit 32 bits");

struct nh_mask_tables {
    unsigned prefix[NH_AXIS_PREFIXES][4];
    /* keys of each coordinate of the query tile, axis after axis */
    int begin[NH_AXIS_ROWS], end[NH_AXIS_ROWS];
};

NH_DEVICE constexpr int nh_rows_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? NH_TILE_Q0 : NH_TILE_Q0 + NH_TILE_Q1;
}
NH_DEVICE constexpr int nh_prefixes_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? NH_TILE_K0 + 1 : NH_TILE_K0 + NH_TILE_K1 + 2;
}

NH_DEVICE unsigned nh_prefix_bits(int axis, int below, int t) {
    unsigned bits = 0;
    for (int i = 0; i < NH_COLUMNS / 4; i++)
        bits |= (unsigned)(nh_column_axis(i / 2 * 8 + 2 * t + i % 2, axis) < below) << i;
    return bits;
}

/* By the whole block; a barrier must follow. */
NH_DEVICE void nh_mask_tables_fill(const nh_cuda_args &args, const struct nh_block &block,
                                   struct nh_mask_tables &tables) {
#pragma unroll
    for (int a = 0; a < 3; a++) {
        for (int i = (int)threadIdx.x; i < 4 * (nh_tile_k(a) + 1); i += NH_THREADS)
            tables.prefix[nh_prefixes_before(a) + i / 4][i % 4] = nh_prefix_bits(a, i / 4, i % 4);
        for (int i = (int)threadIdx.x; i < nh_tile_q(a); i += NH_THREADS) {
            int last = block.length[a] - 1, position = block.origin[a] + i;
            struct nh_range keys =
                nh_window_range(block.length[a], args.axis[a].window, args.axis[a].stride,
                                args.axis[a].causal, position < last ? position : last);
            tables.begin[nh_rows_before(a) + i] = (int)keys.begin;
            tables.end[nh_rows_before(a) + i] = (int)keys.end;
        }
    }
}

NH_DEVICE struct nh_halo nh_halo_of(const struct nh_mask_tables &tables) {
    struct nh_halo halo;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        halo.begin[a] = tables.begin[nh_rows_before(a)];
        halo.end[a] = tables.end[nh_rows_before(a) + nh_tile_q(a) - 1];
    }
    return halo;
}

/* The tile origins at which every row of the warp attends every column: `from` .. `to` on each axis. The warp's
 * rows are a box, as the extents of a query tile are powers of two. */
NH_DEVICE struct nh_halo nh_dense_origins(const struct nh_mask_tables &tables, int first_row) {
    struct nh_halo dense;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        int first = nh_rows_before(a) + nh_row_axis(first_row, a);
        int last = nh_rows_before(a) + nh_row_axis(first_row + NH_WARP_ROWS - 1, a);
        dense.begin[a] = tables.begin[last];
        dense.end[a] = tables.end[first] - nh_tile_k(a);
    }
    return dense;
}

NH_DEVICE bool nh_is_dense(const struct nh_halo &dense, const struct nh_cursor &tile) {
    bool inside = true;
#pragma unroll
    for (int a = 0; a < 3; a++)
        inside = inside && tile.at[a] >= dense.begin[a] && tile.at[a] <= dense.end[a];
    return inside;
}

NH_DEVICE int nh_clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

/* On an axis along which both tiles are one wide, every tile of the walk is in the window. */
NH_DEVICE constexpr bool nh_axis_needs_mask(int axis) {
    return nh_tile_q(axis) > 1 || nh_tile_k(axis) > 1;
}

NH_DEVICE unsigned nh_row_mask(const struct nh_mask_tables &tables, const struct nh_cursor &tile,
                               int row) {
    unsigned mask = ~0u;
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        if (!nh_axis_needs_mask(a)) continue;
        int axis_row = nh_rows_before(a) + nh_row_axis(row, a);
        int begin = nh_clamp(tables.begin[axis_row] - tile.at[a], 0, nh_tile_k(a));
        int end = nh_clamp(tables.end[axis_row] - tile.at[a], 0, nh_tile_k(a));
        mask &= tables.prefix[nh_prefixes_before(a) + end][t] &
                ~tables.prefix[nh_prefixes_before(a) + begin][t];
    }
    return mask;
}

/* The first `count` columns: the last tile of extra tokens. */
NH_DEVICE unsigned nh_first_columns(long long count) {
    if (count >= NH_COLUMNS) return ~0u;
    int below = (int)count;
    int bits = below / 8 * 2 + nh_clamp(below % 8 - 2 * ((int)threadIdx.x % 4), 0, 2);
    return (1u << bits) - 1;
}
