/* Repair of dK and dV of owned keys (fused90_repair.cuh). */
#pragma once
#include "fused90_repair.cuh"
#include "fused90_key.cuh"
#include "naive_backward_key.cuh"

namespace nh_wgmma90 {

__device__ __forceinline__ bool keys_need_repair(const nh_cuda_args &args, const nh_query &key) {
    return (C.sum_d_k && needs_repair<C.dim>(args, NH_D_K, key)) ||
           (C.sum_d_v && needs_repair<C.dim_v>(args, NH_D_V, key));
}

/* Repairs the rows of a tile that a warp has stored, after all work tiles. Called by the whole warp. zero: the sum of
 * what finish_keys returned. */
__device__ __forceinline__ void repair_keys(const nh_tiled_args &args, int first_row, int rows, float zero) {
    if (__any_sync(~0u, zero != 0)) repair_rows<keys_need_repair, nh_differentiate_key>(args, first_row, rows);
}

} // namespace nh_wgmma90
