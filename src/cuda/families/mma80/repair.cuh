/* Repair of rows that a NaN or infinity outside of their windows has reached: a whole warp computes a row of the work
 * tile again, column by column over exactly its window (see repair_key.cuh). */
#pragma once

#include "tile_scores.cuh"

#include "repair_key.cuh"
#include "repair_pair.cuh"

namespace nh_mma80 {

NH_DEVICE const elem *nh_own_row(const nh_cuda_args &args, const nh_block &block, int slot, int row) {
    return (const elem *)args.tensor[slot].data + nh_row_offset(args, block, args.tensor[slot], row);
}
NH_DEVICE const elem *nh_column_row(const nh_cuda_args &args, const nh_block &block, int slot, int head,
                                    const nh_cursor &at) {
    return (const elem *)args.tensor[slot].data + nh_column_offset(args, block, args.tensor[slot], head, at.at);
}

/* head: of the query */
NH_DEVICE float nh_bias_of_pair(const nh_cuda_args &args, const nh_block &block, int head, int row,
                                const nh_cursor &at) {
    return C.biased ? nh_load(*nh_bias_row(args, block, head, at, row)) : 0.f;
}

/* Calls visit(at) for the columns that a row sees, one after the other. */
NH_DEVICE void nh_for_columns_of(const nh_cuda_args &args, const nh_block &block, int row, const auto &visit) {
    nh_range range[3];
    for (int a = 0; a < 3; a++)
        range[a] = nh_partners(args, block, a, nh_row_position(block, row, a));
    for (int x = range[0].begin; x < range[0].end; x++)
        for (int y = range[1].begin; y < range[1].end; y++)
            for (int z = range[2].begin; z < range[2].end; z++)
                visit(nh_cursor{{x, y, z}});
}

/* Writes a query's output to output[0 .. NH_DIM_V), and stores its LSE. */
static __device__ __noinline__ void nh_repair_query(const nh_cuda_args &args, int row, elem *output) {
    const nh_cuda_tensor &lse = args.tensor[NH_LSE];
    const float scale = (float)(args.scale * NH_LOG2E);
    nh_block block;
    nh_repair sums;
    nh_block_locate(args, NH_OWN_BLOCK, block);
    nh_repair_start(sums, nh_own_row(args, block, NH_Q, row));
    nh_for_columns_of(args, block, row, [&](const nh_cursor &at) {
        nh_repair_key(sums, nh_column_row(args, block, NH_K, block.kv_head, at),
                      nh_column_row(args, block, NH_V, block.kv_head, at), scale,
                      nh_bias_of_pair(args, block, block.head, row, at) * (float)NH_LOG2E);
    });
    for (long long e = 0; e < args.extra_tokens; e++)
        nh_repair_key(sums, nh_extra_row(args, block, NH_EXTRA_K, e), nh_extra_row(args, block, NH_EXTRA_V, e), scale,
                      0.f);
    const float row_lse = nh_repair_finish(sums, [&](int i, elem element) { output[i] = element; });
    if (lse.data && threadIdx.x % 32 == 0 && nh_row_exists(block, row))
        ((float *)lse.data)[nh_row_offset(args, block, lse, row)] = row_lse;
}

/* Writes the gradients of a row to first[0 .. NH_DIM) and, of a key, second[0 .. NH_DIM_V). */
static __device__ __noinline__ void nh_repair_gradient(const nh_cuda_args &args, unsigned work_tile, int row,
                                                       elem *first, elem *second) {
    const nh_cuda_tensor &delta = args.tensor[NH_DELTA];
    const float scale = (float)(args.scale * NH_LOG2E);
    nh_block block;
    nh_block_locate(args, work_tile, block);
    nh_lane_rows gradient = {};
    const nh_lane_rows own = nh_lane_rows_load(nh_own_row(args, block, NH_INVERSE ? NH_K : NH_Q, row),
                                               nh_own_row(args, block, NH_INVERSE ? NH_V : NH_D_O, row));
    const auto add = [&](const elem *column, const elem *column2, long long query, float bias) {
        const nh_stats stats = nh_repair_stats_at(args, query);
        nh_repair_pair(own, nh_lane_rows_load(column, column2), make_float2(-stats.lse, stats.delta), scale, bias,
                       gradient);
    };
    const int heads = nh_heads_of_row(args);
    for (int head = block.head * heads; head < block.head * heads + heads; head++)
        nh_for_columns_of(args, block, row, [&](const nh_cursor &at) {
            const int of = NH_INVERSE ? head : block.kv_head;
            add(nh_column_row(args, block, nh_loop_slot(NH_LOOP_FIRST), of, at),
                nh_column_row(args, block, nh_loop_slot(NH_LOOP_SECOND), of, at),
                NH_INVERSE ? nh_column_offset(args, block, delta, head, at.at) : nh_row_offset(args, block, delta, row),
                nh_bias_of_pair(args, block, head, row, at));
        });
    for (long long e = 0; !NH_INVERSE && e < args.extra_tokens; e++)
        add(nh_extra_row(args, block, NH_EXTRA_K, e), nh_extra_row(args, block, NH_EXTRA_V, e),
            nh_row_offset(args, block, delta, row), 0.f);
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        const int element = (int)(threadIdx.x % 32) + 32 * i;
        if (C.sum_first && element < NH_DIM) first[element] = nh_store(gradient.first[i] * (float)args.scale);
        if (C.sum_second && element < NH_DIM_V) second[element] = nh_store(gradient.second[i]);
    }
}

} // namespace nh_mma80
