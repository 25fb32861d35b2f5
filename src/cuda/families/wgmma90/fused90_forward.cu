/* Fused forward pass for sm_90: O = softmax(scale Q K^T) V, where weights never leave registers.
 *
 * One persistent block per multiprocessor takes one work tile after the other. One thread of the first warpgroup
 * fetches boxes of Q, K and V by the copy engine, straight from the caller's tensors; C.warpgroups warpgroups of 64
 * queries each multiply. Boxes may start anywhere, so that the KV loop starts exactly where the window does; what lies
 * outside the grid arrives as zeros and is masked like everything else outside the window. A key tile is masked only if
 * some query of a warpgroup does not see all of it, and skipped if no query of the warpgroup sees any of it
 * (fused90_skipping.cuh); a warp skips the weights of planes of which its 16 queries see nothing.
 *
 * Inside a warpgroup the values of tile t - 1 are multiplied while the softmax of tile t runs. As ptxas serialises all
 * products if one is issued under an if, the first scores and the last values are outside the loop. */
#include "fused90_cluster.cuh"
#include "fused90_keys.cuh"
#include "fused90_repair.cuh"
#include "fused90_softmax.cuh"
#include "naive_forward.cuh"
#include "work_queue.cuh"

namespace nh_wgmma90 {

constexpr int SCORES = LOOP_COLUMNS / 2;

/* Indices of maps; those of the extra tokens' K and V come last. */
enum { MAP_Q, MAP_K, MAP_V, MAPS = C.extra ? 5 : 3 };

struct maps {
    nh_tensor_map map[MAPS * MAP_VARIANTS];
};

constexpr bool QUEUED = wgmma90_queued(&C);

/* The block's work tile of a round, for the thread that fetches and for those that multiply. In three dimensions, where
 * most registers depend on it, a shuffle tells the compiler that it is the same for all lanes of a warp. */
NH_DEVICE int claimed_tile(const nh_tiled_args &args, const layout &s, int round) {
    return QUEUED ? claim_work_tile(args, s, round) : nh_work_tile_index<T>(round);
}

NH_DEVICE int told_tile(const layout &s, int round) {
    if (!QUEUED) return nh_work_tile_index<T>(round);
    const int index = next_work_tile(s, round);
    return C.rank == 3 ? __shfl_sync(~0u, index, 0) : index;
}

NH_DEVICE void init_barriers(const layout &s) {
    init_ring(s.own_full, s.own_free, 1);
    init_rings(s);
    if (QUEUED) init_queue(s, 128 * C.warpgroups);
}

NH_DEVICE void clear_padding(const layout &s) {
    clear_padding_rows(s.q, C.dim);
    if (!MASK_STEP) return;
    clear_rest(s.k, LOOP_COLUMNS, C.dim);
    clear_rest(s.v, LOOP_DEPTH, C.dim_v);
    lay_masks(s.masks);
}

/* ---- producer ---- */

NH_DEVICE void produce(const nh_tiled_args &args, const maps &maps, const layout &s) {
    unsigned n = 0, work_tiles = 0;
    nh_work_tile work_tile;
    for (int round = 0, index; (index = claimed_tile(args, s, round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at<T>(args, index, work_tile);
        if (work_tiles) nh_barrier_wait(s.own_free, (work_tiles - 1) & 1);
        work_tiles++;
        const nh_tensor_map *map = maps_of(args, work_tile, maps.map, MAPS);
        int head = head_or_origin<C.q_map>(args, NH_Q, work_tile, work_tile.head);
        nh_barrier_expect(s.own_full, own_bytes(C.dim));
        fetch_own<C.q_map, C.dim>(args, s.q, map + MAP_Q, s.own_full, work_tile, head, (int)args.heads);
        const nh_tensor_map *loop_map = NH_REGIONS ? maps_of<false>(args, work_tile, maps.map, MAPS) : map;
        fetch_loop(args, s, loop_map + MAP_K, work_tile, n);
    }
}

NH_DEVICE void help(const nh_tiled_args &args, const layout &s) {
    lay_biases(args, s, [](const bias_box &, bool) {});
}

/* ---- consumers ---- */

/* This warpgroup's rows of Q in shared memory and, with C.q_in_registers, in registers. */
struct queries {
    unsigned long long shared;
    unsigned held[C.q_in_registers ? C.dim / 4 : 1];
};

/* Loads queries. Lane l addresses row l % 8 of the 8x8 matrix l / 8: rows 0-7 and 8-15 of 8 columns, twice. */
NH_DEVICE void hold_queries(queries &q, unsigned tile, int warpgroup) {
    int lane = threadIdx.x & 31, row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (lane & 15);
    int turn = chunk_bytes(C.dim) == 128 ? row & 7 : row >> 1 & 3; /* of the swizzle */
    const int per_chunk = chunk_columns(C.dim) / 16;
    NH_UNROLL for (int i = 0; i < C.dim / 16; i++) {
        int part = (i % per_chunk) * 2 + lane / 16;
        unsigned chunk = tile + (i / per_chunk) * (OWN_ROWS * chunk_bytes(C.dim));
        nh_load_matrices_at(q.held + 4 * i, chunk + row * chunk_bytes(C.dim) + ((part ^ turn) << 4));
    }
}

/* S = Q K^T, 64 x LOOP_COLUMNS, and masks, if a step of the product makes them. */
NH_DEVICE void issue_scores(float *score, queries &q, unsigned long long k, mask_step &masks, const kv_loop &loop) {
    issue_masks(score, masks, loop);
    if constexpr (C.q_in_registers) {
        const int per_chunk = chunk_columns(C.dim) / 16;
        NH_UNROLL for (int i = 0; i < C.dim / 16; i++) {
            unsigned long long ki =
                k + (i / per_chunk) * (LOOP_COLUMNS * chunk_bytes(C.dim) >> 4) + (i % per_chunk) * 2;
            if (i == 0) {
                nh_wgmma_held<LOOP_COLUMNS, MASK_STEP, 0>(score, q.held + 4 * i, ki);
            } else {
                nh_wgmma_held<LOOP_COLUMNS, 1, 0>(score, q.held + 4 * i, ki);
            }
        }
        nh_wgmma_commit();
    } else {
        issue_rows<C.dim, MASK_STEP>(score, q.shared, k);
    }
}

/* O += P V. */
NH_DEVICE void issue_values(float *out, unsigned *weight, unsigned long long v) {
    NH_UNROLL for (int i = 0; i < LOOP_DEPTH / 16; i++)
        nh_wgmma_held<C.dim_v, 1, 1>(out, weight + 4 * i, v + i * (16 * chunk_bytes(C.dim_v) >> 4));
    nh_wgmma_commit();
}

/* The factor from a row's sums to its outputs; for a part of a grid, 0 for a row without a key. Infinite, so that the
 * row is repaired, if scores are so large that their rounding outweighs all weights, whose sum may then be 0. */
NH_DEVICE float factor_of_sum(float shift, float sum) {
    if (NH_REGIONS && shift == UNSET) return 0;
    return fabsf(shift) > NH_FAR_SCORE ? NH_INFINITY : 1.0f / sum;
}

/* Zero, or NaN if a row is to be repaired of which this is the largest magnitude; NaN for NaN. */
NH_DEVICE float doubt_of(float largest) {
    return largest < NH_BEYOND_STORAGE ? 0 : __int_as_float(0x7fffffff);
}

NH_DEVICE void store_lse(const nh_tiled_args &args, const nh_work_tile &work_tile, const long long token[3], int head,
                         float shift, float sum) {
    if (args.tensor[NH_LSE].data)
        *nh_scalar(args.tensor[NH_LSE], work_tile.batch, token, head) = logf(sum) - shift * (float)NH_LN2;
}

/* Returns zero, or NaN if the row is to be repaired. */
NH_DEVICE float finish_row(const nh_tiled_args &args, const nh_work_tile &work_tile, int row, const float *out,
                           int half, float shift, float sum) {
    long long token[3];
    bool inside = row_token(args, work_tile, row, token);
    int head = work_tile.head + row % C.own_heads;
    sum = nh_quad_sum(sum);
    const float factor = factor_of_sum(shift, sum);
    store_row<C.dim_v>(nh_row(args.tensor[NH_O], work_tile.batch, token, head), inside, out, half, factor);
    if (inside && (threadIdx.x & 3) == 0) store_lse(args, work_tile, token, head, shift, sum);
    float largest = 0;
    NH_UNROLL for (int i = 0; i < OUTS / 2; i++)
        largest = nh_larger(largest, out[i / 2 * 4 + 2 * half + i % 2]);
    return inside ? doubt_of(largest * factor) : 0;
}

/* Sets the factors that bring a row's sums of all blocks to the least shift. Returns it and the sum of weights. */
NH_DEVICE float2 level_row(unsigned sums, int row, float factor[C.cluster]) {
    float2 part[C.cluster], all = {UNSET, 0};
    NH_UNROLL for (int rank = 0; rank < C.cluster; rank++) {
        part[rank] = load_two(address_in(sums + row * wgmma90_sums_pitch(C.dim_v) + 4 * C.dim_v, rank));
        all.x = fminf(all.x, part[rank].x);
    }
    NH_UNROLL for (int rank = 0; rank < C.cluster; rank++) {
        factor[rank] = exp2_of(all.x - part[rank].x);
        all.y += factor[rank] * part[rank].y;
    }
    return all;
}

/* Stores four columns of a row of the cluster's work tile. Returns zero, or NaN if one is not finite. */
NH_DEVICE float store_shared(const nh_tiled_args &args, const nh_work_tile &work_tile, unsigned sums, int row,
                             int column) {
    float factor[C.cluster];
    float2 all = level_row(sums, row, factor);
    float4 out = add_up<C.dim_v>(sums, row, column, factor);
    long long token[3];
    int head = work_tile.head + row % C.own_heads;
    if (!row_token(args, work_tile, row, token)) return 0;
    if (column == 0) store_lse(args, work_tile, token, head, all.x, all.y);
    const float all_factor = factor_of_sum(all.x, all.y);
    store_four(nh_row(args.tensor[NH_O], work_tile.batch, token, head) + column, out, all_factor);
    return doubt_of(nh_larger(nh_larger(nh_larger(fabsf(out.x), out.y), out.z), out.w) * all_factor);
}

NH_DEVICE float finish_shared(const nh_tiled_args &args, const nh_work_tile &work_tile, unsigned sums, int row,
                              const float *out, const rows &r, bool counts) {
    float zero = 0;
    lay_down<C.dim_v>(sums, row, out, counts);
    NH_UNROLL for (int half = 0; half < 2; half++) {
        float sum = nh_quad_sum(r.sum[half]);
        if ((threadIdx.x & 3) == 0)
            store_two(sums + (row + 8 * half) * wgmma90_sums_pitch(C.dim_v) + 4 * C.dim_v,
                      counts ? r.shift[half] : UNSET, counts ? sum : 0);
    }
    sync_cluster();
    for_shared<C.dim_v>([&](int of, int column) { zero += store_shared(args, work_tile, sums, of, column); });
    sync_cluster();
    return zero;
}

NH_DEVICE bool o_needs_repair(const nh_cuda_args &args, const nh_query &query) {
    return needs_repair<C.dim_v>(args, NH_O, query);
}

NH_DEVICE unsigned long long k_tile_at(const layout &s, unsigned n) {
    return nh_descriptor(s.k + slot(n) * K_BYTES, chunk_bytes(C.dim), 16);
}

NH_DEVICE unsigned long long v_tile_at(const layout &s, unsigned n) {
    return nh_descriptor(s.v + slot(n) * V_BYTES, chunk_bytes(C.dim_v), LOOP_DEPTH * chunk_bytes(C.dim_v));
}

/* What a warpgroup has for all of its work tiles: its queries, the operands of masks and of the bias, the factor from
 * products to scores in base 2, and the first of a thread's two rows. */
struct consumer {
    queries q;
    mask_step masks;
    bias_places bias_place;
    float scale;
    int warpgroup, row;
};

/* Where a warpgroup is: in the loop, of which it multiplies a part; the number of its tile, and of the one whose values
 * are not multiplied yet, among the tiles of all loops. */
struct place_in_loop {
    kv_loop loop;
    seen_tiles mine;
    unsigned n, before;
};

/* A thread's registers for its two rows: a tile's scores, then weights, also as an operand; output; softmax. */
struct accumulators {
    float score[SCORES], out[OUTS];
    unsigned weight[LOOP_DEPTH / 4];
    seen_bits seen;
    rows r;
};

NH_DEVICE void pass_over(const layout &s, const nh_work_tile &work_tile, place_in_loop &at) {
    release_pair(s, at.n);
    pass_over_bias(s, at.n);
    at.n = next(at.n);
    advance(at.loop, work_tile);
}

NH_DEVICE void begin_work_tile(const nh_tiled_args &args, const nh_work_tile &work_tile, consumer &my,
                               place_in_loop &at, accumulators &a) {
    kv_loop_begin(args, work_tile, my.warpgroup, my.row, at.loop);
    take_share(work_tile, at.loop);
    if (SKIPS_PLANES) {
        /* A warp's rows lie in one plane or, in 2-D, in a line for each half: shuffles tell the compiler so. */
        NH_UNROLL for (int half = 0; half <= ROWS_APART; half++) {
            nh_visible_box &visible = at.loop.visible[half];
            visible.begin[C.stack] = __shfl_sync(~0u, visible.begin[C.stack], 0);
            visible.end[C.stack] = __shfl_sync(~0u, visible.end[C.stack], 0);
        }
    }
    find_seen_tiles(args, work_tile, my.warpgroup, at.loop, at.mine);
    set_starts(my.masks, at.loop);
    NH_UNROLL for (int i = 0; i < OUTS; i++)
        a.out[i] = 0;
    a.r.shift[0] = a.r.shift[1] = UNSET;
    a.r.set = false;
    a.r.sum[0] = a.r.sum[1] = 0;
}

/* Issues the scores of a tile, which must have landed. */
NH_DEVICE void issue_tile(const layout &s, consumer &my, const place_in_loop &at, accumulators &a) {
    set_lines(my.masks, at.loop);
    nh_barrier_wait(s.k_full + 8 * slot(at.n), phase(at.n));
    nh_wgmma_fence();
    issue_scores(a.score, my.q, k_tile_at(s, at.n), my.masks, at.loop);
}

/* Turns the scores of a tile into weights, while the values of the tile before are multiplied, and goes to the next
 * tile. Returns whether that is in the same line. */
NH_DEVICE bool weigh_tile(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile, const consumer &my,
                          place_in_loop &at, accumulators &a) {
    const unsigned n = at.n, before = at.before;
    release(s.k_free + 8 * slot(n));
    bias_scores(args, s, at.loop, n, my.bias_place, a.score);
    mask_scores(args, at.loop, at.loop.tile[C.stack] == at.mine.begin, a.score, a.seen);
    soften(a.score, a.seen, a.r, my.scale);
    nh_wgmma_wait<0>();
    if (before != n) release(s.v_free + 8 * slot(before));
    shrink(a.out, a.r);
    pack_weights(a.weight, a.score);
    at.before = n;
    at.n = next(n);
    return next_of_line(at.loop, work_tile, at.mine);
}

/* The same where warps skip planes. */
NH_DEVICE bool weigh_plane(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile,
                           const consumer &my, place_in_loop &at, accumulators &a) {
    const unsigned n = at.n, before = at.before;
    float sum[2] = {0, 0};
    const bool sees = see_tile(args, at.loop, at.loop.tile[C.stack] == at.mine.begin, a.seen);
    if (sees) soften_first(at.loop, a.score, a.seen, a.r, my.scale, sum);
    nh_wgmma_wait<0>();
    release(s.k_free + 8 * slot(n));
    if (before != n) release(s.v_free + 8 * slot(before));
    at.before = n;
    at.n = next(n);
    step(at.loop);
    if (sees) {
        soften_last(a.score, a.out, a.weight, a.seen, a.r, my.scale, sum);
    } else {
        clear_weights(a.weight);
    }
    return stays_in_line(at.loop, work_tile, at.mine);
}

/* Passes over tiles behind the end of a line. Values that are not multiplied yet hold a stage, so this must not go
 * further than the other stages. Returns whether the warpgroup multiplies the tile at which it then is. */
NH_DEVICE bool begin_line(const layout &s, const nh_work_tile &work_tile, place_in_loop &at) {
    NH_UNROLL_1 while (tiles_ahead(at.n, at.before) < C.stages && outside_seen(at.loop, at.mine))
        pass_over(s, work_tile, at);
    return at.loop.t <= at.mine.last && !outside_seen(at.loop, at.mine);
}

/* O += P V of the tile before. */
NH_DEVICE void issue_values_before(const layout &s, const place_in_loop &at, accumulators &a) {
    issue_values(a.out, a.weight, v_tile_at(s, at.before));
}

/* Multiplies tiles up to the end of the loop, or of a line behind which more tiles are to be passed over than there are
 * stages (begin_line). First scores and last values are outside the loop. */
NH_DEVICE void take_tiles(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile, consumer &my,
                          place_in_loop &at, accumulators &a) {
    while (outside_seen(at.loop, at.mine))
        pass_over(s, work_tile, at);
    issue_tile(s, my, at, a);
    nh_wgmma_wait<0>();
    at.before = at.n;
    for (;;) {
        const bool in_line = SKIPS_PLANES ? weigh_plane(args, s, work_tile, my, at, a)
                                          : weigh_tile(args, s, work_tile, my, at, a);
        if (!in_line && !begin_line(s, work_tile, at)) break;
        issue_tile(s, my, at, a);
        nh_barrier_wait(s.v_full + 8 * slot(at.before), phase(at.before));
        issue_values_before(s, at, a);
        nh_wgmma_wait<1>();
    }
    if (!C.q_in_registers && at.loop.t > at.mine.last) release(s.own_free);
    nh_barrier_wait(s.v_full + 8 * slot(at.before), phase(at.before));
    nh_wgmma_fence();
    issue_values_before(s, at, a);
    nh_wgmma_wait<0>();
    release(s.v_free + 8 * slot(at.before));
}

/* Stores a work tile's outputs. Returns zero, or NaN if one is not finite. */
NH_DEVICE float finish_work_tile(const nh_tiled_args &args, const layout &s, const nh_work_tile &work_tile, int row,
                                 const accumulators &a, bool counts) {
    if constexpr (C.cluster > 1) {
        return finish_shared(args, work_tile, s.q, row, a.out, a.r, counts);
    } else {
        return finish_row(args, work_tile, row, a.out, 0, a.r.shift[0], a.r.sum[0]) +
               finish_row(args, work_tile, row + 8, a.out, 1, a.r.shift[1], a.r.sum[1]);
    }
}

NH_DEVICE void repair(const nh_tiled_args &args, int row, float zero) {
    if (C.repair_apart) {
        if (zero != 0) note_repair(args);
    } else if (__any_sync(~0u, zero != 0)) {
        repair_rows<o_needs_repair, nh_attend>(args, C.cluster > 1 ? first_shared_row() : row & ~15, SHARED_ROWS);
    }
}

NH_DEVICE void consume(const nh_tiled_args &args, const layout &s, int warpgroup) {
    const int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    float zero = 0;
    nh_work_tile work_tile;
    consumer my;
    place_in_loop at;
    accumulators a;
    my.scale = (float)((C.biased ? 1 : args.scale) * NH_LOG2E);
    my.bias_place = bias_places_of(row);
    my.q.shared = nh_descriptor(s.q + warpgroup * 64 * chunk_bytes(C.dim), chunk_bytes(C.dim), 16);
    my.warpgroup = warpgroup;
    my.row = row;
    mask_step_begin(my.masks, s.masks);
    at.n = 0;
    NH_UNROLL for (int i = LOOP_COLUMNS / 4; i < LOOP_DEPTH / 4; i++)
        a.weight[i] = 0; /* of rows of V that are zeros, which no tile changes */
    for (int round = 0, index; (index = told_tile(s, round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at<T>(args, index, work_tile);
        begin_work_tile(args, work_tile, my, at, a);
        nh_barrier_wait(s.own_full, round & 1);
        if (C.q_in_registers) {
            hold_queries(my.q, s.q, warpgroup);
            release_warp(s.own_free);
        }
        do
            take_tiles(args, s, work_tile, my, at, a);
        while (at.loop.t <= at.mine.last);
        while (at.loop.t <= at.loop.last)
            pass_over(s, work_tile, at);
        zero += finish_work_tile(args, s, work_tile, row, a, at.loop.counts);
    }
    repair(args, row, zero);
}

} // namespace nh_wgmma90

using namespace nh_wgmma90;

extern "C" __global__ void __launch_bounds__(THREADS, 1) fused90_forward(NH_PARAMETERS(nh_tiled_args, struct maps)) {
    NH_TAKE_MEMBER_AND_MAPS(nh_tiled_args, struct maps)
    run_block<1, C.biased>(args, maps);
}
