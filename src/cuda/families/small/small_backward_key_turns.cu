/* dK and dV of small windows in f32, if the rows of wide heads fill shared memory: it holds a work tile's queries, then
 * gradients of their outputs, then its queries again. See small_turns.cuh and small_backward_key.cuh. */
#include "overlap.cuh"
#include "small_copy_statistics.cuh"
#include "small_repair_gradient.cuh"
#include "small_turns.cuh"

namespace nh_small {

/* The statistics of a pair's two blocks, as operands. */
NH_DEVICE void nh_pair_statistics(unsigned (&query)[2], const nh_shared &shared, const nh_tile_info &info,
                                  int warp_tile, int pair) {
    const unsigned first = nh_shared_address(shared.statistics + nh_box_statistics(info.visibility, warp_tile));
    nh_statistics_load(query, first + shared.tables.columns.statistics[0][16 * pair + (int)(threadIdx.x % 16)]);
}

/* Starts scores with the bias, or zeros. */
NH_DEVICE void nh_begin(nh_scores &scores, const nh_tiled_args &args, const nh_shared &shared, const nh_tile_info &info,
                        int warp_tile) {
    const float *table = info.bias;
    if (C.bias_count) table += nh_bias_row(args, info, warp_tile, (int)(threadIdx.x % 32) / 4);
    nh_clear(scores);
    NH_UNROLL for (int p = 0; C.bias_count && p < NH_PAIRS; p++) {
        float bias[2][4];
        nh_bias_pair(bias, shared.tables.columns, table, 16 * p, true);
        NH_UNROLL for (int i = 0; i < 8; i++)
            scores[2 * p + i / 4][i % 4] = bias[i / 4][i % 4];
    }
}

/* Masks scores and shifts them by LSE, which is larger than most: added first, it would cost products lower bits. */
NH_DEVICE void nh_shift(nh_scores &scores, const nh_shared &shared, const nh_tile_info &info, int warp_tile) {
    const uint2 *hidden = nh_kind_columns(shared.kinds, info.visibility.places, warp_tile);
    const uint2 own_places = shared.kinds.rows[threadIdx.x % 32];
    NH_UNROLL for (int p = 0; p < NH_PAIRS; p++) {
        unsigned query[2];
        nh_pair_statistics(query, shared, info, warp_tile, p);
        const uint2 hiding = C.mask == SMALL_KINDS ? hidden[16 * p] : uint2{0u, 0u};
        NH_UNROLL for (int block = 0; block < 2; block++)
            nh_add_shifts(scores[2 * p + block], query[block], own_places, block ? hiding.y : hiding.x);
    }
    if (NH_ADDS_MASK && C.mask != SMALL_KINDS) nh_add_mask_all(scores, info, shared.additive_masks, warp_tile);
}

NH_DEVICE void nh_weigh(nh_scores &scores, const nh_tile_info &info, float scale, int warp_tile) {
    unsigned seen[2];
    if (!NH_ADDS_MASK) nh_chunk_bits(seen, info.visibility, warp_tile, 0);
    NH_UNROLL for (int b = 0; b < NH_BLOCKS; b++)
        NH_UNROLL for (int i = 0; i < 4; i++) {
            const bool visible = NH_ADDS_MASK || seen[i / 2] >> (2 * b + i % 2) & 1;
            scores[b][i] = visible ? nh_exp2(scores[b][i] * scale) : 0.f;
        }
}

/* Turns weights into gradients of scores, part by part. Shared memory holds the gradients of outputs. */
NH_DEVICE void nh_score_gradients(nh_scores &weights, const nh_tiled_args &args, const nh_tile_info &info,
                                  const nh_shared &shared, int warp_tile) {
    const nh_own_rows values = nh_own_rows_of(args, info.work_tile, NH_V, warp_tile);
    NH_UNROLL for (int first = 0; first < NH_BLOCKS; first += NH_PART) {
        float d_weights[NH_PART][4];
        nh_clear(d_weights);
        NH_UNROLL for (int p = 0; p < NH_PART / 2 && first / 2 + p < NH_PAIRS; p++) {
            unsigned query[2];
            nh_pair_statistics(query, shared, info, warp_tile, first / 2 + p);
            nh_add_deltas(d_weights[2 * p], query[0]);
            nh_add_deltas(d_weights[2 * p + 1], query[1]);
        }
        nh_multiply_own<C.dim_v>(d_weights, first, NH_PART, values, info, shared.tables, shared.halo, warp_tile);
        NH_UNROLL for (int i = 0; i < 4 * NH_PART && first + i / 4 < NH_BLOCKS; i++)
            weights[first + i / 4][i % 4] *= d_weights[i / 4][i % 4];
    }
}

/* Computes both gradients of rows of which one needs repair, and overwrites the stored ones. */
NH_DEVICE void nh_repair_both(const nh_tiled_args &args, const nh_work_tile &work_tile, int warp_tile,
                              const bool (&repair)[2]) {
    if (!__any_sync(~0u, repair[0] | repair[1])) return;
    __syncwarp();
    nh_for_rows_to_repair(repair[0], repair[1], [&](int row) {
        elem *d_key = (elem *)args.tensor[NH_D_K].data, *d_value = (elem *)args.tensor[NH_D_V].data;
        if (d_key) d_key += nh_row_offset(work_tile, NH_D_K, warp_tile, row);
        if (d_value) d_value += nh_row_offset(work_tile, NH_D_V, warp_tile, row);
        nh_repair_gradient(
            args, work_tile, warp_tile, row, make_float2(0.f, 0.f),
            [=](int, int i, elem x) {
                if (d_key) d_key[i] = x;
            },
            [=](int, int i, elem x) {
                if (d_value) d_value[i] = x;
            });
    });
}

NH_DEVICE void nh_backward_key_turns(const nh_tiled_args &args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const nh_tables &tables = shared.tables;
    const int warp = (int)(threadIdx.x / 32);
    int current = 0;
    nh_masks_fill(args, shared.additive_masks, shared.kinds);
    nh_tables_start(args, shared.tables, shared.info);
    nh_tables_fill(shared.tables);
    nh_wait_for_launches();
    nh_start<C.dim>(args, shared, NH_Q, warp);
    for (int index = (int)NH_OWN_BLOCK; index < args.tiling.work_tiles; index += (int)NH_OWN_BLOCKS) {
        nh_tile_info &info = shared.info[current], &next = shared.info[current ^= 1];
        const nh_work_tile &work_tile = info.work_tile;
        const bool exists = nh_warp_tile_exists(work_tile, warp);
        bool repair[2] = {false, false};
        nh_scores weights; /* then gradients of scores */
        nh_copy_statistics(args, work_tile, 0, shared.statistics);
        nh_tile_info_fill(args, tables, info, work_tile.head, (int)nh_thread_again(), NH_THREADS);
        nh_copy_wait();
        __syncthreads();
        nh_work_tile_locate_next(args, tables, index + (int)NH_OWN_BLOCKS, next.work_tile);
        if (exists) {
            nh_note_warp_tile(args, work_tile.number, warp);
            nh_begin(weights, args, shared, info, warp);
            nh_multiply_own<C.dim>(weights, 0, NH_BLOCKS, nh_own_rows_of(args, work_tile, NH_K, warp), info, tables,
                                    shared.halo, warp);
            nh_shift(weights, shared, info, warp);
        }
        __syncthreads();
        nh_copy_halo<C.dim_v>(args, work_tile, NH_D_O, 0, shared.halo);
        if (exists) nh_weigh(weights, info, tables.scale, warp);
        nh_copy_wait();
        __syncthreads();
        if (exists) {
            nh_sum_and_store<C.dim_v>(args, shared, info, NH_D_V, warp, weights, make_float2(1.f, 1.f), repair);
            nh_score_gradients(weights, args, info, shared, warp);
        }
        __syncthreads();
        nh_copy_halo<C.dim>(args, work_tile, NH_Q, 0, shared.halo);
        nh_copy_wait();
        __syncthreads();
        if (exists) {
            const float scale = (float)args.scale;
            nh_sum_and_store<C.dim>(args, shared, info, NH_D_K, warp, weights, make_float2(scale, scale), repair);
            nh_repair_both(args, work_tile, warp, repair);
        }
        __syncthreads();
        if (index + (int)NH_OWN_BLOCKS < args.tiling.work_tiles)
            nh_copy_halo<C.dim>(args, next.work_tile, NH_Q, 0, shared.halo);
    }
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_backward_key_turns(NH_PARAMETER(nh_tiled_args)) {
    NH_FOR_MEMBERS(nh_tiled_args, nh_backward_key_turns)
}
