/* What both kernels of the small windows' backward pass share. */
#pragma once

#include "small_sight.cuh"
#if NH_STAGES
#include "small_boxes.cuh"
#endif

NH_DEVICE void nh_chunk_bits(unsigned (&seen)[2], const nh_sight &sight, int subtile, int chunk) {
#pragma unroll
    for (int half = 0; half < 2; half++)
        seen[half] = nh_sight_bits(sight, subtile, (int)(threadIdx.x % 32) / 4 + 8 * half, chunk);
}

template <int COUNT> NH_DEVICE void nh_clear(float (&sum)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;
}
