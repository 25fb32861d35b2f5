/* Forward pass of small windows in f32 with wide heads: shared memory holds a work tile's keys, then its values. */
#include "small_repair.cuh"
#include "small_state.cuh"
#include "small_turns.cuh"

namespace nh_small {

/* Masks the scores and, if there is a bias, scales them and adds it. Sets `top` to the largest of rows g and g + 8. */
NH_DEVICE void nh_finish_scores(nh_scores &scores, float (&top)[2], const nh_tiled_args &args, const nh_tile_info &info,
                                const nh_tables &tables, int warp_tile) {
    unsigned seen[2];
    if (!NH_ADDS_MASK) nh_chunk_bits(seen, info.visibility, warp_tile, 0);
    const float *table = info.bias;
    if (C.bias_count) table += nh_bias_row(args, info, warp_tile, (int)(threadIdx.x % 32) / 4);
    float bias[2][4];
    top[0] = top[1] = NH_MINUS_INFINITY;
    NH_UNROLL for (int b = 0; b < NH_BLOCKS; b++) {
        if (C.bias_count && b % 2 == 0) nh_bias_pair(bias, tables.columns, table, 8 * b, b + 1 < NH_BLOCKS);
        NH_UNROLL for (int i = 0; i < 4; i++) {
            float &score = scores[b][i];
            if (C.bias_count) score = fmaf(score, tables.scale, bias[b % 2][i]);
            if (!NH_ADDS_MASK && !(seen[i / 2] >> (2 * b + i % 2) & 1)) score = NH_MINUS_INFINITY;
            top[i / 2] = fmaxf(top[i / 2], score);
        }
    }
    top[0] = nh_quad_max(top[0]);
    top[1] = nh_quad_max(top[1]);
}

/* Turns scores into weights relative to the largest score of their row. */
NH_DEVICE void nh_weigh(nh_scores &scores, nh_state &state, const nh_tiled_args &args, const nh_tile_info &info,
                        const nh_tables &tables, int warp_tile) {
    const float scale = C.bias_count ? 1.f : tables.scale;
    float top[2];
    nh_finish_scores(scores, top, args, info, tables, warp_tile);
    const float reference[2] = {nh_reference(info.visibility, warp_tile, 0, top[0] * scale),
                                nh_reference(info.visibility, warp_tile, 1, top[1] * scale)};
    state = {{reference[0], reference[1]}, {0.f, 0.f}};
    NH_UNROLL for (int b = 0; b < NH_BLOCKS; b++)
        NH_UNROLL for (int i = 0; i < 4; i++) {
            scores[b][i] = nh_exp2(fmaf(scores[b][i], scale, -state.reference[i / 2]));
            state.sum[i / 2] += scores[b][i];
        }
    state.sum[0] = nh_quad_sum(state.sum[0]);
    state.sum[1] = nh_quad_sum(state.sum[1]);
}

/* Stores outputs and LSE; rows that are not finite are computed again key by key. */
NH_DEVICE void nh_finish(const nh_tiled_args &args, const nh_shared &shared, const nh_tile_info &info, int warp_tile,
                         const nh_state &state, const nh_scores &weights) {
    float2 lse = nh_lse_of(state);
    bool repair[2] = {false, false};
    nh_sum_and_store<C.dim_v>(args, shared, info, NH_O, warp_tile, weights,
                               make_float2(nh_factor(state, 0), nh_factor(state, 1)), repair);
    if (__any_sync(~0u, repair[0] | repair[1])) {
        __syncwarp();
        const nh_work_tile *work_tile = &info.work_tile;
        elem *to = (elem *)args.tensor[NH_O].data;
        nh_repair_rows(args, info, warp_tile, repair, lse, [=](int row, int i, elem element) {
            to[nh_row_offset(*work_tile, NH_O, warp_tile, row) + i] = element;
        });
    }
    nh_store_lse((float *)args.tensor[NH_LSE].data, info.work_tile, warp_tile, lse);
}

NH_DEVICE void nh_forward_turns(const nh_tiled_args &args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const nh_tables &tables = shared.tables;
    const int warp = (int)(threadIdx.x / 32);
    int current = 0;
    if (NH_ADDS_MASK) nh_additive_masks_fill(shared.additive_masks);
    nh_tables_start(args, shared.tables, shared.info);
    nh_tables_fill(shared.tables);
    nh_start<C.dim>(args, shared, NH_K, warp);
    for (int index = (int)NH_OWN_BLOCK; index < args.tiling.work_tiles; index += (int)NH_OWN_BLOCKS) {
        nh_tile_info &info = shared.info[current], &next = shared.info[current ^= 1];
        const bool exists = nh_warp_tile_exists(info.work_tile, warp);
        nh_scores scores;
        nh_state state;
        nh_tile_info_fill(args, tables, info, info.work_tile.head, (int)nh_thread_again(), NH_THREADS);
        nh_copy_wait();
        __syncthreads();
        nh_work_tile_locate_next(args, tables, index + (int)NH_OWN_BLOCKS, next.work_tile);
        if (exists) {
            nh_note_warp_tile(args, info.work_tile.number, warp);
            nh_clear(scores);
            if (NH_ADDS_MASK) nh_add_mask_all(scores, info, shared.additive_masks, warp);
            nh_multiply_own<C.dim>(scores, 0, NH_BLOCKS, nh_own_rows_of(args, info.work_tile, NH_Q, warp), info,
                                    tables, shared.halo, warp);
        }
        __syncthreads();
        nh_copy_halo<C.dim_v>(args, info.work_tile, NH_V, 0, shared.halo);
        if (exists) nh_weigh(scores, state, args, info, tables, warp);
        nh_copy_wait();
        __syncthreads();
        if (exists) nh_finish(args, shared, info, warp, state, scores);
        __syncthreads();
        if (index + (int)NH_OWN_BLOCKS < args.tiling.work_tiles)
            nh_copy_halo<C.dim>(args, next.work_tile, NH_K, 0, shared.halo);
    }
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_forward_turns(NH_PARAMETER(nh_tiled_args)) {
    NH_FOR_MEMBERS(nh_tiled_args, nh_forward_turns)
}
