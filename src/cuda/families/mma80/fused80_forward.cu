/* Fused forward pass of sm_80 and later: one block per query tile, keys and values streamed through shared memory.
 *
 * Per key tile: scores by tensor cores, masks where a window's edge passes through, softmax in base 2, output by tensor
 * cores. With two stages, keys and values of the next tile are copied meanwhile. With one, which leaves room for more
 * blocks, keys are copied during softmax and output, and values during the scores:
 *
 *     2 stages   wait for K(t), V(t)   barrier   start K(t + 1), V(t + 1)   scores   softmax, output
 *     1 stage    wait for K(t)         barrier   start V(t)                 scores
 *                wait for V(t)         barrier   start K(t + 1)             softmax, output
 *
 * The barrier before a start also makes sure that everyone has finished with the buffer to which it writes. Extra
 * tokens are tiles after the last one of the halo. */
#include "long_sums.cuh"
#include "tile_output.cuh"
#include "tile_scores.cuh"

namespace nh_mma80 {

struct nh_shared {
    elem queries[NH_ROWS * NH_PITCH_Q];
    elem keys[C.stages][NH_COLUMNS * NH_PITCH_K];
    elem values[C.stages][NH_COLUMNS * NH_PITCH_V];
    nh_loop_tables loop;
    nh_score_tables tables;
};
static_assert(sizeof(struct nh_shared) == mma80_shared_bytes(&C), "the host's count of shared memory");

} // namespace nh_mma80

using namespace nh_mma80;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    fused80_forward(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_block block;
    if (!nh_block_locate(args, blockIdx.x, block)) return;

    nh_mask_tables_fill(args, block, shared.tables.masks);
    if (C.biased) nh_bias_columns_fill(args, shared.tables.bias);
    nh_zero_padding(shared.queries, NH_ROWS, NH_PITCH_Q, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.keys[0], C.stages * NH_COLUMNS, NH_PITCH_K, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.values[0], C.stages * NH_COLUMNS, NH_PITCH_V, NH_DIM_V,
                    NH_DIM_V_PADDED);
    nh_copy_rows<NH_DIM, NH_PITCH_Q>(args, block, args.tensor[NH_Q], block.head, shared.queries);
    __syncthreads();
    const nh_loop_bounds bounds = nh_loop_bounds_of(args, block, shared.tables.masks);
    nh_loop_table_fill(args, bounds.halo, NH_K, C.element_bytes, NH_LOOP_FIRST, shared.loop);
    nh_loop_table_fill(args, bounds.halo, NH_V, C.element_bytes, NH_LOOP_SECOND, shared.loop);
    nh_dense_boxes_fill(shared.tables.masks, shared.tables.dense);
    __syncthreads();

    nh_kv_loop now = {nh_loop_origin(bounds.halo), nh_loop_tiles(args, bounds), block.head, {}};
    now.at[NH_LOOP_FIRST] =
        nh_loop_start(args, block, bounds.halo, NH_K, block.kv_head, C.element_bytes) +
        nh_share_offset<NH_DIM>(shared.loop.row[NH_LOOP_FIRST]);
    now.at[NH_LOOP_SECOND] =
        nh_loop_start(args, block, bounds.halo, NH_V, block.kv_head, C.element_bytes) +
        nh_share_offset<NH_DIM_V>(shared.loop.row[NH_LOOP_SECOND]);
    nh_kv_loop next = now;
    auto copy_keys = [&](const nh_kv_loop &loop) {
        if (loop.left > 0)
            nh_copy_next<NH_DIM, NH_PITCH_K, NH_LOOP_FIRST>(shared.keys[loop.left % C.stages], args, block, bounds,
                                                            shared.loop, loop);
    };
    auto copy_values = [&](const nh_kv_loop &loop) {
        if (loop.left > 0)
            nh_copy_next<NH_DIM_V, NH_PITCH_V, NH_LOOP_SECOND>(shared.values[loop.left % C.stages], args, block,
                                                               bounds, shared.loop, loop);
    };
    copy_keys(next);
    if (C.stages == 2) copy_values(next);
    nh_next(next, bounds, shared.loop);

    const int first_row = (int)threadIdx.x / 32 * NH_WARP_ROWS;
    elem *queries = shared.queries + first_row * NH_PITCH_Q;
    const float scale = (float)(args.scale * NH_LOG2E);
    nh_scores scores;
    nh_output output = {};
    nh_softmax state;
    float shrink[2 * NH_BLOCKS];
    nh_softmax_start(state);
    nh_softmax_totals totals;
    if (C.long_sums) nh_softmax_totals_start(totals);
#pragma unroll 1
    while (now.left > 0) {
        int stage = now.left % C.stages;
        nh_copy_wait();
        __syncthreads();
        if (C.stages == 2) copy_keys(next);
        copy_values(C.stages == 2 ? next : now);
        nh_multiply<NH_DIM_PADDED, NH_PITCH_Q, NH_PITCH_K>(scores, queries, shared.keys[stage]);
        if (C.stages == 1) {
            nh_copy_wait();
            __syncthreads();
            copy_keys(next);
        }
        nh_next(next, bounds, shared.loop);
        nh_finish_scores(args, block, shared.tables, bounds, now, first_row, scale, scores);
        nh_softmax_raise(state, scores, C.prescale ? 1.f : scale, shrink);
        nh_softmax_shrink(state, output, shrink);
        nh_softmax_weights(state, scores, C.prescale ? 1.f : scale);
        nh_accumulate<NH_DIM_V_PADDED, NH_PITCH_V>(output, scores, shared.values[stage]);
        if (C.long_sums && now.left % NH_CHAIN_TILES == 0) {
            nh_softmax_totals_take(totals, state, output);
            nh_softmax_totals_put(totals, state, output);
        }
        nh_next(now, bounds, shared.loop);
    }
    if (NH_REGIONS) { /* If there was no tile, nobody has waited for the queries, which outputs overwrite. */
        nh_copy_wait();
        __syncthreads();
    }
    if (C.long_sums) nh_softmax_totals_take(totals, state, output);

    __syncwarp();
    nh_finish_rows(args, block, state, output, first_row, queries);
    __syncwarp();
    nh_store_rows(args, block, first_row, queries);
}
