/* Keys and values for the KV loops of kernels whose blocks own queries: rings of K and of V, first tiles of the window
 * and then tiles of the extra tokens. */
#pragma once
#include "fused90_bias.cuh"

namespace nh_wgmma90 {

constexpr int K_BYTES = tile_bytes(LOOP_COLUMNS, C.dim), V_BYTES = tile_bytes(LOOP_DEPTH, C.dim_v);

NH_DEVICE void init_rings(const layout &s) {
    init_ring(s.k_full, s.k_free, C.stages);
    init_ring(s.v_full, s.v_free, C.stages);
    if (C.biased) init_bias_ring(s.bias_full, s.bias_free);
}

/* Fetches a box at each of these tokens into a tile of ROWS rows. */
template <int LAYOUT, int ROWS, int DIM, int BOXES>
NH_DEVICE void fetch_boxes(unsigned to, const nh_tensor_map *map, unsigned barrier, int head, int heads,
                           const int (&token)[BOXES][3], int batch) {
    nh_barrier_expect(barrier, tile_bytes(LOOP_ROWS, DIM));
    NH_UNROLL for (int i = 0; i < BOXES; i++)
        fetch_more<LAYOUT, ROWS, DIM>(to + i * (LOOP_ROWS / BOXES) * chunk_bytes(DIM), map, barrier, head, heads,
                                      token[i], batch);
}

/* Fetches K and V of tile n of this block's KV loops. */
template <int K_LAYOUT, int V_LAYOUT, int BOXES>
NH_DEVICE void fetch_pair(const nh_tiled_args &args, const layout &s, const nh_tensor_map *k, const nh_tensor_map *v,
                          const nh_work_tile &work_tile, const int (&token)[BOXES][3], unsigned n) {
    int heads = (int)args.kv_heads, k_head = head_or_origin<K_LAYOUT>(args, NH_K, work_tile, work_tile.kv_head),
        v_head = head_or_origin<V_LAYOUT>(args, NH_V, work_tile, work_tile.kv_head);
    nh_barrier_wait(s.k_free + 8 * slot(n), phase(n) ^ 1);
    fetch_boxes<K_LAYOUT, LOOP_COLUMNS, C.dim>(s.k + slot(n) * K_BYTES, k, s.k_full + 8 * slot(n), k_head, heads, token,
                                               work_tile.batch);
    nh_barrier_wait(s.v_free + 8 * slot(n), phase(n) ^ 1);
    fetch_boxes<V_LAYOUT, LOOP_DEPTH, C.dim_v>(s.v + slot(n) * V_BYTES, v, s.v_full + 8 * slot(n), v_head, heads, token,
                                               work_tile.batch);
}

/* Releases tile n, which must have landed: otherwise a stage that is free already could be released again. */
NH_DEVICE void release_pair(const layout &s, unsigned n) {
    nh_barrier_wait(s.k_full + 8 * slot(n), phase(n));
    release_warp(s.k_free + 8 * slot(n));
    nh_barrier_wait(s.v_full + 8 * slot(n), phase(n));
    release_warp(s.v_free + 8 * slot(n));
}

/* Fetches this block's share of a work tile's KV loop; n counts all tiles. map: of K, V, and of the extra tokens'. */
NH_DEVICE void fetch_loop(const nh_tiled_args &args, const layout &s, const nh_tensor_map *map,
                          const nh_work_tile &work_tile, unsigned &n) {
    int window_tiles = window_tiles_of(work_tile), tile[3], token[C.loop_boxes][3];
    share mine = share_of(window_tiles + (C.extra ? args.tiling.extra_tiles : 0));
    tile_at(work_tile, mine.begin, tile);
    int t = mine.begin;
    for (; t < nh_min(mine.end, window_tiles); t++, n = next(n)) {
        const tile_boxes boxes = boxes_of(work_tile.tiles[LOOP_SECOND], tile);
        NH_UNROLL for (int i = 0; i < C.loop_boxes; i++)
            loop_token(args, work_tile, boxes.box[i], token[i]);
        fetch_pair<C.k_map, C.v_map>(args, s, map, map + 1, work_tile, token, n);
        next_tile(work_tile, tile);
    }
    for (; C.extra && t < mine.end; t++, n = next(n)) {
        int first[1][3] = {{0, 0, (t - window_tiles) * LOOP_ROWS}};
        fetch_pair<0, 0>(args, s, map + 2, map + 3, work_tile, first, n);
    }
}

} // namespace nh_wgmma90
