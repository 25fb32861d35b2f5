/* Sums and maxima over neighboring lanes that hold elements of one row; rows that some lane finds wrong. */
#pragma once

/* Over the four lanes of a row in a fragment of tensor cores. */
__device__ __forceinline__ float nh_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float nh_quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* The mask of the lanes that share this lane's row, for when other lanes of the warp may be at other instructions. */
template <int LANES> __device__ __forceinline__ unsigned nh_lanes_mask(void) {
    unsigned lane = threadIdx.x & 31;
    return LANES == 32 ? ~0u : ((1u << LANES % 32) - 1) << (lane & ~(LANES - 1u));
}

/* LANES must be a power of two. */
template <int LANES, typename real> __device__ __forceinline__ real nh_lanes_sum(real x, unsigned mask = ~0u) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(mask, x, step);
    return x;
}

/* The whole warp calls redo(row) for those of 16 rows of which some thread says that they need repair: `first` for row
 * g = lane / 4, `second` for row g + 8. */
template <typename Redo>
__device__ __forceinline__ void nh_for_rows_to_repair(bool first, bool second, const Redo &redo) {
    unsigned lanes[2] = {__ballot_sync(~0u, first), __ballot_sync(~0u, second)};
#pragma unroll 1
    for (int row = 0; row < 16; row++)
        if ((row < 8 ? lanes[0] : lanes[1]) >> row % 8 * 4 & 15) redo(row);
}
