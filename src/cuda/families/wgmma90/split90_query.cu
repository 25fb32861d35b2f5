/* dQ of the fused backward for sm_90: blocks own query tiles and loop over their keys, as the forward does. Per key
 * tile
 *     S = Q K^T, dP = dO V^T, dS = exp(S - LSE) * (dP - delta), dQ += dS K
 * with Q, dO, K and V in shared memory and dS in registers. With a bias its gradient is made beside dQ, by the warps
 * that fetch nothing (fused90_bias_gradient.cuh). All sums are made in the same order every time.
 *
 * Knobs: as fused90_forward.cu, without heads sharing a tile; NH_D_O_MAP. Stats: see backward_stats.cu. */
#if NH_BIASED
/* A row outside the grid has zeros for a query, which a large bias could make weigh infinitely much. */
#define NH_OUTSIDE_SEES 0
/* The warps beside the producer have more to do. */
#define PRODUCER_REGISTERS 72
#define CONSUMER_REGISTERS 216
#define BIAS_MOST_BATCH 4
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
    s.d_o = s.q + Q_BYTES;
    s.k = s.d_o + D_O_BYTES;
    s.v = s.k + NH_STAGES * K_BYTES;
    s.bias = s.v + NH_STAGES * V_BYTES;
    unsigned gradient = s.bias + (NH_BIASED ? NH_STAGES * BIAS_BYTES : 0);
    s.own_full = gradient + (NH_BIASED ? BIAS_GRADIENT_BYTES : 0);
    s.own_free = s.own_full + 8;
    lay_out(s.gradient, gradient, lay_out_rings(s, s.own_free + 8));
}

__device__ __forceinline__ void init_barriers(const shared_layout &s) {
    init_ring(s.own_full, s.own_free, 1);
    init_rings(s);
    if (NH_BIASED) init_barriers(s.gradient);
}

__device__ __forceinline__ void clear_own(const shared_layout &s) {
    clear_padding_rows(s.q, NH_DIM);
    clear_padding_rows(s.d_o, NH_DIM_V);
}

__device__ __forceinline__ void produce(const nh_tiled_args &args, const maps &maps, const shared_layout &s) {
    unsigned n = 0, work_tiles = 0;
    int heads = (int)args.heads;
    nh_work_tile work_tile;
    for (int round = 0, index; (index = nh_work_tile_index(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        if (work_tiles) nh_barrier_wait(s.own_free, (work_tiles - 1) & 1);
        work_tiles++;
        nh_barrier_expect(s.own_full, OWN_BYTES(NH_DIM) + OWN_BYTES(NH_DIM_V));
        const nh_tensor_map *map = maps_of(args, work_tile, maps.map, MAPS);
        int q_head = head_or_origin<NH_Q_MAP>(args, NH_Q, work_tile, work_tile.head);
        int d_o_head = head_or_origin<NH_D_O_MAP>(args, NH_D_O, work_tile, work_tile.head);
        fetch_own<NH_Q_MAP>(args, s.q, map + MAP_Q, s.own_full, NH_DIM, work_tile, q_head, heads);
        fetch_own<NH_D_O_MAP>(args, s.d_o, map + MAP_D_O, s.own_full, NH_DIM_V, work_tile, d_o_head, heads);
        fetch_loop(args, s, NH_REGIONS ? maps_of<false>(args, work_tile, maps.map, MAPS) : map, work_tile, n);
    }
}

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

/* LSE in powers of two, and delta, of one row; zeros for a row outside the grid. */
__device__ __forceinline__ float2 stats_of(const nh_tiled_args &args, const nh_work_tile &work_tile, int row) {
    long long token[3];
    if (!row_token(args, work_tile, row, token)) return make_float2(0, 0);
    const nh_cuda_tensor &t = args.tensor[NH_DELTA];
    return *(const float2 *)((const float *)t.data + work_tile.batch * t.batch + work_tile.head * t.head +
                             token[0] * t.axis[0] + token[1] * t.axis[1] + token[2] * t.axis[2]);
}

/* dP becomes dS. The bias's gradient has no row to make again where a masked pair's dP is not finite: its dS is 0. */
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
    for (int round = 0, index; (index = nh_work_tile_index(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        take_share(work_tile, loop);
        float2 a = stats_of(args, work_tile, row), b = stats_of(args, work_tile, row + 8);
#pragma unroll
        for (int i = 0; i < NH_DIM / 2; i++)
            d_q[i] = 0;
        nh_barrier_wait(s.own_full, work_tiles & 1);
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
#pragma unroll
            for (int j = 0; j < NH_LOOP_ROWS / 8; j++) {
                score[4 * j + 0] = exp2_of(fmaf(score[4 * j + 0], scale, -a.x));
                score[4 * j + 1] = exp2_of(fmaf(score[4 * j + 1], scale, -a.x));
                score[4 * j + 2] = exp2_of(fmaf(score[4 * j + 2], scale, -b.x));
                score[4 * j + 3] = exp2_of(fmaf(score[4 * j + 3], scale, -b.x));
            }
            NH_WGMMA_WAIT(0);
            release(s.v_free + 8 * SLOT(n));
            if (loop.t == loop.last) release(s.own_free);
            differentiate(d_p, score, a.y, b.y);
            pack_weights(packed, d_p);
            NH_WGMMA_FENCE();
            issue_d_q(d_q, packed,
                      nh_descriptor(s.k + SLOT(n) * K_BYTES, ROW_BYTES(NH_DIM), NH_LOOP_ROWS * ROW_BYTES(NH_DIM)));
            if (NH_BIASED && of_window(loop)) pass_on_d_s(s.gradient, d_p, m++);
            NH_WGMMA_WAIT(0);
            release(s.k_free + 8 * SLOT(n));
            n++;
            advance(loop, work_tile);
        }
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
