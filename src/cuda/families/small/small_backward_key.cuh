/* dK and dV of small windows. Rows are keys, columns the queries that attend them (a box of varying size): without
 * atomics, and bit-equal in every run. Weights come from the given LSE, delta from the launch by queries. A warp keeps
 * the sums of its warp tile in registers while it loops over the query heads that share the key head. See small.cuh. */
#pragma once

#include "small_masks.cuh"
#include "small_repair_gradient.cuh"

namespace nh_small {

struct nh_halo {
    alignas(NH_STAGE_ALIGNMENT) char queries[NH_HALO_ROWS * nh_row_bytes(C.dim)];
    alignas(NH_STAGE_ALIGNMENT) char d_outputs[NH_HALO_ROWS * nh_row_bytes(C.dim_v)];
    alignas(NH_STAGE_ALIGNMENT) uint4 statistics[NH_STATISTICS];
};
struct nh_rows {
    /* where threads copy, gradients overwrite rows that have been read */
    alignas(NH_STAGE_ALIGNMENT) char keys[NH_ROWS * nh_row_bytes(C.dim)];
    alignas(NH_STAGE_ALIGNMENT) char values[NH_ROWS * nh_row_bytes(C.dim_v)];
};

struct nh_key_sums {
    nh_row_operand<C.dim> keys;
    nh_row_operand<C.dim_v> values;
    float d_keys[NH_SUMS][4], d_values[NH_SUMS_V][4];
};

NH_DEVICE void nh_key_sums_start(nh_key_sums &sums, const nh_rows &rows, int warp_tile) {
    nh_load_rows<C.dim>(sums.keys, rows.keys, warp_tile);
    nh_load_rows<C.dim_v>(sums.values, rows.values, warp_tile);
    nh_clear(sums.d_keys);
    nh_clear(sums.d_values);
}

/* Turns the scores of a pair's queries, shifted by their LSE, into weights, and gradients of weights, less delta, into
 * gradients of scores; of the first block only unless `both`. A thread's columns are 2t and 2t + 1 of each 8. */
NH_DEVICE void nh_weigh(float scale, int pair, const unsigned (&seen)[2], float (&weights)[2][4],
                        float (&d_scores)[2][4], bool both) {
    NH_UNROLL for (int i = 0; i < (both ? 8 : 4); i++) {
        float &weight = weights[i / 4][i % 4];
        bool visible = NH_ADDS_MASK || seen[i / 2 % 2] >> (4 * pair + i / 4 * 2 + i % 2) & 1;
        weight = visible ? nh_exp2(weight * scale) : 0.f;
        d_scores[i / 4][i % 4] *= weight;
    }
}

/* What is the same for all columns of a warp tile. */
struct nh_key_tile {
    /* addresses of the lane's columns, and the rows' operand of masks */
    unsigned queries[NH_STEPS], d_outputs[NH_STEPS_V], places[NH_STEPS_PLACES][4];
    nh_across<C.dim> queries_across;
    nh_across<C.dim_v> d_outputs_across;
    unsigned statistics; /* of the box's first column */
    const uint2 *hidden; /* what kinds of warp tiles hide */
    uint2 own_places;
    const float *table; /* the bias of row g */
    float scale;
    int wrap, reach;
};

/* The columns of a chunk: their rows, bytes by which their statistics lie ahead and, if masks are bits, these. */
struct nh_query_chunk {
    int number, row[4 * NH_GATHERS];
    nh_across_rows across;
    unsigned seen[2], ahead;
};

/* Finds the box of the warp tile's columns. False: its keys are in no window. */
NH_DEVICE bool nh_find_queries(const nh_block &block, const nh_kinds &kinds, const nh_tile_info &info,
                               const nh_halo &halo, int warp_tile, nh_key_tile &tile) {
    const int first = nh_box_row(info.visibility, warp_tile);
    tile.wrap = nh_box_wrap(info.visibility, warp_tile);
    tile.reach = nh_visibility_reach(info.visibility, warp_tile);
    if (NH_REGIONS && !NH_PASSES && tile.reach <= 0) return false;
    tile.scale = block.tables.scale;
    tile.statistics = nh_shared_address(halo.statistics + nh_box_statistics(info.visibility, warp_tile));
    const int beside = (int)(halo.d_outputs - halo.queries);
    nh_gather_start<NH_AS_LAID, C.dim, NH_STEPS>(tile.queries, halo.queries, first);
    nh_across_start(tile.queries_across, halo.queries, first);
    nh_gather_start_beside<NH_AS_LAID, C.dim_v, NH_STEPS_V>(tile.d_outputs, tile.queries, beside, halo.d_outputs,
                                                            first);
    nh_across_start_beside(tile.d_outputs_across, tile.queries_across, beside, halo.d_outputs, first);
    tile.hidden = nh_kind_columns(kinds, info.visibility.places, warp_tile);
    tile.own_places = kinds.rows[threadIdx.x % 32];
    if (NH_ADDS_MASK && C.mask != SMALL_KINDS)
        nh_visibility_additive_mask_rows(tile.places, info.visibility, warp_tile);
    tile.table = info.bias;
    if (C.bias_count) tile.table += nh_bias_row(block.args, info, warp_tile, (int)(threadIdx.x % 32) / 4);
    return true;
}

NH_DEVICE void nh_find_chunk(const nh_block &block, const nh_tile_info &info, const nh_key_tile &tile, int warp_tile,
                             nh_query_chunk &chunk) {
    if (!NH_ADDS_MASK) nh_chunk_bits(chunk.seen, info.visibility, warp_tile, chunk.number);
    nh_gather_rows(chunk.row, block.tables.columns, tile.wrap, chunk.number, nh_lane_column<NH_AS_LAID>());
    chunk.ahead = (unsigned)nh_plane_ahead(tile.wrap, chunk.number, NH_SLOT_STATISTICS, NH_STATISTICS) * 16u;
}

/* Multiplies the p-th pair of a chunk: scores, gradients of weights, and from these the sums of dK and dV. */
NH_DEVICE void nh_differentiate_pair(const nh_block &block, const nh_key_tile &tile, nh_query_chunk &chunk, int p,
                                     nh_key_sums &sums) {
    const nh_column_tables &columns = block.tables.columns;
    /* -LSE / scale is larger than most scores: f32 products added to it would lose their lower bits */
    const bool shifts_last = NH_DTYPE == NH_F32, both = 2 * p + 1 < NH_BLOCKS;
    float weights[2][4] = {}, d_scores[2][4] = {};
    nh_weights operand;
    unsigned query[2];
    nh_gather_across(chunk.across, columns, tile.wrap, chunk.number, p);
    if (C.bias_count) nh_bias_pair(weights, columns, tile.table, chunk.number * NH_CHUNK + 16 * p, both);
    const int column = (C.plane_chunks ? 0 : chunk.number * NH_CHUNK) + 16 * p + (int)(threadIdx.x % 16);
    nh_statistics_load(query, tile.statistics + columns.statistics[C.plane_chunks ? 0 : tile.wrap][column] +
                                  chunk.ahead);
    const uint2 hiding = C.mask == SMALL_KINDS ? tile.hidden[16 * nh_mask_pair(chunk.number, p)] : uint2{0u, 0u};
    NH_UNROLL for (int i = 0; i < 1 + both; i++) {
        if (!shifts_last) nh_add_shifts(weights[i], query[i], tile.own_places, i ? hiding.y : hiding.x);
        nh_add_deltas(d_scores[i], query[i]);
    }
    if (NH_ADDS_MASK && C.mask != SMALL_KINDS)
        nh_add_mask(weights, tile.places, block.additive_masks, nh_mask_pair(chunk.number, p), both);
    nh_multiply_pair(weights, sums.keys, tile.queries, chunk.row[p], both);
    NH_UNROLL for (int i = 0; i < 1 + both; i++)
        if (shifts_last) nh_add_shifts(weights[i], query[i], tile.own_places, i ? hiding.y : hiding.x);
    nh_multiply_pair(d_scores, sums.values, tile.d_outputs, chunk.row[p], both);
    nh_weigh(tile.scale, p, chunk.seen, weights, d_scores, both);
    nh_pack_weights(operand, weights, both);
    nh_add_pair(sums.d_values, operand, tile.d_outputs_across, nh_rows_of_pair(chunk.across, p), tile.d_outputs,
                chunk.row[p], both);
    nh_pack_weights(operand, d_scores, both);
    nh_add_pair(sums.d_keys, operand, tile.queries_across, nh_rows_of_pair(chunk.across, p), tile.queries, chunk.row[p],
                both);
}

/* Adds what a warp tile's columns contribute to its sums. Calls passed() when its first plane may be overwritten. */
template <typename Passed>
NH_DEVICE void nh_differentiate(const nh_block &block, const nh_kinds &kinds, const nh_tile_info &info,
                                const nh_halo &halo, int warp_tile, nh_key_sums &sums, const Passed &passed) {
    nh_key_tile tile;
    if (!nh_find_queries(block, kinds, info, halo, warp_tile, tile)) return;
    const int chunks = nh_chunks_of(tile.reach);
    if (NH_PASSES && chunks <= NH_PASSING_CHUNK) passed();
    NH_UNROLL_1 for (int number = 0; number < chunks; number++) {
        nh_query_chunk chunk;
        chunk.number = number;
        nh_find_chunk(block, info, tile, warp_tile, chunk);
        NH_UNROLL for (int p = 0; p < NH_PAIRS; p++) {
            if (!C.plane_chunks && p >= C.least_pairs && number * NH_CHUNK + 16 * p >= tile.reach) break;
            /* keeps the compiler from loading so far ahead that registers spill */
            if ((C.bias_count || NH_DTYPE == NH_F32) && p) __syncwarp();
            nh_differentiate_pair(block, tile, chunk, p, sums);
        }
        if (NH_PASSES && number == NH_PASSING_CHUNK) passed();
    }
}

/* Writes the gradients to shared memory. */
NH_DEVICE void nh_finish(const nh_tiled_args &args, const nh_work_tile &work_tile, int warp_tile,
                         const nh_key_sums &sums, char *keys, char *values) {
    nh_results_begin();
    nh_stage_rows<C.dim>(keys, sums.d_keys, (float)args.scale, (float)args.scale, warp_tile);
    nh_stage_rows<C.dim_v>(values, sums.d_values, 1.f, 1.f, warp_tile);
    const bool repair[2] = {nh_needs_repair(sums.d_keys, 0) | nh_needs_repair(sums.d_values, 0),
                            nh_needs_repair(sums.d_keys, 1) | nh_needs_repair(sums.d_values, 1)};
    if (!__any_sync(~0u, repair[0] | repair[1])) return;
    __syncwarp();
    nh_for_rows_to_repair(repair[0], repair[1], [&](int row) {
        nh_repair_gradient(
            args, work_tile, warp_tile, row, make_float2(0.f, 0.f),
            [=](int at, int i, elem x) { nh_result_element<C.dim>(keys, warp_tile, at, i) = x; },
            [=](int at, int i, elem x) { nh_result_element<C.dim_v>(values, warp_tile, at, i) = x; });
    });
}

} // namespace nh_small
