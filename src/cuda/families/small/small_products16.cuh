/* Small windows in 16 bits: what of column_products16.cuh depends on where rows lie. */
#pragma once

NH_DEVICE void nh_pace(int) {
}

template <int WIDTH> NH_DEVICE void nh_across_start(nh_across<WIDTH> &across, const char *halo, int first) {
    nh_gather_start<NH_TRANSPOSED, WIDTH>(across.start, halo, first);
}

/* Writes two packed weights: those in columns 2t and 2t + 1 of row g (of row g + 8 if i is odd), in the second eight
 * columns if i > 1. */
NH_DEVICE void nh_lay_two(elem *to, const nh_weights &packed, int i) {
    *(unsigned *)to = packed.word[i];
}

/* Writes a warp tile's sums, times one factor per row, to shared rows. */
template <int ROOM, int SUMS>
NH_DEVICE void nh_stage_rows(char *rows, const float (&sum)[SUMS][4], float first, float second, int warp_tile) {
    const int lane = (int)(nh_thread_again() % 32);
    unsigned packed[SUMS][2];
#pragma unroll
    for (int u = 0; u < SUMS; u++) {
        packed[u][0] = nh_pack(sum[u][0] * first, sum[u][1] * first);
        packed[u][1] = nh_pack(sum[u][2] * second, sum[u][3] * second);
    }
#if NH_STAGES
    const int row = nh_result_number(warp_tile, lane % 16);
#pragma unroll
    for (int s = 0; s < SUMS / 2; s++) {
        const unsigned fragment[4] = {packed[2 * s][0], packed[2 * s][1], packed[2 * s + 1][0], packed[2 * s + 1][1]};
        nh_store_matrices(rows + nh_unit_offset(ROOM, row, 2 * s + lane / 16), fragment);
    }
#else
    const int row = nh_result_number(warp_tile, lane / 4), below = nh_result_number(warp_tile, lane / 4 + 8);
#pragma unroll
    for (int u = 0; u < SUMS; u++) {
        *(unsigned *)(rows + nh_unit_offset(ROOM, row, u) + lane % 4 * 4) = packed[u][0];
        *(unsigned *)(rows + nh_unit_offset(ROOM, below, u) + lane % 4 * 4) = packed[u][1];
    }
#endif
}
