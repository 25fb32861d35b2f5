/* What happens to scores between the product and the softmax: scale, relative bias, mask.
 *
 * The bias' index is linear in the key's and in the query's position, so it is a sum of three: one number per box,
 * one per column of the box, one per row. */
#pragma once

#include "softmax.cuh"

/* What a step along each axis is worth in the bias table. */
NH_DEVICE long long nh_bias_stride(const nh_cuda_args &args, int axis) {
    long long stride = 1;
#pragma unroll
    for (int a = 2; a > 0; a--)
        if (a > axis) stride *= 2 * args.axis[a].window - 1;
    return stride;
}

NH_DEVICE long long nh_bias_of_column(const nh_cuda_args &args, int column) {
    long long offset = 0;
    for (int a = 0; a < 3; a++)
        offset += nh_column_axis(column, a) * nh_bias_stride(args, a);
    return offset;
}

NH_DEVICE long long nh_bias_of_tile(const nh_cuda_args &args, const struct nh_block &block,
                                    const struct nh_cursor &tile) {
    long long offset = 0, entries = 1;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        entries *= 2 * args.axis[a].window - 1;
        offset += (tile.at[a] + args.axis[a].window - 1) * nh_bias_stride(args, a);
    }
    return block.head * entries + offset;
}

NH_DEVICE long long nh_bias_of_row(const nh_cuda_args &args, const struct nh_block &block,
                                   int row) {
    long long offset = 0;
#pragma unroll
    for (int a = 0; a < 3; a++)
        offset += nh_row_position(block, row, a) * nh_bias_stride(args, a);
    return offset;
}

/* The bias of a row against the key at a box's origin; may point outside of the table, unlike what is read. */
NH_DEVICE const elem *nh_bias_row(const nh_cuda_args &args, const struct nh_block &block,
                                  const struct nh_cursor &tile, int row) {
    return (const elem *)args.tensor[NH_BIAS].data + nh_bias_of_tile(args, block, tile) -
           nh_bias_of_row(args, block, row);
}

/* Scale, bias and mask of one row (block m, half) of scores. `row_bias` is the bias table at the box's origin for this
 * row, `column` what each column adds; NULL for columns without bias. */
NH_DEVICE void nh_finish_score_row(nh_scores &scores, int m, int half, unsigned mask, float scale,
                                   const elem *row_bias, const long long *column) {
    if (NH_PRESCALE) {
#pragma unroll
        for (int i = 0; i < NH_COLUMNS / 4; i++)
            scores[m][i / 2][2 * half + i % 2] *= scale;
    }
    if (NH_BIASED && row_bias) {
        column += 2 * ((int)threadIdx.x % 4);
#pragma unroll
        for (int i = 0; i < NH_COLUMNS / 4; i++)
            if (mask >> i & 1)
                scores[m][i / 2][2 * half + i % 2] +=
                    nh_load(row_bias[column[i / 2 * 8 + i % 2]]) * (float)NH_LOG2E;
    }
#pragma unroll
    for (int i = 0; i < NH_COLUMNS / 4; i++)
        if (!(mask >> i & 1)) scores[m][i / 2][2 * half + i % 2] = NH_MINUS_INFINITY;
}
