/* dQ of the fused backward pass for sm_90: blocks own query tiles and loop over their keys, as the forward pass does.
 * Per key tile:
 *     S = Q K^T, dP = dO V^T, dS = exp(S - LSE) * (dP - delta), dQ += dS K
 * with Q, dO, K and V in shared memory and dS in registers. With a bias, the warps beside the producer compute its
 * gradient as well (fused90_bias_gradient.cuh). All sums are in a fixed order.
 *
 * Knobs: those of fused90_forward.cu, without heads that share a tile; NH_D_O_MAP; NH_SKIPPING (split90_skipping.cuh);
 * NH_OWN_PLACES. Statistics: see backward_stats.cu. */
#if NH_BIASED
/* A row outside the grid has a query of zeros, whose weights could become infinite by a large bias. */
#define NH_OUTSIDE_SEES 0
/* The warps beside the producer compute the bias and its gradient, so they need more registers. */
#define PRODUCER_REGISTERS 72
#define CONSUMER_REGISTERS 216
#define BIAS_MOST_BATCH 4
#endif
#if NH_SKIPPING
#include "split90_skipping.cuh"
#endif
#include "fused90_repair.cuh"
#include "fused90_bias_gradient.cuh"
#include "fused90_cluster.cuh"
#include "naive_backward_query.cuh"
#include "overlap.cuh"

#define Q_BYTES TILE_BYTES(OWN_ROWS, NH_DIM)
#define D_O_BYTES TILE_BYTES(OWN_ROWS, NH_DIM_V)
#define SCORES (NH_LOOP_ROWS / 2)

#define MAP_Q 0
#define MAP_D_O 1
#define MAP_K 2
#define MAP_V 3
#define MAP_EXTRA_K 4
#define MAPS (NH_EXTRA ? 6 : 4)

#include "fused90_keys.cuh"

struct maps {
    nh_tensor_map map[MAPS * MAP_VARIANTS];
};

struct shared_layout {
    unsigned q, d_o, k, v, bias, own_full, own_free, k_full, k_free, v_full, v_free, bias_full, bias_free;
    bias_gradient gradient;
};

__device__ __forceinline__ void lay_out(shared_layout &s, unsigned base) {
    s.q = base;
    s.d_o = s.q + NH_OWN_PLACES * Q_BYTES;
    s.k = s.d_o + NH_OWN_PLACES * D_O_BYTES;
    s.v = s.k + NH_STAGES * K_BYTES;
    s.bias = s.v + NH_STAGES * V_BYTES;
    unsigned gradient = s.bias + (NH_BIASED ? NH_STAGES * BIAS_BYTES : 0);
    s.own_full = gradient + (NH_BIASED ? BIAS_GRADIENT_BYTES : 0);
    s.own_free = s.own_full + 8 * NH_OWN_PLACES;
    lay_out(s.gradient, gradient, lay_out_rings(s, s.own_free + 8 * NH_OWN_PLACES));
}

__device__ __forceinline__ void init_barriers(const shared_layout &s) {
    init_ring(s.own_full, s.own_free, NH_OWN_PLACES);
    init_rings(s);
    if (NH_BIASED) init_barriers(s.gradient);
}

__device__ __forceinline__ void clear_padding(const shared_layout &s) {
    clear_padding_rows(s.q, NH_DIM);
    clear_padding_rows(s.d_o, NH_DIM_V);
}

/* Fetches Q and dO of the block's next work tile once their place is free. work_tiles: how many it had before;
 * incremented. Returns the maps of the tile's loop. */
__device__ __forceinline__ const nh_tensor_map *fetch_own_rows(const nh_tiled_args &args, const maps &maps,
                                                               const shared_layout &s, const nh_work_tile &work_tile,
                                                               unsigned &work_tiles, int heads) {
    const unsigned place = OWN_PLACE(work_tiles), own_full = s.own_full + 8 * place;
    if (work_tiles >= NH_OWN_PLACES)
        nh_barrier_wait(s.own_free + 8 * place, OWN_PHASE(work_tiles - NH_OWN_PLACES));
    work_tiles++;
#if NH_SKIPPING
    work_tile_at[place] = work_tile;
#endif
    nh_barrier_expect(own_full, OWN_BYTES(NH_DIM) + OWN_BYTES(NH_DIM_V));
    const nh_tensor_map *map = maps_of(args, work_tile, maps.map, MAPS);
    const int q_head = head_or_origin<NH_Q_MAP>(args, NH_Q, work_tile, work_tile.head);
    const int d_o_head = head_or_origin<NH_D_O_MAP>(args, NH_D_O, work_tile, work_tile.head);
    fetch_own<NH_Q_MAP>(args, s.q + place * Q_BYTES, map + MAP_Q, own_full, NH_DIM, work_tile, q_head, heads);
    fetch_own<NH_D_O_MAP>(args, s.d_o + place * D_O_BYTES, map + MAP_D_O, own_full, NH_DIM_V, work_tile, d_o_head,
                          heads);
    return NH_REGIONS ? maps_of<false>(args, work_tile, maps.map, MAPS) : map;
}

#if NH_SKIPPING
__device__ __forceinline__ void produce(const nh_tiled_args &args, const maps &maps, const shared_layout &s) {
    unsigned n = 0, work_tiles = 0;
    int heads = (int)args.heads;
    nh_work_tile work_tile;
    for (work_rounds r = first_round(); index_in(r) < args.tiling.work_tiles; next_round(r)) {
        nh_work_tile_at(args, index_in(r), work_tile);
        const nh_tensor_map *map = fetch_own_rows(args, maps, s, work_tile, work_tiles, heads);
        fetch_lines(args, work_tile, [&](const int(&token)[3]) {
            const int box[1][3] = {{token[0], token[1], token[2]}};
            fetch_pair<NH_K_MAP, NH_V_MAP>(args, s, map + MAP_K, map + MAP_V, work_tile, box, n);
            n = NEXT(n);
        });
    }
}
#else
__device__ __forceinline__ void produce(const nh_tiled_args &args, const maps &maps, const shared_layout &s) {
    unsigned n = 0, work_tiles = 0;
    int heads = (int)args.heads;
    nh_work_tile work_tile;
    for (int round = 0, index; (index = nh_work_tile_index(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        const nh_tensor_map *map = fetch_own_rows(args, maps, s, work_tile, work_tiles, heads);
        fetch_loop(args, s, map, work_tile, n);
    }
}
#endif

__device__ __forceinline__ void help(const nh_tiled_args &args, const shared_layout &s) {
    lay_biases_and_differentiate(args, s.bias, s.bias_full, s.bias_free, s.gradient);
}

/* dQ += dS K: 64 x NH_DIM. */
__device__ __forceinline__ void issue_d_q(float *d_q, unsigned *d_s, unsigned long long k) {
#pragma unroll
    for (int i = 0; i < NH_LOOP_ROWS / 16; i++)
        NH_WGMMA_HELD(NH_DIM16, NH_DIM, d_q, d_s + 4 * i, k + i * (16 * ROW_BYTES(NH_DIM) >> 4), 1, 1);
    NH_WGMMA_COMMIT();
}

#define K_ACROSS_AT(n)                                                                             \
    nh_descriptor(s.k + SLOT(n) * K_BYTES, ROW_BYTES(NH_DIM), NH_LOOP_ROWS * ROW_BYTES(NH_DIM))

/* LSE (in base 2) and delta of one row; zeros for a row outside the grid. */
__device__ __forceinline__ float2 stats_of(const nh_tiled_args &args, const nh_work_tile &work_tile, int row) {
    long long token[3];
    if (!row_token(args, work_tile, row, token)) return make_float2(0, 0);
    const nh_cuda_tensor &t = args.tensor[NH_DELTA];
    return *(const float2 *)((const float *)t.data + work_tile.batch * t.batch + work_tile.head * t.head +
                             token[0] * t.axis[0] + token[1] * t.axis[1] + token[2] * t.axis[2]);
}

/* Turns scores into weights. */
__device__ __forceinline__ void weigh(float *score, float scale, float lse, float lse_below) {
#pragma unroll
    for (int j = 0; j < NH_LOOP_ROWS / 8; j++) {
        score[4 * j + 0] = exp2_of(fmaf(score[4 * j + 0], scale, -lse));
        score[4 * j + 1] = exp2_of(fmaf(score[4 * j + 1], scale, -lse));
        score[4 * j + 2] = exp2_of(fmaf(score[4 * j + 2], scale, -lse_below));
        score[4 * j + 3] = exp2_of(fmaf(score[4 * j + 3], scale, -lse_below));
    }
}

/* Turns dP into dS. With a bias, dS of a masked pair has to be 0 even if dP is not finite: rows are repaired, the
 * bias's gradient is not. */
__device__ __forceinline__ void differentiate(float *d_p, const float *weight, float delta, float delta_below) {
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        d_p[i] = weight[i] * (d_p[i] - (i & 2 ? delta_below : delta));
    if (!NH_BIASED || !__any_sync(~0u, doubt<SCORES>(d_p) != 0)) return;
#pragma unroll
    for (int i = 0; i < SCORES; i++)
        if (weight[i] == 0) d_p[i] = 0;
}

__device__ __forceinline__ bool d_q_needs_repair(const nh_cuda_args &args, const nh_query &query) {
    return needs_repair<NH_DIM>(args, NH_D_Q, query);
}

__device__ __forceinline__ void repair_d_q(const nh_cuda_args &args, const nh_query &query) {
    nh_operand d_o;
    nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), NH_DIM_V);
    nh_differentiate_query(args, query, d_o,
                           nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head)[NH_DELTA_AT]);
}

#if NH_SKIPPING
/* Skips tile n. */
__device__ __forceinline__ void pass_over(const shared_layout &s, const nh_work_tile &work_tile, kv_loop &loop,
                                          unsigned &n) {
    release_pair(s, n);
    n = NEXT(n);
    advance(loop, work_tile);
}

/* The rows that this warpgroup owns: Q and dO in shared memory, the barrier that releases them, and the statistics of
 * this thread's two rows. */
struct own_rows {
    unsigned long long q, d_o;
    unsigned free;
    float2 stats, stats_below;
};

/* Issues the products of tile n that only need what was fetched. Between them is dQ of the tile before, unless this is
 * the first of its line: it overlaps with this tile's exponentials. */
template <bool FIRST>
__device__ __forceinline__ void issue_tile(const shared_layout &s, unsigned n, unsigned before, const own_rows &own,
                                           float *score, float *d_p, unsigned *packed, float *d_q) {
    nh_barrier_wait(s.k_full + 8 * SLOT(n), PHASE(n));
    nh_barrier_wait(s.v_full + 8 * SLOT(n), PHASE(n));
    NH_WGMMA_FENCE();
    ISSUE_ROWS(NH_DIM, score, own.q, nh_descriptor(s.k + SLOT(n) * K_BYTES, ROW_BYTES(NH_DIM), 16));
    if (FIRST) {
        NH_WGMMA_COMMIT(); /* an empty group, so that the number of groups is the same for all tiles */
    } else {
        issue_d_q(d_q, packed, K_ACROSS_AT(before));
    }
    ISSUE_ROWS(NH_DIM_V, d_p, own.d_o, nh_descriptor(s.v + SLOT(n) * V_BYTES, ROW_BYTES(NH_DIM_V), 16));
}

/* Processes the tiles of a line of which the warpgroup's queries see something; its own rows are released after the
 * last. No stage is held between lines, where tiles are skipped. */
__device__ __forceinline__ void take_line(const nh_tiled_args &args, const shared_layout &s,
                                          const nh_work_tile &work_tile, const part &mine, const own_rows &own,
                                          float scale, kv_loop &loop, unsigned &n, float *d_q) {
    unsigned before = n, packed[SCORES / 2];
    float score[SCORES], d_p[SCORES];
    plane_bits seen;
    issue_tile<true>(s, n, before, own, score, d_p, packed, d_q);
    for (;;) {
        NH_WGMMA_WAIT(2);
        const bool sees = mask_seen(args, loop, loop.tile[NH_STACK] == mine.begin, score, seen);
        if (sees) weigh(score, scale, own.stats.x, own.stats_below.x);
        NH_WGMMA_WAIT(0);
        release(s.v_free + 8 * SLOT(n));
        if (before != n) release(s.k_free + 8 * SLOT(before));
        if (sees) {
            differentiate(d_p, score, own.stats.y, own.stats_below.y);
            pack_weights(packed, d_p);
        } else {
#pragma unroll
            for (int i = 0; i < SCORES / 2; i++)
                packed[i] = 0;
        }
        before = n;
        n = NEXT(n);
        if (!next_of_line(loop, work_tile, mine)) break;
        issue_tile<false>(s, n, before, own, score, d_p, packed, d_q);
    }
    if (loop.t > mine.last) release(own.free);
    NH_WGMMA_FENCE();
    issue_d_q(d_q, packed, K_ACROSS_AT(before));
    NH_WGMMA_WAIT(0);
    release(s.k_free + 8 * SLOT(before));
}

/* Processes the loop over the work tile's keys. */
__device__ __forceinline__ void take_keys(const nh_tiled_args &args, const shared_layout &s,
                                          const nh_work_tile &work_tile, const part &mine, const own_rows &own,
                                          float scale, kv_loop &loop, unsigned &n, float *d_q) {
    while (loop.t <= mine.last) {
        while (outside_part(loop, mine))
            pass_over(s, work_tile, loop, n);
        take_line(args, s, work_tile, mine, own, scale, loop, n, d_q);
    }
    while (loop.t <= loop.last)
        pass_over(s, work_tile, loop, n);
}
#endif

__device__ __forceinline__ void consume(const nh_tiled_args &args, const shared_layout &s, int warpgroup) {
    int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    float scale = (float)((NH_BIASED ? 1 : args.scale) * NH_LOG2E);
    bias_places bias_place = bias_places_of(row);
    unsigned long long q = nh_descriptor(s.q + warpgroup * 64 * ROW_BYTES(NH_DIM), ROW_BYTES(NH_DIM), 16);
    unsigned long long d_o = nh_descriptor(s.d_o + warpgroup * 64 * ROW_BYTES(NH_DIM_V), ROW_BYTES(NH_DIM_V), 16);
    unsigned n = 0, m = 0, work_tiles = 0, packed[SCORES / 2];
    float score[SCORES], d_p[SCORES], d_q[NH_DIM / 2], zero = 0;
    nh_work_tile work_tile;
    kv_loop loop;
#if NH_SKIPPING
    part mine;
    for (work_rounds r = first_round(); index_in(r) < args.tiling.work_tiles; next_round(r)) {
        const unsigned place = OWN_PLACE(work_tiles);
        nh_barrier_wait(s.own_full + 8 * place, OWN_PHASE(work_tiles));
        work_tiles++;
        work_tile = work_tile_at[place];
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        part_begin(args, work_tile, warpgroup, loop, mine);
#else
    for (int round = 0, index; (index = nh_work_tile_index(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        take_share(work_tile, loop);
#endif
        float2 a = stats_of(args, work_tile, row), b = stats_of(args, work_tile, row + 8);
#pragma unroll
        for (int i = 0; i < NH_DIM / 2; i++)
            d_q[i] = 0;
#if NH_SKIPPING
        const own_rows own = {q + place * (Q_BYTES >> 4), d_o + place * (D_O_BYTES >> 4), s.own_free + 8 * place, a, b};
        take_keys(args, s, work_tile, mine, own, scale, loop, n, d_q);
#else
        nh_barrier_wait(s.own_full, OWN_PHASE(work_tiles));
        work_tiles++;
        while (loop.t <= loop.last) {
            nh_barrier_wait(s.k_full + 8 * SLOT(n), PHASE(n));
            nh_barrier_wait(s.v_full + 8 * SLOT(n), PHASE(n));
            NH_WGMMA_FENCE();
            ISSUE_ROWS(NH_DIM, score, q, nh_descriptor(s.k + SLOT(n) * K_BYTES, ROW_BYTES(NH_DIM), 16));
            ISSUE_ROWS(NH_DIM_V, d_p, d_o, nh_descriptor(s.v + SLOT(n) * V_BYTES, ROW_BYTES(NH_DIM_V), 16));
            NH_WGMMA_WAIT(1);
            bias_scores(args, s, loop, n, bias_place, score);
            mask_tile(args, loop, score);
            weigh(score, scale, a.x, b.x);
            NH_WGMMA_WAIT(0);
            release(s.v_free + 8 * SLOT(n));
            if (loop.t == loop.last) release(s.own_free);
            differentiate(d_p, score, a.y, b.y);
            pack_weights(packed, d_p);
            NH_WGMMA_FENCE();
            issue_d_q(d_q, packed, K_ACROSS_AT(n));
            if (NH_BIASED && of_window(loop)) pass_on_d_s(s.gradient, d_p, m++);
            NH_WGMMA_WAIT(0);
            release(s.k_free + 8 * SLOT(n));
            n++;
            advance(loop, work_tile);
        }
#endif
#if NH_CLUSTER > 1
        zero += finish_shared_rows<NH_DIM>(args, work_tile, NH_D_Q, s.q, row, d_q, loop.counts, (float)args.scale);
        sync_cluster();
#else
        finish_rows<NH_DIM>(args, work_tile, NH_D_Q, row, d_q, (float)args.scale);
        zero += doubt<NH_DIM / 2>(d_q);
#endif
    }
    if (__any_sync(~0u, zero != 0))
        repair_rows<d_q_needs_repair, repair_d_q>(args, NH_CLUSTER > 1 ? first_shared_row() : row & ~15, SHARED_ROWS);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    split90_query(const __grid_constant__ nh_tiled_args args, const __grid_constant__ maps maps) {
    nh_follow_launches();
    run_block<shared_layout, 1, NH_BIASED>(args, maps);
}
