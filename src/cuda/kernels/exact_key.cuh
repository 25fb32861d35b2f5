/* A key's part in one query's output, by a whole warp, from shared memory: for rows that are done again key by key.
 * Where a row's units of 16 bytes lie, nh_unit_offset, is the includer's. */
#pragma once

#include "lanes.cuh"
#include "mma.cuh"
#include "prelude.cuh"

NH_DEVICE float nh_shared_element(int width, const char *rows, int row, int element) {
    const char *unit = rows + nh_unit_offset(width, row, element / NH_PER_UNIT);
    return nh_load(((const elem *)unit)[element % NH_PER_UNIT]);
}

enum { NH_LANE_ELEMENTS = (NH_WIDEST + 31) / 32 };

struct nh_exact {
    /* elements lane, lane + 32, .. */
    float query[NH_LANE_ELEMENTS], output[NH_LANE_ELEMENTS], top, sum;
};

NH_DEVICE void nh_exact_key(nh_exact &state, const char *keys, const char *values, int row, float scale,
                            float bias) {
    int lane = (int)(threadIdx.x % 32);
    float score = 0.f;
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        if (lane + 32 * i < NH_DIM)
            score += state.query[i] * nh_shared_element(NH_DIM, keys, row, lane + 32 * i);
    score = fmaf(nh_lanes_sum<32>(score), scale, bias);
    float top = fmaxf(state.top, score);
    float shrink = nh_exp2(state.top - top), weight = nh_exp2(score - top);
    state.top = top;
    state.sum = state.sum * shrink + weight;
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        if (lane + 32 * i < NH_DIM_V)
            state.output[i] = state.output[i] * shrink +
                              weight * nh_shared_element(NH_DIM_V, values, row, lane + 32 * i);
}
