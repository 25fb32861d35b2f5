/* dK and dV of the backward pass for sm_90: see fused90_key.cuh. Nothing is added atomically. If registers do not hold
 * the sums of both, there is a launch for each. This launch needs only the statistics, for which the launch for dQ has
 * waited before this one could begin; so it only has to make sure that it does not end before that one. */
#if NH_BIASED
/* The warps beside the producer copy the bias, so they need more registers. */
#define PRODUCER_REGISTERS 56
#define CONSUMER_REGISTERS 224
#define BIAS_MOST_BATCH 4
#endif
#if NH_SKIPPING
#include "split90_skipping.cuh"
#endif
#include "fused90_bias.cuh"
#include "fused90_cluster.cuh"
#include "fused90_key_end.cuh"
#include "overlap.cuh"

struct maps {
    nh_tensor_map map[KEY_MAPS * MAP_VARIANTS];
};

struct biased_layout : key_layout {
    unsigned bias, bias_full, bias_free;
};

__device__ __forceinline__ void lay_out(biased_layout &s, unsigned base) {
    s.bias_full = lay_out((key_layout &)s, base);
    s.bias_free = s.bias_full + 8 * NH_STAGES;
    s.bias = s.bias_free + 8 * NH_STAGES;
}

__device__ __forceinline__ void init_barriers(const biased_layout &s) {
    init_barriers((const key_layout &)s);
    if (NH_BIASED) init_bias_ring(s.bias_full, s.bias_free);
}

#if NH_SKIPPING
__device__ __forceinline__ void produce(const nh_tiled_args &args, const maps &maps, const biased_layout &s) {
    unsigned n = 0, work_tiles = 0;
    const int kv_heads = (int)args.kv_heads, group_heads = (int)args.heads / kv_heads;
    nh_work_tile work_tile;
    for (work_rounds r = first_round(); index_in(r) < args.tiling.work_tiles; next_round(r)) {
        nh_work_tile_at(args, index_in(r), work_tile);
        const unsigned place = OWN_PLACE(work_tiles), own_full = s.own_full + 8 * place;
        if (work_tiles >= NH_OWN_PLACES)
            nh_barrier_wait(s.own_free + 8 * place, OWN_PHASE(work_tiles - NH_OWN_PLACES));
        work_tiles++;
        work_tile_at[place] = work_tile;
        nh_barrier_expect(own_full, OWN_BYTES(NH_DIM) + NH_SUM_D_K * OWN_BYTES(NH_DIM_V));
        const nh_tensor_map *map = maps_of(args, work_tile, maps.map, KEY_MAPS);
        const nh_tensor_map *loop_map = NH_REGIONS ? maps_of<false>(args, work_tile, maps.map, KEY_MAPS) : map;
        fetch_own_keys(args, map, s, place, work_tile, kv_heads);
        const int end = (work_tile.head + 1) * group_heads;
        for (int head = end - group_heads; head < end; head++)
            fetch_lines(args, work_tile, [&](const int(&token)[3]) {
                fetch_queries(args, loop_map, s, n, work_tile, head, token);
                n = NEXT(n);
            });
    }
}
#else
__device__ __forceinline__ void produce(const nh_tiled_args &args, const maps &maps, const biased_layout &s) {
    fetch_work_tiles(args, maps, s, nh_work_tile_index);
}
#endif

__device__ __forceinline__ void help(const nh_tiled_args &args, const biased_layout &s) {
    lay_biases(args, s.bias, s.bias_full, s.bias_free, [](const bias_box &, bool) {});
}

#if NH_SKIPPING
/* Skips tile n, which must have landed: otherwise a stage that is free already could be released again. */
__device__ __forceinline__ void pass_over(const key_layout &s, const nh_work_tile &work_tile, kv_loop &loop,
                                          unsigned &n) {
    nh_barrier_wait(s.full + 8 * SLOT(n), PHASE(n));
    release_warp(s.free + 8 * SLOT(n));
    n = NEXT(n);
    advance(loop, work_tile);
}

/* dV += P dO, dK += dS Q of tile n, as one wgmma group. */
__device__ __forceinline__ void issue_sums(const key_layout &s, unsigned n, unsigned *weight, unsigned *d_s,
                                           key_rows &r) {
    const unsigned q_tile = STAGE_AT(n), d_o_tile = q_tile + Q_BYTES;
    add_d_v(r.d_v, weight, nh_descriptor(d_o_tile, ROW_BYTES(NH_DIM_V), NH_LOOP_ROWS * ROW_BYTES(NH_DIM_V)));
    issue_d_k(r.d_k, d_s, nh_descriptor(q_tile, ROW_BYTES(NH_DIM), NH_LOOP_ROWS * ROW_BYTES(NH_DIM)));
}

/* Issues the products of tile n, with the own rows at `place`, that only need what was fetched. Between them are dV and
 * dK of the tile before, unless this is the first of its line: these overlap with this tile's exponentials. */
template <bool FIRST>
__device__ __forceinline__ void issue_tile(const key_layout &s, unsigned n, unsigned before, unsigned place,
                                           float *score, float *d_p, unsigned *weight, unsigned *d_s, key_rows &r) {
    nh_barrier_wait(s.full + 8 * SLOT(n), PHASE(n));
    NH_WGMMA_FENCE();
    ISSUE_ROWS(NH_DIM, score, r.k + place * (K_BYTES >> 4), nh_descriptor(STAGE_AT(n), ROW_BYTES(NH_DIM), 16));
    if (FIRST) {
        NH_WGMMA_COMMIT(); /* an empty group, so that the number of groups is the same for all tiles */
    } else {
        issue_sums(s, before, weight, d_s, r);
    }
    ISSUE_ROWS(NH_DIM_V, d_p, r.v + place * (V_BYTES >> 4),
               nh_descriptor(STAGE_AT(n) + Q_BYTES, ROW_BYTES(NH_DIM_V), 16));
}

/* Processes the tiles of a line of which the warpgroup's keys see something. last: this is the last of the heads of the
 * work tile, whose own rows are released after their last tile. No stage is held between lines, where tiles are
 * skipped. */
__device__ __forceinline__ void take_line(const nh_tiled_args &args, const key_layout &s, const nh_work_tile &work_tile,
                                          const part &mine, unsigned place, bool last, float scale, kv_loop &loop,
                                          unsigned &n, key_rows &r) {
    unsigned before = n, weight[SCORES / 2], d_s[SCORES / 2];
    float score[SCORES], d_p[SCORES];
    plane_bits seen;
    issue_tile<true>(s, n, before, place, score, d_p, weight, d_s, r);
    for (;;) {
        const unsigned stats = own_stats(STATS_AT(n));
        NH_WGMMA_WAIT(2);
        const bool sees = mask_seen(args, loop, loop.tile[NH_STACK] == mine.begin, score, seen);
        if (sees) weigh(score, stats, scale);
        NH_WGMMA_WAIT(0);
        if (before != n) release_warp(s.free + 8 * SLOT(before));
        if (sees) {
            pack_weights(weight, score);
            pack_d_s(d_s, score, d_p, stats);
        } else {
#pragma unroll
            for (int i = 0; i < SCORES / 2; i++)
                weight[i] = d_s[i] = 0;
        }
        before = n;
        n = NEXT(n);
        if (!next_of_line(loop, work_tile, mine)) break;
        issue_tile<false>(s, n, before, place, score, d_p, weight, d_s, r);
    }
    if (last && loop.t > mine.last) release(s.own_free + 8 * place);
    NH_WGMMA_FENCE();
    issue_sums(s, before, weight, d_s, r);
    NH_WGMMA_WAIT(0);
    release_warp(s.free + 8 * SLOT(before));
}

/* Processes the loop over the queries of one head; last: of those that share the keys. */
__device__ __forceinline__ void take_head(const nh_tiled_args &args, const key_layout &s, const nh_work_tile &work_tile,
                                          const part &mine, unsigned place, bool last, float scale, kv_loop &loop,
                                          unsigned &n, key_rows &r) {
    kv_loop_restart(loop);
    while (loop.t <= mine.last) {
        while (outside_part(loop, mine))
            pass_over(s, work_tile, loop, n);
        take_line(args, s, work_tile, mine, place, last, scale, loop, n, r);
    }
    while (loop.t <= loop.last)
        pass_over(s, work_tile, loop, n);
}
#endif

#if NH_CLUSTER > 1
/* Stores a work tile's sums, of which each block of the cluster has a part. Returns zero, or NaN if one is not
 * finite. */
__device__ __forceinline__ float finish_shared_keys(const nh_tiled_args &args, const nh_work_tile &work_tile,
                                                    unsigned sums, int row, const key_rows &r, bool counts) {
    float zero = 0;
    if (NH_SUM_D_K)
        zero += finish_shared_rows<NH_DIM>(args, work_tile, NH_D_K, sums, row, r.d_k, counts, (float)args.scale);
    if (NH_SUM_D_V) zero += finish_shared_rows<NH_DIM_V>(args, work_tile, NH_D_V, sums, row, r.d_v, counts, 1);
    sync_cluster();
    return zero;
}
#endif

__device__ __forceinline__ void consume(const nh_tiled_args &args, const biased_layout &s, int warpgroup) {
    int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    int group_heads = (int)(args.heads / args.kv_heads);
    float scale = (float)((NH_BIASED ? 1 : args.scale) * NH_LOG2E), zero = 0;
    bias_places bias_place = bias_places_of(row);
    unsigned n = 0, work_tiles = 0;
    nh_work_tile work_tile;
    kv_loop loop;
    key_rows r;
    key_rows_set(r, s, warpgroup);
#if NH_SKIPPING
    for (work_rounds rounds = first_round(); index_in(rounds) < args.tiling.work_tiles; next_round(rounds)) {
        const unsigned place = OWN_PLACE(work_tiles);
        nh_barrier_wait(s.own_full + 8 * place, OWN_PHASE(work_tiles));
        work_tiles++;
        work_tile = work_tile_at[place];
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        key_rows_clear(r);
#else
    for (int round = 0, index; (index = nh_work_tile_index(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        key_rows_clear(r);
        const unsigned place = OWN_PLACE(work_tiles);
        nh_barrier_wait(s.own_full + 8 * place, OWN_PHASE(work_tiles));
        work_tiles++;
#endif
#if NH_SKIPPING
        part mine;
        part_begin(args, work_tile, warpgroup, loop, mine);
        for (int left = group_heads; left > 0; left--)
            take_head(args, s, work_tile, mine, place, left == 1, scale, loop, n, r);
#else
        share mine = share_of(group_heads * loop.window_tiles);
        loop.t = mine.begin % loop.window_tiles;
        loop.counts = mine.counts;
        tile_at(work_tile, loop.t, loop.tile);
        for (int left = mine.end - mine.begin; left > 0; left--) {
            take_queries(r, s, n, left == 1, scale, [&](float *score) {
                bias_scores(args, s, loop, n, bias_place, score);
                mask_tile(args, loop, score);
            });
            n++;
            advance(loop, work_tile);
            if (loop.t > loop.last) kv_loop_restart(loop);
        }
#endif
#if NH_CLUSTER > 1
        zero += finish_shared_keys(args, work_tile, s.k, row, r, loop.counts);
#else
        zero += finish_keys(args, work_tile, row, r);
#endif
    }
    repair_keys(args, NH_CLUSTER > 1 ? first_shared_row() : row & ~15, SHARED_ROWS, zero);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    split90_key(const __grid_constant__ nh_tiled_args args, const __grid_constant__ maps maps) {
    nh_let_next_begin();
    run_block<biased_layout, 1, NH_BIASED>(args, maps);
    nh_wait_for_launches();
}
