/* The backward pass of one warp tile: 16 rows of a work tile, queries or, by keys, keys, and the columns that they see,
 * 16 at a time.
 *
 *     P = exp(scale a b^T - LSE)   dS = P (a' b'^T - delta)   gradient of a += dS b   of a', by keys, += P b'
 *
 * with rows a and a' and columns b and b': Q and dO with K and V or, by keys, K and V with Q and dO. P and dS go from
 * accumulators to operands without leaving registers. C.split warps share a warp tile and take its columns alternately;
 * more than one only if every warp tile of a block has warps of its own. */
#pragma once

#include "short_tile.cuh"

namespace nh_short {

/* Whether registers hold the warp tile's own rows as operands; otherwise its sums need the room. */
enum { NH_HELD = NH_DTYPE != NH_F32 && C.dim + C.dim_v <= (C.warps > 8 ? 64 : 128) };

/* Gradients of a warp tile: of queries, or of keys and values. */
typedef float nh_sums[NH_SUMS][4];
typedef float nh_sums_v[NH_SUMS_V][4];

/* The thread's rows g and g + 8, as queries and as keys. */
struct nh_own {
    nh_query query[2];
    unsigned column[2];
};

/* Turns scores into weights, and gradients of weights into those of scores: 0 for pairs not seen, be they NaN. */
template <bool BY_KEYS>
NH_DEVICE void nh_weigh(const nh_tile &tile, const nh_own &own, int first_column, float scale, float (&weights)[2][4],
                        float (&d_scores)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = first_column + 8 * (i / 2) + 2 * ((int)threadIdx.x % 4) + i % 2;
        nh_query column_query = {};
        unsigned column = 0;
        if (BY_KEYS) {
            column_query = tile.query[at];
        } else {
            column = tile.column[at];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const nh_query &query = BY_KEYS ? column_query : own.query[half];
            const bool seen = nh_query_sees(query, BY_KEYS ? own.column[half] : column);
            float &weight = weights[i / 2][2 * half + i % 2], &d_score = d_scores[i / 2][2 * half + i % 2];
            weight = seen ? nh_exp2(fmaf(weight, scale, -query.lse)) : 0.f;
            d_score = seen ? weight * (d_score - query.delta) : 0.f;
        }
    }
}

/* sums += weights of 16 columns times their elements. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_add_weighted(float (&sums)[SUMS][4], const float (&weights)[2][4], const nh_across<WIDTH> &across,
                               int column) {
    nh_weights operand;
    nh_pack_weights(operand, weights, true);
    nh_add_columns(sums, operand, across, nh_rows_of_pair(column), true);
}

/* Adds what the warp tile's columns contribute; sums_v only by keys. turn: of the C.split warps that share it. */
template <bool BY_KEYS>
NH_DEVICE void nh_differentiate(const nh_block &block, int warp_tile, int turn, nh_sums &sums, nh_sums_v &sums_v) {
    const nh_tile &tile = block.tile;
    const int first = 16 * warp_tile;
    const float scale = (float)(block.args.scale * NH_LOG2E);
    const char *columns = BY_KEYS ? tile.queries : tile.keys, *columns_v = BY_KEYS ? tile.d_outputs : tile.values;
    nh_row_operand<C.dim, NH_HELD> rows;
    nh_row_operand<C.dim_v, NH_HELD> rows_v;
    nh_own own;
    unsigned laid[NH_STEPS], laid_v[NH_STEPS_V];
    nh_across<C.dim> across;
    nh_across<C.dim_v> across_v;
    nh_load_rows<C.dim>(rows, BY_KEYS ? tile.keys : tile.queries, first);
    nh_load_rows<C.dim_v>(rows_v, BY_KEYS ? tile.values : tile.d_outputs, first);
    nh_columns_start<NH_AS_LAID, C.dim>(laid, columns);
    nh_columns_start<NH_AS_LAID, C.dim_v>(laid_v, columns_v);
    nh_across_start(across, columns);
    nh_across_start(across_v, columns_v);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + 8 * half + (int)threadIdx.x % 32 / 4;
        own.query[half] = tile.query[row];
        own.column[half] = tile.column[row];
    }
    const nh_reach reach = tile.reach[BY_KEYS][warp_tile];
#pragma unroll 1
    for (int column = reach.begin / 16 * 16 + 16 * turn; column < reach.end; column += 16 * C.split) {
        float weights[2][4] = {}, d_scores[2][4] = {};
        nh_multiply_columns(weights, rows, laid, column, true);
        nh_multiply_columns(d_scores, rows_v, laid_v, column, true);
        nh_weigh<BY_KEYS>(tile, own, column, scale, weights, d_scores);
        if (BY_KEYS) nh_add_weighted(sums_v, weights, across_v, column);
        nh_add_weighted(sums, d_scores, across, column);
    }
}

} // namespace nh_short
