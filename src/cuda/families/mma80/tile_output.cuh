/* From accumulators to memory: rows divided by their sums of weights, LSE, and repair of rows that a masked NaN has
 * reached, whose scores are far from 0, or whose sums overflow because values are near the largest number. */
#pragma once

#include "repair_row.cuh"

namespace nh_mma80 {

/* Writes the warp's rows, divided by their sums, over its queries in shared memory, and stores LSE. */
NH_DEVICE void nh_finish_rows(const nh_cuda_args &args, const nh_block &block,
                              nh_softmax &state, nh_output &output, int first_row,
                              elem *rows) {
    int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const nh_cuda_tensor &lse = args.tensor[NH_LSE];
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        int m = r / 2, half = r % 2, row = 16 * m + 8 * half + g;
        float sum = nh_quad_sum(state.sum[r]), inverse = 1.f / sum, largest = 0.f;
        /* A sum of 0 alone does not say that the row sees no key: where scores are so large that their rounding is
         * worth more than a weight can hold, it is 0, too. */
        if (NH_REGIONS && state.top[r] == NH_LOWEST)
            inverse = 0.f;
        else if (fabsf(state.top[r]) > NH_FAR_SCORE)
            inverse = NH_INFINITY;
        elem *to = rows + row * NH_PITCH_Q + 2 * t;
#pragma unroll
        for (int n = 0; n < NH_DIM_V_PADDED / 8; n++) {
            float first = output[m][n][2 * half] * inverse;
            float second = output[m][n][2 * half + 1] * inverse;
            largest = nh_larger(nh_larger(largest, first), second);
            nh_store_pair(to + 8 * n, first, second);
        }
        float row_lse = (state.top[r] + log2f(sum)) * (float)NH_LN2;
        unsigned poisoned = __ballot_sync(~0u, !(largest < NH_BEYOND_STORAGE));
        while (poisoned) {
            __syncwarp();
            int bad = (__ffs((int)poisoned) - 1) / 4, bad_row = 16 * m + 8 * half + bad;
            poisoned &= ~(15u << 4 * bad);
            float repaired = nh_repair_query(args, first_row + bad_row, rows + bad_row * NH_PITCH_Q);
            if (g == bad) row_lse = repaired;
        }
        if (lse.data && t == 0 && nh_row_exists(block, first_row + row))
            ((float *)lse.data)[nh_row_offset(args, block, lse, block.head, first_row + row)] =
                row_lse;
    }
}

NH_DEVICE void nh_store_rows(const nh_cuda_args &args, const nh_block &block, int first_row,
                             const elem *rows) {
    const nh_cuda_tensor &o = args.tensor[NH_O];
    const int units = NH_DIM_V / NH_UNIT;
    for (int i = (int)threadIdx.x % 32; i < NH_WARP_ROWS * units; i += 32) {
        int row = i / units, column = i % units * NH_UNIT;
        if (nh_row_exists(block, first_row + row))
            nh_store_unit((elem *)o.data +
                              nh_row_offset(args, block, o, block.head, first_row + row) + column,
                          rows + row * NH_PITCH_Q + column);
    }
}

} // namespace nh_mma80
