/* The KV loop: over a halo in whole tiles of columns. It starts at the halo's first position, so that every tile is
 * needed by some row. Extra tokens follow as tiles after the last one. Where rows are keys, the loop goes over the halo
 * once for each query head that shares the key head. */
#pragma once

#include "tile_copy.cuh"
#include "tile_mask.cuh"
#include "tile_note.cuh"

namespace nh_mma80 {

/* ---- which tiles ---- */

/* On periodic axes: the start of the lap of columns in which the halo's first position is. */
template <bool PERIODIC> struct nh_more_of_bounds {};
template <> struct nh_more_of_bounds<true> {
    int lap[3];
};

struct nh_loop_bounds : nh_more_of_bounds<NH_PERIODIC != 0> {
    nh_halo halo;
    long long extra_tokens;
    int extra_tiles;
};

NH_DEVICE int nh_halo_tiles(const nh_halo &halo, int axis) {
    return (halo.end[axis] - halo.begin[axis] + nh_tile_k(axis) - 1) / nh_tile_k(axis);
}

/* The number of query heads whose columns a row is multiplied with. */
NH_DEVICE int nh_heads_of_row(const nh_cuda_args &args) {
    return NH_INVERSE ? (int)(args.heads / args.kv_heads) : 1;
}

/* Sets where the laps begin. */
NH_DEVICE void nh_laps_start(const auto &block, auto &bounds) {
#pragma unroll
    for (int a = 0; a < 3; a++) {
        const int first = block.columns[a].begin, length = block.grid[a];
        bounds.lap[a] = first;
        if (nh_wraps(a)) bounds.lap[a] += nh_laps(bounds.halo.begin[a], first, length) * length;
    }
}

NH_DEVICE nh_loop_bounds nh_loop_bounds_of(const auto &args, const nh_block &block, const nh_mask_tables &masks) {
    nh_loop_bounds bounds;
    bounds.halo = nh_halo_of(masks);
    if constexpr (NH_PERIODIC) nh_laps_start(block, bounds);
    bounds.extra_tokens = C.extra ? args.extra_tokens : 0;
    bounds.extra_tiles = (int)((bounds.extra_tokens + NH_COLUMNS - 1) / NH_COLUMNS);
    return bounds;
}

NH_DEVICE int nh_loop_tiles(const nh_cuda_args &args, const nh_loop_bounds &bounds) {
    int tiles = nh_heads_of_row(args);
#pragma unroll
    for (int a = 0; a < 3; a++)
        tiles *= nh_halo_tiles(bounds.halo, a);
    return tiles + bounds.extra_tiles;
}

/* left: the number of tiles left, including the current one. */
NH_DEVICE bool nh_is_extra(const nh_loop_bounds &bounds, int left) {
    return C.extra && left <= bounds.extra_tiles;
}

NH_DEVICE long long nh_extra_first(const nh_loop_bounds &bounds, int left) {
    return (long long)(bounds.extra_tiles - left) * NH_COLUMNS;
}

/* Moves to the next tile of the halo. Returns how many axes start over: 3 after the last tile. */
NH_DEVICE int nh_advance(nh_cursor &cursor, const nh_halo &halo) {
    int again = 0;
#pragma unroll
    for (int a = 2; a >= 0; a--) {
        cursor.at[a] += nh_tile_k(a);
        if (cursor.at[a] < halo.end[a]) break;
        cursor.at[a] = halo.begin[a];
        again++;
    }
    return again;
}

/* ---- what rows see of them ---- */

/* Tiles whose origin is in [from, to] are seen entirely by all rows of a warp; these rows are a box, as extents of
 * tiles are powers of two. */
struct nh_dense_box {
    int from[3], to[3];
};

/* Called by the whole block after a barrier; another one must follow. */
NH_DEVICE void nh_dense_boxes_fill(const nh_mask_tables &tables,
                                   nh_dense_box boxes[C.warps]) {
    for (int i = (int)threadIdx.x; i < 3 * C.warps; i += NH_THREADS) {
        int warp = i / 3, a = i % 3, first_row = warp * NH_WARP_ROWS;
        int first = nh_rows_before(a) + nh_row_axis(first_row, a);
        int last = nh_rows_before(a) + nh_row_axis(first_row + NH_WARP_ROWS - 1, a);
        boxes[warp].from[a] = tables.begin[last];
        boxes[warp].to[a] = tables.end[first] - nh_tile_k(a);
    }
}

NH_DEVICE bool nh_is_dense(const nh_dense_box &box, const nh_cursor &tile) {
    return tile.at[0] >= box.from[0] & tile.at[1] >= box.from[1] & tile.at[2] >= box.from[2] &
           tile.at[0] <= box.to[0] & tile.at[1] <= box.to[1] & tile.at[2] <= box.to[2];
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

NH_DEVICE nh_view nh_view_of(const nh_dense_box &box, const nh_loop_bounds &bounds,
                                    const nh_cursor &cursor, int left) {
    nh_view view;
    view.extra = nh_is_extra(bounds, left);
    view.extra_mask =
        view.extra ? nh_first_columns(bounds.extra_tokens - nh_extra_first(bounds, left)) : 0;
    view.partial = __any_sync(~0u, view.extra ? view.extra_mask != ~0u : !nh_is_dense(box, cursor));
    return view;
}

NH_DEVICE unsigned nh_view_mask(const nh_view &view, const nh_mask_tables &masks,
                                const nh_cursor &cursor, int row) {
    return view.extra ? view.extra_mask : nh_row_mask(masks, cursor, row);
}

} // namespace nh_mma80
