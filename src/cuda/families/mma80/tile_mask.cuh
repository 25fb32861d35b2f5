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
NH_DEVICE void nh_mask_tables_fill(const nh_cuda_args &args, const nh_block &block, nh_mask_tables &tables) {
    const unsigned *prefix = &nh_tile_prefixes.prefix[0][0];
    for (int i = (int)threadIdx.x; i < NH_AXIS_PREFIXES * 4; i += NH_THREADS)
        (&tables.columns.prefix[0][0])[i] = prefix[i];
    NH_UNROLL for (int a = 0; a < 3; a++) {
        for (int i = (int)threadIdx.x; i < nh_tile_q(a); i += NH_THREADS) {
            int last = block.length[a] - 1, position = block.origin[a] + i;
            nh_range range = nh_partners(args, block, a, position < last ? position : last);
            tables.begin[nh_rows_before(a) + i] = (int)range.begin;
            tables.end[nh_rows_before(a) + i] = (int)range.end;
        }
    }
}

/* Sets what the block's loop goes over. */
NH_DEVICE void nh_halo_set(const nh_cuda_args &args, const nh_mask_tables &tables, auto &block) {
    NH_UNROLL for (int a = 0; a < 3; a++) {
        block.halo.begin[a] = tables.begin[nh_rows_before(a)];
        block.halo.end[a] = tables.end[nh_rows_before(a) + nh_tile_q(a) - 1];
        if constexpr (NH_PERIODIC != 0) {
            const int first = block.columns[a].begin, length = block.grid[a];
            block.lap[a] = first;
            if (nh_wraps(a)) block.lap[a] += nh_laps(block.halo.begin[a], first, length) * length;
        }
    }
    block.extra_tiles = C.extra ? (int)((args.extra_tokens + NH_COLUMNS - 1) / NH_COLUMNS) : 0;
}

NH_DEVICE int nh_clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

/* If both tiles have extent 1 along an axis, every tile of the loop is in the window along it. */
NH_DEVICE constexpr bool nh_axis_needs_mask(int axis) {
    return nh_tile_q(axis) > 1 || nh_tile_k(axis) > 1;
}

/* The columns of a tile that a row sees, as bits. */
NH_DEVICE unsigned nh_row_mask(const nh_mask_tables &tables, const nh_cursor &tile, int row) {
    unsigned mask = ~0u;
    int t = (int)threadIdx.x % 4;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        if (!nh_axis_needs_mask(a)) continue;
        int axis_row = nh_rows_before(a) + nh_row_axis(row, a);
        int begin = nh_clamp(tables.begin[axis_row] - tile.at[a], 0, nh_tile_k(a));
        int end = nh_clamp(tables.end[axis_row] - tile.at[a], 0, nh_tile_k(a));
        mask &= tables.columns.prefix[nh_prefixes_before(a) + end][t] &
                ~tables.columns.prefix[nh_prefixes_before(a) + begin][t];
    }
    return mask;
}

/* ---- what a warp sees of a tile ---- */

/* Tiles whose origin is in [from, to] are seen entirely by all rows of a warp; these rows are a box, as extents of
 * tiles are powers of two. */
struct nh_dense_box {
    int from[3], to[3];
};

/* Called by the whole block after a barrier; another one must follow. */
NH_DEVICE void nh_dense_boxes_fill(const nh_mask_tables &tables, nh_dense_box boxes[C.warps]) {
    for (int i = (int)threadIdx.x; i < 3 * C.warps; i += NH_THREADS) {
        int warp = i / 3, a = i % 3, first_row = warp * NH_WARP_ROWS;
        int first = nh_rows_before(a) + nh_row_axis(first_row, a);
        int last = nh_rows_before(a) + nh_row_axis(first_row + NH_WARP_ROWS - 1, a);
        boxes[warp].from[a] = tables.begin[last];
        boxes[warp].to[a] = tables.end[first] - nh_tile_k(a);
    }
}

NH_DEVICE bool nh_is_dense(const nh_dense_box &box, const nh_cursor &tile) {
    return tile.at[0] >= box.from[0] & tile.at[1] >= box.from[1] & tile.at[2] >= box.from[2] & tile.at[0] <= box.to[0] &
           tile.at[1] <= box.to[1] & tile.at[2] <= box.to[2];
}

/* The mask of the first `count` columns, for the last tile of extra tokens. */
NH_DEVICE unsigned nh_first_columns(long long count) {
    if (count >= NH_COLUMNS) return ~0u;
    int below = (int)count;
    int bits = below / 8 * 2 + nh_clamp(below % 8 - 2 * ((int)threadIdx.x % 4), 0, 2);
    return (1u << bits) - 1;
}

/* What a warp's rows see of a tile: all of it or, if it is partial, what the masks of the rows say. */
struct nh_view {
    bool extra, partial;
    unsigned extra_mask;
};

NH_DEVICE nh_view nh_view_of(const nh_cuda_args &args, const nh_block &block, const nh_dense_box &box,
                             const nh_cursor &cursor, int left) {
    nh_view view;
    view.extra = nh_is_extra(block, left);
    view.extra_mask = view.extra ? nh_first_columns(args.extra_tokens - nh_extra_first(block, left)) : 0;
    view.partial = __any_sync(~0u, view.extra ? view.extra_mask != ~0u : !nh_is_dense(box, cursor));
    return view;
}

NH_DEVICE unsigned nh_view_mask(const nh_view &view, const nh_mask_tables &masks, const nh_cursor &cursor, int row) {
    return view.extra ? view.extra_mask : nh_row_mask(masks, cursor, row);
}

} // namespace nh_mma80
