/* Gradients of the extra tokens for sm_90. Blocks own tiles of extra tokens and loop over a share of the queries, all
 * of which attend them: the products of fused90_key.cuh without masks or windows. What of a box is outside the grid is
 * zeros in Q, dO and the statistics, and adds nothing. The sums of a share go to the workspace; split90_extra_sum.cu
 * adds them up. NH_P and NH_D_S hold the sums of dK and of dV, f32, [share, batch, head, token, dim]: strides axis[0],
 * batch, head, axis[2]. tiling: tiles of the grid per axis, extra_tiles, and work_tiles, one per share of a tile of
 * extra tokens. */
#include "fused90_key.cuh"
#include "overlap.cuh"

namespace nh_wgmma90 {

struct maps {
    nh_tensor_map map[KEY_MAPS];
};

NH_DEVICE void init_barriers(const layout &s) {
    init_key_barriers(s);
}

struct extra_work_tile {
    int batch, head, row, share;
    long long first, end; /* steps of the loop over the tiles of the grid, for one query head after the other */
};

NH_DEVICE int grid_tiles(const nh_tiled_args &args) {
    return args.tiling.tiles[0] * args.tiling.tiles[1] * args.tiling.tiles[2];
}

NH_DEVICE extra_work_tile extra_work_tile_at(const nh_tiled_args &args, int index) {
    int kv_heads = (int)args.kv_heads, tiles = args.tiling.extra_tiles;
    int shares = args.tiling.work_tiles / ((int)args.batch * kv_heads * tiles);
    long long steps = (long long)grid_tiles(args) * (int)(args.heads / args.kv_heads);
    unsigned rest = (unsigned)index;
    extra_work_tile work_tile;
    work_tile.row = nh_digit(&rest, tiles) * OWN_ROWS;
    work_tile.share = nh_digit(&rest, shares);
    work_tile.head = nh_digit(&rest, kv_heads);
    work_tile.batch = (int)rest;
    work_tile.first = steps * work_tile.share / shares;
    work_tile.end = steps * (work_tile.share + 1) / shares;
    return work_tile;
}

/* Sets the token of a step of the loop; returns the query head. */
NH_DEVICE int step_token(const nh_tiled_args &args, const extra_work_tile &work_tile, long long step, int token[3]) {
    const int extent[3] = {C.loop[0], C.loop[1], C.loop[2]};
    int tiles = grid_tiles(args), head = (int)(step / tiles);
    unsigned rest = (unsigned)(step - (long long)head * tiles);
    NH_UNROLL for (int a = 2; a >= 0; a--)
        token[a] = nh_digit(&rest, args.tiling.tiles[a]) * extent[a];
    return work_tile.head * (int)(args.heads / args.kv_heads) + head;
}

NH_DEVICE void produce(const nh_tiled_args &args, const maps &maps, const layout &s) {
    unsigned n = 0, work_tiles = 0;
    for (int index = NH_OWN_BLOCK; index < args.tiling.work_tiles; index += NH_OWN_BLOCKS, work_tiles++) {
        extra_work_tile work_tile = extra_work_tile_at(args, index);
        const int own[3] = {0, 0, work_tile.row};
        if (work_tiles) nh_barrier_wait(s.own_free, (work_tiles - 1) & 1);
        nh_barrier_expect(s.own_full, K_BYTES + V_BYTES);
        fetch_more<0, OWN_ROWS, C.dim>(s.k, &maps.map[MAP_K], s.own_full, work_tile.head, 0, own, work_tile.batch);
        if (C.sum_d_k)
            fetch_more<0, OWN_ROWS, C.dim_v>(s.v, &maps.map[MAP_V], s.own_full, work_tile.head, 0, own,
                                             work_tile.batch);
        for (long long step = work_tile.first; step < work_tile.end; step++, n++) {
            int token[3], head = step_token(args, work_tile, step, token);
            fetch_queries(args, maps.map, s, n, work_tile, head, token);
        }
    }
}

/* Stores this thread's two rows of a share's sums. */
template <int DIM>
NH_DEVICE void store_share(const nh_tiled_args &args, const extra_work_tile &work_tile, int slot, int row,
                           const float *sum) {
    const nh_cuda_tensor &t = args.tensor[slot];
    float *to = (float *)t.data + work_tile.share * t.axis[0] + work_tile.batch * t.batch + work_tile.head * t.head +
                2 * (threadIdx.x & 3);
    NH_UNROLL for (int half = 0; half < 2; half++) {
        int token = work_tile.row + row + 8 * half;
        if (token >= args.extra_tokens) continue;
        NH_UNROLL for (int j = 0; j < DIM / 8; j++)
            *(float2 *)(to + token * t.axis[2] + 8 * j) = make_float2(sum[4 * j + 2 * half], sum[4 * j + 2 * half + 1]);
    }
}

NH_DEVICE void consume(const nh_tiled_args &args, const layout &s, int warpgroup) {
    int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    float scale = (float)(args.scale * NH_LOG2E);
    unsigned n = 0, work_tiles = 0;
    key_rows r;
    key_rows_set(r, s, warpgroup);
    for (int index = NH_OWN_BLOCK; index < args.tiling.work_tiles; index += NH_OWN_BLOCKS, work_tiles++) {
        extra_work_tile work_tile = extra_work_tile_at(args, index);
        key_rows_clear(r);
        nh_barrier_wait(s.own_full, work_tiles & 1);
        for (long long step = work_tile.first; step < work_tile.end; step++, n++) {
            if (NH_NOTED && threadIdx.x == 128) nh_note_tile(args, index, (int)(step - work_tile.first), true, false);
            take_queries(r, s, n, step + 1 == work_tile.end, scale, [](float *) {});
        }
        if (C.sum_d_k) store_share<C.dim>(args, work_tile, NH_P, row, r.d_k);
        if (C.sum_d_v) store_share<C.dim_v>(args, work_tile, NH_D_S, row, r.d_v);
    }
}

} // namespace nh_wgmma90

using namespace nh_wgmma90;

extern "C" __global__ void __launch_bounds__(THREADS, 1) split90_extra(NH_PARAMETERS(nh_tiled_args, struct maps)) {
    NH_TAKE_MEMBER_AND_MAPS(nh_tiled_args, struct maps)
    nh_let_next_begin();
    run_block(args, maps);
    nh_wait_for_launches();
}
