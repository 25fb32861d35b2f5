/* Repair in the backward pass: a whole warp computes the gradient of one query, or of one key and value, pair by pair.
 * This is for rows that a NaN or infinity outside their windows has reached. */
#pragma once

#include "query_stats.cuh"
#include "tile_scores.cuh"

#include "repair_pair.cuh"

namespace nh_mma80 {

/* Offset in a tensor of a row of the block, or of a column. */
template <bool COLUMN>
NH_DEVICE long long nh_at(const nh_cuda_args &args, const nh_block &block,
                          const nh_cuda_tensor &tensor, int head, const int at[3]) {
    long long offset = block.batch * tensor.batch + head * tensor.head;
    for (int a = 0; a < 3; a++)
        offset += COLUMN ? nh_column_offset(args, block, tensor, a, at[a])
                         : nh_position_offset(args, block, tensor, a, at[a]);
    return offset;
}

/* Adds the pair of a row of the block and a column of its window, in the roles that NH_INVERSE gives them. head: of the
 * query. */
NH_DEVICE void nh_repair_partner(const nh_cuda_args &args, const nh_block &block, int head,
                                int tile_row, const int query[3], const int column[3],
                                const nh_lane_rows &row, nh_lane_rows &gradient) {
    const nh_cuda_tensor &first = args.tensor[NH_INVERSE ? NH_Q : NH_K];
    const nh_cuda_tensor &second = args.tensor[NH_INVERSE ? NH_D_O : NH_V];
    int column_head = NH_INVERSE ? head : block.kv_head;
    float bias = 0.f;
    if (C.biased) {
        const nh_cursor cursor = {{column[0], column[1], column[2]}};
        bias = nh_load(*nh_bias_row(args, block, head, cursor, tile_row));
    }
    const nh_lane_rows partner =
        nh_lane_rows_load((const elem *)first.data + nh_at<true>(args, block, first, column_head, column),
                          (const elem *)second.data + nh_at<true>(args, block, second, column_head, column));
    const nh_cuda_tensor &of_queries = args.tensor[NH_DELTA];
    const nh_stats stats = nh_stats_at(args, nh_at<NH_INVERSE>(args, block, of_queries, head, query));
    nh_repair_pair(row, partner, make_float2(-stats.lse, stats.delta), (float)(args.scale * NH_LOG2E), bias, gradient);
}

/* Adds the pairs of a query with the extra tokens. */
NH_DEVICE void nh_repair_extra(const nh_cuda_args &args, const nh_block &block,
                              const int query[3], const nh_lane_rows &row,
                              nh_lane_rows &gradient) {
    const nh_stats stats =
        nh_stats_at(args, nh_at<false>(args, block, args.tensor[NH_DELTA], block.head, query));
    for (long long e = 0; e < args.extra_tokens; e++) {
        const nh_lane_rows token =
            nh_lane_rows_load(nh_extra_row(args, block, NH_EXTRA_K, e), nh_extra_row(args, block, NH_EXTRA_V, e));
        nh_repair_pair(row, token, make_float2(-stats.lse, stats.delta), (float)(args.scale * NH_LOG2E), 0.f, gradient);
    }
}

/* Computes the gradients of a row of the work tile into first[0 .. NH_DIM) and, of a key, second[0 .. NH_DIM_V). */
static __device__ __noinline__ void nh_repair_gradient(const nh_cuda_args &args, unsigned work_tile, int tile_row,
                                                       elem *first, elem *second) {
    nh_block block;
    nh_block_locate(args, work_tile, block);
    nh_lane_rows gradient = {};
    nh_range range[3];
    int position[3];
    const nh_cuda_tensor &a = args.tensor[NH_INVERSE ? NH_K : NH_Q];
    const nh_cuda_tensor &a2 = args.tensor[NH_INVERSE ? NH_V : NH_D_O];
    for (int axis = 0; axis < 3; axis++) {
        position[axis] = nh_row_position(block, tile_row, axis);
        range[axis] = nh_partners(args, block, axis, position[axis]);
    }
    const nh_lane_rows row =
        nh_lane_rows_load((const elem *)a.data + nh_at<false>(args, block, a, block.head, position),
                          (const elem *)a2.data + nh_at<false>(args, block, a2, block.head, position));
    int group = NH_INVERSE ? (int)(args.heads / args.kv_heads) : 1;
    for (int head = block.head * group; head < block.head * group + group; head++)
        for (int x = range[0].begin; x < range[0].end; x++)
            for (int y = range[1].begin; y < range[1].end; y++)
                for (int z = range[2].begin; z < range[2].end; z++) {
                    const int at[3] = {x, y, z};
                    nh_repair_partner(args, block, head, tile_row, NH_INVERSE ? at : position, at,
                                     row, gradient);
                }
    if (!NH_INVERSE) nh_repair_extra(args, block, position, row, gradient);
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        const int element = (int)(threadIdx.x % 32) + 32 * i;
        if (C.sum_first && element < NH_DIM) first[element] = nh_store(gradient.first[i] * (float)args.scale);
        if (C.sum_second && element < NH_DIM_V) second[element] = nh_store(gradient.second[i]);
    }
}

} // namespace nh_mma80
