/* Forward pass of small windows: a warp tile of 16 queries is multiplied with groups of 16 keys, which lie in shared
 * memory with the rest of their work tile's halo. See small.cuh. */
#pragma once

#include "small_repair.cuh"
#include "small_state.cuh"

namespace nh_small {

struct nh_rows {
    /* where threads copy, outputs overwrite queries that have been read */
    alignas(NH_STAGE_ALIGNMENT) char queries[NH_ROWS * nh_row_bytes(NH_WIDEST)];
};

typedef nh_row_operand<C.dim> nh_queries;

/* A warp tile and all that its scores depend on. */
struct nh_warp_tile {
    const nh_tiled_args &args;
    const nh_tile_info &info;
    const nh_tables &tables;
    const nh_additive_masks &additive_masks;
    const nh_key_halo &halo;
    int number;
    const nh_queries &queries;
};

/* Whether a pair's scores are multiplied ahead of the softmax of the pair before: so in chunks of other sizes. */
enum { NH_AHEAD = C.chunk_blocks != SMALL_MASK_BLOCKS };
static_assert(!NH_AHEAD || NH_ADDS_MASK, "chunks of other sizes have additive masks");

/* The pair of the chunk with the first plane's last column after which that plane is free. If there are several chunks
 * it is the last pair, as a branch in the middle of a chunk would hinder the compiler. */
enum { NH_PASSING_PAIR = NH_CHUNKS == 1 && NH_AHEAD ? (C.columns[1] * C.columns[2] - 1) / 16 : NH_PAIRS - 1 };

/* Operands that are the same for all pairs of a warp tile's scores. */
struct nh_score_start {
    unsigned keys[NH_STEPS], places[NH_STEPS_PLACES][4];
    const float *table;
};

/* Scores of the p-th pair of a chunk; row: halo row of this lane's column; seen: bits, if masks are bits. */
NH_DEVICE void nh_pair_scores(float (&scores)[2][4], const nh_warp_tile &warp_tile, const nh_score_start &start,
                              const unsigned (&seen)[2], int row, int chunk, int p) {
    const nh_tables &tables = warp_tile.tables;
    const bool both = 2 * p + 1 < NH_BLOCKS;
    float bias[2][4] = {};
    nh_clear(scores);
    if (NH_ADDS_MASK) nh_add_mask(scores, start.places, warp_tile.additive_masks, chunk * NH_PAIRS + p, both);
    nh_multiply_columns(scores, warp_tile.queries, start.keys, row, both);
    if (C.bias_count) nh_bias_pair(bias, tables.columns, start.table, chunk * NH_CHUNK + 16 * p, both);
    NH_UNROLL for (int i = 0; i < 8; i++) {
        float &score = scores[i / 4][i % 4];
        if (C.bias_count) score = fmaf(score, tables.scale, bias[i / 4][i % 4]);
        if (!NH_ADDS_MASK && !(seen[i / 2 % 2] >> (4 * p + i / 4 * 2 + i % 2) & 1)) score = NH_MINUS_INFINITY;
    }
}

/* Visits the scores of a chunk, the first pair of which are given. The scores of the next pair, at the end of the next
 * chunk's first, are multiplied ahead of visit() for a pair. row: halo rows of pairs; set to the next chunk's. */
template <bool LAST, typename Visit, typename Passed>
NH_DEVICE void nh_visit_chunk(const nh_warp_tile &warp_tile, const nh_score_start &start, int wrap, int chunk,
                              int (&row)[4 * NH_GATHERS], float (&scores)[2][4], const Visit &visit,
                              const Passed &passed) {
    const nh_column_tables &columns = warp_tile.tables.columns;
    const unsigned seen[2] = {};
    nh_across_rows across;
    int row_after[4 * NH_GATHERS];
    nh_gather_across(across, columns, wrap, chunk, 0);
    if (!LAST) nh_gather_rows(row_after, columns, wrap, chunk + 1, nh_lane_column<NH_AS_LAID>());
    NH_UNROLL for (int p = 0; p < NH_PAIRS; p++) {
        const bool last = p + 1 == NH_PAIRS;
        float ahead[2][4];
        if (!last)
            nh_pair_scores(ahead, warp_tile, start, seen, row[p + 1], chunk, p + 1);
        else if (!LAST)
            nh_pair_scores(ahead, warp_tile, start, seen, row_after[0], chunk + 1, 0);
        visit(scores, 2 * p + 1 < NH_BLOCKS, nh_rows_of_pair(across, p));
        if (NH_PASSES && p == NH_PASSING_PAIR && chunk == NH_PASSING_CHUNK) passed();
        NH_UNROLL for (int i = 0; i < (last && LAST ? 0 : 8); i++)
            scores[i / 4][i % 4] = ahead[i / 4][i % 4];
    }
    NH_UNROLL for (int p = 0; p < (LAST ? 0 : NH_PAIRS); p++)
        row[p] = row_after[p];
}

/* Visits all chunks, the scores of each pair multiplied ahead. */
template <typename Visit, typename Passed>
NH_DEVICE void nh_visit_ahead(const nh_warp_tile &warp_tile, const nh_score_start &start, int wrap, const Visit &visit,
                              const Passed &passed) {
    int row[4 * NH_GATHERS];
    float scores[2][4];
    nh_gather_rows(row, warp_tile.tables.columns, wrap, 0, nh_lane_column<NH_AS_LAID>());
    nh_pair_scores(scores, warp_tile, start, {}, row[0], 0, 0);
    NH_UNROLL_1 for (int chunk = 0; chunk < NH_CHUNKS - 1; chunk++)
        nh_visit_chunk<false>(warp_tile, start, wrap, chunk, row, scores, visit, passed);
    nh_visit_chunk<true>(warp_tile, start, wrap, NH_CHUNKS - 1, row, scores, visit, passed);
}

/* Visits all chunks, one pair after the other. */
template <typename Visit, typename Passed>
NH_DEVICE void nh_visit_in_order(const nh_warp_tile &warp_tile, const nh_score_start &start, int wrap,
                                 const Visit &visit, const Passed &passed) {
    const nh_tables &tables = warp_tile.tables;
    NH_UNROLL_1 for (int chunk = 0; chunk < NH_CHUNKS; chunk++) {
        int row[4 * NH_GATHERS];
        nh_across_rows across;
        unsigned seen[2];
        nh_gather_rows(row, tables.columns, wrap, chunk, nh_lane_column<NH_AS_LAID>());
        if (!NH_ADDS_MASK) nh_chunk_bits(seen, warp_tile.info.visibility, warp_tile.number, chunk);
        NH_UNROLL for (int p = 0; p < NH_PAIRS; p++) {
            float scores[2][4];
            nh_pace(p);
            nh_gather_across(across, tables.columns, wrap, chunk, p);
            nh_pair_scores(scores, warp_tile, start, seen, row[p], chunk, p);
            visit(scores, 2 * p + 1 < NH_BLOCKS, nh_rows_of_pair(across, p));
        }
        if (NH_PASSES && chunk == NH_PASSING_CHUNK) passed();
    }
}

/* Calls visit(scores, both, rows) for each 16 columns of the warp tile; the second eight count only if `both`. Scores
 * are scaled if there is a bias, and minus infinity or less where a row does not see a column. rows: halo rows of this
 * lane's columns in products over them. Calls passed() when the first plane is no longer needed (NH_PASSES). */
template <typename Visit, typename Passed>
NH_DEVICE void nh_for_scores(const nh_warp_tile &warp_tile, const Visit &visit, const Passed &passed) {
    const nh_tile_info &info = warp_tile.info;
    const int first = nh_box_row(info.visibility, warp_tile.number),
              wrap = nh_box_wrap(info.visibility, warp_tile.number);
    nh_score_start start;
    nh_gather_start<NH_AS_LAID, C.dim, NH_STEPS>(start.keys, warp_tile.halo.keys, first);
    if (NH_ADDS_MASK) nh_visibility_additive_mask_rows(start.places, info.visibility, warp_tile.number);
    start.table = info.bias;
    if (C.bias_count) start.table += nh_bias_row(warp_tile.args, info, warp_tile.number, (int)(threadIdx.x % 32) / 4);
    if constexpr (NH_AHEAD)
        nh_visit_ahead(warp_tile, start, wrap, visit, passed);
    else
        nh_visit_in_order(warp_tile, start, wrap, visit, passed);
}

NH_DEVICE float nh_score_scale(const nh_warp_tile &warp_tile) {
    return C.bias_count ? 1.f : warp_tile.tables.scale;
}

/* Sets the reference of weights to the largest score of each row, which takes a pass over all scores. */
NH_DEVICE void nh_refer_to_largest(const nh_warp_tile &warp_tile, nh_state &state) {
    float top[2] = {NH_MINUS_INFINITY, NH_MINUS_INFINITY};
    nh_for_scores(warp_tile, [&](const float (&scores)[2][4], bool both, const nh_pair_rows &) {
        NH_UNROLL for (int i = 0; i < (both ? 8 : 4); i++)
            top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i / 4][i % 4]);
    }, [] {});
    const float scale = nh_score_scale(warp_tile);
    const nh_visibility &visibility = warp_tile.info.visibility;
    state.reference[0] = nh_reference(visibility, warp_tile.number, 0, nh_quad_max(top[0]) * scale);
    state.reference[1] = nh_reference(visibility, warp_tile.number, 1, nh_quad_max(top[1]) * scale);
}

/* Multiplies the warp tile's weights with the values, and adds up the weights. */
template <typename Passed>
NH_DEVICE void nh_weigh_values(const nh_warp_tile &warp_tile, nh_state &state, float (&output)[NH_SUMS_V][4],
                               const Passed &passed) {
    const float scale = nh_score_scale(warp_tile);
    nh_across<C.dim_v> values;
    nh_across_start(values, warp_tile.halo.values, nh_box_row(warp_tile.info.visibility, warp_tile.number));
    nh_clear(output);
    state.sum[0] = state.sum[1] = 0.f;
    nh_for_scores(warp_tile, [&](float (&scores)[2][4], bool both, const nh_pair_rows &rows) {
        nh_weights weights;
        NH_UNROLL for (int i = 0; i < (both ? 8 : 4); i++) {
            float &score = scores[i / 4][i % 4];
            score = nh_exp2(fmaf(score, scale, -state.reference[i / 2 % 2]));
            state.sum[i / 2 % 2] += score;
        }
        nh_pack_weights(weights, scores, both);
        nh_add_columns(output, weights, values, rows, both);
    }, passed);
    nh_finish_sums(state);
}

/* Writes outputs to shared memory; returns LSE of rows g and g + 8. */
NH_DEVICE float2 nh_finish(int warp_tile, char *results, const nh_state &state, const float (&output)[NH_SUMS_V][4]) {
    nh_results_begin();
    nh_stage_rows<NH_WIDEST>(results, output, nh_factor(state, 0), nh_factor(state, 1), warp_tile);
    return nh_lse_of(state);
}

/* Reads a warp tile's queries from memory as the first operand; padding rows are zeros. */
template <int WIDTH>
NH_DEVICE void nh_read_queries(nh_row_operand<WIDTH, true> &queries, const nh_tiled_args &args,
                               const nh_work_tile &work_tile, int warp_tile, const char *) {
    const int lane = (int)(threadIdx.x % 32);
    NH_UNROLL for (int s = 0; s < NH_STEPS; s++) {
        unsigned word[4] = {0, 0, 0, 0};
        NH_UNROLL for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i % 2 * 8;
            const int element = NH_STEP * s + i / 2 * NH_PER_UNIT + lane % 4 * (NH_PER_UNIT / 4);
            if (element < C.dim && nh_row_exists(work_tile, warp_tile, row))
                word[i] = *(const unsigned *)((const elem *)args.tensor[NH_Q].data +
                                              nh_row_offset(work_tile, NH_Q, warp_tile, row) + element);
        }
        nh_keep_step(queries, s, word);
    }
}
/* Queries that registers do not hold are in shared memory until outputs overwrite them. */
template <int WIDTH>
NH_DEVICE void nh_read_queries(nh_row_operand<WIDTH, false> &queries, const nh_tiled_args &, const nh_work_tile &,
                               int warp_tile, const char *places) {
    nh_load_rows<NH_WIDEST>(queries, places, warp_tile);
}

/* The fallback if nh_attend fails, as something is not finite, scores are far from 0, or values near the largest
 * number: weights relative to their row's largest score, and pair by pair for rows whose sums are out of range even so.
 * With stages, the queries' places may hold others by now. Not inlined, to take no registers from the common case. */
static __device__ __noinline__ float2 nh_repair_attention(const nh_tiled_args &args, const nh_tile_info &info,
                                                      const nh_tables &tables, const nh_additive_masks &additive_masks,
                                                      const nh_key_halo &halo, int number, char *results) {
    nh_queries queries;
    nh_read_queries(queries, args, info.work_tile, number, results);
    const nh_warp_tile warp_tile = {args, info, tables, additive_masks, halo, number, queries};
    nh_state state;
    nh_refer_to_largest(warp_tile, state);
    float output[NH_SUMS_V][4];
    nh_weigh_values(warp_tile, state, output, [] {});
    float2 lse = nh_finish(number, results, state, output);
    const bool repair[2] = {!nh_held(info.visibility, state, output, number, 0),
                            !nh_held(info.visibility, state, output, number, 1)};
    nh_repair_rows(args, info, number, repair, lse, [=](int row, int i, elem element) {
        nh_result_element<NH_WIDEST>(results, number, row, i) = element;
    });
    return lse;
}

/* The fallback if planes may be overwritten by now: computes the rows that failed, of rows g and g + 8, key by key. */
static __device__ __noinline__ float2 nh_repair_passed(const nh_tiled_args &args, const nh_tile_info &info, int number,
                                                   char *results, bool first, bool second, float2 lse) {
    const bool repair[2] = {first, second};
    nh_repair_rows(args, info, number, repair, lse, [=](int row, int i, elem element) {
        nh_result_element<NH_WIDEST>(results, number, row, i) = element;
    });
    return lse;
}

/* What a warp tile's products come to. */
struct nh_attention {
    nh_state state;
    float output[NH_SUMS_V][4];
};

/* Computes the sums of a warp tile with weights relative to 1; false if a row's are out of range. Calls taken() when
 * the queries may be overwritten (where threads copy, this warp tile's are still used for its results), and passed()
 * when its first plane may be. */
template <typename Taken, typename Passed>
NH_DEVICE bool nh_attend(const nh_block &block, const nh_tile_info &info, const nh_key_halo &halo, const nh_rows &rows,
                         int number, nh_attention &result, const Taken &taken, const Passed &passed) {
    nh_state &state = result.state;
    nh_queries queries;
    nh_load_rows<NH_WIDEST>(queries, rows.queries, number);
    taken();
    const nh_warp_tile warp_tile = {block.args, info, block.tables, block.additive_masks, halo, number, queries};
    state.reference[0] = state.reference[1] = 0.f;
    nh_weigh_values(warp_tile, state, result.output, passed);
    /* With && the compiler would branch, and spill more. */
    return __all_sync(~0u, nh_held(info.visibility, state, result.output, number, 0) &
                               nh_held(info.visibility, state, result.output, number, 1));
}

} // namespace nh_small
