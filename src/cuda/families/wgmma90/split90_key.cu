/* dK and dV of the backward pass for sm_90: see fused90_key.cuh. Nothing is added atomically. If registers do not hold
 * the sums of both, there is a launch for each. This launch needs only the statistics, for which the launch for dQ has
 * waited before this one could begin; so it only has to make sure that it does not end before that one. */
#include "fused90_bias.cuh"
#include "fused90_cluster.cuh"
#include "fused90_key.cuh"
#include "fused90_repair.cuh"
#include "naive_backward_key.cuh"
#include "overlap.cuh"

namespace nh_wgmma90 {

struct maps {
    nh_tensor_map map[KEY_MAPS * MAP_VARIANTS];
};

NH_DEVICE void init_barriers(const layout &s) {
    init_key_barriers(s);
    if (C.biased) init_bias_ring(s.bias_full, s.bias_free);
}

/* The producer of kernels that skip: fetches the loop tiles line after line. */
NH_DEVICE void fetch_work_tiles_by_lines(const nh_tiled_args &args, const maps &maps, const layout &s) {
    unsigned n = 0, work_tiles = 0;
    const int kv_heads = (int)args.kv_heads, group_heads = (int)args.heads / kv_heads;
    nh_work_tile work_tile;
    for (work_rounds r = first_round(); index_in(r) < args.tiling.work_tiles; next_round(r)) {
        nh_work_tile_at<T>(args, index_in(r), work_tile);
        const nh_tensor_map *map = fetch_own_keys(args, maps.map, s, work_tile, work_tiles, kv_heads);
        const int end = (work_tile.head + 1) * group_heads;
        for (int head = end - group_heads; head < end; head++)
            fetch_lines(args, work_tile, [&](const int(&token)[3]) {
                fetch_queries(args, map, s, n, work_tile, head, token);
                n = next(n);
            });
    }
}

NH_DEVICE void produce(const nh_tiled_args &args, const maps &maps, const layout &s) {
    if constexpr (PASSES_OVER) {
        fetch_work_tiles_by_lines(args, maps, s);
    } else {
        fetch_work_tiles(args, maps, s, nh_work_tile_index<T>, [&](int index, nh_work_tile &work_tile) {
            nh_work_tile_at<T>(args, index, work_tile);
        });
    }
}

NH_DEVICE void help(const nh_tiled_args &args, const layout &s) {
    lay_biases(args, s, [](const bias_box &, bool) {});
}

/* Skips tile n, which must have landed: otherwise a stage that is free already could be released again. */
NH_DEVICE void pass_over(const layout &s, const nh_work_tile &work_tile, kv_loop &loop, unsigned &n) {
    nh_barrier_wait(s.full + 8 * slot(n), phase(n));
    release_warp(s.free + 8 * slot(n));
    n = next(n);
    advance(loop, work_tile);
}

/* P and dS of a tile, packed as operands. */
struct packed_tile {
    unsigned weight[SCORES / 2], d_s[SCORES / 2];
};

/* dV += P dO, dK += dS Q of tile n, as one wgmma group. */
NH_DEVICE void issue_sums(const layout &s, unsigned n, packed_tile &packed, key_rows &r) {
    const unsigned q_tile = stage_at(s, n), d_o_tile = q_tile + Q_BYTES;
    add_d_v(r.d_v, packed.weight, nh_descriptor(d_o_tile, chunk_bytes(C.dim_v), LOOP_ROWS * chunk_bytes(C.dim_v)));
    issue_d_k(r.d_k, packed.d_s, nh_descriptor(q_tile, chunk_bytes(C.dim), LOOP_ROWS * chunk_bytes(C.dim)));
}

/* Issues the products of tile n, with the own rows at `place`, that only need what was fetched. Between them are dV and
 * dK of the tile before, unless this is the first of its line: these overlap with this tile's exponentials. */
template <bool FIRST>
NH_DEVICE void issue_tile(const layout &s, unsigned n, unsigned before, unsigned place, float *score, float *d_p,
                          packed_tile &packed, key_rows &r) {
    nh_barrier_wait(s.full + 8 * slot(n), phase(n));
    nh_wgmma_fence();
    issue_rows<C.dim>(score, r.k + place * (K_BYTES >> 4), nh_descriptor(stage_at(s, n), chunk_bytes(C.dim), 16));
    if (FIRST) {
        nh_wgmma_commit(); /* an empty group, so that the number of groups is the same for all tiles */
    } else {
        issue_sums(s, before, packed, r);
    }
    issue_rows<C.dim_v>(d_p, r.v + place * (V_BYTES >> 4),
               nh_descriptor(stage_at(s, n) + Q_BYTES, chunk_bytes(C.dim_v), 16));
}

/* A head of a work tile: the place of its own rows; whether this is the last of the heads, after which they are
 * released; the factor from products to scores in base 2. */
struct head_turn {
    unsigned place;
    bool last;
    float scale;
};

/* Processes the tiles of a line of which the warpgroup's keys see something. No stage is held between lines, where
 * tiles are skipped. */
NH_DEVICE void take_line(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile,
                         const seen_tiles &mine, const head_turn &turn, kv_loop &loop, unsigned &n, key_rows &r) {
    unsigned before = n;
    packed_tile packed;
    float score[SCORES], d_p[SCORES];
    plane_bits seen;
    issue_tile<true>(s, n, before, turn.place, score, d_p, packed, r);
    for (;;) {
        const unsigned stats = own_stats(stats_at(s, n));
        nh_wgmma_wait<2>();
        const bool sees = mask_seen(args, loop, loop.tile[C.stack] == mine.begin, score, seen);
        if (sees) weigh(score, stats, turn.scale);
        nh_wgmma_wait<0>();
        if (before != n) release_warp(s.free + 8 * slot(before));
        if (sees) {
            pack_weights(packed.weight, score);
            pack_d_s(packed.d_s, score, d_p, stats);
        } else {
            NH_UNROLL for (int i = 0; i < SCORES / 2; i++)
                packed.weight[i] = packed.d_s[i] = 0;
        }
        before = n;
        n = next(n);
        if (!next_of_line(loop, work_tile, mine)) break;
        issue_tile<false>(s, n, before, turn.place, score, d_p, packed, r);
    }
    if (turn.last && loop.t > mine.last) release(s.own_free + 8 * turn.place);
    nh_wgmma_fence();
    issue_sums(s, before, packed, r);
    nh_wgmma_wait<0>();
    release_warp(s.free + 8 * slot(before));
}

/* Processes the loop over the queries of one head. */
NH_DEVICE void take_head(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile,
                         const seen_tiles &mine, const head_turn &turn, kv_loop &loop, unsigned &n, key_rows &r) {
    kv_loop_restart(loop);
    while (loop.t <= mine.last) {
        while (outside_seen(loop, mine))
            pass_over(s, work_tile, loop, n);
        take_line(args, s, work_tile, mine, turn, loop, n, r);
    }
    while (loop.t <= loop.last)
        pass_over(s, work_tile, loop, n);
}
/* Stores a work tile's sums, which the cluster's blocks share. Returns zero, or NaN if one is not finite. */
NH_DEVICE float finish_shared_keys(const nh_tiled_args &args, const nh_work_tile &work_tile, unsigned sums, int row,
                                   const key_rows &r, bool counts) {
    float zero = 0;
    if (C.sum_d_k)
        zero += finish_shared_rows<C.dim>(args, work_tile, NH_D_K, sums, row, r.d_k, counts, (float)args.scale);
    if (C.sum_d_v) zero += finish_shared_rows<C.dim_v>(args, work_tile, NH_D_V, sums, row, r.d_v, counts, 1);
    sync_cluster();
    return zero;
}

/* Stores a work tile's sums. Returns zero, or NaN if one is not finite. */
NH_DEVICE float finish_work_tile(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile, int row,
                                 const key_rows &r, bool counts) {
    if constexpr (C.cluster > 1) {
        return finish_shared_keys(args, work_tile, s.k, row, r, counts);
    } else {
        return finish_keys(args, work_tile, row, r);
    }
}

/* The consumers where warpgroups skip tiles; work tiles come from the producer. Returns zero, or NaN as above. */
NH_DEVICE float consume_lines(const nh_tiled_args &args, const layout &s, int warpgroup, int row, float scale,
                              key_rows &r) {
    const int group_heads = (int)(args.heads / args.kv_heads);
    unsigned n = 0, work_tiles = 0;
    float zero = 0;
    nh_work_tile work_tile;
    kv_loop loop;
    for (work_rounds rounds = first_round(); index_in(rounds) < args.tiling.work_tiles; next_round(rounds)) {
        const unsigned place = own_place(work_tiles);
        seen_tiles mine;
        nh_barrier_wait(s.own_full + 8 * place, own_phase(work_tiles));
        work_tiles++;
        work_tile = work_tile_at(place);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        key_rows_clear(r);
        find_seen_tiles(args, work_tile, warpgroup, loop, mine);
        for (int left = group_heads; left > 0; left--)
            take_head(args, s, work_tile, mine, {place, left == 1, scale}, loop, n, r);
        zero += finish_work_tile(args, s, work_tile, row, r, true);
    }
    return zero;
}

/* The consumers where they multiply all tiles, or those of the block's share of a loop. */
NH_DEVICE float consume_tiles(const nh_tiled_args &args, const layout &s, int warpgroup, int row, float scale,
                              key_rows &r) {
    const int group_heads = (int)(args.heads / args.kv_heads);
    const bias_places bias_place = bias_places_of(row);
    unsigned n = 0, work_tiles = 0;
    float zero = 0;
    nh_work_tile work_tile;
    kv_loop loop;
    for (int round = 0, index; (index = nh_work_tile_index<T>(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at<T>(args, index, work_tile);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        key_rows_clear(r);
        const unsigned place = own_place(work_tiles);
        nh_barrier_wait(s.own_full + 8 * place, own_phase(work_tiles));
        work_tiles++;
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
        zero += finish_work_tile(args, s, work_tile, row, r, loop.counts);
    }
    return zero;
}

/* ---- repair (fused90_repair.cuh) ---- */

NH_DEVICE bool keys_need_repair(const nh_cuda_args &args, const nh_query &key) {
    return (C.sum_d_k && needs_repair<C.dim>(args, NH_D_K, key)) ||
           (C.sum_d_v && needs_repair<C.dim_v>(args, NH_D_V, key));
}

/* Repairs a warp's rows after all work tiles. Called by the whole warp. zero: the sum of what finish_keys returned. */
NH_DEVICE void repair_keys(const nh_tiled_args &args, int first_row, int rows, float zero) {
    if (__any_sync(~0u, zero != 0)) repair_rows<keys_need_repair, nh_differentiate_key>(args, first_row, rows);
}

NH_DEVICE void consume(const nh_tiled_args &args, const layout &s, int warpgroup) {
    const int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    const float scale = (float)((C.biased ? 1 : args.scale) * NH_LOG2E);
    key_rows r;
    key_rows_set(r, s, warpgroup);
    const float zero = PASSES_OVER ? consume_lines(args, s, warpgroup, row, scale, r)
                                   : consume_tiles(args, s, warpgroup, row, scale, r);
    repair_keys(args, C.cluster > 1 ? first_shared_row() : row & ~15, SHARED_ROWS, zero);
}

} // namespace nh_wgmma90

using namespace nh_wgmma90;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    split90_key(NH_PARAMETERS(nh_tiled_args, struct maps)) {
    NH_TAKE_MEMBER_AND_MAPS(nh_tiled_args, struct maps)
    nh_let_next_begin();
    run_block<1, C.biased>(args, maps);
    nh_wait_for_launches();
}
