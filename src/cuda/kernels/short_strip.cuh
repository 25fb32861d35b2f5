/* The backward of one strip: 16 rows of an item, queries or, by keys, keys, and the columns that they meet, 16 at a
 * time.
 *
 *     P = exp(scale a b^T - LSE)   dS = P (a' b'^T - delta)   gradient of a += dS b   of a', by keys, += P b'
 *
 * with rows a and a' and columns b and b': Q and dO meet K and V, or K and V meet Q and dO. P and dS go from
 * accumulators to operands without leaving registers.
 *
 * Knobs: NH_SPLIT (warps that share a strip and take its columns in turn; more than 1 only if every strip of a block
 * has warps of its own). */
#pragma once

#include "short_tile.cuh"

/* Registers hold the strip's own rows as operands unless its sums need the room. */
#define NH_HELD (NH_DIM + NH_DIM_V <= (NH_WARPS > 8 ? 64 : 128))

/* Gradients of a strip: of queries, or of keys and values. */
typedef float nh_sums[2 * NH_STEPS][4];
typedef float nh_sums_v[2 * NH_STEPS_V][4];

/* The 16 rows of a strip in one tensor. */
template <int WIDTH> struct nh_strip_rows {
    enum { STEPS = (WIDTH + 15) / 16 };
    unsigned at, held[NH_HELD ? STEPS : 1][4];
};

template <int WIDTH> NH_DEVICE void nh_strip_load(nh_strip_rows<WIDTH> &rows, const char *tensor, int first) {
    const int lane = (int)(threadIdx.x % 32);
    rows.at = nh_shared_address(tensor) + nh_unit_offset(WIDTH, first + lane % 16, lane / 16);
#pragma unroll
    for (int s = 0; NH_HELD && s < rows.STEPS; s++)
        nh_load_matrices_at(rows.held[s], rows.at + 32 * s);
}

/* The strip's rows times 16 columns. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_multiply_strip(float (&c)[2][4], const nh_strip_rows<WIDTH> &rows, const unsigned (&columns)[STEPS],
                                 int column) {
    nh_clear(c);
#if NH_HELD
    nh_multiply_columns<WIDTH, STEPS>(c, rows.held, columns, column, true);
#else
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned a[4], b[4];
        nh_load_matrices_at(a, rows.at + 32 * s);
        nh_load_matrices_at(b, columns[s] + column * nh_row_bytes(WIDTH));
        nh_product(c[0], a, b[0], b[1]);
        nh_product(c[1], a, b[2], b[3]);
    }
#endif
}

/* The thread's rows g and g + 8, as queries and as keys. */
struct nh_own {
    nh_query query[2];
    unsigned column[2];
};

/* Scores become weights, and gradients of weights those of scores. What a query does not see is none of its business,
 * be it NaN or not. */
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
template <int WIDTH, int STEPS>
NH_DEVICE void nh_add_weighted(float (&sums)[2 * STEPS][4], const float (&weights)[2][4],
                               const unsigned (&columns)[STEPS], int column) {
    unsigned operand[4];
    nh_pack_weights(operand, weights, true);
    nh_add_columns<WIDTH, STEPS>(sums, operand, columns, column);
}

/* Adds what the strip's columns contribute; sums_v of keys alone. turn: of the NH_SPLIT warps that share the strip. */
template <bool BY_KEYS>
NH_DEVICE void nh_differentiate(const nh_block &block, int strip, int turn, nh_sums &sums, nh_sums_v &sums_v) {
    const nh_tile &tile = block.tile;
    const int first = 16 * strip;
    const float scale = (float)(block.args.scale * NH_LOG2E);
    const char *columns = BY_KEYS ? tile.queries : tile.keys, *columns_v = BY_KEYS ? tile.d_outputs : tile.values;
    nh_strip_rows<NH_DIM> rows;
    nh_strip_rows<NH_DIM_V> rows_v;
    nh_own own;
    unsigned laid[NH_STEPS], laid_v[NH_STEPS_V], across[NH_STEPS], across_v[NH_STEPS_V];
    nh_strip_load(rows, BY_KEYS ? tile.keys : tile.queries, first);
    nh_strip_load(rows_v, BY_KEYS ? tile.values : tile.d_outputs, first);
    nh_columns_start<NH_AS_LAID, NH_DIM>(laid, columns);
    nh_columns_start<NH_AS_LAID, NH_DIM_V>(laid_v, columns_v);
    nh_columns_start<NH_TRANSPOSED, NH_DIM>(across, columns);
    nh_columns_start<NH_TRANSPOSED, NH_DIM_V>(across_v, columns_v);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first + 8 * half + (int)threadIdx.x % 32 / 4;
        own.query[half] = tile.query[row];
        own.column[half] = tile.column[row];
    }
    const nh_reach reach = tile.reach[BY_KEYS][strip];
#pragma unroll 1
    for (int column = reach.begin / 16 * 16 + 16 * turn; column < reach.end; column += 16 * NH_SPLIT) {
        float weights[2][4], d_scores[2][4];
        nh_multiply_strip<NH_DIM>(weights, rows, laid, column);
        nh_multiply_strip<NH_DIM_V>(d_scores, rows_v, laid_v, column);
        nh_weigh<BY_KEYS>(tile, own, column, scale, weights, d_scores);
        if (BY_KEYS) nh_add_weighted<NH_DIM_V>(sums_v, weights, across_v, column);
        nh_add_weighted<NH_DIM>(sums, d_scores, across, column);
    }
}
