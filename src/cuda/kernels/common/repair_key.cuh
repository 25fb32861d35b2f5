/* Repair of an output row, key by key, by a whole warp. Tensor cores multiply the zero weight of a masked key with its
 * value: a NaN or infinity there makes the sum NaN, though the query does not see that key. Rows that are not finite
 * are therefore computed again with exactly the keys that they see; if one of these is the NaN, the result is NaN
 * again. */
#pragma once

#include "lanes.cuh"
#include "mma.cuh"
#include "prelude.cuh"

enum { NH_LANE_DIMS = (NH_DIM + 31) / 32, NH_LANE_DIMS_V = (NH_DIM_V + 31) / 32 };

struct nh_repair {
    /* elements lane, lane + 32, .. */
    float query[NH_LANE_DIMS], top;
    double output[NH_LANE_DIMS_V], sum; /* sums of values near the largest f32 are beyond it before they are divided */
};

NH_DEVICE void nh_repair_start(nh_repair &state, const elem *query) {
    const int lane = (int)(threadIdx.x % 32);
    for (int i = 0; i < NH_LANE_DIMS; i++)
        state.query[i] = lane + 32 * i < NH_DIM ? nh_load(query[lane + 32 * i]) : 0.f;
    for (int i = 0; i < NH_LANE_DIMS_V; i++)
        state.output[i] = 0;
    state.top = NH_LOWEST;
    state.sum = 0;
}

/* Adds a key; key(i), value(i): elements of its rows. */
template <typename Key, typename Value>
NH_DEVICE void nh_repair_key(nh_repair &state, const Key &key, const Value &value, float scale, float bias) {
    const int lane = (int)(threadIdx.x % 32);
    float score = 0.f;
    for (int i = 0; i < NH_LANE_DIMS; i++)
        if (lane + 32 * i < NH_DIM) score += state.query[i] * nh_load(key(lane + 32 * i));
    score = fmaf(nh_lanes_sum<32>(score), scale, bias);
    const float top = fmaxf(state.top, score);
    const float shrink = nh_exp2(state.top - top), weight = nh_exp2(score - top);
    state.top = top;
    state.sum = state.sum * shrink + weight;
    for (int i = 0; i < NH_LANE_DIMS_V; i++)
        if (lane + 32 * i < NH_DIM_V)
            state.output[i] = state.output[i] * shrink + (double)weight * nh_load(value(lane + 32 * i));
}

NH_DEVICE void nh_repair_key(nh_repair &state, const elem *key, const elem *value, float scale, float bias) {
    nh_repair_key(state, [&](int i) { return key[i]; }, [&](int i) { return value[i]; }, scale, bias);
}

/* Calls write(i, element) for this lane's elements of the output; returns LSE. */
template <typename Write> NH_DEVICE float nh_repair_finish(const nh_repair &state, const Write &write) {
    const int lane = (int)(threadIdx.x % 32);
    const double factor = NH_REGIONS && state.sum == 0 ? 1 : 1 / state.sum; /* sum 0: the row has no key */
    for (int i = 0; i < NH_LANE_DIMS_V; i++)
        if (lane + 32 * i < NH_DIM_V) write(lane + 32 * i, nh_store((float)(state.output[i] * factor)));
    return (state.top + log2f((float)state.sum)) * (float)NH_LN2;
}
