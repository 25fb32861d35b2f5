/* What the backward kernels of sm_90 share whose blocks own key tiles and loop over the queries that attend them, the
 * inverse neighborhood, of every query head that shares the key head. Per query tile, with keys for rows:
 *     S = K Q^T, dP = V dO^T, P = exp(S - LSE), dS = P * (dP - delta), dV += P dO, dK += dS Q
 * with K, V, Q and dO in shared memory, P and dS in registers. C.sum_d_k and C.sum_d_v say which sums are computed. */
#pragma once
#include "split90_skipping.cuh"

namespace nh_wgmma90 {

/* A launch for dV alone needs no V. */
constexpr int K_BYTES = tile_bytes(OWN_ROWS, C.dim), V_BYTES = C.sum_d_k ? tile_bytes(OWN_ROWS, C.dim_v) : 0,
              Q_BYTES = tile_bytes(LOOP_ROWS, C.dim), D_O_BYTES = tile_bytes(LOOP_ROWS, C.dim_v),
              STAGE_BYTES = Q_BYTES + D_O_BYTES, STATS_BYTES = LOOP_ROWS * 16, SCORES = LOOP_ROWS / 2;

/* Indices of maps. */
enum { MAP_K, MAP_V, MAP_Q, MAP_D_O, MAP_STATS, KEY_MAPS };

NH_DEVICE void init_key_barriers(const layout &s) {
    init_ring(s.own_full, s.own_free, C.own_places);
    init_ring(s.full, s.free, C.stages);
}

NH_DEVICE void clear_padding(const layout &s) {
    clear_padding_rows(s.k, C.dim);
    if (C.sum_d_k) clear_padding_rows(s.v, C.dim_v);
}

NH_DEVICE unsigned stage_at(const layout &s, unsigned n) {
    return s.stage + slot(n) * STAGE_BYTES;
}

NH_DEVICE unsigned stats_at(const layout &s, unsigned n) {
    return s.stats + slot(n) * STATS_BYTES;
}

constexpr int STATS_MAP = C.far_axes ? 4 : 3;

/* Fetches tile n of the block's loops: Q, dO and statistics of a head from a token on. */
template <class WorkTile>
NH_DEVICE void fetch_queries(const nh_tiled_args &args, const nh_tensor_map *map, const layout &s, unsigned n,
                             const WorkTile &work_tile, int head, const int token[3]) {
    int heads = (int)args.heads, batch = work_tile.batch, stats[5];
    int q_head = head_or_origin<C.q_map>(args, NH_Q, work_tile, head);
    int d_o_head = head_or_origin<C.d_o_map>(args, NH_D_O, work_tile, head);
    int stats_head = head_or_origin<STATS_MAP, 4>(args, NH_DELTA, work_tile, head);
    unsigned full = s.full + 8 * slot(n);
    nh_barrier_wait(s.free + 8 * slot(n), phase(n) ^ 1);
    nh_barrier_expect(full, Q_BYTES + D_O_BYTES + STATS_BYTES);
    fetch_more<C.q_map, LOOP_ROWS, C.dim>(stage_at(s, n), map + MAP_Q, full, q_head, heads, token, batch);
    fetch_more<C.d_o_map, LOOP_ROWS, C.dim_v>(stage_at(s, n) + Q_BYTES, map + MAP_D_O, full, d_o_head, heads, token,
                                              batch);
    place<STATS_MAP>(stats, 0, stats_head, heads, 4, token, batch);
    nh_copy_box(stats_at(s, n), map + MAP_STATS, full, stats);
}

/* Fetches K and V of the block's next work tile once their place is free. work_tiles: how many it had before;
 * incremented. Returns the maps of the tile's loop. */
NH_DEVICE const nh_tensor_map *fetch_own_keys(const nh_tiled_args &args, const nh_tensor_map *maps, const layout &s,
                                              const nh_work_tile &work_tile, unsigned &work_tiles, int kv_heads) {
    const unsigned place = own_place(work_tiles), own_full = s.own_full + 8 * place;
    if (work_tiles >= C.own_places) nh_barrier_wait(s.own_free + 8 * place, own_phase(work_tiles - C.own_places));
    work_tiles++;
    if (PASSES_OVER) work_tile_at(place) = work_tile;
    nh_barrier_expect(own_full, own_bytes(C.dim) + C.sum_d_k * own_bytes(C.dim_v));
    const nh_tensor_map *map = maps_of(args, work_tile, maps, KEY_MAPS);
    const int k_head = head_or_origin<C.k_map>(args, NH_K, work_tile, work_tile.head);
    fetch_own<C.k_map, C.dim>(args, s.k + place * K_BYTES, map + MAP_K, own_full, work_tile, k_head, kv_heads);
    if (C.sum_d_k) {
        const int v_head = head_or_origin<C.v_map>(args, NH_V, work_tile, work_tile.head);
        fetch_own<C.v_map, C.dim_v>(args, s.v + place * V_BYTES, map + MAP_V, own_full, work_tile, v_head, kv_heads);
    }
    return NH_REGIONS ? maps_of<false>(args, work_tile, maps, KEY_MAPS) : map;
}

/* The loop of the producer. claim(n): the number of the block's n-th work tile; locate(index, work_tile): finds it. */
template <class Maps, class Claim, class Locate>
NH_DEVICE void fetch_work_tiles(const nh_tiled_args &args, const Maps &maps, const layout &s, Claim claim,
                                Locate locate) {
    unsigned n = 0, work_tiles = 0;
    int kv_heads = (int)args.kv_heads, group_heads = (int)args.heads / kv_heads, token[3];
    nh_work_tile work_tile;
    for (int index; (index = claim((int)work_tiles)) < args.tiling.work_tiles;) {
        locate(index, work_tile);
        const nh_tensor_map *map = fetch_own_keys(args, maps.map, s, work_tile, work_tiles, kv_heads);
        int tiles = work_tile.tiles[0] * work_tile.tiles[1] * work_tile.tiles[2], tile[3];
        share mine = share_of(group_heads * tiles);
        int head = work_tile.head * group_heads + mine.begin / tiles;
        tile_at(work_tile, mine.begin % tiles, tile);
        for (int left = mine.end - mine.begin; left > 0; left--, n = next(n)) {
            loop_token(args, work_tile, tile, token);
            fetch_queries(args, map, s, n, work_tile, head, token);
            next_tile(work_tile, tile);
            if (tile[LOOP_LAST] < work_tile.tiles[LOOP_LAST]) continue;
            tile[LOOP_LAST] = 0;
            head++;
        }
    }
}

/* d_v += weights times dO, 64 x C.dim_v. */
NH_DEVICE void add_d_v(float *d_v, unsigned *weight, unsigned long long d_o) {
#if !NH_WIDE_VALUES /* no product has so many columns, and dK needs none */
    NH_UNROLL for (int i = 0; i < LOOP_ROWS / 16; i++)
        nh_wgmma_held<C.dim_v, 1, 1>(d_v, weight + 4 * i, d_o + i * (16 * chunk_bytes(C.dim_v) >> 4));
#endif
}

NH_DEVICE void issue_d_v(float *d_v, unsigned *weight, unsigned long long d_o) {
    add_d_v(d_v, weight, d_o);
    nh_wgmma_commit();
}

NH_DEVICE void issue_d_k(float *d_k, unsigned *d_s, unsigned long long q) {
    NH_UNROLL for (int i = 0; i < LOOP_ROWS / 16; i++)
        nh_wgmma_held<C.dim, 1, 1>(d_k, d_s + 4 * i, q + i * (16 * chunk_bytes(C.dim) >> 4));
    nh_wgmma_commit();
}

/* Address of the statistics of this lane's columns, the first two of each group of 8. The addition is hidden from the
 * compiler, which would else make a bitwise or for each column, and keep all of these in registers. */
NH_DEVICE unsigned own_stats(unsigned stats) {
    unsigned own;
    asm volatile("add.u32 %0, %1, %2;" : "=r"(own) : "r"(stats), "r"(32 * (threadIdx.x & 3)));
    return own;
}

/* LSE (in base 2) and delta of one query of the loop. */
NH_DEVICE float2 stats_of_column(unsigned own, int column) {
    float2 both;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(both.x), "=f"(both.y) : "r"(own + 16 * column));
    return both;
}

NH_DEVICE void weigh(float *score, unsigned own, float scale) {
    NH_UNROLL for (int j = 0; j < LOOP_ROWS / 8; j++) {
        float even = stats_of_column(own, 8 * j).x, odd = stats_of_column(own, 8 * j + 1).x;
        score[4 * j + 0] = exp2_of(fmaf(score[4 * j + 0], scale, -even));
        score[4 * j + 1] = exp2_of(fmaf(score[4 * j + 1], scale, -odd));
        score[4 * j + 2] = exp2_of(fmaf(score[4 * j + 2], scale, -even));
        score[4 * j + 3] = exp2_of(fmaf(score[4 * j + 3], scale, -odd));
    }
}

NH_DEVICE void pack_d_s(unsigned *packed, const float *weight, const float *d_p, unsigned own) {
    NH_UNROLL for (int j = 0; j < LOOP_ROWS / 8; j++) {
        float even = stats_of_column(own, 8 * j).y, odd = stats_of_column(own, 8 * j + 1).y;
        packed[2 * j] = nh_pack(weight[4 * j] * (d_p[4 * j] - even), weight[4 * j + 1] * (d_p[4 * j + 1] - odd));
        packed[2 * j + 1] =
            nh_pack(weight[4 * j + 2] * (d_p[4 * j + 2] - even), weight[4 * j + 3] * (d_p[4 * j + 3] - odd));
    }
}

/* This warpgroup's 64 keys: operands of their products, and their sums. */
struct key_rows {
    unsigned long long k, v; /* with several own places, those of the first */
    float d_k[C.dim / 2], d_v[C.dim_v / 2];
};

NH_DEVICE void key_rows_set(key_rows &r, const layout &s, int warpgroup) {
    r.k = nh_descriptor(s.k + warpgroup * 64 * chunk_bytes(C.dim), chunk_bytes(C.dim), 16);
    r.v = nh_descriptor(s.v + warpgroup * 64 * chunk_bytes(C.dim_v), chunk_bytes(C.dim_v), 16);
}

NH_DEVICE void key_rows_clear(key_rows &r) {
    NH_UNROLL for (int i = 0; i < C.dim / 2; i++)
        r.d_k[i] = 0;
    NH_UNROLL for (int i = 0; i < C.dim_v / 2; i++)
        r.d_v[i] = 0;
}

/* Processes tile n of this block's loops; after the last of a work tile the owned tiles are released. mask(score) turns
 * products into scores, with minus infinity for pairs that are masked. */
template <class Mask>
NH_DEVICE void take_queries(key_rows &r, const layout &s, unsigned n, bool last, float scale, Mask mask) {
    unsigned q_tile = stage_at(s, n), d_o_tile = q_tile + Q_BYTES, stats = own_stats(stats_at(s, n));
    unsigned weight[SCORES / 2], d_s[SCORES / 2];
    float score[SCORES], d_p[SCORES];
    nh_barrier_wait(s.full + 8 * slot(n), phase(n));
    nh_wgmma_fence();
    issue_rows<C.dim>(score, r.k, nh_descriptor(q_tile, chunk_bytes(C.dim), 16));
    if (C.sum_d_k) issue_rows<C.dim_v>(d_p, r.v, nh_descriptor(d_o_tile, chunk_bytes(C.dim_v), 16));
    nh_wgmma_wait<C.sum_d_k>();
    mask(score);
    weigh(score, stats, scale);
    if (C.sum_d_v) pack_weights(weight, score);
    nh_wgmma_wait<0>();
    if (last) release(s.own_free);
    if (C.sum_d_k) pack_d_s(d_s, score, d_p, stats);
    nh_wgmma_fence();
    if (C.sum_d_v)
        issue_d_v(r.d_v, weight, nh_descriptor(d_o_tile, chunk_bytes(C.dim_v), LOOP_ROWS * chunk_bytes(C.dim_v)));
    if (C.sum_d_k) issue_d_k(r.d_k, d_s, nh_descriptor(q_tile, chunk_bytes(C.dim), LOOP_ROWS * chunk_bytes(C.dim)));
    nh_wgmma_wait<0>();
    release_warp(s.free + 8 * slot(n));
}

/* Stores a work tile's sums. Returns zero, or NaN if one is not finite. */
NH_DEVICE float finish_keys(const nh_tiled_args &args, const nh_work_tile &work_tile, int row, const key_rows &r) {
    if (C.sum_d_k) finish_rows<C.dim>(args, work_tile, NH_D_K, row, r.d_k, (float)args.scale);
    if (C.sum_d_v) finish_rows<C.dim_v>(args, work_tile, NH_D_V, row, r.d_v, 1);
    return doubt<C.dim / 2>(r.d_k) + doubt<C.dim_v / 2>(r.d_v);
}

} // namespace nh_wgmma90
