/* Softmax of every row of scores, one warp per row: S (f32, packed) becomes P (storage type) in the same memory, at
 * the start of its row, and LSE is written if wanted. Two passes; the second finds the row in a cache. */
#include "prelude.cuh"

#define NH_THREADS 128

__device__ __forceinline__ float widest(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

__device__ __forceinline__ float total(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ __forceinline__ void write_lse(const nh_cuda_args &args, long long row, float lse) {
    long long at[3];
    long long rest = nh_split(&row, args.heads), head = row;
    row = rest;
#pragma unroll
    for (int a = 2; a >= 0; a--) {
        rest = nh_split(&row, args.axis[a].length);
        at[a] = row;
        row = rest;
    }
    *nh_scalar(args.tensor[NH_LSE], row, at, head) = lse;
}

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    gemm_softmax(const __grid_constant__ nh_cuda_args args) {
    long long row = (long long)blockIdx.x * (NH_THREADS / 32) + threadIdx.x / 32;
    long long rows = args.batch * args.heads * args.axis[0].length * args.axis[1].length *
                     args.axis[2].length;
    if (row >= rows) return;
    int lane = threadIdx.x % 32, count = (int)args.window_count;
    float *s = (float *)args.tensor[NH_A].data + row * count;
    elem *p = (elem *)s;
    float most = NH_MINUS_INFINITY, sum = 0;
    for (int n = lane; n < count; n += 32)
        most = fmaxf(most, s[n]);
    most = widest(most);
    for (int n = lane; n < count; n += 32)
        sum += expf(s[n] - most);
    sum = total(sum);
    float scale = 1 / sum;
    /* The 16-bit p[n] lies in scores that this or an earlier round has read. */
    for (int first = 0; first < count; first += 32) {
        int n = first + lane;
        float score = n < count ? s[n] : 0;
        __syncwarp();
        if (n < count) p[n] = nh_store(expf(score - most) * scale);
        __syncwarp();
    }
    if (lane == 0 && args.tensor[NH_LSE].data) write_lse(args, row, most + logf(sum));
}
