/* Relative bias. Its index is linear in the key's and in the query's position, so it is a sum of three: one number
 * per tile, one per column of the tile, one per row. */
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
        offset += nh_query_position(block, row, a) * nh_bias_stride(args, a);
    return offset;
}

/* Adds the bias, in base 2, to the columns of one row (block m, half) that are in `mask`: no other has one. */
NH_DEVICE void nh_bias_add(nh_scores &scores, int m, int half, unsigned mask, const elem *bias,
                           const long long *column) {
    column += 2 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < NH_COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (mask >> (2 * n + i) & 1)
                scores[m][n][2 * half + i] += nh_load(bias[column[8 * n + i]]) * (float)NH_LOG2E;
}
