/* dK and dV of the backward for sm_90: see fused90_key.cuh. Nothing is added atomically. Where registers do not hold the
 * sums of both there is a launch for each. */
#include "fused90_again.cuh"
#include "fused90_key.cuh"
#include "naive_backward_key.cuh"

struct maps {
    nh_tensor_map map[5];
};

__device__ __forceinline__ bool spoilt(const nh_cuda_args &args, const nh_query &key) {
    return (NH_SUM_D_K && is_spoilt<NH_DIM>(args, NH_D_K, key)) ||
           (NH_SUM_D_V && is_spoilt<NH_DIM_V>(args, NH_D_V, key));
}

__device__ __forceinline__ void consume(const nh_cuda_args &args, const key_layout &s, int warpgroup) {
    int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    int walks = (int)(args.heads / args.kv_heads);
    float scale = (float)(args.scale * 1.4426950408889634);
    unsigned long long k = nh_descriptor(s.k + warpgroup * 64 * ROW_BYTES(NH_DIM), ROW_BYTES(NH_DIM), 16);
    unsigned long long v = nh_descriptor(s.v + warpgroup * 64 * ROW_BYTES(NH_DIM_V), ROW_BYTES(NH_DIM_V), 16);
    unsigned n = 0, items = 0, weight[SCORES / 2], d_s[SCORES / 2];
    float score[SCORES], d_p[SCORES], d_k[NH_DIM / 2], d_v[NH_DIM_V / 2], zero = 0;
    nh_item item;
    walk w;
    for (int round = 0, index; (index = nh_item_index(round)) < args.tiling.items; round++) {
        nh_item_at(args, index, item);
        walk_begin(args, item, warpgroup, row, w);
#pragma unroll
        for (int i = 0; i < NH_DIM / 2; i++)
            d_k[i] = 0;
#pragma unroll
        for (int i = 0; i < NH_DIM_V / 2; i++)
            d_v[i] = 0;
        nh_barrier_wait(s.own_full, items & 1);
        items++;
        for (int left = walks * (w.last + 1); left > 0; left--) {
            nh_barrier_wait(s.full + 8 * SLOT(n), PHASE(n));
            unsigned q_tile = STAGE_AT(n), d_o_tile = q_tile + Q_BYTES, stats = STATS_AT(n);
            NH_WGMMA_FENCE();
            ISSUE_ROWS(NH_DIM, score, k, nh_descriptor(q_tile, ROW_BYTES(NH_DIM), 16));
#if NH_SUM_D_K
            ISSUE_ROWS(NH_DIM_V, d_p, v, nh_descriptor(d_o_tile, ROW_BYTES(NH_DIM_V), 16));
#endif
            NH_WGMMA_WAIT(NH_SUM_D_K);
            mask_tile(args, w, score);
            weigh(score, stats, scale);
            if (NH_SUM_D_V) pack_weights(weight, score);
            NH_WGMMA_WAIT(0);
            if (left == 1) release(s.own_free);
            if (NH_SUM_D_K) pack_d_s(d_s, score, d_p, stats);
            NH_WGMMA_FENCE();
#if NH_SUM_D_V
            issue_d_v(d_v, weight,
                      nh_descriptor(d_o_tile, ROW_BYTES(NH_DIM_V), NH_WALK_ROWS * ROW_BYTES(NH_DIM_V)));
#endif
#if NH_SUM_D_K
            issue_d_k(d_k, d_s, nh_descriptor(q_tile, ROW_BYTES(NH_DIM), NH_WALK_ROWS * ROW_BYTES(NH_DIM)));
#endif
            NH_WGMMA_WAIT(0);
            release_warp(s.free + 8 * SLOT(n));
            n++;
            advance(w, item);
            if (w.t > w.last) walk_again(w);
        }
        if (NH_SUM_D_K) finish_rows<NH_DIM>(args, item, NH_D_K, row, d_k, (float)args.scale);
        if (NH_SUM_D_V) finish_rows<NH_DIM_V>(args, item, NH_D_V, row, d_v, 1);
        zero += doubt<NH_DIM / 2>(d_k) + doubt<NH_DIM_V / 2>(d_v);
    }
    if (__any_sync(~0u, zero != 0)) make_again<spoilt, nh_differentiate_key>(args, row & ~15);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    split90_key(const __grid_constant__ nh_cuda_args args, const __grid_constant__ maps maps) {
    run_block<key_layout>(args, maps);
}
