/* dQ of small windows, and LSE and delta for the launch by keys. It is like the forward pass, with weights from the
 * given LSE; scores are needed only once, so the columns of a warp tile are processed in groups of 16. */
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
NH_DEVICE void nh_dot_rows(float (&sum)[2], const nh_row_operand<C.dim_v> &d_outputs,
                           const char *outputs, int warp_tile) {
    const int lane = (int)(threadIdx.x % 32), g = lane / 4;
    const int row = nh_row_number(warp_tile, nh_lane_column<NH_AS_LAID>());
    float c[2][4] = {};
    unsigned start[NH_STEPS_V];
#pragma unroll
    for (int s = 0; s < NH_STEPS_V; s++)
        start[s] = nh_shared_address(outputs + nh_unit_offset(C.dim_v, row, 2 * s + nh_lane_half<NH_AS_LAID>()));
    nh_multiply_columns(c, d_outputs, start, 0, true);
    const int holder = lane - lane % 4 + g / 2;
    sum[0] = __shfl_sync(~0u, g % 2 ? c[0][1] : c[0][0], holder);
    sum[1] = __shfl_sync(~0u, g % 2 ? c[1][3] : c[1][2], holder);
}

/* Turns the scores of a pair, of its first block only unless `both`, into their gradients. d_weights: gradients of
 * weights, less delta. */
NH_DEVICE void nh_score_gradients(float (&scores)[2][4], const float (&d_weights)[2][4], float scale,
                                  const float (&lse)[2], const unsigned (&seen)[2], int pair, bool both) {
#pragma unroll
    for (int i = 0; i < (both ? 8 : 4); i++) {
        int half = i / 2 % 2;
        bool visible = NH_ADDS_MASK || seen[half] >> (4 * pair + i / 4 * 2 + i % 2) & 1;
        float &score = scores[i / 4][i % 4];
        float weight = nh_exp2(fmaf(score, scale, lse[half]));
        score = visible ? weight * d_weights[i / 4][i % 4] : 0.f;
    }
}

/* Computes dQ of a warp tile. Calls taken() when the rows may be overwritten (where threads copy, the queries' places
 * are still used for results), and passed() when its first plane may be. */
template <typename Taken, typename Passed>
NH_DEVICE void nh_differentiate(const nh_tiled_args &args, const nh_tile_info &info, const nh_tables &tables,
                                const nh_additive_masks &additive_masks, const nh_key_halo &halo, const nh_rows &rows,
                                nh_bias_sums &sums, nh_bias_products &products, int warp_tile, char *results,
                                const Taken &taken, const Passed &passed) {
    nh_row_operand<C.dim> queries;
    nh_row_operand<C.dim_v> d_outputs;
    unsigned places[NH_STEPS_PLACES][4];
    nh_load_rows<C.dim>(queries, rows.queries, warp_tile);
    nh_load_rows<C.dim_v>(d_outputs, rows.d_outputs, warp_tile);
    float lse[2], delta[2], d_queries[NH_SUMS][4] = {};
    uint4 statistics[2];
    float start[4] = {};
    nh_dot_rows(delta, d_outputs, rows.outputs, warp_tile);
    nh_row_statistics(args, info, tables.shift, warp_tile, lse, delta, statistics);
    nh_start_at_deltas(start, statistics);
    taken();
    unsigned keys[NH_STEPS], values[NH_STEPS_V];
    nh_across<C.dim> keys_across;
    const int first = nh_box_row(info.visibility, warp_tile), wrap = nh_box_wrap(info.visibility, warp_tile);
    const int reach = nh_visibility_reach(info.visibility, warp_tile);
    nh_gather_start<NH_AS_LAID, C.dim, NH_STEPS>(keys, halo.keys, first);
    nh_across_start(keys_across, halo.keys, first);
    nh_gather_start_beside<NH_AS_LAID, C.dim_v, NH_STEPS_V>(values, keys, (int)(halo.values - halo.keys), halo.values,
                                                             first);
    if (NH_ADDS_MASK) nh_visibility_additive_mask_rows(places, info.visibility, warp_tile);
    const bool bias_wanted = nh_bias_wanted(args);
    const float scale = tables.scale;
    const float *table = info.bias;
    if (C.bias_count) table += nh_bias_row(args, info, warp_tile, (int)(threadIdx.x % 32) / 4);
    const int chunks = nh_chunks_of(reach);
    if (NH_PASSES && chunks <= NH_PASSING_CHUNK) passed();
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++) {
        unsigned seen[2];
        int row[4 * NH_GATHERS];
        nh_across_rows across;
        if (!NH_ADDS_MASK) nh_chunk_bits(seen, info.visibility, warp_tile, chunk);
        nh_gather_rows(row, tables.columns, wrap, chunk, nh_lane_column<NH_AS_LAID>());
#pragma unroll
        for (int p = 0; p < NH_PAIRS; p++) {
            /* keeps the compiler from loading so far ahead that registers spill */
            if (C.bias_count || NH_DTYPE == NH_F32 ? p : p == NH_PAIRS / 2) __syncwarp();
            const int column = chunk * NH_CHUNK + 16 * p;
            const bool both = 2 * p + 1 < NH_BLOCKS;
            nh_gather_across(across, tables.columns, wrap, chunk, p);
            if (!C.plane_chunks && p >= C.least_pairs && column >= reach) {
                const nh_weights none = {};
                if (bias_wanted) nh_bias_lay(sums, column, none, both);
                continue;
            }
            float scores[2][4] = {};
            float d_weights[2][4] = {{start[0], start[1], start[2], start[3]},
                                     {start[0], start[1], start[2], start[3]}};
            nh_weights d_scores;
            if (C.bias_count) nh_bias_pair(scores, tables.columns, table, column, both);
            if (NH_ADDS_MASK) nh_add_mask(scores, places, additive_masks, nh_mask_pair(chunk, p), both);
            nh_multiply_pair(scores, queries, keys, row[p], both);
            nh_multiply_pair(d_weights, d_outputs, values, row[p], both);
            nh_score_gradients(scores, d_weights, scale, lse, seen, p, both);
            nh_pack_weights(d_scores, scores, both);
            if (bias_wanted) nh_bias_lay(sums, column, d_scores, both);
            nh_add_pair(d_queries, d_scores, keys_across, nh_rows_of_pair(across, p), keys, row[p], both);
        }
        if (NH_PASSES && chunk == NH_PASSING_CHUNK) passed();
    }
    if (bias_wanted) nh_bias_gather(args, info, warp_tile, sums, products);
    nh_results_begin();
    nh_stage_rows<C.dim>(results, d_queries, (float)args.scale, (float)args.scale,
                                    warp_tile);
    const bool repair[2] = {nh_needs_repair(d_queries, 0), nh_needs_repair(d_queries, 1)};
    if (!__any_sync(~0u, repair[0] | repair[1])) return;
    nh_for_rows_to_repair(repair[0], repair[1], [&](int row) {
        float2 own = make_float2(__shfl_sync(~0u, row < 8 ? lse[0] : lse[1], row % 8 * 4),
                                 -__shfl_sync(~0u, row < 8 ? start[0] : start[2], row % 8 * 4));
        nh_repair_gradient(
            args, info.work_tile, warp_tile, row, own,
            [=](int at, int i, elem x) { nh_result_element<C.dim>(results, warp_tile, at, i) = x; },
            [](int, int, elem) {});
    });
}

} // namespace nh_small
