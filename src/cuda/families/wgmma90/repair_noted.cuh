/* For launches that repair rows after launches that have noted some (fused90_repair.cuh says why): rows that are not
 * finite are computed as cuda.naive does, from exactly their windows. */
#pragma once
#include "naive.cuh"
#include "overlap.cuh"

/* Whether the launches before have noted rows to repair. */
NH_DEVICE bool nh_any_repair(const nh_cuda_args &args) {
    nh_wait_for_launches();
    return ((const unsigned *)args.tensor[NH_QUEUE].data)[1] != 0;
}

/* Whether a stored row needs repair; false if the tensor is not asked for. Called by the lanes of a row. */
NH_DEVICE bool nh_row_needs_repair(const nh_cuda_tensor &t, const nh_query &at, long long dim) {
    real part[ROW_ELEMENTS], zero = 0;
    if (!t.data) return false;
    nh_load_row(nh_row(t, at.batch, at.at, at.head), 0, (int)dim, part);
    NH_UNROLL for (int i = 0; i < ROW_ELEMENTS; i++)
        zero = fmaf(0, part[i], zero);
    return nh_group_sum(zero) != 0;
}
