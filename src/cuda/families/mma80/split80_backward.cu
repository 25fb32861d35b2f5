/* Backward pass of sm_80 and later, without atomics: one kernel source for three launches. Rows are queries, for dQ, or
 * with NH_INVERSE keys, for dK and dV, or with NH_EXTRA_ROWS as well extra tokens, for their gradients. A block owns a
 * box of rows and loops over the box of columns that it needs, the keys of its queries or the queries of its keys. Per
 * tile, with rows a, columns b and their second tensors a', b' (dO for queries, V for keys):
 *
 *     P = exp(scale a b^T + bias - LSE)   dS = P (a' b'^T - delta)   gradient of a += dS b   of a', if V, += P b'
 *
 * A key is multiplied with the query heads that share it in turn. Orders are fixed: results are bit-equal in every
 * run. */
#include "bias_gradient.cuh"
#include "block_begin.cuh"
#include "softmax.cuh"
#include "overlap.cuh"
#include "repair.cuh"
#include "tile_output.cuh"

namespace nh_mma80 {

struct nh_backward_shared : nh_shared {
    /* statistics of the columns, if those are the queries */
    nh_stats stats[C.stages][NH_COLUMNS];
    nh_bias_tile bias_tile;
};
static_assert(sizeof(nh_backward_shared) == mma80_shared_bytes(&C), "the host's count of shared memory");

/* What a thread sums up of its rows: dQ or dK, and dV. */
struct nh_gradients {
    float first[NH_BLOCKS][NH_DIM_PADDED / 8][4], second[NH_BLOCKS][NH_DIM_V_PADDED / 8][4];
};

/* Totals of them, with C.long_sums. */
struct nh_gradient_totals {
    nh_totals<NH_DIM_PADDED> first;
    nh_totals<NH_DIM_V_PADDED> second;
};

NH_DEVICE void nh_gradient_totals_start(nh_gradient_totals &totals) {
    if (C.long_sums && C.sum_first) nh_totals_start(totals.first);
    if (C.long_sums && C.sum_second) nh_totals_start(totals.second);
}
NH_DEVICE void nh_gradient_totals_add(const nh_gradient_totals &totals, nh_gradients &sums) {
    if (C.long_sums && C.sum_first) nh_totals_add(totals.first, sums.first);
    if (C.long_sums && C.sum_second) nh_totals_add(totals.second, sums.second);
}
NH_DEVICE void nh_gradient_totals_put(nh_gradient_totals &totals, nh_gradients &sums) {
    if (C.long_sums && C.sum_first) nh_totals_put(totals.first, sums.first);
    if (C.long_sums && C.sum_second) nh_totals_put(totals.second, sums.second);
}

/* A warp's rows, and statistics of the thread's, if those are the queries. */
struct nh_own_rows {
    int first_row;
    elem *rows, *rows2;
    nh_stats stats[2 * NH_BLOCKS];
};

NH_DEVICE void nh_own_rows_set(int thread, nh_shared &shared, nh_own_rows &own) {
    own.first_row = nh_first_row(thread);
    own.rows = shared.rows + own.first_row * NH_PITCH_K;
    own.rows2 = shared.rows + NH_ROWS2 + own.first_row * NH_PITCH_V;
}

/* ---- a tile ---- */

/* Starts the copies of the loop's current tile, if there is one. */
NH_DEVICE void nh_copy_tiles(const nh_tiled_args &args, const nh_block &block, nh_backward_shared &shared,
                             const nh_kv_loop &loop) {
    if (loop.left > 0) {
        nh_start_copy<NH_LOOP_FIRST>(args, block, shared, loop);
        nh_start_copy<NH_LOOP_SECOND>(args, block, shared, loop);
        if constexpr (NH_INVERSE) nh_stats_copy(args, block, loop, shared.loop, shared.stats[loop.left % C.stages]);
    }
    nh_copy_commit();
}

/* Calls change(p, d_p, query) for the thread's scores and gradients. columns: statistics of the tile's columns. */
NH_DEVICE void nh_for_pairs(const nh_own_rows &own, const nh_stats *columns, nh_scores &p, nh_scores &d_p,
                            const auto &change) {
    NH_UNROLL for (int i = 0; i < NH_COLUMNS / 4; i++)
        NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++)
            change(p[r / 2][i / 2][r % 2 * 2 + i % 2], d_p[r / 2][i / 2][r % 2 * 2 + i % 2],
                   NH_INVERSE ? columns[i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2] : own.stats[r]);
}

/* Makes dS of P, and adds dS b to the first gradient. If values are mostly alike, dP is nearly delta, and truncation by
 * tensor cores would spoil their small difference dS. With C.long_sums sums therefore run from -delta / 2 to delta / 2,
 * so that most truncation errors cancel. For a pair without weight, dP may be a NaN from outside the row's window, and
 * dS has to be 0: the row itself would be repaired, but not the bias's gradient. */
NH_DEVICE void nh_add_first(const nh_own_rows &own, nh_backward_shared &shared, int stage, bool biased, nh_scores &p,
                            nh_gradients &sums) {
    const nh_stats *columns = shared.stats[stage];
    nh_scores d_s;
    if (C.long_sums)
        nh_for_pairs(own, columns, p, d_s, [](float, float &d_p, const nh_stats &query) { d_p = -.5f * query.delta; });
    nh_multiply<NH_DIM_V_PADDED, NH_PITCH_V, NH_PITCH_V, C.long_sums>(d_s, own.rows2, shared.columns2[stage]);
    nh_for_pairs(own, columns, p, d_s, [](float weight, float &g, const nh_stats &query) {
        g = weight * (C.long_sums ? fmaf(query.delta, -.5f, g) : g - query.delta);
        if (NH_BIAS_GRADIENT && weight == 0.f) g = 0.f;
    });
    if (biased) nh_bias_tile_store(d_s, own.first_row, shared.bias_tile);
    nh_accumulate<NH_DIM_PADDED, NH_PITCH_K>(sums.first, d_s, shared.columns[stage]);
}

/* Adds the tile `now`, which has been copied, to the gradients. */
NH_DEVICE void nh_add_tile(const nh_tiled_args &args, const nh_block &block, nh_backward_shared &shared,
                           const nh_own_rows &own, const nh_kv_loop &now, nh_gradients &sums) {
    const int stage = now.left % C.stages;
    const float scale = (float)(args.scale * NH_LOG2E), factor = C.prescale ? 1.f : scale;
    const bool biased = nh_bias_gradient_wanted(args) && !nh_is_extra(block, now.left);
    nh_scores p;
    nh_multiply<NH_DIM_PADDED, NH_PITCH_K, NH_PITCH_K>(p, own.rows, shared.columns[stage]);
    nh_finish_scores(args, block, shared.tables, now, own.first_row, scale, p);
    nh_for_pairs(own, shared.stats[stage], p, p,
                 [&](float &s, float, const nh_stats &query) { s = nh_exp2(fmaf(s, factor, -query.lse)); });
    if (C.sum_second) nh_accumulate<NH_DIM_V_PADDED, NH_PITCH_V>(sums.second, p, shared.columns2[stage]);
    if (C.sum_first) nh_add_first(own, shared, stage, biased, p, sums);
    if (biased) nh_bias_tile_add(args, block, now.cursor, shared.bias_tile);
}

/* ---- a work tile ---- */

/* Stores the gradients and repairs rows. Extra tokens see every column, so that their rows never need repair. */
NH_DEVICE void nh_finish(const nh_tiled_args &args, unsigned work_tile, const nh_block &block, const nh_own_rows &own,
                         const nh_gradients &sums) {
    unsigned bad = 0;
    if (C.sum_first)
        bad |= nh_stage<NH_DIM_PADDED, NH_PITCH_K>(
            sums.first, [&](int) { return (float)args.scale; }, NH_INFINITY, own.rows);
    if (C.sum_second)
        bad |= nh_stage<NH_DIM_V_PADDED, NH_PITCH_V>(sums.second, [](int) { return 1.f; }, NH_INFINITY, own.rows2);
    if (!NH_EXTRA_ROWS)
        nh_repair_rows(bad, [&](int row) {
            nh_repair_gradient(args, work_tile, own.first_row + row, own.rows + row * NH_PITCH_K,
                               own.rows2 + row * NH_PITCH_V);
        });
    __syncwarp();
    if (C.sum_first)
        nh_store_rows<NH_DIM, NH_PITCH_K>(args, block, NH_INVERSE ? NH_D_K : NH_D_Q, own.first_row, own.rows);
    if (C.sum_second) nh_store_rows<NH_DIM_V, NH_PITCH_V>(args, block, NH_D_V, own.first_row, own.rows2);
}

NH_DEVICE void nh_do_work_tile(const nh_tiled_args &args, unsigned work_tile, nh_backward_shared &shared) {
    nh_block block;
    if (!nh_block_locate(args, work_tile, block)) return;
    nh_kv_loop now = nh_block_begin(args, block, shared), next = now;
    nh_own_rows own;
    nh_own_rows_set((int)threadIdx.x, shared, own);
    NH_UNROLL for (int r = 0; !NH_INVERSE && r < 2 * NH_BLOCKS; r++)
        own.stats[r] = nh_stats_at(
            args, nh_row_offset(args, block, args.tensor[NH_DELTA], own.first_row + 8 * r + (int)threadIdx.x % 32 / 4));
    NH_UNROLL for (int i = 0; i < C.stages - 1; i++) {
        nh_copy_tiles(args, block, shared, next);
        nh_next(next, block, shared.loop);
    }
    nh_gradients sums = {};
    nh_gradient_totals totals;
    nh_gradient_totals_start(totals);
    NH_UNROLL_1 while (now.left > 0) {
        /* The barrier makes the tile visible to all, and makes sure that all have finished with the one before. */
        nh_copy_wait_groups<C.stages - 2>();
        __syncthreads();
        nh_copy_tiles(args, block, shared, next);
        nh_next(next, block, shared.loop);
        nh_add_tile(args, block, shared, own, now, sums);
        if (now.left % NH_CHAIN_TILES == 0) {
            nh_gradient_totals_add(totals, sums);
            nh_gradient_totals_put(totals, sums);
        }
        nh_next(now, block, shared.loop);
    }
    if (NH_REGIONS) { /* If there was no tile, nobody has waited for the rows, which gradients overwrite. */
        nh_copy_wait();
        __syncthreads();
    }
    nh_gradient_totals_add(totals, sums);
    __syncwarp();
    /* In f32 the loop is slower where this is computed again behind it. */
    if (NH_DTYPE != NH_F32) nh_own_rows_set((int)nh_thread_again(), shared, own);
    nh_finish(args, work_tile, block, own, sums);
}

NH_DEVICE void nh_do_work_tiles(const nh_tiled_args &args, nh_backward_shared &shared) {
    nh_bias_table_clear(args);
#pragma unroll 1
    for (unsigned round = nh_bias_share(args); round < nh_bias_rounds(args); round += nh_bias_shares(args)) {
        __syncthreads();
        nh_do_work_tile(args, nh_bias_work_tile(args, round), shared);
    }
}

} // namespace nh_mma80

using namespace nh_mma80;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks) split80_backward(NH_PARAMETER(nh_tiled_args)) {
    NH_TAKE_MEMBER(nh_tiled_args)
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_backward_shared &shared = *(nh_backward_shared *)nh_shared_memory;
    /* Blocks that own keys need the statistics, but no other results of earlier launches, as in split90_key.cu. */
    if (!NH_INVERSE) nh_wait_for_launches();
    nh_let_next_begin();
    if (NH_BIAS_GRADIENT)
        nh_do_work_tiles(args, shared);
    else
        nh_do_work_tile(args, NH_OWN_BLOCK, shared);
    if (NH_INVERSE) nh_wait_for_launches();
}
