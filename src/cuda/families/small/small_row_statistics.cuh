/* Statistics of a warp tile's queries, computed by the launch by queries. */
#pragma once

#include "small_visibility.cuh"
#include "small_statistics.cuh"

namespace nh_small {

/* Computes of rows g and g + 8 -LSE in base 2, as nh_near_lse() makes it, delta, and the statistics that launches by
 * keys need, which lanes 0 and 1 of a row's four store. delta: on entry rowsum(dO * O), without LSE's gradient. */
NH_DEVICE void nh_row_statistics(const nh_tiled_args &args, const nh_tile_info &info, float shift, int warp_tile,
                                 float (&lse)[2], float (&delta)[2], uint4 (&statistics)[2]) {
    const int lane = (int)(nh_thread_again() % 32), row = lane / 4 + lane % 4 * 8;
    NH_UNROLL for (int half = 0; half < 2; half++) {
        const int number = nh_row_number(warp_tile, lane / 4 + 8 * half);
        const float own = nh_seen_lse(info.lse[number]);
        lse[half] = own * -(float)NH_LOG2E;
        if (!C.bias_count) lse[half] = nh_near_lse(lse[half]); /* gradients of a bias are not repaired */
        if (args.tensor[NH_D_LSE].data) delta[half] -= info.d_lse[number];
        statistics[half] = nh_statistics_split({own * shift, -delta[half]});
    }
    if (lane % 4 > 1 || !nh_row_exists(info.work_tile, warp_tile, row)) return;
    float *to = (float *)args.tensor[NH_DELTA].data + nh_row_offset(info.work_tile, NH_DELTA, warp_tile, row);
    uint4 own = lane % 4 ? statistics[1] : statistics[0];
    const float own_lse = lane % 4 ? lse[1] : lse[0];
    if (own_lse != own_lse) own.x |= 0x7fffu; /* a part of the shift that is NaN */
    *(uint4 *)to = own;
}

} // namespace nh_small
