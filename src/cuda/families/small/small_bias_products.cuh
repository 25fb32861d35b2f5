/* The bias gradient of warp tiles away from the borders, on tensor cores, in 16 bits. There, the number of a column in
 * the box less the row's own number, which is fixed, too, tells the entry of the table to which the pair belongs. If
 * each row of the score gradients were shifted by its number, sums down the columns would be the entries' sums. Matrix
 * loads shift by whole units of 8 columns, each row by as many as it needs. The rest of a row's shift, 0 .. 7, is
 * resolved later: sum[x][rest] adds up, at x, the rows with that rest, by a product with ones. The entries are
 * diagonals of this matrix, which are added up when the head changes. */
#pragma once

#include "small_visibility.cuh"

namespace nh_small {

/* A row's number in the box: relative to row 0, the column at a distance is this much further. */
NH_DEVICE constexpr int nh_row_shift(int row) {
    const int line = row / C.warp_tile[2], plane = line / C.warp_tile[1];
    return (plane * C.columns[1] + line % C.warp_tile[1]) * C.columns[2] + row % C.warp_tile[2];
}

enum {
    /* the x of the last entry plus the largest rest */
    NH_BIAS_LAST = C.bias_count ? ((C.window[0] - 1) * C.columns[1] + C.window[1] - 1) * C.columns[2] +
                                      C.window[2] - 1 + 7
                                : 0,
    NH_BIAS_STEPS = NH_BIAS_LAST / 16 + 1,
    /* whether the second unit of the last step has no entries and, in the last row, lies beyond what is allocated */
    NH_BIAS_BEHIND = NH_BIAS_LAST % 16 < 8 && nh_row_shift(15) / 8 * 8 + 16 * NH_BIAS_STEPS > NH_COLUMNS + 8,
    /* units up to the last one that is read of the last row */
    NH_BIAS_UNITS = nh_row_shift(15) / 8 + 2 * NH_BIAS_STEPS - NH_BIAS_BEHIND,
    /* Only few sums fit registers. With no more than one window, or fewer columns than all rows need (an axis shorter
     * than the warp tile), no warp tile is away from the borders. */
    NH_BIAS_PRODUCTS = NH_DTYPE != NH_F32 && C.bias_count && NH_BIAS_STEPS <= 6 &&
                       16 * NH_BIAS_STEPS <= NH_COLUMNS && 8 * NH_BIAS_UNITS <= NH_COLUMNS + 8
};

struct nh_bias_products {
    float sum[NH_BIAS_PRODUCTS ? NH_BIAS_STEPS : 1][4];
};

NH_DEVICE void nh_bias_products_clear(nh_bias_products &products) {
    if (NH_BIAS_PRODUCTS) nh_clear(products.sum);
}

/* Two ones or zeros: whether row and row + 1 have this rest. */
NH_DEVICE unsigned nh_rest_ones(int row, int rest) {
    const unsigned one = NH_DTYPE == NH_F16 ? 0x3c00 : 0x3f80;
    return (nh_row_shift(row) % 8 == rest ? one : 0u) | (nh_row_shift(row + 1) % 8 == rest ? one << 16 : 0u);
}

/* Adds a warp tile's gradients, which its warp has written with `pitch` bytes from row to row. */
NH_DEVICE void nh_bias_multiply(nh_bias_products &products, const void *laid, int pitch) {
    const int lane = (int)(nh_thread_again() % 32), row = lane % 8 + lane / 16 * 8;
    const unsigned ones[2] = {nh_rest_ones(lane % 4 * 2, lane / 4), nh_rest_ones(lane % 4 * 2 + 8, lane / 4)};
    const unsigned from =
        nh_shared_address(laid) + (unsigned)(row * pitch + 16 * (nh_row_shift(row) / 8 + lane / 8 % 2));
#pragma unroll
    for (int i = 0; i < NH_BIAS_STEPS; i++) {
        unsigned rows[4], unit = from + 32 * i;
        /* sums of that unit are not used: the first unit is read instead */
        if (NH_BIAS_BEHIND && i == NH_BIAS_STEPS - 1) unit -= 16 * (lane / 8 % 2);
        nh_load_matrices_transposed_at(rows, unit);
        if (NH_DTYPE == NH_F16) {
            nh_mma_f16(products.sum[i], rows, ones);
        } else {
            nh_mma_bf16(products.sum[i], rows, ones);
        }
    }
}

/* Adds the sums to the entries of a head's table, from the entry of the window's first key on, and clears them.
 * scratch: shared memory of the warp, 8 numbers per x, which is no more than 16 rows of score gradients take. */
NH_DEVICE void nh_bias_products_flush(nh_bias_products &products, float *scratch, float *table) {
    if (!NH_BIAS_PRODUCTS) return;
    const int lane = (int)(threadIdx.x % 32), count = C.window[0] * C.window[1] * C.window[2];
    __syncwarp();
#pragma unroll
    for (int i = 0; i < NH_BIAS_STEPS; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            scratch[(16 * i + lane / 4 + c / 2 * 8) * 8 + lane % 4 * 2 + c % 2] = products.sum[i][c];
    __syncwarp();
    for (int i = lane; i < count; i += 32) {
        const int x = i / (C.window[1] * C.window[2]), y = i / C.window[2] % C.window[1], z = i % C.window[2];
        const float *first = scratch + 8 * ((x * C.columns[1] + y) * C.columns[2] + z);
        float total = 0.f;
        for (int rest = 0; rest < 8; rest++)
            total += first[9 * rest];
        table[x * nh_bias_step(0) + y * nh_bias_step(1) + z] += total;
    }
    __syncwarp();
    nh_bias_products_clear(products);
}

} // namespace nh_small
