/* Keys and values for the KV loops of kernels whose blocks own queries: rings of K and of V, first tiles of the window
 * and then tiles of the extra tokens. The layout has members k, v, k_full, k_free, v_full, v_free, bias_full and
 * bias_free. MAP_K and MAP_V are the maps of K and V, and those of the extra tokens follow in the same order from
 * MAP_EXTRA_K on. */
#pragma once
#include "fused90_kv_loop.cuh"

#define K_BYTES TILE_BYTES(LOOP_COLUMNS, NH_DIM)
#define V_BYTES TILE_BYTES(LOOP_DEPTH, NH_DIM_V)

/* Lays out the barriers of the rings and of the bias boxes; returns their end. */
template <class Layout> __device__ __forceinline__ unsigned lay_out_rings(Layout &s, unsigned base) {
    s.k_full = base;
    s.k_free = s.k_full + 8 * NH_STAGES;
    s.v_full = s.k_free + 8 * NH_STAGES;
    s.v_free = s.v_full + 8 * NH_STAGES;
    s.bias_full = s.v_free + 8 * NH_STAGES;
    s.bias_free = s.bias_full + 8 * NH_STAGES;
    return s.bias_free + 8 * NH_STAGES;
}

template <class Layout> __device__ __forceinline__ void init_rings(const Layout &s) {
    init_ring(s.k_full, s.k_free, NH_STAGES);
    init_ring(s.v_full, s.v_free, NH_STAGES);
    if (NH_BIASED) init_bias_ring(s.bias_full, s.bias_free);
}

/* Fetches a box at each of these tokens into a tile of `rows` rows. */
template <int LAYOUT, int BOXES>
__device__ __forceinline__ void fetch_boxes(unsigned to, const nh_tensor_map *map, unsigned barrier, int rows, int dim,
                                            int head, int heads, const int (&token)[BOXES][3], int batch) {
    nh_barrier_expect(barrier, TILE_BYTES(NH_LOOP_ROWS, dim));
#pragma unroll
    for (int i = 0; i < BOXES; i++)
        fetch_more<LAYOUT>(to + i * (NH_LOOP_ROWS / BOXES) * ROW_BYTES(dim), map, barrier, rows, dim, head, heads,
                           token[i], batch);
}

/* Fetches K and V of tile n of this block's KV loops. */
template <int K_LAYOUT, int V_LAYOUT, class Layout, int BOXES>
__device__ __forceinline__ void fetch_pair(const nh_tiled_args &args, const Layout &s, const nh_tensor_map *k,
                                           const nh_tensor_map *v, const nh_work_tile &work_tile,
                                           const int (&token)[BOXES][3], unsigned n) {
    int heads = (int)args.kv_heads, k_head = head_or_origin<K_LAYOUT>(args, NH_K, work_tile, work_tile.kv_head),
        v_head = head_or_origin<V_LAYOUT>(args, NH_V, work_tile, work_tile.kv_head);
    nh_barrier_wait(s.k_free + 8 * SLOT(n), PHASE(n) ^ 1);
    fetch_boxes<K_LAYOUT>(s.k + SLOT(n) * K_BYTES, k, s.k_full + 8 * SLOT(n), LOOP_COLUMNS, NH_DIM, k_head, heads,
                          token, work_tile.batch);
    nh_barrier_wait(s.v_free + 8 * SLOT(n), PHASE(n) ^ 1);
    fetch_boxes<V_LAYOUT>(s.v + SLOT(n) * V_BYTES, v, s.v_full + 8 * SLOT(n), LOOP_DEPTH, NH_DIM_V, v_head, heads,
                          token, work_tile.batch);
}

/* Releases tile n, which must have landed: otherwise a stage that is free already could be released again. */
template <class Layout> __device__ __forceinline__ void release_pair(const Layout &s, unsigned n) {
    nh_barrier_wait(s.k_full + 8 * SLOT(n), PHASE(n));
    release_warp(s.k_free + 8 * SLOT(n));
    nh_barrier_wait(s.v_full + 8 * SLOT(n), PHASE(n));
    release_warp(s.v_free + 8 * SLOT(n));
}

/* Fetches this block's share of the KV loop of a work tile; n counts the tiles of all loops. */
template <class Layout>
__device__ __forceinline__ void fetch_loop(const nh_tiled_args &args, const Layout &s, const nh_tensor_map *map,
                                           const nh_work_tile &work_tile, unsigned &n) {
    int window_tiles = window_tiles_of(work_tile), tile[3], token[NH_TILE_BOXES][3];
    share mine = share_of(window_tiles + (NH_EXTRA ? args.tiling.extra_tiles : 0));
    tile_at(work_tile, mine.begin, tile);
    int t = mine.begin;
    for (; t < nh_min(mine.end, window_tiles); t++, n = NEXT(n)) {
        const tile_boxes boxes = boxes_of(work_tile.tiles[LOOP_SECOND], tile);
#pragma unroll
        for (int i = 0; i < NH_TILE_BOXES; i++)
            loop_token(args, work_tile, boxes.box[i], token[i]);
        fetch_pair<NH_K_MAP, NH_V_MAP>(args, s, map + MAP_K, map + MAP_V, work_tile, token, n);
        next_tile(work_tile, tile);
    }
#if NH_EXTRA
    for (; t < mine.end; t++, n = NEXT(n)) {
        int first[1][3] = {{0, 0, (t - window_tiles) * NH_LOOP_ROWS}};
        fetch_pair<0, 0>(args, s, map + MAP_EXTRA_K, map + MAP_EXTRA_K + 1, work_tile, first, n);
    }
#endif
}
