/* Adds up the weight's gradient from the sums that the blocks of norm_rope_backward.cu left in the workspace: 32
 * channels per block; the sums are divided among its warps and added in a fixed order. */
#include "norm_rope_args.h"
#include "norm_rope_config.h"
#include "prelude.cuh"

constexpr norm_rope_config C = NH_CONFIG;

__shared__ real part[NH_ROPE_WEIGHT_WARPS][NH_ROPE_WEIGHT_CHANNELS];

extern "C" __global__ void __launch_bounds__(NH_ROPE_WEIGHT_CHANNELS *NH_ROPE_WEIGHT_WARPS)
    norm_rope_weight(const __grid_constant__ nh_norm_rope_args args) {
    const int lane = threadIdx.x % NH_ROPE_WEIGHT_CHANNELS, warp = threadIdx.x / NH_ROPE_WEIGHT_CHANNELS;
    const int channel = blockIdx.x * NH_ROPE_WEIGHT_CHANNELS + lane;
    const real *from = (const real *)args.sums + channel;
    real sum = 0;
    if (channel < args.channels) {
#pragma unroll 8
        for (int block = warp; block < args.blocks; block += NH_ROPE_WEIGHT_WARPS)
            sum += from[(long long)block * args.channels];
    }
    part[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || channel >= args.channels) return;
    for (int w = 1; w < NH_ROPE_WEIGHT_WARPS; w++)
        sum += part[w][lane];
    if (C.weight == NORM_ROPE_STORED_WEIGHT) {
        ((elem *)args.d_weight)[channel] = nh_store(sum);
    } else {
        ((real *)args.d_weight)[channel] = sum;
    }
}
