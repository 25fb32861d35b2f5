/* The row of a query's sums of dQ, [B, H, X', Y', Z', columns] in f32: an axis holds the queries that tensors have of
 * one dilation group after the other, each as long as the longest. */
#pragma once
#include "naive.cuh"

template <class Args> NH_DEVICE float *nh_sums_row(const Args &args, const nh_query &query) {
    const nh_cuda_tensor &t = args.tensor[NH_D_Q_SUMS];
    float *row = (float *)t.data + query.batch * t.batch + query.head * t.head;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        long long dilation = args.axis[a].dilation, at = query.at[a];
        nh_cuda_box box = {0, args.axis[a].length};
        if constexpr (NH_REGIONS) box = nh_rows_box(args, a, false);
        if (dilation > 1) {
            long long group = at, position = nh_split(&group, dilation);
            if (NH_REGIONS) position -= nh_covered(box, dilation, group).begin;
            at = group * nh_axis_group_length(box.length, dilation, 0) + position;
        } else {
            at -= box.offset;
        }
        row += at * t.axis[a];
    }
    return row;
}
