/* Repair in the backward pass: a whole warp computes the gradient of one query, or of one key and value, pair by pair,
 * for rows that a NaN or infinity outside their windows has reached. Everything but the windows is read from memory. */
#pragma once

#include "short_tile.cuh"

namespace nh_short {

/* Points to a token's row in a tensor, for the member-th of the query heads that share keys. */
NH_DEVICE elem *nh_token_row(const nh_block &block, int tensor, int member, const nh_token &token) {
    return (elem *)block.args.tensor[tensor].data + nh_offset(block, tensor, member, token);
}

NH_DEVICE nh_lane_rows nh_query_rows(const nh_block &block, int member, const nh_token &token) {
    return nh_lane_rows_load(nh_token_row(block, NH_Q, member, token), nh_token_row(block, NH_D_O, member, token));
}

NH_DEVICE nh_lane_rows nh_key_rows(const nh_block &block, const nh_token &token) {
    return nh_lane_rows_load(nh_token_row(block, NH_K, 0, token), nh_token_row(block, NH_V, 0, token));
}

/* -LSE in base 2 and delta of a query with these rows, computed again: shared memory has those of one member only. */
NH_DEVICE float2 nh_repair_statistics(const nh_block &block, int member, const nh_token &token,
                                      const nh_lane_rows &query) {
    const elem *output = nh_token_row(block, NH_O, member, token);
    const float *lse = (const float *)block.args.tensor[NH_LSE].data,
                *d_lse = (const float *)block.args.tensor[NH_D_LSE].data;
    const nh_lane_rows outputs = nh_lane_rows_load(output, output);
    float delta = nh_lanes_dot(query.second, outputs.second);
    if (d_lse) delta -= d_lse[nh_offset(block, NH_D_LSE, member, token)];
    return make_float2(lse[nh_offset(block, NH_LSE, member, token)] * -(float)NH_LOG2E, delta);
}

template <int WIDTH>
NH_DEVICE void nh_lane_row_store(const nh_block &block, int tensor, int member, const nh_token &token,
                                 const float (&row)[NH_LANE_ELEMENTS], float factor) {
    if (!block.args.tensor[tensor].data) return;
    elem *to = nh_token_row(block, tensor, member, token);
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        const int element = (int)threadIdx.x % 32 + 32 * i;
        if (element < WIDTH) to[element] = nh_store(row[i] * factor);
    }
}

/* member: the query's head among those that share a key head; a key's gradient is a sum over all of them. */
template <bool BY_KEYS>
static __device__ __noinline__ void nh_repair_gradient(const nh_short_args &args, int member, int row) {
    const nh_block block = nh_block_of(args);
    const nh_token own = nh_token_at(block, row);
    if (!own.exists) return;
    const int group = block.extents.group.base, first = own.slot * group, members = BY_KEYS ? args.tiling.heads : 1;
    const nh_lane_rows own_rows = BY_KEYS ? nh_key_rows(block, own) : nh_query_rows(block, member, own);
    float2 statistics = {};
    if (!BY_KEYS) statistics = nh_repair_statistics(block, member, own, own_rows);
    nh_lane_rows gradient = {};
    for (int i = 0; i < members; i++)
        for (int other = first; other < first + group; other++) {
            const nh_token column = nh_token_at(block, other);
            const nh_query &query = block.tile.query[BY_KEYS ? other : row];
            if (!column.exists || !nh_query_sees(query, block.tile.column[BY_KEYS ? row : other])) continue;
            const nh_lane_rows rows = BY_KEYS ? nh_query_rows(block, i, column) : nh_key_rows(block, column);
            if (BY_KEYS) statistics = nh_repair_statistics(block, i, column, rows);
            nh_repair_pair(own_rows, rows, statistics, (float)(args.scale * NH_LOG2E), 0.f, gradient);
        }
    nh_lane_row_store<C.dim>(block, BY_KEYS ? NH_D_K : NH_D_Q, member, own, gradient.first, (float)args.scale);
    if (BY_KEYS) nh_lane_row_store<C.dim_v>(block, NH_D_V, member, own, gradient.second, 1.f);
}

} // namespace nh_short
