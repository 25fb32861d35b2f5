/* What both kernels of the small windows' backward pass share. */
#pragma once

#include "small_sight.cuh"

NH_DEVICE void nh_chunk_bits(unsigned (&seen)[2], const nh_sight &sight, int subtile, int chunk) {
#pragma unroll
    for (int half = 0; half < 2; half++)
        seen[half] = nh_sight_bits(sight, subtile, (int)(threadIdx.x % 32) / 4 + 8 * half, chunk);
}

/* No row of the subtile sees any of the pair's 16 columns. The box has room for the widest subtile, most need less. */
NH_DEVICE bool nh_pair_unseen(const unsigned (&seen)[2], int pair) {
    return !NH_DENSE && !__any_sync(~0u, (seen[0] | seen[1]) >> 4 * pair & 15);
}

template <int COUNT> NH_DEVICE void nh_clear(float (&sum)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;
}
