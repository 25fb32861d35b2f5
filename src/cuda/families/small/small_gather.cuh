/* Addresses of columns that a warp tile gathers out of the halo. */
#pragma once

#include "small_work_tiles.cuh"

#include "column_products.cuh"

namespace nh_small {

/* Sets, for each step, the shared memory address of a lane's elements of the column in halo row `first`; the lane's own
 * columns have numbers that are congruent to the lane's modulo 8. */
template <nh_order ORDER, int WIDTH, int STEPS>
NH_DEVICE void nh_gather_start(unsigned (&start)[STEPS], const char *halo, int first) {
    int swizzle = nh_swizzle(WIDTH, first + (int)(nh_thread_again() % 8));
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        start[s] = nh_shared_address(halo) + first * nh_row_bytes(WIDTH) +
                   (((2 * s + nh_lane_half<ORDER>()) ^ swizzle) << 4);
}

/* The same addresses in the halo of another tensor, which lies `bytes` further. */
template <int STEPS, int STEPS_BEFORE>
NH_DEVICE void nh_gather_further(unsigned (&start)[STEPS], const unsigned (&before)[STEPS_BEFORE], int bytes) {
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        start[s] = before[s % STEPS_BEFORE] + (unsigned)bytes;
}

/* The same as nh_gather_start, but reuses the addresses of another tensor if its rows are as wide. */
template <nh_order ORDER, int WIDTH, int STEPS, int STEPS_BEFORE>
NH_DEVICE void nh_gather_start_beside(unsigned (&start)[STEPS], const unsigned (&before)[STEPS_BEFORE], int bytes,
                                      const char *halo, int first) {
    if (C.dim != C.dim_v) {
        nh_gather_start<ORDER, WIDTH, STEPS>(start, halo, first);
    } else {
        nh_gather_further(start, before, bytes);
    }
}

} // namespace nh_small
