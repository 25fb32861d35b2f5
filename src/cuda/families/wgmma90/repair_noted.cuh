/* For launches that make repair rows again, after launches that have noted one: products take masked pairs along with a
 * weight of zero, and zero times NaN or infinity is NaN. Rows that are not finite are made as cuda.naive does, from
 * what they attend and nothing else. */
#pragma once
#include "naive.cuh"
#include "overlap.cuh"

/* What the launches before have noted. */
__device__ __forceinline__ bool nh_any_repair(const nh_cuda_args &args) {
    nh_wait_for_launches();
    return ((const unsigned *)args.tensor[NH_QUEUE].data)[1] != 0;
}

/* Whether a stored row needs repair; not if nobody wants the tensor. By the lanes of a row. */
__device__ __forceinline__ bool nh_row_needs_repair(const nh_cuda_tensor &t, const nh_query &at, long long dim) {
    real part[NH_LANE_ELEMENTS], zero = 0;
    if (!t.data) return false;
    nh_load_row(nh_row(t, at.batch, at.at, at.head), 0, (int)dim, part);
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        zero = fmaf(0, part[i], zero);
    return nh_group_sum(zero) != 0;
}
