/* From accumulators to shared memory, and finding the rows that need repair. */
#pragma once

#include "lanes.cuh"
#include "tile_product.cuh"

namespace nh_mma80 {

/* Writes a warp's sums, times factor(r) for row 8r + lane / 4, to its rows. Returns a mask: bit r is set if the thread
 * holds a part of such a row whose magnitude is not below `limit`. */
template <int WIDTH, int PITCH>
NH_DEVICE unsigned nh_stage(const float (&sum)[NH_BLOCKS][WIDTH / 8][4], const auto &factor, float limit, elem *rows) {
    const int lane = (int)(nh_thread_again() % 32);
    unsigned bad = 0;
    rows += lane / 4 * PITCH + 2 * (lane % 4);
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        float largest = 0.f;
        NH_UNROLL for (int n = 0; n < WIDTH / 8; n++) {
            float first = sum[r / 2][n][r % 2 * 2] * factor(r), second = sum[r / 2][n][r % 2 * 2 + 1] * factor(r);
            largest = nh_larger(nh_larger(largest, first), second);
            nh_store_pair(rows + 8 * r * PITCH + 8 * n, first, second);
        }
        bad |= (unsigned)!(largest < limit) << r;
    }
    return bad;
}

/* The whole warp calls redo(row) for its rows of which some thread has a bit of such a mask. */
NH_DEVICE void nh_repair_rows(unsigned bad, const auto &redo) {
    __syncwarp();
    NH_UNROLL_1 for (int m = 0; m < NH_BLOCKS; m++)
        nh_for_rows_to_repair(bad >> 2 * m & 1, bad >> (2 * m + 1) & 1, [&](int row) { redo(16 * m + row); });
}

} // namespace nh_mma80
