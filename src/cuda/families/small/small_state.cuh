/* The softmax of a warp tile's rows (row_state.cuh), whose LSE goes to memory. A row that sees no column of tensors
 * (NH_REGIONS) has weights of 0, which sum up to 0: its output is 0 and its LSE minus infinity. */
#pragma once

#include "small_visibility.cuh"

#include "row_state.cuh"

namespace nh_small {

/* The score to which the weights of row g, or g + 8, are relative: its largest one, or 0 if it sees no column. */
NH_DEVICE float nh_reference(const nh_visibility &visibility, int warp_tile, int half, float largest) {
    return nh_row_sees(visibility, warp_tile, (int)(threadIdx.x % 32) / 4 + 8 * half) ? largest : 0.f;
}

/* Whether this thread's part of a row needs no repair: nh_row_held() or, if the row sees no column, finite sums. */
template <int COUNT>
NH_DEVICE bool nh_held(const nh_visibility &visibility, const nh_state &state, const float (&output)[COUNT][4],
                       int warp_tile, int half) {
    const float largest = nh_largest(output, half);
    return nh_row_held(state, largest, half) ||
           (largest == 0.f && !nh_row_sees(visibility, warp_tile, (int)(threadIdx.x % 32) / 4 + 8 * half));
}

/* The factor of the sums of weighted values: 1 / sum of weights. */
NH_DEVICE float nh_factor(const nh_state &state, int half) {
    return NH_REGIONS && state.sum[half] == 0.f ? 0.f : nh_reciprocal(state.sum[half]);
}

/* Stores LSE: lane t = 0 of a row's four stores that of row g, lane 1 that of row g + 8. */
NH_DEVICE void nh_store_lse(float *to, const nh_work_tile &work_tile, int warp_tile, float2 lse) {
    const int lane = (int)(nh_thread_again() % 32), row = lane / 4 + lane % 4 * 8;
    if (!to || lane % 4 > 1 || !nh_row_exists(work_tile, warp_tile, row)) return;
    to[nh_row_offset(work_tile, NH_LSE, warp_tile, row)] = lane % 4 ? lse.y : lse.x;
}

} // namespace nh_small
