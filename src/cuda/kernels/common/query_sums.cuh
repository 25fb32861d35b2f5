/* The row of a query's sums of dQ, [B, H, X', Y', Z', columns] in f32: an axis holds the queries that tensors have of
 * one dilation group after the other, each as long as the longest. */
#pragma once
#include "naive.cuh"

__device__ __forceinline__ float *nh_sums_row(const nh_cuda_args &args, const nh_query &query) {
    const nh_cuda_tensor &t = args.tensor[NH_D_Q_SUMS];
    float *row = (float *)t.data + query.batch * t.batch + query.head * t.head;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        long long dilation = args.axis[a].dilation, at = query.at[a];
#if NH_REGIONS
        const nh_cuda_box &box = args.region[a].query;
        if (dilation > 1) {
            long long group = at, position = nh_split(&group, dilation);
            position -= nh_covered(box, dilation, group).begin;
            at = group * nh_axis_group_length(box.length, dilation, 0) + position;
        } else {
            at -= box.offset;
        }
#else
        if (dilation > 1) {
            long long group = at, position = nh_split(&group, dilation);
            at = group * nh_axis_group_length(args.axis[a].length, dilation, 0) + position;
        }
#endif
        row += at * t.axis[a];
    }
    return row;
}
