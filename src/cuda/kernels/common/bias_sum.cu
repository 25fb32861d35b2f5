/* Adds up the gradient of relative bias from the partial sums that a backward kernel left in the workspace: 32 entries
 * of a head per block; the sums are divided among its warps and added in a fixed order. */
#include "overlap.cuh"
#include "prelude.cuh"

__shared__ float part[NH_BIAS_SUM_WARPS][32];

extern "C" __global__ void __launch_bounds__(32 * NH_BIAS_SUM_WARPS) bias_sum(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    const nh_cuda_tensor &partial = args.tensor[NH_D_S];
    const int lane = (int)(threadIdx.x % 32), warp = (int)(threadIdx.x / 32);
    const int entry = (int)NH_OWN_BLOCK * 32 + lane, head = (int)blockIdx.y;
    const int shares = (int)(partial.head / NH_BIAS_COUNT);
    const float *from = (const float *)partial.data + head * partial.head + entry;
    float sum = 0.f;
    nh_let_next_begin();
    nh_wait_for_launches();
    if (entry < NH_BIAS_COUNT) {
#pragma unroll 8
        for (int share = warp; share < shares; share += NH_BIAS_SUM_WARPS)
            sum += from[(long long)share * NH_BIAS_COUNT];
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || entry >= NH_BIAS_COUNT) return;
    for (int w = 1; w < NH_BIAS_SUM_WARPS; w++)
        sum += part[w][lane];
    ((elem *)args.tensor[NH_D_BIAS].data)[(long long)head * NH_BIAS_COUNT + entry] = nh_store(sum);
}
