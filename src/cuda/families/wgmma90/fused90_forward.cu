/* Fused forward pass for sm_90: O = softmax(scale Q K^T) V, where weights never leave registers.
 *
 * One persistent block per multiprocessor takes one work tile after the other. One thread of the first warpgroup
 * fetches boxes of Q, K and V by the copy engine, straight from the caller's tensors; NH_WARPGROUPS warpgroups of 64
 * queries each multiply. Boxes may start anywhere, so that the KV loop starts exactly where the window does; what lies
 * outside the grid arrives as zeros and is masked like everything else outside the window. A key tile is masked only if
 * some query of a warpgroup does not see all of it, and skipped if no query of the warpgroup sees any of it
 * (fused90_skipping.cuh); a warp skips the weights of planes of which its 16 queries see nothing.
 *
 * Inside a warpgroup the values of tile t - 1 are multiplied while the softmax of tile t runs. No product is issued
 * under an if, as ptxas would then serialise all of them; so the first scores and the last values are outside the loop.
 *
 * Knobs: NH_DTYPE, NH_RANK, NH_DIM, NH_DIM_V (multiples of 16), tiles NH_OWN_X.. NH_OWN_HEADS, NH_LOOP_X..,
 * NH_TILE_BOXES (boxes per key tile), NH_WARPGROUPS, NH_STACK (the stacking axis), NH_CLUSTER (blocks that share a work
 * tile), NH_STAGES, NH_Q_IN_REGISTERS (less traffic of shared memory), NH_REPAIR_APART (rows that are not finite are
 * repaired by a launch of its own, fused90_repair.cu, instead of at the end of this one, which then compiles faster),
 * NH_MASK_STEP (fused90_mask_step.cuh), NH_EXTRA (extra tokens), NH_BIASED, NH_Q_MAP, NH_K_MAP, NH_V_MAP (how a map's
 * five axes are used, see place()). */
#if NH_BIASED && NH_WARPGROUPS == 2
/* The warps beside the producer copy the bias, so they need more registers. */
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#endif
#if NH_REGIONS && NH_RANK == 3 && NH_WARPGROUPS == 3
/* Locating boxes of a part of a grid needs more than 32 registers. */
#define PRODUCER_REGISTERS 56
#define CONSUMER_REGISTERS 152
#endif
#define LOOP_FIRST NH_STACK
/* If planes of keys follow each other, what rows see of one is computed once for a line of tiles. */
#if NH_STACK == 0 && NH_TILE_BOXES * NH_LOOP_Y * NH_LOOP_Z <= 32 && !NH_BIASED
#define NH_RUN_AXIS 1
#endif
#define NOTED_PARTS NH_WARPGROUPS
#include "fused90_repair.cuh"
#include "fused90_bias.cuh"
#include "fused90_cluster.cuh"
#include "naive_forward.cuh"

#define Q_BYTES TILE_BYTES(OWN_ROWS, NH_DIM)

#define SCORES (LOOP_COLUMNS / 2)
#define OUTS (NH_DIM_V / 2)

#define MAP_Q 0
#define MAP_K 1
#define MAP_V 2
#define MAP_EXTRA_K 3
#define MAPS (NH_EXTRA ? 5 : 3)

#include "fused90_keys.cuh"
#include "fused90_skipping.cuh"
#include "fused90_mask_step.cuh"
#include "fused90_softmax.cuh"

/* Whether work tiles come from a queue. Parts of a grid are computed while other parts are exchanged between GPUs, by a
 * kernel that occupies some multiprocessors for a while: with a queue, blocks that start late take fewer work tiles.
 * Such launches clear the queue's counter anyway, for the repair. */
#define QUEUED (NH_REGIONS && NH_REPAIR_APART && NH_CLUSTER == 1 && !NH_BIASED)
#if QUEUED
#include "work_queue.cuh"
/* The block's work tile of a round, for the thread that fetches and for those that multiply. In three dimensions, where
 * most registers depend on it, a shuffle tells the compiler that it is the same for all lanes of a warp. */
#define CLAIMED_TILE(round) claim_work_tile(args, s.queue, round)
#if NH_RANK == 3
#define TOLD_TILE(round) __shfl_sync(~0u, next_work_tile(s.queue, round), 0)
#else
#define TOLD_TILE(round) next_work_tile(s.queue, round)
#endif
#else
#define CLAIMED_TILE(round) nh_work_tile_index(round)
#define TOLD_TILE(round) nh_work_tile_index(round)
#endif

struct maps {
    nh_tensor_map map[MAPS * MAP_VARIANTS];
};

struct shared_layout {
    unsigned q, k, v, masks, bias, q_full, q_free, k_full, k_free, v_full, v_free, bias_full, bias_free;
#if QUEUED
    work_tile_queue queue;
#endif
};

__device__ __forceinline__ void lay_out(shared_layout &s, unsigned base) {
    s.q = base;
    s.k = s.q + Q_BYTES;
    s.v = s.k + NH_STAGES * K_BYTES;
    s.masks = s.v + NH_STAGES * V_BYTES;
    s.bias = s.masks + MASK_BYTES;
    s.q_full = s.bias + (NH_BIASED ? NH_STAGES * BIAS_BYTES : 0);
    s.q_free = s.q_full + 8;
#if QUEUED
    unsigned end = lay_out_rings(s, s.q_free + 8);
    s.queue = {end, end + 8, end + 16};
#else
    lay_out_rings(s, s.q_free + 8);
#endif
}

__device__ __forceinline__ void init_barriers(const shared_layout &s) {
    init_ring(s.q_full, s.q_free, 1);
    init_rings(s);
#if QUEUED
    init_queue(s.queue, 128 * NH_WARPGROUPS);
#endif
}

__device__ __forceinline__ void clear_padding(const shared_layout &s) {
    clear_padding_rows(s.q, NH_DIM);
#if NH_MASK_STEP
    clear_rest(s.k, LOOP_COLUMNS, NH_DIM);
    clear_rest(s.v, LOOP_DEPTH, NH_DIM_V);
    lay_masks(s.masks);
#endif
}

/* ---- producer ---- */

__device__ __forceinline__ void produce(const nh_tiled_args &args, const maps &maps, const shared_layout &s) {
    unsigned n = 0, work_tiles = 0;
    nh_work_tile work_tile;
    for (int round = 0, index; (index = CLAIMED_TILE(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        if (work_tiles) nh_barrier_wait(s.q_free, (work_tiles - 1) & 1);
        work_tiles++;
        const nh_tensor_map *map = maps_of(args, work_tile, maps.map, MAPS);
        int head = head_or_origin<NH_Q_MAP>(args, NH_Q, work_tile, work_tile.head);
        nh_barrier_expect(s.q_full, OWN_BYTES(NH_DIM));
        fetch_own<NH_Q_MAP>(args, s.q, map + MAP_Q, s.q_full, NH_DIM, work_tile, head, (int)args.heads);
        fetch_loop(args, s, NH_REGIONS ? maps_of<false>(args, work_tile, maps.map, MAPS) : map, work_tile, n);
    }
}

__device__ __forceinline__ void help(const nh_tiled_args &args, const shared_layout &s) {
    lay_biases(args, s.bias, s.bias_full, s.bias_free, [](const bias_box &, bool) {});
}

/* ---- consumers ---- */

/* This warpgroup's rows of Q: in shared memory, or held in registers, too. */
struct queries {
    unsigned long long shared;
#if NH_Q_IN_REGISTERS
    unsigned held[NH_DIM / 4];
#endif
};

#if NH_Q_IN_REGISTERS
/* Loads queries into registers. Lane l addresses row l % 8 of the 8x8 matrix l / 8: rows 0-7 and 8-15 of the first 8
 * columns, then of the next. */
__device__ __forceinline__ void hold_queries(queries &q, unsigned tile, int warpgroup) {
    int lane = threadIdx.x & 31, row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (lane & 15);
    int turn = ROW_BYTES(NH_DIM) == 128 ? row & 7 : row >> 1 & 3; /* of the swizzle */
    const int per_chunk = CHUNK(NH_DIM) / 16;
#pragma unroll
    for (int i = 0; i < NH_DIM / 16; i++) {
        int part = (i % per_chunk) * 2 + lane / 16;
        unsigned chunk = tile + (i / per_chunk) * (OWN_ROWS * ROW_BYTES(NH_DIM));
        nh_load_matrices_at(q.held + 4 * i, chunk + row * ROW_BYTES(NH_DIM) + ((part ^ turn) << 4));
    }
}
#endif

/* S = Q K^T, 64 x LOOP_COLUMNS, and masks, if a step of the product makes them. */
__device__ __forceinline__ void issue_scores(float *score, queries &q, unsigned long long k, mask_step &masks,
                                             const kv_loop &loop) {
    issue_masks(score, masks, loop);
#if NH_Q_IN_REGISTERS
    const int per_chunk = CHUNK(NH_DIM) / 16;
#pragma unroll
    for (int i = 0; i < NH_DIM / 16; i++) {
        unsigned long long ki = k + (i / per_chunk) * (LOOP_COLUMNS * ROW_BYTES(NH_DIM) >> 4) + (i % per_chunk) * 2;
        if (i == 0) {
            NH_WGMMA_HELD(LOOP_N16, NH_LOOP_N, score, q.held + 4 * i, ki, NH_MASK_STEP, 0);
        } else {
            NH_WGMMA_HELD(LOOP_N16, NH_LOOP_N, score, q.held + 4 * i, ki, 1, 0);
        }
    }
    NH_WGMMA_COMMIT();
#else
    ISSUE_ROWS_ONTO(NH_MASK_STEP, NH_DIM, score, q.shared, k);
#endif
}

/* O += P V. */
__device__ __forceinline__ void issue_values(float *out, unsigned *weight, unsigned long long v) {
#pragma unroll
    for (int i = 0; i < LOOP_DEPTH / 16; i++)
        NH_WGMMA_HELD(NH_DIM_V16, NH_DIM_V, out, weight + 4 * i, v + i * (16 * ROW_BYTES(NH_DIM_V) >> 4), 1, 1);
    NH_WGMMA_COMMIT();
}

/* The factor from a row's sums to its outputs; for a part of a grid, 0 for a row without a key. */
__device__ __forceinline__ float factor_of_sum(float sum) {
    return NH_REGIONS && sum == 0 ? 0 : 1.0f / sum;
}

__device__ __forceinline__ void store_lse(const nh_tiled_args &args, const nh_work_tile &work_tile,
                                          const long long token[3], int head, float shift, float sum) {
    if (args.tensor[NH_LSE].data)
        *nh_scalar(args.tensor[NH_LSE], work_tile.batch, token, head) = logf(sum) - shift * (float)NH_LN2;
}

__device__ __forceinline__ void finish_row(const nh_tiled_args &args, const nh_work_tile &work_tile, int row,
                                           const float *out, int half, float shift, float sum) {
    long long token[3];
    bool inside = row_token(args, work_tile, row, token);
    int head = work_tile.head + row % NH_OWN_HEADS;
    sum = nh_quad_sum(sum);
    store_row<NH_DIM_V>(nh_row(args.tensor[NH_O], work_tile.batch, token, head), inside, out, half, factor_of_sum(sum));
    if (inside && (threadIdx.x & 3) == 0) store_lse(args, work_tile, token, head, shift, sum);
}

#if NH_CLUSTER > 1
/* Sets the factors that bring a row's sums of all blocks to the least shift. Returns that shift and the sum of
 * weights. */
__device__ __forceinline__ float2 level_row(unsigned sums, int row, float factor[NH_CLUSTER]) {
    float2 part[NH_CLUSTER], all = {UNSET, 0};
#pragma unroll
    for (int rank = 0; rank < NH_CLUSTER; rank++) {
        part[rank] = load_two(address_in(sums + row * SUMS_PITCH(NH_DIM_V) + 4 * NH_DIM_V, rank));
        all.x = fminf(all.x, part[rank].x);
    }
#pragma unroll
    for (int rank = 0; rank < NH_CLUSTER; rank++) {
        factor[rank] = exp2_of(all.x - part[rank].x);
        all.y += factor[rank] * part[rank].y;
    }
    return all;
}

/* Stores four columns of a row of the cluster's work tile. Returns zero, or NaN if one is not finite. */
__device__ __forceinline__ float store_shared(const nh_tiled_args &args, const nh_work_tile &work_tile, unsigned sums,
                                              int row, int column) {
    float factor[NH_CLUSTER];
    float2 all = level_row(sums, row, factor);
    float4 out = add_up<NH_DIM_V>(sums, row, column, factor);
    long long token[3];
    int head = work_tile.head + row % NH_OWN_HEADS;
    if (!row_token(args, work_tile, row, token)) return 0;
    if (column == 0) store_lse(args, work_tile, token, head, all.x, all.y);
    store_four(nh_row(args.tensor[NH_O], work_tile.batch, token, head) + column, out, factor_of_sum(all.y));
    return doubt<4>(&out.x);
}

__device__ __forceinline__ float finish_shared(const nh_tiled_args &args, const nh_work_tile &work_tile, unsigned sums,
                                               int row, const float *out, const rows &r, bool counts) {
    float zero = 0;
    lay_down<NH_DIM_V>(sums, row, out, counts);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = nh_quad_sum(r.sum[half]);
        if ((threadIdx.x & 3) == 0)
            store_two(sums + (row + 8 * half) * SUMS_PITCH(NH_DIM_V) + 4 * NH_DIM_V, counts ? r.shift[half] : UNSET,
                      counts ? sum : 0);
    }
    sync_cluster();
    for_shared<NH_DIM_V>([&](int of, int column) { zero += store_shared(args, work_tile, sums, of, column); });
    sync_cluster();
    return zero;
}
#endif

__device__ __forceinline__ bool o_needs_repair(const nh_cuda_args &args, const nh_query &query) {
    return needs_repair<NH_DIM_V>(args, NH_O, query);
}

#define K_TILE_AT(n) nh_descriptor(s.k + SLOT(n) * K_BYTES, ROW_BYTES(NH_DIM), 16)
#define V_TILE_AT(n)                                                                               \
    nh_descriptor(s.v + SLOT(n) * V_BYTES, ROW_BYTES(NH_DIM_V), LOOP_DEPTH * ROW_BYTES(NH_DIM_V))

/* Skips tile n. */
__device__ __forceinline__ void pass_over(const shared_layout &s, const nh_work_tile &work_tile, kv_loop &loop,
                                          unsigned &n) {
    release_pair(s, n);
    pass_over_bias(s, n);
    n = NEXT(n);
    advance(loop, work_tile);
}

__device__ __forceinline__ void consume(const nh_tiled_args &args, const shared_layout &s, int warpgroup) {
    int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    float scale = (float)((NH_BIASED ? 1 : args.scale) * NH_LOG2E);
    bias_places bias_place = bias_places_of(row);
    queries q;
    q.shared = nh_descriptor(s.q + warpgroup * 64 * ROW_BYTES(NH_DIM), ROW_BYTES(NH_DIM), 16);
    unsigned n = 0, before, work_tiles = 0, weight[LOOP_DEPTH / 4];
    float score[SCORES], out[OUTS], zero = 0;
    nh_work_tile work_tile;
    kv_loop loop;
    part mine;
    seen_bits seen;
    mask_step masks;
    rows r;
    mask_step_begin(masks, s.masks);
#pragma unroll
    for (int i = LOOP_COLUMNS / 4; i < LOOP_DEPTH / 4; i++)
        weight[i] = 0; /* of rows of V that are zeros, which no tile changes */
    for (int round = 0, index; (index = TOLD_TILE(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        take_share(work_tile, loop);
#if SKIPS_PLANES
        /* A warp's rows lie in one plane or, in 2-D, in two lines, one for each half, so its lanes see the same planes
         * or lines. The shuffles tell the compiler. */
#pragma unroll
        for (int half = 0; half <= ROWS_APART; half++) {
            loop.visible[half].begin[NH_STACK] = __shfl_sync(~0u, loop.visible[half].begin[NH_STACK], 0);
            loop.visible[half].end[NH_STACK] = __shfl_sync(~0u, loop.visible[half].end[NH_STACK], 0);
        }
#endif
        part_begin(args, work_tile, warpgroup, loop, mine);
        set_starts(masks, loop);
#pragma unroll
        for (int i = 0; i < OUTS; i++)
            out[i] = 0;
        r.shift[0] = r.shift[1] = UNSET;
        r.set = false;
        r.sum[0] = r.sum[1] = 0;
        nh_barrier_wait(s.q_full, work_tiles & 1);
        work_tiles++;
#if NH_Q_IN_REGISTERS
        hold_queries(q, s.q, warpgroup);
        release_warp(s.q_free);
#endif
        do {
            while (outside_part(loop, mine))
                pass_over(s, work_tile, loop, n);
            set_lines(masks, loop);
            nh_barrier_wait(s.k_full + 8 * SLOT(n), PHASE(n));
            NH_WGMMA_FENCE();
            issue_scores(score, q, K_TILE_AT(n), masks, loop);
            NH_WGMMA_WAIT(0);
            before = n;
            for (;;) {
#if SKIPS_PLANES
                float sum[2] = {0, 0};
                const bool sees = see_tile(args, loop, loop.tile[NH_STACK] == mine.begin, seen);
                if (sees) soften_first(loop, score, seen, r, scale, sum);
                NH_WGMMA_WAIT(0);
                release(s.k_free + 8 * SLOT(n));
                if (before != n) release(s.v_free + 8 * SLOT(before));
                before = n;
                n = NEXT(n);
                step(loop);
                if (sees) {
                    soften_last(score, out, weight, seen, r, scale, sum);
                } else {
                    clear_weights(weight);
                }
                if (!stays_in_line(loop, work_tile, mine)) {
#else
                release(s.k_free + 8 * SLOT(n));
                bias_scores(args, s, loop, n, bias_place, score);
                mask_scores(args, loop, loop.tile[NH_STACK] == mine.begin, score, seen);
                soften(score, seen, r, scale);
                NH_WGMMA_WAIT(0);
                if (before != n) release(s.v_free + 8 * SLOT(before));
                shrink(out, r);
                pack_weights(weight, score);
                before = n;
                n = NEXT(n);
                if (!next_of_line(loop, work_tile, mine)) {
#endif
                    /* Values that are not multiplied yet hold a stage, so skipping must not go further than the other
                     * stages. */
#pragma unroll 1
                    while (TILES_AHEAD(n, before) < NH_STAGES && outside_part(loop, mine))
                        pass_over(s, work_tile, loop, n);
                    if (loop.t > mine.last || outside_part(loop, mine)) break;
                }
                set_lines(masks, loop);
                nh_barrier_wait(s.k_full + 8 * SLOT(n), PHASE(n));
                NH_WGMMA_FENCE();
                issue_scores(score, q, K_TILE_AT(n), masks, loop);
                nh_barrier_wait(s.v_full + 8 * SLOT(before), PHASE(before));
                issue_values(out, weight, V_TILE_AT(before));
                NH_WGMMA_WAIT(1);
            }
            if (!NH_Q_IN_REGISTERS && loop.t > mine.last) release(s.q_free);
            nh_barrier_wait(s.v_full + 8 * SLOT(before), PHASE(before));
            NH_WGMMA_FENCE();
            issue_values(out, weight, V_TILE_AT(before));
            NH_WGMMA_WAIT(0);
            release(s.v_free + 8 * SLOT(before));
        } while (loop.t <= mine.last);
        while (loop.t <= loop.last)
            pass_over(s, work_tile, loop, n);
#if NH_CLUSTER > 1
        zero += finish_shared(args, work_tile, s.q, row, out, r, loop.counts);
#else
        finish_row(args, work_tile, row, out, 0, r.shift[0], r.sum[0]);
        finish_row(args, work_tile, row + 8, out, 1, r.shift[1], r.sum[1]);
        zero += doubt<OUTS>(out);
#endif
    }
#if NH_REPAIR_APART
    if (zero != 0) note_repair(args);
#else
    if (__any_sync(~0u, zero != 0))
        repair_rows<o_needs_repair, nh_attend>(args, NH_CLUSTER > 1 ? first_shared_row() : row & ~15, SHARED_ROWS);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused90_forward(const __grid_constant__ nh_tiled_args args, const __grid_constant__ maps maps) {
    run_block<shared_layout, 1, NH_BIASED>(args, maps);
}
