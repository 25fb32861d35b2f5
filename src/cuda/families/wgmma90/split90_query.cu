/* dQ of the fused backward pass for sm_90: blocks own query tiles and loop over their keys, as the forward pass does,
 * with Q, dO, K and V in shared memory, and dS in registers. Per key tile:
 *     S = Q K^T, dP = dO V^T, dS = exp(S - LSE) * (dP - delta), dQ += dS K
 * With a bias, the warps beside the producer compute its gradient as well (fused90_bias_gradient.cuh). All sums are in
 * a fixed order. Statistics: see backward_stats.cu. */
#include "fused90_bias_gradient.cuh"
#include "fused90_cluster.cuh"
#include "fused90_keys.cuh"
#include "fused90_repair.cuh"
#include "naive_backward_query.cuh"
#include "overlap.cuh"
#include "split90_skipping.cuh"

namespace nh_wgmma90 {

constexpr int Q_BYTES = tile_bytes(OWN_ROWS, C.dim), D_O_BYTES = tile_bytes(OWN_ROWS, C.dim_v), SCORES = LOOP_ROWS / 2;

/* Indices of maps; those of the extra tokens' K and V come last. */
enum { MAP_Q, MAP_D_O, MAP_K, MAP_V, MAPS = C.extra ? 6 : 4 };

struct maps {
    nh_tensor_map map[MAPS * MAP_VARIANTS];
};

NH_DEVICE void init_barriers(const layout &s) {
    init_ring(s.own_full, s.own_free, C.own_places);
    init_rings(s);
    if (C.biased) init_gradient_barriers(s);
}

NH_DEVICE void clear_padding(const layout &s) {
    clear_padding_rows(s.q, C.dim);
    clear_padding_rows(s.d_o, C.dim_v);
}

/* Fetches Q and dO of the block's next work tile once their place is free. work_tiles: how many it had before;
 * incremented. Returns the maps of the tile's loop. */
NH_DEVICE const nh_tensor_map *fetch_own_rows(const nh_tiled_args &args, const maps &maps, const layout &s,
                                              const nh_work_tile &work_tile, unsigned &work_tiles, int heads) {
    const unsigned place = own_place(work_tiles), own_full = s.own_full + 8 * place;
    if (work_tiles >= C.own_places) nh_barrier_wait(s.own_free + 8 * place, own_phase(work_tiles - C.own_places));
    work_tiles++;
    if (PASSES_OVER) work_tile_at(place) = work_tile;
    nh_barrier_expect(own_full, own_bytes(C.dim) + own_bytes(C.dim_v));
    const nh_tensor_map *map = maps_of(args, work_tile, maps.map, MAPS);
    const int q_head = head_or_origin<C.q_map>(args, NH_Q, work_tile, work_tile.head);
    const int d_o_head = head_or_origin<C.d_o_map>(args, NH_D_O, work_tile, work_tile.head);
    fetch_own<C.q_map, C.dim>(args, s.q + place * Q_BYTES, map + MAP_Q, own_full, work_tile, q_head, heads);
    fetch_own<C.d_o_map, C.dim_v>(args, s.d_o + place * D_O_BYTES, map + MAP_D_O, own_full, work_tile, d_o_head, heads);
    return NH_REGIONS ? maps_of<false>(args, work_tile, maps.map, MAPS) : map;
}

/* The producer where warpgroups skip tiles: line after line. */
NH_DEVICE void fetch_work_tiles_by_lines(const nh_tiled_args &args, const maps &maps, const layout &s) {
    unsigned n = 0, work_tiles = 0;
    int heads = (int)args.heads;
    nh_work_tile work_tile;
    for (work_rounds r = first_round(); index_in(r) < args.tiling.work_tiles; next_round(r)) {
        nh_work_tile_at<T>(args, index_in(r), work_tile);
        const nh_tensor_map *map = fetch_own_rows(args, maps, s, work_tile, work_tiles, heads);
        fetch_lines(args, work_tile, [&](const int(&token)[3]) {
            const int box[1][3] = {{token[0], token[1], token[2]}};
            fetch_pair<C.k_map, C.v_map>(args, s, map + MAP_K, map + MAP_V, work_tile, box, n);
            n = next(n);
        });
    }
}

NH_DEVICE void fetch_work_tiles(const nh_tiled_args &args, const maps &maps, const layout &s) {
    unsigned n = 0, work_tiles = 0;
    int heads = (int)args.heads;
    nh_work_tile work_tile;
    for (int round = 0, index; (index = nh_work_tile_index<T>(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at<T>(args, index, work_tile);
        const nh_tensor_map *map = fetch_own_rows(args, maps, s, work_tile, work_tiles, heads);
        fetch_loop(args, s, map + MAP_K, work_tile, n);
    }
}

NH_DEVICE void produce(const nh_tiled_args &args, const maps &maps, const layout &s) {
    if constexpr (PASSES_OVER) {
        fetch_work_tiles_by_lines(args, maps, s);
    } else {
        fetch_work_tiles(args, maps, s);
    }
}

NH_DEVICE void help(const nh_tiled_args &args, const layout &s) {
    lay_biases_and_differentiate(args, s);
}

/* dQ += dS K: 64 x C.dim. */
NH_DEVICE void issue_d_q(float *d_q, unsigned *d_s, unsigned long long k) {
    NH_UNROLL for (int i = 0; i < LOOP_ROWS / 16; i++)
        nh_wgmma_held<C.dim, 1, 1>(d_q, d_s + 4 * i, k + i * (16 * chunk_bytes(C.dim) >> 4));
    nh_wgmma_commit();
}

NH_DEVICE unsigned long long k_across_at(const layout &s, unsigned n) {
    return nh_descriptor(s.k + slot(n) * K_BYTES, chunk_bytes(C.dim), LOOP_ROWS * chunk_bytes(C.dim));
}

/* LSE (in base 2) and delta of one row; zeros for a row outside the grid. */
NH_DEVICE float2 stats_of(const nh_tiled_args &args, const nh_work_tile &work_tile, int row) {
    long long token[3];
    if (!row_token(args, work_tile, row, token)) return make_float2(0, 0);
    const nh_cuda_tensor &t = args.tensor[NH_DELTA];
    return *(const float2 *)((const float *)t.data + work_tile.batch * t.batch + work_tile.head * t.head +
                             token[0] * t.axis[0] + token[1] * t.axis[1] + token[2] * t.axis[2]);
}

NH_DEVICE void weigh(float *score, float scale, float lse, float lse_below) {
    NH_UNROLL for (int j = 0; j < LOOP_ROWS / 8; j++) {
        score[4 * j + 0] = exp2_of(fmaf(score[4 * j + 0], scale, -lse));
        score[4 * j + 1] = exp2_of(fmaf(score[4 * j + 1], scale, -lse));
        score[4 * j + 2] = exp2_of(fmaf(score[4 * j + 2], scale, -lse_below));
        score[4 * j + 3] = exp2_of(fmaf(score[4 * j + 3], scale, -lse_below));
    }
}

/* Turns dP into dS; with a bias, 0 for masked pairs even if dP is not finite: a bias's gradient is not repaired. */
NH_DEVICE void differentiate(float *d_p, const float *weight, float delta, float delta_below) {
    NH_UNROLL for (int i = 0; i < SCORES; i++)
        d_p[i] = weight[i] * (d_p[i] - (i & 2 ? delta_below : delta));
    if (!C.biased || !__any_sync(~0u, doubt<SCORES>(d_p) != 0)) return;
    NH_UNROLL for (int i = 0; i < SCORES; i++)
        if (weight[i] == 0) d_p[i] = 0;
}

NH_DEVICE bool d_q_needs_repair(const nh_cuda_args &args, const nh_query &query) {
    return needs_repair<C.dim>(args, NH_D_Q, query);
}

NH_DEVICE void repair_d_q(const nh_cuda_args &args, const nh_query &query) {
    nh_operand d_o;
    nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), C.dim_v);
    nh_differentiate_query(args, query, d_o,
                           nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head)[ROW.delta_at]);
}

NH_DEVICE void pass_over(const layout &s, const nh_work_tile &work_tile, kv_loop &loop, unsigned &n) {
    release_pair(s, n);
    n = next(n);
    advance(loop, work_tile);
}

/* The rows that this warpgroup owns: Q and dO in shared memory, the barrier that releases them, and the statistics of
 * this thread's two rows; the factor from products to scores in base 2. */
struct own_rows {
    unsigned long long q, d_o;
    unsigned free;
    float2 stats, stats_below;
    float scale;
};

/* Issues the products of tile n that only need what was fetched. Between them is dQ of the tile before, unless this is
 * the first of its line: it overlaps with this tile's exponentials. */
template <bool FIRST>
NH_DEVICE void issue_tile(const layout &s, unsigned n, unsigned before, const own_rows &own, float *score, float *d_p,
                          unsigned *packed, float *d_q) {
    nh_barrier_wait(s.k_full + 8 * slot(n), phase(n));
    nh_barrier_wait(s.v_full + 8 * slot(n), phase(n));
    nh_wgmma_fence();
    issue_rows<C.dim>(score, own.q, nh_descriptor(s.k + slot(n) * K_BYTES, chunk_bytes(C.dim), 16));
    if (FIRST) {
        nh_wgmma_commit(); /* an empty group, so that the number of groups is the same for all tiles */
    } else {
        issue_d_q(d_q, packed, k_across_at(s, before));
    }
    issue_rows<C.dim_v>(d_p, own.d_o, nh_descriptor(s.v + slot(n) * V_BYTES, chunk_bytes(C.dim_v), 16));
}

/* Processes the tiles of a line of which the warpgroup's queries see something; its own rows are released after the
 * last. No stage is held between lines, where tiles are skipped. */
NH_DEVICE void take_line(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile,
                         const seen_tiles &mine, const own_rows &own, kv_loop &loop, unsigned &n, float *d_q) {
    unsigned before = n, packed[SCORES / 2];
    float score[SCORES], d_p[SCORES];
    plane_bits seen;
    issue_tile<true>(s, n, before, own, score, d_p, packed, d_q);
    for (;;) {
        nh_wgmma_wait<2>();
        const bool sees = mask_seen(args, loop, loop.tile[C.stack] == mine.begin, score, seen);
        if (sees) weigh(score, own.scale, own.stats.x, own.stats_below.x);
        nh_wgmma_wait<0>();
        release(s.v_free + 8 * slot(n));
        if (before != n) release(s.k_free + 8 * slot(before));
        if (sees) {
            differentiate(d_p, score, own.stats.y, own.stats_below.y);
            pack_weights(packed, d_p);
        } else {
            NH_UNROLL for (int i = 0; i < SCORES / 2; i++)
                packed[i] = 0;
        }
        before = n;
        n = next(n);
        if (!next_of_line(loop, work_tile, mine)) break;
        issue_tile<false>(s, n, before, own, score, d_p, packed, d_q);
    }
    if (loop.t > mine.last) release(own.free);
    nh_wgmma_fence();
    issue_d_q(d_q, packed, k_across_at(s, before));
    nh_wgmma_wait<0>();
    release(s.k_free + 8 * slot(before));
}

/* Processes the loop over the work tile's keys. */
NH_DEVICE void take_keys(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile,
                         const seen_tiles &mine, const own_rows &own, kv_loop &loop, unsigned &n, float *d_q) {
    while (loop.t <= mine.last) {
        while (outside_seen(loop, mine))
            pass_over(s, work_tile, loop, n);
        take_line(args, s, work_tile, mine, own, loop, n, d_q);
    }
    while (loop.t <= loop.last)
        pass_over(s, work_tile, loop, n);
}

/* Processes tile n. m: tiles with a bias so far. */
NH_DEVICE void take_tile(const nh_tiled_args &args, const layout &s, const kv_loop &loop, unsigned n,
                         const own_rows &own, const bias_places &bias_place, unsigned &m, float *d_q) {
    unsigned packed[SCORES / 2];
    float score[SCORES], d_p[SCORES];
    nh_barrier_wait(s.k_full + 8 * slot(n), phase(n));
    nh_barrier_wait(s.v_full + 8 * slot(n), phase(n));
    nh_wgmma_fence();
    issue_rows<C.dim>(score, own.q, nh_descriptor(s.k + slot(n) * K_BYTES, chunk_bytes(C.dim), 16));
    issue_rows<C.dim_v>(d_p, own.d_o, nh_descriptor(s.v + slot(n) * V_BYTES, chunk_bytes(C.dim_v), 16));
    nh_wgmma_wait<1>();
    bias_scores(args, s, loop, n, bias_place, score);
    mask_tile(args, loop, score);
    weigh(score, own.scale, own.stats.x, own.stats_below.x);
    nh_wgmma_wait<0>();
    release(s.v_free + 8 * slot(n));
    if (loop.t == loop.last) release(own.free);
    differentiate(d_p, score, own.stats.y, own.stats_below.y);
    pack_weights(packed, d_p);
    nh_wgmma_fence();
    issue_d_q(d_q, packed, k_across_at(s, n));
    if (C.biased && of_window(loop)) pass_on_d_s(s, d_p, m++);
    nh_wgmma_wait<0>();
    release(s.k_free + 8 * slot(n));
}

/* Stores a work tile's dQ. Returns zero, or NaN if a sum is not finite. */
NH_DEVICE float finish_work_tile(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile, int row,
                                 const float *d_q, bool counts) {
    float zero;
    if constexpr (C.cluster > 1) {
        zero = finish_shared_rows<C.dim>(args, work_tile, NH_D_Q, s.q, row, d_q, counts, (float)args.scale);
        sync_cluster();
    } else {
        finish_rows<C.dim>(args, work_tile, NH_D_Q, row, d_q, (float)args.scale);
        zero = doubt<C.dim / 2>(d_q);
    }
    return zero;
}

NH_DEVICE void clear_d_q(float *d_q) {
    NH_UNROLL for (int i = 0; i < C.dim / 2; i++)
        d_q[i] = 0;
}

/* This warpgroup's own rows at the first place, without statistics. */
NH_DEVICE own_rows own_rows_of(const nh_tiled_args &args, const layout &s, int warpgroup) {
    own_rows own;
    own.q = nh_descriptor(s.q + warpgroup * 64 * chunk_bytes(C.dim), chunk_bytes(C.dim), 16);
    own.d_o = nh_descriptor(s.d_o + warpgroup * 64 * chunk_bytes(C.dim_v), chunk_bytes(C.dim_v), 16);
    own.free = s.own_free;
    own.scale = (float)((C.biased ? 1 : args.scale) * NH_LOG2E);
    return own;
}

/* The consumers where warpgroups skip tiles; work tiles come from the producer. Returns zero, or NaN as above. */
NH_DEVICE float consume_lines(const nh_tiled_args &args, const layout &s, int warpgroup, int row) {
    const own_rows first = own_rows_of(args, s, warpgroup);
    unsigned n = 0, work_tiles = 0;
    float d_q[C.dim / 2], zero = 0;
    nh_work_tile work_tile;
    kv_loop loop;
    for (work_rounds r = first_round(); index_in(r) < args.tiling.work_tiles; next_round(r)) {
        const unsigned place = own_place(work_tiles);
        seen_tiles mine;
        nh_barrier_wait(s.own_full + 8 * place, own_phase(work_tiles));
        work_tiles++;
        work_tile = work_tile_at(place);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        find_seen_tiles(args, work_tile, warpgroup, loop, mine);
        own_rows own = first;
        own.stats = stats_of(args, work_tile, row);
        own.stats_below = stats_of(args, work_tile, row + 8);
        clear_d_q(d_q);
        own.q += place * (Q_BYTES >> 4);
        own.d_o += place * (D_O_BYTES >> 4);
        own.free += 8 * place;
        take_keys(args, s, work_tile, mine, own, loop, n, d_q);
        zero += finish_work_tile(args, s, work_tile, row, d_q, true);
    }
    return zero;
}

/* The consumers where they multiply all tiles, or those of the block's share of a loop. */
NH_DEVICE float consume_tiles(const nh_tiled_args &args, const layout &s, int warpgroup, int row) {
    const bias_places bias_place = bias_places_of(row);
    own_rows own = own_rows_of(args, s, warpgroup);
    unsigned n = 0, m = 0, work_tiles = 0;
    float d_q[C.dim / 2], zero = 0;
    nh_work_tile work_tile;
    kv_loop loop;
    for (int round = 0, index; (index = nh_work_tile_index<T>(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at<T>(args, index, work_tile);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        take_share(work_tile, loop);
        own.stats = stats_of(args, work_tile, row);
        own.stats_below = stats_of(args, work_tile, row + 8);
        clear_d_q(d_q);
        nh_barrier_wait(s.own_full, own_phase(work_tiles));
        work_tiles++;
        while (loop.t <= loop.last) {
            take_tile(args, s, loop, n, own, bias_place, m, d_q);
            n++;
            advance(loop, work_tile);
        }
        zero += finish_work_tile(args, s, work_tile, row, d_q, loop.counts);
    }
    return zero;
}

NH_DEVICE void consume(const nh_tiled_args &args, const layout &s, int warpgroup) {
    const int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    const float zero = PASSES_OVER ? consume_lines(args, s, warpgroup, row) : consume_tiles(args, s, warpgroup, row);
    if (__any_sync(~0u, zero != 0))
        repair_rows<d_q_needs_repair, repair_d_q>(args, C.cluster > 1 ? first_shared_row() : row & ~15, SHARED_ROWS);
}

} // namespace nh_wgmma90

using namespace nh_wgmma90;

extern "C" __global__ void __launch_bounds__(THREADS, 1) split90_query(NH_PARAMETERS(nh_tiled_args, struct maps)) {
    NH_TAKE_MEMBER_AND_MAPS(nh_tiled_args, struct maps)
    nh_follow_launches();
    run_block<1, C.biased>(args, maps);
}
