/* Which columns of its subtile's box a row sees, as bits, and the bias between the two.
 *
 * Of each block of 8 columns a thread holds columns 2t and 2t + 1 (t = lane % 4): bits 2j and 2j + 1 for block j of a
 * chunk. What a row sees is a box, so its bits are the AND of one word per axis, and that word depends on the row's
 * coordinate on the axis alone: it is worked out once per item and coordinate, from prefixes that are made once per
 * block of threads. This covers borders, strides and causal axes alike. */
#pragma once

#include "small.cuh"

/* bits[..][n]: columns whose coordinate on the axis is below n. */
struct nh_prefixes {
    unsigned bits[NH_K0 + NH_K1 + NH_K2 + 3][NH_CHUNKS][4];
};

struct nh_sight {
    /* per coordinate of an item's rows: where its subtile's box begins in the halo, where what the row sees starts in
     * the box, bits */
    int begin[NH_AXIS_ROWS], start[NH_AXIS_ROWS];
    unsigned bits[NH_AXIS_ROWS][NH_CHUNKS][4];
};

/* What depends on a column alone: its row in the halo and its step in the bias table, both from the box's first. */
struct nh_column_tables {
    int bias[NH_BIAS_COUNT ? NH_COLUMNS : 1];
    unsigned short row[NH_COLUMNS];
};

/* What a step along an axis is worth in the bias table. */
NH_DEVICE int nh_bias_step(const nh_cuda_args &args, int axis) {
    int step = 1;
#pragma unroll
    for (int a = 2; a > 0; a--)
        if (a > axis) step *= 2 * (int)args.axis[a].window - 1;
    return step;
}

/* By all threads; a barrier must follow. */
NH_DEVICE void nh_tables_fill(const nh_cuda_args &args, nh_prefixes &prefixes,
                              nh_column_tables &columns) {
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        for (int i = (int)threadIdx.x; i < 4 * NH_CHUNKS * (nh_axis_columns(a) + 1); i += NH_THREADS) {
            int t = i % 4, chunk = i / 4 % NH_CHUNKS, below = i / (4 * NH_CHUNKS);
            unsigned bits = 0;
            for (int b = 0; b < 2 * NH_BLOCKS; b++) {
                int column = chunk * NH_CHUNK + b / 2 * 8 + 2 * t + b % 2;
                bits |= (unsigned)(column < NH_BOX && nh_column_at(column, a) < below) << b;
            }
            prefixes.bits[nh_prefixes_before(a) + below][chunk][t] = bits;
        }
    for (int c = (int)threadIdx.x; c < NH_COLUMNS; c += NH_THREADS) {
        /* Columns past the box, never seen, repeat earlier ones that are congruent. */
        int column = c < NH_BOX ? c : NH_BOX - 8 + (c - NH_BOX) % 8, row = 0, bias = 0;
        if (column < 0) column = 0;
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++) {
            row += nh_column_at(column, a) * nh_axis_pitch(a);
            if (NH_BIAS_COUNT) bias += nh_column_at(column, a) * nh_bias_step(args, a);
        }
        columns.row[c] = (unsigned short)row;
        if (NH_BIAS_COUNT) columns.bias[c] = bias;
    }
}

/* By all threads, per item; a barrier must follow. A box that would stick out of the halo's room starts earlier. */
NH_DEVICE void nh_sight_fill(const nh_cuda_args &args, const nh_item &item, const nh_prefixes &prefixes,
                             nh_sight &sight) {
    const int thread = (int)nh_thread_again();
    const bool needs_bits = !NH_DENSE && !NH_PENALTY;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        for (int i = thread; i < 4 * nh_axis_rows(a); i += NH_THREADS) {
            int t = i % 4, at = i / 4, last = item.length[a] - 1, position = item.row[a] + at;
            int first = position - at % nh_axis_subtile(a);
            int begin = nh_columns_of(args.axis[a], item.length[a], nh_least(first, last)).begin;
            begin = nh_least(begin - item.column[a], nh_axis_halo(a) - nh_axis_columns(a));
            nh_range own = nh_columns_of(args.axis[a], item.length[a], nh_least(position, last));
            int from = own.begin - item.column[a] - begin, to = own.end - item.column[a] - begin;
            if (t == 0) {
                sight.begin[nh_rows_before(a) + at] = begin;
                sight.start[nh_rows_before(a) + at] = from;
            }
            for (int c = 0; c < (needs_bits ? NH_CHUNKS : 0); c++)
                sight.bits[nh_rows_before(a) + at][c][t] =
                    prefixes.bits[nh_prefixes_before(a) + to][c][t] &
                    ~prefixes.bits[nh_prefixes_before(a) + from][c][t];
        }
}

/* Halo row of a subtile's first column. */
NH_DEVICE int nh_box_row(const nh_sight &sight, int subtile) {
    int row = 0;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        row += sight.begin[nh_rows_before(a) + nh_row_at(subtile, 0, a)] * nh_axis_pitch(a);
    return row;
}

NH_DEVICE unsigned nh_sight_bits(const nh_sight &sight, int subtile, int row, int chunk) {
    unsigned bits = NH_DENSE ? 0u : ~0u;
    int t = (int)(threadIdx.x % 4);
    if (NH_DENSE) {
#pragma unroll
        for (int b = 0; b < 2 * NH_BLOCKS; b++)
            bits |= (unsigned)(chunk * NH_CHUNK + b / 2 * 8 + 2 * t + b % 2 < NH_BOX) << b;
    } else {
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++)
            bits &= sight.bits[nh_rows_before(a) + nh_row_at(subtile, row, a)][chunk][t];
    }
    return bits;
}

/* ---- bias ---- */

/* A head's table, in base 2; a barrier must follow. */
NH_DEVICE void nh_bias_fill(const nh_cuda_args &args, int head, float *table) {
    const elem *from = (const elem *)args.tensor[NH_BIAS].data + (long long)head * NH_BIAS_COUNT;
    for (int i = (int)threadIdx.x; i < NH_BIAS_COUNT; i += NH_THREADS)
        table[i] = nh_load(from[i]) * (float)NH_LOG2E;
}

/* Entry of the box's first column for a row; a column adds its own step. The index counts from the query to the key:
 * with NH_INVERSE columns are queries. */
NH_DEVICE int nh_bias_row(const nh_cuda_args &args, const nh_item &item, const nh_sight &sight, int subtile,
                          int row) {
    int entry = 0;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int column = item.column[a] + sight.begin[nh_rows_before(a) + nh_row_at(subtile, 0, a)];
        int difference = column - (item.row[a] + nh_row_at(subtile, row, a));
        entry += ((NH_INVERSE ? -difference : difference) + (int)args.axis[a].window - 1) *
                 nh_bias_step(args, a);
    }
    return entry;
}

/* ---- one block's tables ---- */

struct nh_tables {
    nh_item item[2];
    nh_sight sight;
    nh_prefixes prefixes;
    nh_column_tables columns;
    float scale; /* of scores, to base 2 */
    float bias[NH_BIAS_COUNT ? NH_BIAS_COUNT : 1];
};

/* Before the first item. */
NH_DEVICE void nh_tables_start(const nh_cuda_args &args, nh_tables &tables) {
    if (threadIdx.x / 32 == 0) nh_item_locate(args, (int)blockIdx.x, tables.item[0]);
    if (threadIdx.x == 0) tables.scale = (float)(args.scale * NH_LOG2E);
    nh_tables_fill(args, tables.prefixes, tables.columns);
    __syncthreads();
}

/* What the item's rows see and, by one warp, where item number `next` is, while copies are under way. A barrier must follow. */
NH_DEVICE void nh_tables_turn(const nh_cuda_args &args, const nh_item &item, int next, nh_tables &tables,
                              int turn) {
    nh_sight_fill(args, item, tables.prefixes, tables.sight);
    if (threadIdx.x / 32 == NH_WARPS - 1 && next < args.tiling.items)
        nh_item_locate(args, next, tables.item[turn]);
}
