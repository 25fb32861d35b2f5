/* dQ of small windows in f32, if the rows of wide heads fill shared memory, and LSE and delta for the launch by keys:
 * shared memory holds a work tile's values, then its keys. See small_turns.cuh and small_backward_query.cuh. */
#include "overlap.cuh"
#include "small_repair_gradient.cuh"
#include "small_row_statistics.cuh"
#include "small_turns.cuh"

namespace nh_small {

static_assert(C.bias_count == 0, "the bias's gradient is for the other pipelines");

/* The statistics of rows g and g + 8. */
struct nh_row_terms {
    float lse[2], delta[2]; /* -LSE in base 2 */
};

/* This lane's part of rowsum(dO * O). */
NH_DEVICE void nh_dot_part(float (&sum)[2], const nh_own_rows &a, const nh_own_rows &b) {
    sum[0] = sum[1] = 0.f;
#pragma unroll 4
    for (int u = 0; u < C.dim_v / 16; u++)
        NH_UNROLL for (int half = 0; half < 2; half++) {
            const uint4 x = nh_own_unit(a, half, u), y = nh_own_unit(b, half, u);
            sum[half] = fmaf(__uint_as_float(x.x), __uint_as_float(y.x), sum[half]);
            sum[half] = fmaf(__uint_as_float(x.y), __uint_as_float(y.y), sum[half]);
            sum[half] = fmaf(__uint_as_float(x.z), __uint_as_float(y.z), sum[half]);
            sum[half] = fmaf(__uint_as_float(x.w), __uint_as_float(y.w), sum[half]);
        }
}

/* Turns gradients of weights into gradients of scores, part by part. Shared memory holds the warp tile's keys. */
NH_DEVICE void nh_score_gradients(nh_scores &gradients, const nh_tiled_args &args, const nh_tile_info &info,
                                  const nh_shared &shared, const nh_row_terms &terms, int warp_tile) {
    const nh_own_rows queries = nh_own_rows_of(args, info.work_tile, NH_Q, warp_tile);
    unsigned seen[2], places[NH_STEPS_PLACES][4];
    if (!NH_ADDS_MASK) nh_chunk_bits(seen, info.visibility, warp_tile, 0);
    if (NH_ADDS_MASK) nh_visibility_additive_mask_rows(places, info.visibility, warp_tile);
    NH_UNROLL for (int first = 0; first < NH_BLOCKS; first += NH_PART) {
        float scores[NH_PART][4];
        nh_clear(scores);
        if (NH_ADDS_MASK) nh_add_mask_part(scores, places, shared.additive_masks, first);
        nh_multiply_own<C.dim>(scores, first, NH_PART, queries, info, shared.tables, shared.halo, warp_tile);
        NH_UNROLL for (int i = 0; i < 4 * NH_PART && first + i / 4 < NH_BLOCKS; i++) {
            const int b = first + i / 4, half = i / 2 % 2;
            const bool visible = NH_ADDS_MASK || seen[half] >> (2 * b + i % 2) & 1;
            const float weight = nh_exp2(fmaf(scores[i / 4][i % 4], shared.tables.scale, terms.lse[half]));
            gradients[b][i % 4] = visible ? weight * (gradients[b][i % 4] - terms.delta[half]) : 0.f;
        }
    }
}

NH_DEVICE void nh_finish(const nh_tiled_args &args, const nh_tile_info &info, const nh_shared &shared, int warp_tile,
                         const nh_row_terms &terms, const nh_scores &gradients) {
    if (!args.tensor[NH_D_Q].data) return;
    const float scale = (float)args.scale;
    bool repair[2] = {false, false};
    nh_sum_and_store<C.dim>(args, shared, info, NH_D_Q, warp_tile, gradients, make_float2(scale, scale), repair);
    if (!__any_sync(~0u, repair[0] | repair[1])) return;
    __syncwarp();
    nh_for_rows_to_repair(repair[0], repair[1], [&](int row) {
        const int holder = row % 8 * 4;
        const float2 own = make_float2(__shfl_sync(~0u, row < 8 ? terms.lse[0] : terms.lse[1], holder),
                                       __shfl_sync(~0u, row < 8 ? terms.delta[0] : terms.delta[1], holder));
        elem *to = (elem *)args.tensor[NH_D_Q].data + nh_row_offset(info.work_tile, NH_D_Q, warp_tile, row);
        nh_repair_gradient(
            args, info.work_tile, warp_tile, row, own, [=](int, int i, elem x) { to[i] = x; }, [](int, int, elem) {});
    });
}

NH_DEVICE void nh_backward_query_turns(const nh_tiled_args &args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const nh_tables &tables = shared.tables;
    const int warp = (int)(threadIdx.x / 32);
    int current = 0;
    nh_let_next_begin();
    if (NH_ADDS_MASK) nh_additive_masks_fill(shared.additive_masks);
    nh_tables_start(args, shared.tables, shared.info);
    nh_tables_fill(shared.tables);
    nh_start<C.dim_v>(args, shared, NH_V, warp);
    for (int index = (int)NH_OWN_BLOCK; index < args.tiling.work_tiles; index += (int)NH_OWN_BLOCKS) {
        nh_tile_info &info = shared.info[current], &next = shared.info[current ^= 1];
        const bool exists = nh_warp_tile_exists(info.work_tile, warp);
        nh_scores gradients; /* of weights, then of scores */
        nh_row_terms terms;
        nh_dot_part(terms.delta, nh_own_rows_of(args, info.work_tile, NH_D_O, warp),
                    nh_own_rows_of(args, info.work_tile, NH_O, warp));
        nh_tile_info_fill(args, tables, info, info.work_tile.head, (int)nh_thread_again(), NH_THREADS);
        nh_copy_wait();
        __syncthreads();
        nh_work_tile_locate_next(args, tables, index + (int)NH_OWN_BLOCKS, next.work_tile);
        if (exists) {
            nh_note_warp_tile(args, info.work_tile.number, warp);
            nh_clear(gradients);
            nh_multiply_own<C.dim_v>(gradients, 0, NH_BLOCKS, nh_own_rows_of(args, info.work_tile, NH_D_O, warp), info,
                                      tables, shared.halo, warp);
        }
        __syncthreads();
        nh_copy_halo<C.dim>(args, info.work_tile, NH_K, 0, shared.halo);
        if (exists) {
            uint4 statistics[2];
            terms.delta[0] = nh_quad_sum(terms.delta[0]);
            terms.delta[1] = nh_quad_sum(terms.delta[1]);
            nh_row_statistics(args, info, tables.shift, warp, terms.lse, terms.delta, statistics);
        }
        nh_copy_wait();
        __syncthreads();
        if (exists) {
            nh_score_gradients(gradients, args, info, shared, terms, warp);
            nh_finish(args, info, shared, warp, terms, gradients);
        }
        __syncthreads();
        if (index + (int)NH_OWN_BLOCKS < args.tiling.work_tiles)
            nh_copy_halo<C.dim_v>(args, next.work_tile, NH_V, 0, shared.halo);
    }
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_backward_query_turns(NH_PARAMETER(nh_tiled_args)) {
    NH_FOR_MEMBERS(nh_tiled_args, nh_backward_query_turns)
}
