/* Repair in the forward pass: a whole warp computes one query key by key over exactly its window (see
 * repair_key.cuh). */
#pragma once

#include "softmax.cuh"
#include "tile_mask.cuh"

#include "repair_key.cuh"

namespace nh_mma80 {

NH_DEVICE void nh_repair_window(const nh_cuda_args &args, const nh_block &block,
                               const int position[3], float scale, nh_repair &row) {
    const nh_cuda_tensor &k = args.tensor[NH_K], &v = args.tensor[NH_V];
    const elem *keys = (const elem *)k.data + block.batch * k.batch + block.kv_head * k.head;
    const elem *values = (const elem *)v.data + block.batch * v.batch + block.kv_head * v.head;
    nh_range range[3];
    for (int a = 0; a < 3; a++)
        range[a] = nh_partners(args, block, a, position[a]);
    for (long long x = range[0].begin; x < range[0].end; x++)
        for (long long y = range[1].begin; y < range[1].end; y++)
            for (long long z = range[2].begin; z < range[2].end; z++) {
                const int at[3] = {(int)x, (int)y, (int)z};
                long long to_key = 0, to_value = 0, to_bias = block.head;
                for (int a = 0; a < 3; a++) {
                    to_key += nh_column_offset(args, block, k, a, at[a]);
                    to_value += nh_column_offset(args, block, v, a, at[a]);
                    to_bias = to_bias * (2 * args.axis[a].window - 1) + at[a] - position[a] +
                              args.axis[a].window - 1;
                }
                float bias = 0.f;
                if (C.biased) bias = nh_load(((const elem *)args.tensor[NH_BIAS].data)[to_bias]);
                nh_repair_key(row, keys + to_key, values + to_value, scale, bias * (float)NH_LOG2E);
            }
}

NH_DEVICE void nh_repair_extra(const nh_cuda_args &args, const nh_block &block, float scale,
                              nh_repair &row) {
    const nh_cuda_tensor &k = args.tensor[NH_EXTRA_K], &v = args.tensor[NH_EXTRA_V];
    const elem *keys = (const elem *)k.data + block.batch * k.batch + block.kv_head * k.head;
    const elem *values = (const elem *)v.data + block.batch * v.batch + block.kv_head * v.head;
    long long key_step = k.axis[3 - args.rank], value_step = v.axis[3 - args.rank];
    for (long long e = 0; e < args.extra_tokens; e++)
        nh_repair_key(row, keys + e * key_step, values + e * value_step, scale, 0.f);
}

/* Writes the row to output[0 .. NH_DIM_V); returns its LSE. */
static __device__ __noinline__ float nh_repair_query(const nh_cuda_args &args, int tile_row,
                                                    elem *output) {
    nh_block block;
    nh_block_locate(args, blockIdx.x, block);
    nh_repair row;
    int position[3];
    for (int a = 0; a < 3; a++)
        position[a] = nh_row_position(block, tile_row, a);
    const elem *query = (const elem *)args.tensor[NH_Q].data +
                        nh_row_offset(args, block, args.tensor[NH_Q], block.head, tile_row);
    nh_repair_start(row, query);
    float scale = (float)(args.scale * NH_LOG2E);
    nh_repair_window(args, block, position, scale, row);
    nh_repair_extra(args, block, scale, row);
    return nh_repair_finish(row, [&](int i, elem element) { output[i] = element; });
}

} // namespace nh_mma80
