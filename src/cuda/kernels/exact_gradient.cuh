/* The gradient of one query, or of one key and value, pair by pair, by a whole warp: for rows that a NaN or infinity
 * outside their windows has spoilt (see exact_row.cuh). */
#pragma once

#include "softmax.cuh"
#include "tile_mask.cuh"

enum { NH_LANE_DIMS = (NH_DIM + 31) / 32, NH_LANE_DIMS_V = (NH_DIM_V + 31) / 32 };

/* A lane's share of a row of Q or K and of its second row, of dO or V; or of their gradients. */
struct nh_lane_rows {
    float first[NH_LANE_DIMS], second[NH_LANE_DIMS_V];
};

NH_DEVICE void nh_lane_rows_load(struct nh_lane_rows &rows, const elem *first, const elem *second) {
    int lane = (int)threadIdx.x % 32;
    for (int i = 0; i < NH_LANE_DIMS; i++)
        rows.first[i] = lane + 32 * i < NH_DIM ? nh_load(first[lane + 32 * i]) : 0.f;
    for (int i = 0; i < NH_LANE_DIMS_V; i++)
        rows.second[i] = lane + 32 * i < NH_DIM_V ? nh_load(second[lane + 32 * i]) : 0.f;
}

NH_DEVICE float nh_warp_sum(float value) {
    for (int step = 16; step; step /= 2)
        value += __shfl_xor_sync(~0u, value, step);
    return value;
}

/* One pair's part of the row's gradients. */
NH_DEVICE void nh_exact_pair(const struct nh_lane_rows &row, const struct nh_lane_rows &other,
                             float lse, float delta, float scale, struct nh_lane_rows &gradient) {
    float score = 0.f, d_p = 0.f;
    for (int i = 0; i < NH_LANE_DIMS; i++)
        score += row.first[i] * other.first[i];
    for (int i = 0; i < NH_LANE_DIMS_V; i++)
        d_p += row.second[i] * other.second[i];
    float p = nh_exp2(nh_warp_sum(score) * scale - lse * (float)NH_LOG2E);
    float d_s = p * (nh_warp_sum(d_p) - delta);
    for (int i = 0; i < NH_LANE_DIMS; i++)
        gradient.first[i] += d_s * other.first[i];
    for (int i = 0; i < NH_LANE_DIMS_V; i++)
        gradient.second[i] += p * other.second[i];
}

NH_DEVICE long long nh_at(const nh_cuda_args &args, const struct nh_block &block,
                          const nh_cuda_tensor &tensor, int head, const int at[3]) {
    long long offset = block.batch * tensor.batch + head * tensor.head;
    for (int a = 0; a < 3; a++)
        offset += nh_position_offset(args, block, tensor, a, at[a]);
    return offset;
}

/* Rows and scalars of a query with a key, in the roles that NH_INVERSE gives them. */
NH_DEVICE void nh_exact_partner(const nh_cuda_args &args, const struct nh_block &block, int head,
                                const int query[3], const int other[3],
                                const struct nh_lane_rows &row, struct nh_lane_rows &gradient) {
    const nh_cuda_tensor &first = args.tensor[NH_INVERSE ? NH_Q : NH_K];
    const nh_cuda_tensor &second = args.tensor[NH_INVERSE ? NH_D_O : NH_V];
    const nh_cuda_tensor &lse = args.tensor[NH_LSE], &delta = args.tensor[NH_DELTA];
    int other_head = NH_INVERSE ? head : block.kv_head;
    struct nh_lane_rows partner;
    nh_lane_rows_load(partner,
                      (const elem *)first.data + nh_at(args, block, first, other_head, other),
                      (const elem *)second.data + nh_at(args, block, second, other_head, other));
    nh_exact_pair(row, partner, ((const float *)lse.data)[nh_at(args, block, lse, head, query)],
                  ((const float *)delta.data)[nh_at(args, block, delta, head, query)],
                  (float)(args.scale * NH_LOG2E), gradient);
}

/* Writes the row's gradients to first[0 .. NH_DIM) and, of a key, second[0 .. NH_DIM_V). */
static __device__ __noinline__ void nh_exact_gradient(const nh_cuda_args &args, int tile_row,
                                                      elem *first, elem *second) {
    struct nh_block block;
    struct nh_lane_rows row, gradient = {};
    struct nh_range range[3];
    int position[3], lane = (int)threadIdx.x % 32;
    nh_block_locate(args, NH_INVERSE ? args.kv_heads : args.heads, block);
    const nh_cuda_tensor &a = args.tensor[NH_INVERSE ? NH_K : NH_Q];
    const nh_cuda_tensor &a2 = args.tensor[NH_INVERSE ? NH_V : NH_D_O];
    for (int axis = 0; axis < 3; axis++) {
        position[axis] = nh_row_position(block, tile_row, axis);
        range[axis] = nh_partners(args, block, axis, position[axis]);
    }
    nh_lane_rows_load(row, (const elem *)a.data + nh_at(args, block, a, block.head, position),
                      (const elem *)a2.data + nh_at(args, block, a2, block.head, position));
    int group = NH_INVERSE ? (int)(args.heads / args.kv_heads) : 1;
    for (int head = block.head * group; head < block.head * group + group; head++)
        for (int x = (int)range[0].begin; x < range[0].end; x++)
            for (int y = (int)range[1].begin; y < range[1].end; y++)
                for (int z = (int)range[2].begin; z < range[2].end; z++) {
                    const int other[3] = {x, y, z};
                    nh_exact_partner(args, block, head, NH_INVERSE ? other : position, other, row,
                                     gradient);
                }
    for (int i = 0; i < NH_LANE_DIMS; i++)
        if (lane + 32 * i < NH_DIM)
            first[lane + 32 * i] = nh_store(gradient.first[i] * (float)args.scale);
    for (int i = 0; i < NH_LANE_DIMS_V; i++)
        if (NH_INVERSE && lane + 32 * i < NH_DIM_V)
            second[lane + 32 * i] = nh_store(gradient.second[i]);
}
