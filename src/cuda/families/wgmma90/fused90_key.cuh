/* What the backward kernels of sm_90 share whose blocks own key tiles and loop over the queries that attend them, the
 * inverse neighborhood, of every query head that shares the key head. Per query tile, with keys for rows:
 *     S = K Q^T, dP = V dO^T, P = exp(S - LSE), dS = P * (dP - delta), dV += P dO, dK += dS Q
 * with K, V, Q and dO in shared memory, P and dS in registers.
 *
 * Knobs: those of fused90_forward.cu, where NH_INVERSE is 1, owned rows are keys and the loop's rows queries;
 * NH_D_O_MAP; NH_SUM_D_K and NH_SUM_D_V, which sums are computed (default: both); in split90_key.cu NH_SKIPPING and
 * NH_OWN_PLACES. */
#pragma once
#include "fused90_kv_loop.cuh"

#ifndef NH_SUM_D_K
#define NH_SUM_D_K 1
#define NH_SUM_D_V 1
#endif

#define K_BYTES TILE_BYTES(OWN_ROWS, NH_DIM)
/* A launch for dV alone needs no V. */
#define V_BYTES (NH_SUM_D_K ? TILE_BYTES(OWN_ROWS, NH_DIM_V) : 0)
#define Q_BYTES TILE_BYTES(NH_LOOP_ROWS, NH_DIM)
#define D_O_BYTES TILE_BYTES(NH_LOOP_ROWS, NH_DIM_V)
#define STAGE_BYTES (Q_BYTES + D_O_BYTES)
#define STATS_BYTES (NH_LOOP_ROWS * 16)
#define SCORES (NH_LOOP_ROWS / 2)

#define MAP_K 0
#define MAP_V 1
#define MAP_Q 2
#define MAP_D_O 3
#define MAP_STATS 4
#define KEY_MAPS 5

struct key_layout {
    unsigned k, v, stage, stats, own_full, own_free, full, free;
};

/* Lays out shared memory; returns its end. */
__device__ __forceinline__ unsigned lay_out(key_layout &s, unsigned base) {
    s.k = base;
    s.v = s.k + NH_OWN_PLACES * K_BYTES;
    s.stage = s.v + NH_OWN_PLACES * V_BYTES;
    s.stats = s.stage + NH_STAGES * STAGE_BYTES;
    s.own_full = s.stats + NH_STAGES * STATS_BYTES;
    s.own_free = s.own_full + 8 * NH_OWN_PLACES;
    s.full = s.own_free + 8 * NH_OWN_PLACES;
    s.free = s.full + 8 * NH_STAGES;
    return s.free + 8 * NH_STAGES;
}

__device__ __forceinline__ void init_barriers(const key_layout &s) {
    init_ring(s.own_full, s.own_free, NH_OWN_PLACES);
    init_ring(s.full, s.free, NH_STAGES);
}

__device__ __forceinline__ void clear_padding(const key_layout &s) {
    clear_padding_rows(s.k, NH_DIM);
    if (NH_SUM_D_K) clear_padding_rows(s.v, NH_DIM_V);
}

#define STAGE_AT(n) (s.stage + SLOT(n) * STAGE_BYTES)
#define STATS_AT(n) (s.stats + SLOT(n) * STATS_BYTES)

#define STATS_MAP (NH_FAR ? 4 : 3)

/* Fetches tile n of the block's loops: Q, dO and statistics of a head from a token on. */
template <class WorkTile>
__device__ __forceinline__ void fetch_queries(const nh_tiled_args &args, const nh_tensor_map *map, const key_layout &s,
                                              unsigned n, const WorkTile &work_tile, int head, const int token[3]) {
    int heads = (int)args.heads, batch = work_tile.batch, stats[5];
    int q_head = head_or_origin<NH_Q_MAP>(args, NH_Q, work_tile, head);
    int d_o_head = head_or_origin<NH_D_O_MAP>(args, NH_D_O, work_tile, head);
    int stats_head = head_or_origin<STATS_MAP, 4>(args, NH_DELTA, work_tile, head);
    unsigned full = s.full + 8 * SLOT(n);
    nh_barrier_wait(s.free + 8 * SLOT(n), PHASE(n) ^ 1);
    nh_barrier_expect(full, Q_BYTES + D_O_BYTES + STATS_BYTES);
    fetch_more<NH_Q_MAP>(STAGE_AT(n), map + MAP_Q, full, NH_LOOP_ROWS, NH_DIM, q_head, heads, token, batch);
    fetch_more<NH_D_O_MAP>(STAGE_AT(n) + Q_BYTES, map + MAP_D_O, full, NH_LOOP_ROWS, NH_DIM_V, d_o_head, heads, token,
                           batch);
    place<STATS_MAP>(stats, 0, stats_head, heads, 4, token, batch);
    nh_copy_box(STATS_AT(n), map + MAP_STATS, full, stats);
}

/* Fetches K and V of a work tile to their place. */
__device__ __forceinline__ void fetch_own_keys(const nh_tiled_args &args, const nh_tensor_map *map, const key_layout &s,
                                               unsigned place, const nh_work_tile &work_tile, int kv_heads) {
    const unsigned own_full = s.own_full + 8 * place;
    fetch_own<NH_K_MAP>(args, s.k + place * K_BYTES, map + MAP_K, own_full, NH_DIM, work_tile,
                        head_or_origin<NH_K_MAP>(args, NH_K, work_tile, work_tile.head), kv_heads);
    if (NH_SUM_D_K)
        fetch_own<NH_V_MAP>(args, s.v + place * V_BYTES, map + MAP_V, own_full, NH_DIM_V, work_tile,
                            head_or_origin<NH_V_MAP>(args, NH_V, work_tile, work_tile.head), kv_heads);
}

/* The loop of the producer. claim(n): the number of the block's n-th work tile. */
template <class Maps, class Claim>
__device__ __forceinline__ void fetch_work_tiles(const nh_tiled_args &args, const Maps &maps, const key_layout &s,
                                                 Claim claim) {
    unsigned n = 0, work_tiles = 0;
    int kv_heads = (int)args.kv_heads, group_heads = (int)args.heads / kv_heads, token[3];
    nh_work_tile work_tile;
    for (int index; (index = claim((int)work_tiles)) < args.tiling.work_tiles;) {
        nh_work_tile_at(args, index, work_tile);
        const unsigned place = OWN_PLACE(work_tiles), own_full = s.own_full + 8 * place;
        if (work_tiles >= NH_OWN_PLACES)
            nh_barrier_wait(s.own_free + 8 * place, OWN_PHASE(work_tiles - NH_OWN_PLACES));
        work_tiles++;
        nh_barrier_expect(own_full, OWN_BYTES(NH_DIM) + NH_SUM_D_K * OWN_BYTES(NH_DIM_V));
        const nh_tensor_map *map = maps_of(args, work_tile, maps.map, KEY_MAPS);
        const nh_tensor_map *loop_map = NH_REGIONS ? maps_of<false>(args, work_tile, maps.map, KEY_MAPS) : map;
        fetch_own_keys(args, map, s, place, work_tile, kv_heads);
        int tiles = work_tile.tiles[0] * work_tile.tiles[1] * work_tile.tiles[2], tile[3];
        share mine = share_of(group_heads * tiles);
        int head = work_tile.head * group_heads + mine.begin / tiles;
        tile_at(work_tile, mine.begin % tiles, tile);
        for (int left = mine.end - mine.begin; left > 0; left--, n = NEXT(n)) {
            loop_token(args, work_tile, tile, token);
            fetch_queries(args, loop_map, s, n, work_tile, head, token);
            next_tile(work_tile, tile);
            if (tile[LOOP_LAST] < work_tile.tiles[LOOP_LAST]) continue;
            tile[LOOP_LAST] = 0;
            head++;
        }
    }
}

/* d_v += weights times dO, 64 x NH_DIM_V. */
__device__ __forceinline__ void add_d_v(float *d_v, unsigned *weight, unsigned long long d_o) {
#pragma unroll
    for (int i = 0; i < NH_LOOP_ROWS / 16; i++)
        NH_WGMMA_HELD(NH_DIM_V16, NH_DIM_V, d_v, weight + 4 * i, d_o + i * (16 * ROW_BYTES(NH_DIM_V) >> 4), 1, 1);
}

__device__ __forceinline__ void issue_d_v(float *d_v, unsigned *weight, unsigned long long d_o) {
    add_d_v(d_v, weight, d_o);
    NH_WGMMA_COMMIT();
}

__device__ __forceinline__ void issue_d_k(float *d_k, unsigned *d_s, unsigned long long q) {
#pragma unroll
    for (int i = 0; i < NH_LOOP_ROWS / 16; i++)
        NH_WGMMA_HELD(NH_DIM16, NH_DIM, d_k, d_s + 4 * i, q + i * (16 * ROW_BYTES(NH_DIM) >> 4), 1, 1);
    NH_WGMMA_COMMIT();
}

/* Address of the statistics of this lane's columns, the first two of each group of 8. The addition is hidden from the
 * compiler: from the alignment of the stages it would make a bitwise or for each column, and keep all of these in
 * registers. */
__device__ __forceinline__ unsigned own_stats(unsigned stats) {
    unsigned own;
    asm volatile("add.u32 %0, %1, %2;" : "=r"(own) : "r"(stats), "r"(32 * (threadIdx.x & 3)));
    return own;
}

/* LSE (in base 2) and delta of one query of the loop. */
__device__ __forceinline__ float2 stats_at(unsigned own, int column) {
    float2 both;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(both.x), "=f"(both.y) : "r"(own + 16 * column));
    return both;
}

/* Turns scores into weights. */
__device__ __forceinline__ void weigh(float *score, unsigned own, float scale) {
#pragma unroll
    for (int j = 0; j < NH_LOOP_ROWS / 8; j++) {
        float even = stats_at(own, 8 * j).x, odd = stats_at(own, 8 * j + 1).x;
        score[4 * j + 0] = exp2_of(fmaf(score[4 * j + 0], scale, -even));
        score[4 * j + 1] = exp2_of(fmaf(score[4 * j + 1], scale, -odd));
        score[4 * j + 2] = exp2_of(fmaf(score[4 * j + 2], scale, -even));
        score[4 * j + 3] = exp2_of(fmaf(score[4 * j + 3], scale, -odd));
    }
}

__device__ __forceinline__ void pack_d_s(unsigned *packed, const float *weight, const float *d_p, unsigned own) {
#pragma unroll
    for (int j = 0; j < NH_LOOP_ROWS / 8; j++) {
        float even = stats_at(own, 8 * j).y, odd = stats_at(own, 8 * j + 1).y;
        packed[2 * j] = nh_pack(weight[4 * j] * (d_p[4 * j] - even), weight[4 * j + 1] * (d_p[4 * j + 1] - odd));
        packed[2 * j + 1] =
            nh_pack(weight[4 * j + 2] * (d_p[4 * j + 2] - even), weight[4 * j + 3] * (d_p[4 * j + 3] - odd));
    }
}

/* This warpgroup's 64 keys: operands of their products, and their sums. */
struct key_rows {
    unsigned long long k, v; /* with several own places, those of the first */
    float d_k[NH_DIM / 2], d_v[NH_DIM_V / 2];
};

__device__ __forceinline__ void key_rows_set(key_rows &r, const key_layout &s, int warpgroup) {
    r.k = nh_descriptor(s.k + warpgroup * 64 * ROW_BYTES(NH_DIM), ROW_BYTES(NH_DIM), 16);
    r.v = nh_descriptor(s.v + warpgroup * 64 * ROW_BYTES(NH_DIM_V), ROW_BYTES(NH_DIM_V), 16);
}

__device__ __forceinline__ void key_rows_clear(key_rows &r) {
#pragma unroll
    for (int i = 0; i < NH_DIM / 2; i++)
        r.d_k[i] = 0;
#pragma unroll
    for (int i = 0; i < NH_DIM_V / 2; i++)
        r.d_v[i] = 0;
}

/* Processes tile n of this block's loops; after the last of a work tile the owned tiles are released. mask(score) turns
 * products into scores, with minus infinity for pairs that are masked. */
template <class Mask>
__device__ __forceinline__ void take_queries(key_rows &r, const key_layout &s, unsigned n, bool last, float scale,
                                             Mask mask) {
    unsigned q_tile = STAGE_AT(n), d_o_tile = q_tile + Q_BYTES, stats = own_stats(STATS_AT(n));
    unsigned weight[SCORES / 2], d_s[SCORES / 2];
    float score[SCORES], d_p[SCORES];
    nh_barrier_wait(s.full + 8 * SLOT(n), PHASE(n));
    NH_WGMMA_FENCE();
    ISSUE_ROWS(NH_DIM, score, r.k, nh_descriptor(q_tile, ROW_BYTES(NH_DIM), 16));
#if NH_SUM_D_K
    ISSUE_ROWS(NH_DIM_V, d_p, r.v, nh_descriptor(d_o_tile, ROW_BYTES(NH_DIM_V), 16));
#endif
    NH_WGMMA_WAIT(NH_SUM_D_K);
    mask(score);
    weigh(score, stats, scale);
    if (NH_SUM_D_V) pack_weights(weight, score);
    NH_WGMMA_WAIT(0);
    if (last) release(s.own_free);
    if (NH_SUM_D_K) pack_d_s(d_s, score, d_p, stats);
    NH_WGMMA_FENCE();
#if NH_SUM_D_V
    issue_d_v(r.d_v, weight, nh_descriptor(d_o_tile, ROW_BYTES(NH_DIM_V), NH_LOOP_ROWS * ROW_BYTES(NH_DIM_V)));
#endif
#if NH_SUM_D_K
    issue_d_k(r.d_k, d_s, nh_descriptor(q_tile, ROW_BYTES(NH_DIM), NH_LOOP_ROWS * ROW_BYTES(NH_DIM)));
#endif
    NH_WGMMA_WAIT(0);
    release_warp(s.free + 8 * SLOT(n));
}

/* Stores a work tile's sums. Returns zero, or NaN if one is not finite. */
__device__ __forceinline__ float finish_keys(const nh_tiled_args &args, const nh_work_tile &work_tile, int row,
                                             const key_rows &r) {
    if (NH_SUM_D_K) finish_rows<NH_DIM>(args, work_tile, NH_D_K, row, r.d_k, (float)args.scale);
    if (NH_SUM_D_V) finish_rows<NH_DIM_V>(args, work_tile, NH_D_V, row, r.d_v, 1);
    return doubt<NH_DIM / 2>(r.d_k) + doubt<NH_DIM_V / 2>(r.d_v);
}
