/* Warps that share a warp tile: the others pass their sums through shared memory to the first, which adds them in a
 * fixed order. C.split of them share one. */
#pragma once

#include "short.cuh"

namespace nh_short {

/* Where the turn-th of them, from 1 on, leaves its sums for the first: `units` of 16 bytes per lane. */
NH_DEVICE float4 *nh_share_at(float4 *shares, int units, int turn) {
    const int team = (int)threadIdx.x / 32 / C.split, lane = (int)threadIdx.x % 32;
    return shares + (team * (C.split - 1) + turn - 1) * 32 * units + lane;
}

template <int SUMS> NH_DEVICE void nh_share_write(float4 *share, const float (&sums)[SUMS][4]) {
    NH_UNROLL for (int u = 0; u < SUMS; u++)
        share[32 * u] = make_float4(sums[u][0], sums[u][1], sums[u][2], sums[u][3]);
}

template <int SUMS> NH_DEVICE void nh_share_add(float (&sums)[SUMS][4], const float4 *share) {
    NH_UNROLL for (int u = 0; u < SUMS; u++) {
        const float4 more = share[32 * u];
        sums[u][0] += more.x;
        sums[u][1] += more.y;
        sums[u][2] += more.z;
        sums[u][3] += more.w;
    }
}

} // namespace nh_short
