/* Copies of tiles of rows from anywhere in memory to shared memory: asynchronous, NH_UNIT elements each. Rows of a tile
 * are PITCH elements apart (mma80_pitch). */
#pragma once

#include "block_rows.cuh"

namespace nh_mma80 {

/* Copies one unit; writes zeros, and reads nothing, if it is not valid. */
NH_DEVICE void nh_copy_unit(elem *shared, const elem *global, bool valid) {
    if (NH_UNIT_BYTES == 16) {
        nh_copy16(shared, global, valid);
    } else if (NH_UNIT_BYTES == 4) {
        nh_copy4(shared, global, valid);
    } else {
        *shared = valid ? *global : elem();
    }
}

/* Stores one unit from shared memory to a tensor. */
NH_DEVICE void nh_store_unit(elem *global, const elem *shared) {
    if (NH_UNIT_BYTES == 16) {
        *(uint4 *)global = *(const uint4 *)shared;
    } else if (NH_UNIT_BYTES == 4) {
        *(unsigned *)global = *(const unsigned *)shared;
    } else {
        *global = *shared;
    }
}

/* Copies the block's own rows of a tensor. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_rows(const nh_cuda_args &args, const nh_block &block,
                            const nh_cuda_tensor &tensor, int head, elem *tile) {
    const int units = WIDTH / NH_UNIT;
    for (int i = (int)threadIdx.x; i < NH_ROWS * units; i += NH_THREADS) {
        int row = i / units, column = i % units * NH_UNIT;
        nh_copy_unit(tile + row * PITCH + column,
                     (const elem *)tensor.data + nh_row_offset(args, block, tensor, head, row) +
                         column,
                     true);
    }
}

/* Zeros the columns from `width` to `padded`, which take part in products. Once is enough, as copies never touch
 * them. */
NH_DEVICE void nh_zero_padding(elem *tile, int rows, int pitch, int width, int padded) {
    int pad = padded - width;
    for (int i = (int)threadIdx.x; i < rows * pad; i += NH_THREADS)
        tile[i / pad * pitch + width + i % pad] = elem();
}

} // namespace nh_mma80
