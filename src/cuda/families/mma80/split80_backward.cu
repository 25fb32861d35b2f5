/* Backward pass of sm_80 and later, without atomics: one kernel source for three launches. Rows are queries, for dQ, or
 * with NH_INVERSE keys, for dK and dV, or with NH_EXTRA_ROWS as well extra tokens, for their gradients.
 *
 * In each case a block owns a box of rows and loops over the box of columns that it needs, the keys of its queries or
 * the queries of its keys, as the forward pass does over its halo. Per tile, with rows a, columns b and their second
 * tensors a', b' (dO for queries, V for keys):
 *
 *     P = exp(scale a b^T + bias - LSE)   dS = P (a' b'^T - delta)   gradient of a += dS b   of a', if V, += P b'
 *
 * A key is multiplied with the query heads that share it one after the other. Sums are in a fixed order, so that
 * results are bit-equal in every run. */
#include "bias_gradient.cuh"
#include "long_sums.cuh"
#include "repair_gradient.cuh"
#include "overlap.cuh"

namespace nh_mma80 {

struct nh_shared {
    elem rows[NH_ROWS * NH_PITCH_K], rows2[NH_ROWS * NH_PITCH_V];
    elem columns[C.stages][NH_COLUMNS * NH_PITCH_K], columns2[C.stages][NH_COLUMNS * NH_PITCH_V];
    nh_loop_tables loop;
    /* statistics of the columns, if those are the queries */
    nh_stats stats[C.stages][NH_COLUMNS];
    nh_score_tables tables;
    nh_bias_tile bias_tile;
};
static_assert(sizeof(struct nh_shared) == mma80_shared_bytes(&C), "the host's count of shared memory");

typedef float nh_gradient[NH_BLOCKS][NH_DIM_PADDED / 8][4];
typedef float nh_gradient2[NH_BLOCKS][NH_DIM_V_PADDED / 8][4];

enum {
    NH_ROW_SLOT = NH_INVERSE ? NH_K : NH_Q,
    NH_ROW_SLOT2 = NH_INVERSE ? NH_V : NH_D_O,
    NH_COLUMN_SLOT = NH_INVERSE ? NH_Q : NH_K,
    NH_COLUMN_SLOT2 = NH_INVERSE ? NH_D_O : NH_V
};

/* Starts the copies of the loop's current tile, if there is one. */
NH_DEVICE void nh_copy_tiles(const nh_tiled_args &args, const nh_block &block, nh_shared &shared,
                             const nh_loop_bounds &bounds, const nh_kv_loop &loop) {
    const int stage = loop.left % C.stages;
    if (loop.left > 0) {
        nh_copy_next<NH_DIM, NH_PITCH_K, NH_LOOP_FIRST>(shared.columns[stage], args, block, bounds, shared.loop, loop);
        nh_copy_next<NH_DIM_V, NH_PITCH_V, NH_LOOP_SECOND>(shared.columns2[stage], args, block, bounds, shared.loop,
                                                           loop);
        if (NH_INVERSE) nh_stats_copy(args, block, bounds, loop, shared.loop, shared.stats[stage]);
    }
    nh_copy_commit();
}

/* Statistics of the thread's rows, if those are the queries. */
struct nh_row_stats {
    nh_stats row[2 * NH_BLOCKS];
};

NH_DEVICE void nh_row_stats_load(const nh_tiled_args &args, const nh_block &block,
                                 int first_row, nh_row_stats &stats) {
    const nh_cuda_tensor &tensor = args.tensor[NH_DELTA];
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        int row = first_row + 8 * r + (int)threadIdx.x % 32 / 4;
        stats.row[r] =
            nh_stats_at(args, nh_row_offset(args, block, tensor, block.head, row));
    }
}

/* LSE and delta of a pair's query: row r of the thread, column i of its row. */
NH_DEVICE nh_stats nh_query_of_pair(const nh_row_stats &rows, const nh_stats *columns, int r,
                                    int i) {
    return NH_INVERSE ? columns[i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2] : rows.row[r];
}

/* Turns scores into weights. */
NH_DEVICE void nh_weights(const nh_row_stats &rows, const nh_stats *columns, float scale,
                          nh_scores &p) {
#pragma unroll
    for (int i = 0; i < NH_COLUMNS / 4; i++)
#pragma unroll
        for (int r = 0; r < 2 * NH_BLOCKS; r++) {
            float &s = p[r / 2][i / 2][r % 2 * 2 + i % 2];
            s = nh_exp2(fmaf(s, scale, -nh_query_of_pair(rows, columns, r, i).lse));
        }
}

/* Starts dP at -delta / 2. If values are mostly alike, dP is nearly delta, and dS is their small difference, which the
 * truncation of dP by tensor cores would spoil. With C.long_sums sums therefore run from -delta / 2 to delta / 2, so
 * that most truncation errors cancel. */
NH_DEVICE void nh_start_at_deltas(const nh_row_stats &rows, const nh_stats *columns, nh_scores &d_p) {
#pragma unroll
    for (int i = 0; i < NH_COLUMNS / 4; i++)
#pragma unroll
        for (int r = 0; r < 2 * NH_BLOCKS; r++)
            d_p[r / 2][i / 2][r % 2 * 2 + i % 2] = -.5f * nh_query_of_pair(rows, columns, r, i).delta;
}

/* Turns dP into dS. For a pair without weight, dP may be a NaN from outside the row's window, and dS has to be 0: the
 * row itself would be repaired, but not the bias's gradient. */
NH_DEVICE void nh_score_gradients(const nh_row_stats &rows, const nh_stats *columns,
                                  const nh_scores &p, nh_scores &d_s) {
#pragma unroll
    for (int i = 0; i < NH_COLUMNS / 4; i++)
#pragma unroll
        for (int r = 0; r < 2 * NH_BLOCKS; r++) {
            float weight = p[r / 2][i / 2][r % 2 * 2 + i % 2];
            float &g = d_s[r / 2][i / 2][r % 2 * 2 + i % 2];
            const float delta = nh_query_of_pair(rows, columns, r, i).delta;
            g = weight * (C.long_sums ? fmaf(delta, -.5f, g) : g - delta);
            if (NH_BIAS_GRADIENT && weight == 0.f) g = 0.f;
        }
}

/* Writes the warp's rows of a gradient to shared memory. Returns a mask: bit r is set if the thread holds a part of row
 * 8r + lane / 4 that is not finite. */
template <int WIDTH, int PITCH>
NH_DEVICE unsigned nh_stage(const float (&gradient)[NH_BLOCKS][WIDTH / 8][4], float scale,
                            elem *rows) {
    unsigned poisoned = 0;
    rows += (int)threadIdx.x % 32 / 4 * PITCH + 2 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        float poison = 0.f;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            float first = gradient[r / 2][n][r % 2 * 2] * scale;
            float second = gradient[r / 2][n][r % 2 * 2 + 1] * scale;
            poison += first * 0.f + second * 0.f;
            nh_store_pair(rows + 8 * r * PITCH + 8 * n, first, second);
        }
        poisoned |= (unsigned)(poison != 0.f) << r;
    }
    return poisoned;
}

template <int WIDTH, int PITCH>
NH_DEVICE void nh_store_gradient(const nh_tiled_args &args, const nh_block &block, int slot,
                                 int first_row, const elem *rows) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    const int units = WIDTH / NH_UNIT;
    if (!tensor.data) return;
    for (int i = (int)threadIdx.x % 32; i < NH_WARP_ROWS * units; i += 32) {
        int row = i / units, column = i % units * NH_UNIT;
        if (nh_row_exists(block, first_row + row))
            nh_store_unit((elem *)tensor.data +
                              nh_row_offset(args, block, tensor, block.head, first_row + row) +
                              column,
                          rows + row * PITCH + column);
    }
}

/* Stores the gradients and repairs rows. Extra tokens see every column, so that their rows never need repair. */
NH_DEVICE void nh_finish(const nh_tiled_args &args, unsigned work_tile, const nh_block &block,
                         const nh_gradient &gradient, const nh_gradient2 &gradient2, int first_row, elem *rows,
                         elem *rows2) {
    unsigned poisoned = 0;
    if (C.sum_first)
        poisoned |= nh_stage<NH_DIM_PADDED, NH_PITCH_K>(gradient, (float)args.scale, rows);
    if (C.sum_second) poisoned |= nh_stage<NH_DIM_V_PADDED, NH_PITCH_V>(gradient2, 1.f, rows2);
#pragma unroll 1
    for (int r = 0; !NH_EXTRA_ROWS && r < 2 * NH_BLOCKS; r++) {
        unsigned lanes = __ballot_sync(~0u, (int)(poisoned >> r & 1));
        while (lanes) {
            int bad = (__ffs((int)lanes) - 1) / 4, row = 8 * r + bad;
            lanes &= ~(15u << 4 * bad);
            __syncwarp();
            nh_repair_gradient(args, work_tile, first_row + row, rows + row * NH_PITCH_K, rows2 + row * NH_PITCH_V);
        }
    }
    __syncwarp();
    if (C.sum_first)
        nh_store_gradient<NH_DIM, NH_PITCH_K>(args, block, NH_INVERSE ? NH_D_K : NH_D_Q, first_row,
                                              rows);
    if (C.sum_second)
        nh_store_gradient<NH_DIM_V, NH_PITCH_V>(args, block, NH_D_V, first_row, rows2);
}

/* Sets up the tables, starts the copies of the block's own rows, and returns the start of the KV loop. */
NH_DEVICE nh_kv_loop nh_prepare(const nh_tiled_args &args, const nh_block &block,
                                       nh_shared &shared, nh_loop_bounds &bounds) {
    nh_mask_tables_fill(args, block, shared.tables.masks);
    if (C.biased) nh_bias_columns_fill(args, shared.tables.bias);
    nh_zero_padding(shared.rows, NH_ROWS, NH_PITCH_K, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.rows2, NH_ROWS, NH_PITCH_V, NH_DIM_V, NH_DIM_V_PADDED);
    nh_zero_padding(shared.columns[0], C.stages * NH_COLUMNS, NH_PITCH_K, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.columns2[0], C.stages * NH_COLUMNS, NH_PITCH_V, NH_DIM_V,
                    NH_DIM_V_PADDED);
    nh_copy_rows<NH_DIM, NH_PITCH_K>(args, block, args.tensor[NH_ROW_SLOT], block.head,
                                     shared.rows);
    nh_copy_rows<NH_DIM_V, NH_PITCH_V>(args, block, args.tensor[NH_ROW_SLOT2], block.head,
                                       shared.rows2);
    __syncthreads();
    bounds = nh_loop_bounds_of(args, block, shared.tables.masks);
    nh_loop_table_fill(args, bounds.halo, NH_COLUMN_SLOT, C.element_bytes, NH_LOOP_FIRST, shared.loop);
    nh_loop_table_fill(args, bounds.halo, NH_COLUMN_SLOT2, C.element_bytes, NH_LOOP_SECOND, shared.loop);
    if (NH_INVERSE)
        nh_loop_table_fill(args, bounds.halo, NH_DELTA, sizeof(float), NH_LOOP_STATS, shared.loop);
    nh_dense_boxes_fill(shared.tables.masks, shared.tables.dense);
    __syncthreads();
    /* head of the columns: the first of the query heads that share the key head, or the key head */
    const int head = NH_INVERSE ? block.head * nh_heads_of_row(args) : block.kv_head;
    nh_kv_loop loop = {nh_loop_origin(bounds.halo), nh_loop_tiles(args, bounds),
                           NH_INVERSE ? head : block.head,
                           {}};
    loop.at[NH_LOOP_FIRST] =
        nh_loop_start(args, block, bounds.halo, NH_COLUMN_SLOT, head, C.element_bytes) +
        nh_share_offset<NH_DIM>(shared.loop.row[NH_LOOP_FIRST]);
    loop.at[NH_LOOP_SECOND] =
        nh_loop_start(args, block, bounds.halo, NH_COLUMN_SLOT2, head, C.element_bytes) +
        nh_share_offset<NH_DIM_V>(shared.loop.row[NH_LOOP_SECOND]);
    if (NH_INVERSE)
        loop.at[NH_LOOP_STATS] =
            nh_loop_start(args, block, bounds.halo, NH_DELTA, head, sizeof(float));
    return loop;
}

NH_DEVICE void nh_do_work_tile(const nh_tiled_args &args, unsigned work_tile, nh_shared &shared) {
    nh_block block;
    if (!nh_block_locate(args, work_tile, block)) return;
    nh_loop_bounds bounds;
    nh_kv_loop now = nh_prepare(args, block, shared, bounds), next = now;
#pragma unroll
    for (int i = 0; i < C.stages - 1; i++) {
        nh_copy_tiles(args, block, shared, bounds, next);
        nh_next(next, bounds, shared.loop);
    }
    const int first_row = (int)threadIdx.x / 32 * NH_WARP_ROWS;
    const float scale = (float)(args.scale * NH_LOG2E);
    elem *rows = shared.rows + first_row * NH_PITCH_K;
    elem *rows2 = shared.rows2 + first_row * NH_PITCH_V;
    nh_row_stats stats;
    if (!NH_INVERSE) nh_row_stats_load(args, block, first_row, stats);
    nh_gradient gradient = {};
    nh_gradient2 gradient2 = {};
    nh_totals<NH_DIM_PADDED> totals;
    nh_totals<NH_DIM_V_PADDED> totals2;
    if (C.long_sums && C.sum_first) nh_totals_start(totals);
    if (C.long_sums && C.sum_second) nh_totals_start(totals2);
#pragma unroll 1
    while (now.left > 0) {
        const int stage = now.left % C.stages;
        /* The barrier makes the tile visible to all, and makes sure that all have finished with the one before. */
        nh_copy_wait_groups<C.stages - 2>();
        __syncthreads();
        nh_copy_tiles(args, block, shared, bounds, next);
        nh_next(next, bounds, shared.loop);
        nh_scores p, d_s;
        nh_multiply<NH_DIM_PADDED, NH_PITCH_K, NH_PITCH_K>(p, rows, shared.columns[stage]);
        nh_finish_scores(args, block, shared.tables, bounds, now, first_row, scale, p);
        nh_weights(stats, shared.stats[stage], C.prescale ? 1.f : scale, p);
        if (C.sum_second)
            nh_accumulate<NH_DIM_V_PADDED, NH_PITCH_V>(gradient2, p, shared.columns2[stage]);
        bool biased = nh_bias_gradient_wanted(args) && !nh_is_extra(bounds, now.left);
        if (C.sum_first) {
            if (C.long_sums) nh_start_at_deltas(stats, shared.stats[stage], d_s);
            nh_multiply<NH_DIM_V_PADDED, NH_PITCH_V, NH_PITCH_V, C.long_sums>(d_s, rows2,
                                                                 shared.columns2[stage]);
            nh_score_gradients(stats, shared.stats[stage], p, d_s);
            if (biased) nh_bias_tile_store(d_s, first_row, shared.bias_tile);
            nh_accumulate<NH_DIM_PADDED, NH_PITCH_K>(gradient, d_s, shared.columns[stage]);
        }
        if (biased) nh_bias_tile_add(args, block, now.cursor, shared.bias_tile);
        if (C.long_sums && now.left % NH_CHAIN_TILES == 0) {
            if (C.sum_first) nh_totals_add(totals, gradient);
            if (C.sum_first) nh_totals_put(totals, gradient);
            if (C.sum_second) nh_totals_add(totals2, gradient2);
            if (C.sum_second) nh_totals_put(totals2, gradient2);
        }
        nh_next(now, bounds, shared.loop);
    }
    if (NH_REGIONS) { /* If there was no tile, nobody has waited for the rows, which gradients overwrite. */
        nh_copy_wait();
        __syncthreads();
    }
    if (C.long_sums && C.sum_first) nh_totals_add(totals, gradient);
    if (C.long_sums && C.sum_second) nh_totals_add(totals2, gradient2);
    __syncwarp();
    nh_finish(args, work_tile, block, gradient, gradient2, first_row, rows, rows2);
}

NH_DEVICE void nh_do_work_tiles(const nh_tiled_args &args, nh_shared &shared) {
    nh_bias_table_clear(args);
#pragma unroll 1
    for (unsigned round = nh_bias_share(args); round < nh_bias_rounds(args); round += nh_bias_shares(args)) {
        __syncthreads();
        nh_do_work_tile(args, nh_bias_work_tile(args, round), shared);
    }
}

} // namespace nh_mma80

using namespace nh_mma80;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    split80_backward(const __grid_constant__ nh_tiled_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    /* Blocks that own keys only need the statistics, not the other results of earlier launches, as in
     * split90_key.cu. */
    if (!NH_INVERSE) nh_wait_for_launches();
    nh_let_next_begin();
    if (NH_BIAS_GRADIENT) {
        nh_do_work_tiles(args, shared);
    } else {
        nh_do_work_tile(args, blockIdx.x, shared);
    }
    if (NH_INVERSE) nh_wait_for_launches();
}
