/* The gradient of one query, or of one key and value, pair by pair, by a whole warp: for rows that a NaN or infinity
 * outside their windows has spoilt, as in exact_gradient.cuh. All but the windows is read from memory. */
#pragma once

#include "lanes.cuh"
#include "short_tile.cuh"

enum { NH_LANE_ELEMENTS = ((NH_DIM > NH_DIM_V ? NH_DIM : NH_DIM_V) + 31) / 32 };

struct nh_lane_row {
    float at[NH_LANE_ELEMENTS];
};

template <int WIDTH>
NH_DEVICE void nh_lane_row_load(nh_lane_row &row, const nh_block &block, int tensor, int member,
                                const nh_token &token) {
    const elem *from = (const elem *)block.args.tensor[tensor].data + nh_offset(block, tensor, member, token);
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        const int element = (int)threadIdx.x % 32 + 32 * i;
        row.at[i] = element < WIDTH ? nh_load(from[element]) : 0.f;
    }
}

template <int WIDTH>
NH_DEVICE void nh_lane_row_store(const nh_lane_row &row, float factor, const nh_block &block, int tensor, int member,
                                 const nh_token &token) {
    elem *to = (elem *)block.args.tensor[tensor].data;
    if (!to) return;
    to += nh_offset(block, tensor, member, token);
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        const int element = (int)threadIdx.x % 32 + 32 * i;
        if (element < WIDTH) to[element] = nh_store(row.at[i] * factor);
    }
}

NH_DEVICE float nh_lane_dot(const nh_lane_row &a, const nh_lane_row &b) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        sum += a.at[i] * b.at[i];
    return nh_lanes_sum<32>(sum);
}

/* Adds what a query of the member-th head and a key contribute to the gradients of one of them. */
template <bool BY_KEYS>
NH_DEVICE void nh_exact_pair(const nh_block &block, int member, const nh_token &query_token, const nh_token &key_token,
                             nh_lane_row &sum, nh_lane_row &sum_v) {
    nh_lane_row query, key, value, d_output, output;
    nh_lane_row_load<NH_DIM>(query, block, NH_Q, member, query_token);
    nh_lane_row_load<NH_DIM>(key, block, NH_K, member, key_token);
    nh_lane_row_load<NH_DIM_V>(value, block, NH_V, member, key_token);
    nh_lane_row_load<NH_DIM_V>(d_output, block, NH_D_O, member, query_token);
    nh_lane_row_load<NH_DIM_V>(output, block, NH_O, member, query_token);
    float delta = nh_lane_dot(d_output, output);
    const float *lse = (const float *)block.args.tensor[NH_LSE].data,
                *d_lse = (const float *)block.args.tensor[NH_D_LSE].data;
    if (d_lse) delta -= d_lse[nh_offset(block, NH_D_LSE, member, query_token)];
    const float shift = lse[nh_offset(block, NH_LSE, member, query_token)] * (float)NH_LOG2E;
    const float weight = nh_exp2(fmaf(nh_lane_dot(query, key), (float)(block.args.scale * NH_LOG2E), -shift));
    const float d_score = weight * (nh_lane_dot(d_output, value) - delta);
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        sum.at[i] += d_score * (BY_KEYS ? query.at[i] : key.at[i]);
        sum_v.at[i] += weight * d_output.at[i];
    }
}

/* member: of the query heads that share a key head; a key goes over all of them. */
template <bool BY_KEYS>
static __device__ __noinline__ void nh_exact_gradient(const nh_cuda_args &args, int member, int row) {
    const nh_block block = nh_block_of(args);
    const nh_token own = nh_token_at(block, row);
    if (!own.exists) return;
    const int group = block.extents.group.base, first = own.slot * group, members = BY_KEYS ? args.tiling.heads : 1;
    nh_lane_row sum = {}, sum_v = {};
    for (int i = 0; i < members; i++)
        for (int other = first; other < first + group; other++) {
            const nh_token column = nh_token_at(block, other);
            const nh_query &query = block.tile.query[BY_KEYS ? other : row];
            if (column.exists && nh_query_sees(query, block.tile.column[BY_KEYS ? row : other]))
                nh_exact_pair<BY_KEYS>(block, BY_KEYS ? i : member, BY_KEYS ? column : own, BY_KEYS ? own : column, sum,
                                       sum_v);
        }
    nh_lane_row_store<NH_DIM>(sum, (float)args.scale, block, BY_KEYS ? NH_D_K : NH_D_Q, member, own);
    if (BY_KEYS) nh_lane_row_store<NH_DIM_V>(sum_v, 1.f, block, NH_D_V, member, own);
}
