/* dQ of small windows, and LSE and delta for the launch by keys. It is like the forward pass, with weights from the
 * given LSE; scores are needed only once, so a warp tile's columns are processed in groups of 16. See small.cuh. */
#pragma once

#include "small_bias_gradient.cuh"
#include "small_repair_gradient.cuh"
#include "small_row_statistics.cuh"

namespace nh_small {

struct nh_rows {
    /* where threads copy, gradients overwrite queries that have been read */
    alignas(NH_STAGE_ALIGNMENT) char queries[NH_ROWS * nh_row_bytes(C.dim)];
    alignas(NH_STAGE_ALIGNMENT) char outputs[NH_ROWS * nh_row_bytes(C.dim_v)];
    alignas(NH_STAGE_ALIGNMENT) char d_outputs[NH_ROWS * nh_row_bytes(C.dim_v)];
};

/* rowsum(dO * O) of rows g and g + 8: the diagonal of dO times O transposed, by the tensor cores. */
NH_DEVICE void nh_dot_rows(float (&sum)[2], const nh_row_operand<C.dim_v> &d_outputs, const char *outputs,
                           int warp_tile) {
    const int lane = (int)(threadIdx.x % 32), g = lane / 4;
    const int row = nh_row_number(warp_tile, nh_lane_column<NH_AS_LAID>());
    float c[2][4] = {};
    unsigned start[NH_STEPS_V];
    NH_UNROLL for (int s = 0; s < NH_STEPS_V; s++)
        start[s] = nh_shared_address(outputs + nh_unit_offset(C.dim_v, row, 2 * s + nh_lane_half<NH_AS_LAID>()));
    nh_multiply_columns(c, d_outputs, start, 0, true);
    const int holder = lane - lane % 4 + g / 2;
    sum[0] = __shfl_sync(~0u, g % 2 ? c[0][1] : c[0][0], holder);
    sum[1] = __shfl_sync(~0u, g % 2 ? c[1][3] : c[1][2], holder);
}

/* Turns a pair's scores (the first block's unless `both`) into gradients. d_weights: of weights, less delta. */
NH_DEVICE void nh_score_gradients(float (&scores)[2][4], const float (&d_weights)[2][4], float scale,
                                  const float (&lse)[2], const unsigned (&seen)[2], int pair, bool both) {
    NH_UNROLL for (int i = 0; i < (both ? 8 : 4); i++) {
        int half = i / 2 % 2;
        bool visible = NH_ADDS_MASK || seen[half] >> (4 * pair + i / 4 * 2 + i % 2) & 1;
        float &score = scores[i / 4][i % 4];
        float weight = nh_exp2(fmaf(score, scale, lse[half]));
        score = visible ? weight * d_weights[i / 4][i % 4] : 0.f;
    }
}

/* What is in shared memory of a work tile, and where the bias's gradient goes. */
struct nh_query_stage {
    const nh_key_halo &halo;
    const nh_rows &rows;
};
struct nh_bias_gradients {
    nh_bias_sums &sums;
    nh_bias_products &products;
};

/* What is the same for all columns of a warp tile. */
struct nh_query_tile {
    nh_row_operand<C.dim> queries;
    nh_row_operand<C.dim_v> d_outputs;
    float lse[2], start[4]; /* -LSE in base 2 of rows g and g + 8, and accumulators that begin at -delta */
    /* addresses of the lane's columns, the rows' operand of masks, and the bias of row g */
    unsigned keys[NH_STEPS], values[NH_STEPS_V], places[NH_STEPS_PLACES][4];
    nh_across<C.dim> keys_across;
    const float *table;
    int wrap, reach;
};

/* The rows of columns of a chunk and, if masks are bits, these. */
struct nh_chunk {
    int number, row[4 * NH_GATHERS];
    nh_across_rows across;
    unsigned seen[2];
};

/* Loads the rows, and stores their statistics for the launch by keys. */
NH_DEVICE void nh_take_rows(const nh_block &block, const nh_tile_info &info, const nh_rows &rows, int warp_tile,
                            nh_query_tile &tile) {
    float delta[2];
    uint4 statistics[2];
    nh_load_rows<C.dim>(tile.queries, rows.queries, warp_tile);
    nh_load_rows<C.dim_v>(tile.d_outputs, rows.d_outputs, warp_tile);
    nh_dot_rows(delta, tile.d_outputs, rows.outputs, warp_tile);
    nh_row_statistics(block.args, info, block.tables.shift, warp_tile, tile.lse, delta, statistics);
    tile.start[0] = tile.start[1] = tile.start[2] = tile.start[3] = 0.f;
    nh_start_at_deltas(tile.start, statistics);
}

/* Finds the box of the warp tile's columns. */
NH_DEVICE void nh_find_columns(const nh_block &block, const nh_tile_info &info, const nh_key_halo &halo, int warp_tile,
                               nh_query_tile &tile) {
    const int first = nh_box_row(info.visibility, warp_tile);
    tile.wrap = nh_box_wrap(info.visibility, warp_tile);
    tile.reach = nh_visibility_reach(info.visibility, warp_tile);
    nh_gather_start<NH_AS_LAID, C.dim, NH_STEPS>(tile.keys, halo.keys, first);
    nh_across_start(tile.keys_across, halo.keys, first);
    nh_gather_start_beside<NH_AS_LAID, C.dim_v, NH_STEPS_V>(tile.values, tile.keys, (int)(halo.values - halo.keys),
                                                             halo.values, first);
    if (NH_ADDS_MASK) nh_visibility_additive_mask_rows(tile.places, info.visibility, warp_tile);
    tile.table = info.bias;
    if (C.bias_count) tile.table += nh_bias_row(block.args, info, warp_tile, (int)(threadIdx.x % 32) / 4);
}

/* Multiplies the p-th pair of a chunk: scores, gradients of weights, and from these the sums of dQ. */
NH_DEVICE void nh_differentiate_pair(const nh_block &block, const nh_query_tile &tile, nh_chunk &chunk, int p,
                                     bool bias_wanted, nh_bias_sums &sums, float (&d_queries)[NH_SUMS][4]) {
    const nh_column_tables &columns = block.tables.columns;
    const int column = chunk.number * NH_CHUNK + 16 * p;
    const bool both = 2 * p + 1 < NH_BLOCKS;
    nh_gather_across(chunk.across, columns, tile.wrap, chunk.number, p);
    if (!C.plane_chunks && p >= C.least_pairs && column >= tile.reach) {
        const nh_weights none = {};
        if (bias_wanted) nh_bias_lay(sums, column, none, both);
        return;
    }
    float scores[2][4] = {};
    float d_weights[2][4] = {{tile.start[0], tile.start[1], tile.start[2], tile.start[3]},
                             {tile.start[0], tile.start[1], tile.start[2], tile.start[3]}};
    nh_weights d_scores;
    if (C.bias_count) nh_bias_pair(scores, columns, tile.table, column, both);
    if (NH_ADDS_MASK) nh_add_mask(scores, tile.places, block.additive_masks, nh_mask_pair(chunk.number, p), both);
    nh_multiply_pair(scores, tile.queries, tile.keys, chunk.row[p], both);
    nh_multiply_pair(d_weights, tile.d_outputs, tile.values, chunk.row[p], both);
    nh_score_gradients(scores, d_weights, block.tables.scale, tile.lse, chunk.seen, p, both);
    nh_pack_weights(d_scores, scores, both);
    if (bias_wanted) nh_bias_lay(sums, column, d_scores, both);
    nh_add_pair(d_queries, d_scores, tile.keys_across, nh_rows_of_pair(chunk.across, p), tile.keys, chunk.row[p], both);
}

/* Writes dQ to shared memory, and repairs rows that are not finite. */
NH_DEVICE void nh_finish_queries(const nh_block &block, const nh_tile_info &info, const nh_query_tile &tile,
                                 int warp_tile, char *results, const float (&d_queries)[NH_SUMS][4]) {
    const nh_tiled_args &args = block.args;
    nh_results_begin();
    nh_stage_rows<C.dim>(results, d_queries, (float)args.scale, (float)args.scale, warp_tile);
    const bool repair[2] = {nh_needs_repair(d_queries, 0), nh_needs_repair(d_queries, 1)};
    if (!__any_sync(~0u, repair[0] | repair[1])) return;
    nh_for_rows_to_repair(repair[0], repair[1], [&](int row) {
        float2 own = make_float2(nh_seen_lse(info.lse[nh_row_number(warp_tile, row)]) * -(float)NH_LOG2E,
                                 -__shfl_sync(~0u, row < 8 ? tile.start[0] : tile.start[2], row % 8 * 4));
        nh_repair_gradient(
            args, info.work_tile, warp_tile, row, own,
            [=](int at, int i, elem x) { nh_result_element<C.dim>(results, warp_tile, at, i) = x; },
            [](int, int, elem) {});
    });
}

/* Computes dQ of a warp tile. Calls taken() when the rows may be overwritten (where threads copy, the queries' places
 * are still used for results), and passed() when its first plane may be. */
template <typename Taken, typename Passed>
NH_DEVICE void nh_differentiate(const nh_block &block, const nh_tile_info &info, const nh_query_stage &stage,
                                const nh_bias_gradients &bias, int warp_tile, char *results, const Taken &taken,
                                const Passed &passed) {
    nh_query_tile tile;
    float d_queries[NH_SUMS][4] = {};
    nh_take_rows(block, info, stage.rows, warp_tile, tile);
    taken();
    nh_find_columns(block, info, stage.halo, warp_tile, tile);
    const bool bias_wanted = nh_bias_wanted(block.args);
    const int chunks = nh_chunks_of(tile.reach);
    if (NH_PASSES && chunks <= NH_PASSING_CHUNK) passed();
    NH_UNROLL_1 for (int number = 0; number < chunks; number++) {
        nh_chunk chunk;
        chunk.number = number;
        if (!NH_ADDS_MASK) nh_chunk_bits(chunk.seen, info.visibility, warp_tile, number);
        nh_gather_rows(chunk.row, block.tables.columns, tile.wrap, number, nh_lane_column<NH_AS_LAID>());
        NH_UNROLL for (int p = 0; p < NH_PAIRS; p++) {
            /* keeps the compiler from loading so far ahead that registers spill */
            if (C.bias_count || NH_DTYPE == NH_F32 ? p : p == NH_PAIRS / 2) __syncwarp();
            nh_differentiate_pair(block, tile, chunk, p, bias_wanted, bias.sums, d_queries);
        }
        if (NH_PASSES && number == NH_PASSING_CHUNK) passed();
    }
    if (bias_wanted) nh_bias_gather(block.args, info, warp_tile, bias.sums, bias.products);
    nh_finish_queries(block, info, tile, warp_tile, results, d_queries);
}

} // namespace nh_small
