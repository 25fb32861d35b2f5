/* The softmax of a warp tile's rows (row_state.cuh), whose LSE goes to memory. */
#pragma once

#include "small_products.cuh"

#include "row_state.cuh"

/* Lane t = 0 of a row's four stores what belongs to row g, lane 1 to row g + 8. */
NH_DEVICE void nh_store_lse(float *to, const nh_item &item, int warp_tile, float2 lse) {
    const int lane = (int)(nh_thread_again() % 32), row = lane / 4 + lane % 4 * 8;
    if (!to || lane % 4 > 1 || !nh_row_exists(item, warp_tile, row)) return;
    to[nh_row_offset(item, NH_LSE, warp_tile, row)] = lane % 4 ? lse.y : lse.x;
}
