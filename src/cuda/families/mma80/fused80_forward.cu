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
#include "block_begin.cuh"
#include "softmax.cuh"
#include "repair.cuh"
#include "tile_output.cuh"

namespace nh_mma80 {

static_assert(sizeof(nh_shared) == mma80_shared_bytes(&C), "the host's count of shared memory");

/* Starts the copy of the loop's current tile of one tensor, if there is a tile. */
template <int TENSOR>
NH_DEVICE void nh_copy_any(const nh_cuda_args &args, const nh_block &block, nh_shared &shared, const nh_kv_loop &loop) {
    if (loop.left > 0) nh_start_copy<TENSOR>(args, block, shared, loop);
}

/* Computes the scores of the tile `now`, with the copies that start meanwhile. */
NH_DEVICE void nh_multiply_keys(const nh_cuda_args &args, const nh_block &block, nh_shared &shared,
                                const nh_kv_loop &now, nh_kv_loop &next, const elem *queries, nh_scores &scores) {
    nh_copy_wait();
    __syncthreads();
    if (C.stages == 2) nh_copy_any<NH_LOOP_FIRST>(args, block, shared, next);
    nh_copy_any<NH_LOOP_SECOND>(args, block, shared, C.stages == 2 ? next : now);
    nh_multiply<NH_DIM_PADDED, NH_PITCH_Q, NH_PITCH_K>(scores, queries, shared.columns[now.left % C.stages]);
    if (C.stages == 1) {
        nh_copy_wait();
        __syncthreads();
        nh_copy_any<NH_LOOP_FIRST>(args, block, shared, next);
    }
    nh_next(next, block, shared.loop);
}

/* Turns scores into weights, and adds the weighted values to the output. */
NH_DEVICE void nh_add_values(nh_softmax &state, nh_scores &scores, const elem *values, float scale, nh_output &output) {
    float shrink[2 * NH_BLOCKS];
    nh_softmax_raise(state, scores, scale, shrink);
    nh_softmax_shrink(state, output, shrink);
    nh_softmax_weights(state, scores, scale);
    nh_accumulate<NH_DIM_V_PADDED, NH_PITCH_V>(output, scores, values);
}

/* Stores LSE, and the warp's rows, divided by their sums, in place of its queries. Rows are repaired that a masked NaN
 * has reached, whose scores are far from 0, or whose sums overflow because values are near the largest number. */
NH_DEVICE void nh_finish_rows(const nh_cuda_args &args, const nh_block &block, const nh_softmax &state,
                              const nh_output &output, int first_row, elem *rows) {
    const nh_cuda_tensor &lse = args.tensor[NH_LSE];
    const int lane = (int)(nh_thread_again() % 32);
    float factor[2 * NH_BLOCKS];
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        const int row = first_row + 8 * r + lane / 4;
        const float sum = nh_quad_sum(state.sum[r]);
        /* A sum of 0 alone does not say that the row sees no key: where scores are so large that their rounding is
         * worth more than a weight can hold, it is 0, too. */
        factor[r] = NH_REGIONS && state.top[r] == NH_LOWEST ? 0.f
                    : fabsf(state.top[r]) > NH_FAR_SCORE    ? NH_INFINITY
                                                            : 1.f / sum;
        if (lse.data && lane % 4 == 0 && nh_row_exists(block, row))
            ((float *)lse.data)[nh_row_offset(args, block, lse, row)] = (state.top[r] + log2f(sum)) * (float)NH_LN2;
    }
    const unsigned bad = nh_stage<NH_DIM_V_PADDED, NH_PITCH_Q>(
        output, [&](int r) { return factor[r]; }, NH_BEYOND_STORAGE, rows);
    nh_repair_rows(bad, [&](int row) { nh_repair_query(args, first_row + row, rows + row * NH_PITCH_Q); });
    __syncwarp();
    nh_store_rows<NH_DIM_V, NH_PITCH_Q>(args, block, NH_O, first_row, rows);
}

} // namespace nh_mma80

using namespace nh_mma80;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks) fused80_forward(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_block block;
    if (!nh_block_locate(args, NH_OWN_BLOCK, block)) return;
    nh_kv_loop now = nh_block_begin(args, block, shared), next = now;
    nh_kept_place place;
    if (NH_DTYPE == NH_F32) nh_place_copy(block, place);
    nh_copy_any<NH_LOOP_FIRST>(args, block, shared, next);
    if (C.stages == 2) nh_copy_any<NH_LOOP_SECOND>(args, block, shared, next);
    nh_next(next, block, shared.loop);

    const int first_row = nh_first_row((int)threadIdx.x);
    const elem *queries = shared.rows + first_row * NH_PITCH_Q;
    const float scale = (float)(args.scale * NH_LOG2E);
    nh_scores scores;
    nh_output output = {};
    nh_softmax state;
    nh_softmax_totals totals;
    nh_softmax_start(state);
    if (C.long_sums) nh_softmax_totals_start(totals);
    NH_UNROLL_1 while (now.left > 0) {
        nh_multiply_keys(args, block, shared, now, next, queries, scores);
        nh_finish_scores(args, block, shared.tables, now, first_row, scale, scores);
        nh_add_values(state, scores, shared.columns2[now.left % C.stages], C.prescale ? 1.f : scale, output);
        if (C.long_sums && now.left % NH_CHAIN_TILES == 0) {
            nh_softmax_totals_take(totals, state, output);
            nh_softmax_totals_put(totals, state, output);
        }
        nh_next(now, block, shared.loop);
    }
    if (NH_REGIONS) { /* If there was no tile, nobody has waited for the queries, which outputs overwrite. */
        nh_copy_wait();
        __syncthreads();
    }
    if (C.long_sums) nh_softmax_totals_take(totals, state, output);
    __syncwarp();
    if (NH_DTYPE == NH_F32) nh_place_copy(place, block);
    const int own_row = nh_first_row((int)nh_thread_again());
    nh_finish_rows(args, block, state, output, own_row, shared.rows + own_row * NH_PITCH_Q);
}
