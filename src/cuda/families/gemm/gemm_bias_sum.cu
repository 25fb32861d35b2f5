/* Adds up the sums of gemm_bias_gradient.cu to the bias's gradient, with a thread per head and entry. */
#include "overlap.cuh"
#include "prelude.cuh"

#define NH_THREADS 128

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    gemm_bias_sum(const __grid_constant__ nh_cuda_args args) {
    nh_follow_launches();
    long long entries = 1;
#pragma unroll
    for (int a = 0; a < 3; a++)
        entries *= 2 * args.axis[a].window - 1;
    long long index = (long long)blockIdx.x * NH_THREADS + threadIdx.x;
    if (index >= args.heads * entries) return;
    long long entry = index, head = nh_split(&entry, entries);
    const nh_cuda_tensor &partial = args.tensor[NH_BIAS];
    const float *first = (const float *)partial.data + head * partial.head + entry;
    float sum = 0;
    for (long long share = 0; share < partial.head; share += entries)
        sum += first[share];
    ((elem *)args.tensor[NH_D_BIAS].data)[index] = nh_store(sum);
}
