/* What ends the work on owned keys: dK and dV stored, and made again where they are spoilt (fused90_again.cuh). */
#pragma once
#include "fused90_again.cuh"
#include "fused90_key.cuh"
#include "naive_backward_key.cuh"

/* Stores an item's sums; zero, or NaN if one is not finite. */
__device__ __forceinline__ float finish_keys(const nh_cuda_args &args, const nh_item &item, int row,
                                             const key_rows &r) {
    if (NH_SUM_D_K) finish_rows<NH_DIM>(args, item, NH_D_K, row, r.d_k, (float)args.scale);
    if (NH_SUM_D_V) finish_rows<NH_DIM_V>(args, item, NH_D_V, row, r.d_v, 1);
    return doubt<NH_DIM / 2>(r.d_k) + doubt<NH_DIM_V / 2>(r.d_v);
}

__device__ __forceinline__ bool keys_spoilt(const nh_cuda_args &args, const nh_query &key) {
    return (NH_SUM_D_K && is_spoilt<NH_DIM>(args, NH_D_K, key)) ||
           (NH_SUM_D_V && is_spoilt<NH_DIM_V>(args, NH_D_V, key));
}

/* After all items; zero: the sum of what finish_keys said. */
__device__ __forceinline__ void make_keys_again(const nh_cuda_args &args, int row, float zero) {
    if (__any_sync(~0u, zero != 0)) make_again<keys_spoilt, nh_differentiate_key>(args, row & ~15);
}
