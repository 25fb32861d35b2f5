/* dK and dV of the backward for sm_90: see fused90_key.cuh. Nothing is added atomically. Where registers do not hold
 * the sums of both there is a launch for each. It needs the stats alone, which the launch for dQ has waited for before
 * this one could begin; so it only has to end after that one, too. */
#if NH_BIASED
/* The warps beside the producer have more to do. */
#define PRODUCER_REGISTERS 56
#define CONSUMER_REGISTERS 224
#define BIAS_MOST_BATCH 4
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

__device__ __forceinline__ void produce(const nh_tiled_args &args, const maps &maps, const biased_layout &s) {
    fetch_work_tiles(args, maps, s, nh_work_tile_index);
}

__device__ __forceinline__ void help(const nh_tiled_args &args, const biased_layout &s) {
    lay_biases(args, s.bias, s.bias_full, s.bias_free, [](const bias_box &, bool) {});
}

#if NH_CLUSTER > 1
/* Stores a work tile's sums, which the cluster's blocks have in parts; zero, or NaN if one is not finite. */
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
    for (int round = 0, index; (index = nh_work_tile_index(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        key_rows_clear(r);
        nh_barrier_wait(s.own_full, work_tiles & 1);
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
