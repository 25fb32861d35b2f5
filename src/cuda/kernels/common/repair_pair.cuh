/* Repair in the backward pass: a whole warp adds a pair's part to the gradients of one row, from rows in memory. */
#pragma once

#include "lanes.cuh"
#include "mma.cuh"
#include "prelude.cuh"

enum { NH_LANE_ELEMENTS = ((NH_DIM > NH_DIM_V ? NH_DIM : NH_DIM_V) + 31) / 32 };

/* A lane's share, elements lane, lane + 32, .., of a query and its dO, of a key and its value, or of gradients. */
struct nh_lane_rows {
    float first[NH_LANE_ELEMENTS], second[NH_LANE_ELEMENTS];
};

NH_DEVICE nh_lane_rows nh_lane_rows_load(const elem *first, const elem *second) {
    nh_lane_rows rows;
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        int element = (int)(threadIdx.x % 32) + 32 * i;
        rows.first[i] = element < NH_DIM ? nh_load(first[element]) : 0.f;
        rows.second[i] = element < NH_DIM_V ? nh_load(second[element]) : 0.f;
    }
    return rows;
}

NH_DEVICE float nh_lanes_dot(const float (&a)[NH_LANE_ELEMENTS], const float (&b)[NH_LANE_ELEMENTS]) {
    float sum = 0.f;
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        sum += a[i] * b[i];
    return nh_lanes_sum<32>(sum);
}

/* statistics: the query's -LSE in base 2 and delta. bias: as it is in its table, not in base 2. */
NH_DEVICE void nh_repair_pair(const nh_lane_rows &row, const nh_lane_rows &column, float2 statistics, float scale,
                              float bias, nh_lane_rows &gradient) {
    const float score = nh_lanes_dot(row.first, column.first), d_weight = nh_lanes_dot(row.second, column.second);
    const float above = score * scale + (bias * (float)NH_LOG2E + statistics.x);
    float weight = nh_exp2(above > 0.f ? 0.f : above); /* see NH_FAR_LSE */
    float d_score = weight * (d_weight - statistics.y);
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        gradient.first[i] += d_score * column.first[i];
        gradient.second[i] += weight * column.second[i];
    }
}
