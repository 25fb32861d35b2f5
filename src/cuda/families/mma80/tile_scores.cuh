/* Scale, relative bias and masks of scores, between the product and the softmax. The index into the bias table is
 * linear in the key's and in the query's position: a sum of a number per box, one per column of the box, and one per
 * row. */
#pragma once

#include "tile_product.cuh"
#include "tile_copy.cuh"
#include "tile_note.cuh"

namespace nh_mma80 {

/* Entries of the bias table per step along an axis. */
NH_DEVICE long long nh_bias_stride(const nh_cuda_args &args, int axis) {
    long long stride = 1;
    NH_UNROLL for (int a = 2; a > 0; a--)
        if (a > axis) stride *= 2 * args.axis[a].window - 1;
    return stride;
}

/* The index grows with the key's position and falls with the query's. */
enum { NH_BIAS_SIGN = NH_INVERSE ? -1 : 1 };

/* Fills in the columns' parts of the index. Called by the whole block. */
NH_DEVICE void nh_bias_columns_fill(const nh_cuda_args &args, long long column[NH_COLUMNS]) {
    for (int c = (int)threadIdx.x; c < NH_COLUMNS; c += NH_THREADS) {
        long long offset = 0;
        for (int a = 0; a < 3; a++)
            offset += nh_column_axis(c, a) * nh_bias_stride(args, a);
        column[c] = NH_BIAS_SIGN * offset;
    }
}

NH_DEVICE long long nh_bias_entries(const nh_cuda_args &args) {
    return nh_bias_stride(args, 0) * (2 * args.axis[0].window - 1);
}

/* Points to the bias of a query head's row and the column at a box's origin, which may be outside of the table. */
NH_DEVICE const elem *nh_bias_row(const nh_cuda_args &args, const nh_block &block, int head, const nh_cursor &tile,
                                  int row) {
    long long offset = head * nh_bias_entries(args);
    NH_UNROLL for (int a = 0; a < 3; a++) {
        int distance = NH_BIAS_SIGN * (tile.at[a] - nh_row_position(block, row, a));
        offset += (distance + args.axis[a].window - 1) * nh_bias_stride(args, a);
    }
    return (const elem *)args.tensor[NH_BIAS].data + offset;
}

/* Applies scale, bias and mask to one row (block m, half) of scores. row_bias: points into the bias table for this row
 * at the box's origin, or NULL for columns without bias; column: what each column adds to the index. */
NH_DEVICE void nh_finish_score_row(nh_scores &scores, int m, int half, unsigned mask, float scale, const elem *row_bias,
                                   const long long *column) {
    if (C.prescale) {
        NH_UNROLL for (int i = 0; i < NH_COLUMNS / 4; i++)
            scores[m][i / 2][2 * half + i % 2] *= scale;
    }
    if (C.biased && row_bias) {
        column += 2 * ((int)threadIdx.x % 4);
        NH_UNROLL for (int i = 0; i < NH_COLUMNS / 4; i++)
            if (mask >> i & 1)
                scores[m][i / 2][2 * half + i % 2] += nh_load(row_bias[column[i / 2 * 8 + i % 2]]) * (float)NH_LOG2E;
    }
    NH_UNROLL for (int i = 0; i < NH_COLUMNS / 4; i++)
        if (!(mask >> i & 1)) scores[m][i / 2][2 * half + i % 2] = NH_MINUS_INFINITY;
}

/* Tables for masks and bias of a block's tiles. */
struct nh_score_tables {
    long long bias[NH_COLUMNS];
    nh_mask_tables masks;
    nh_dense_box dense[C.warps];
};
static_assert(sizeof(nh_score_tables) == mma80_score_table_bytes(&C), "the host's count");

/* Applies scale, bias and masks to a tile's scores. A warp whose rows all see all columns skips the masks. */
NH_DEVICE void nh_finish_scores(const nh_cuda_args &args, const nh_block &block, const nh_score_tables &tables,
                                const nh_kv_loop &now, int first_row, float scale, nh_scores &scores) {
    const nh_view view = nh_view_of(args, block, tables.dense[first_row / NH_WARP_ROWS], now.cursor, now.left);
    if (NH_NOTED && threadIdx.x % 32 == 0)
        nh_note_tile(args, (int)NH_OWN_BLOCK, now.left - 1, first_row == 0, view.partial && !view.extra);
    if (!C.prescale && !view.partial) return;
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        int row = first_row + 8 * r + (int)threadIdx.x % 32 / 4;
        unsigned mask = nh_view_mask(view, tables.masks, now.cursor, row);
        const elem *row_bias = 0;
        if (C.biased && !view.extra) row_bias = nh_bias_row(args, block, now.head, now.cursor, row);
        nh_finish_score_row(scores, r / 2, r % 2, mask, scale, row_bias, tables.bias);
    }
}

} // namespace nh_mma80
