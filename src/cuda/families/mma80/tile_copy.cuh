/* Copies of tiles of rows from anywhere in memory to shared memory: asynchronous, NH_UNIT elements each.
 *
 * Rows of a tile are PITCH elements apart: the padded width and 16 bytes more, an odd number of 16-byte units, so that
 * the eight rows of one matrix load fall into different banks. */
#pragma once

#include "block_rows.cuh"

enum {
    NH_ELEMENT_BYTES = sizeof(elem),
    /* elements per copy: 16 bytes, else 4 bytes, else one element */
    NH_UNIT = NH_VECTOR * NH_ELEMENT_BYTES >= 16  ? 16 / NH_ELEMENT_BYTES
              : NH_VECTOR * NH_ELEMENT_BYTES >= 4 ? 4 / NH_ELEMENT_BYTES
                                                  : 1,
    /* elements in 16 bytes, and in one step of a tensor core product along the head dim */
    NH_QUARTER = 16 / NH_ELEMENT_BYTES,
    NH_STEP = 32 / NH_ELEMENT_BYTES,
    NH_DIM_PADDED = (NH_DIM + NH_STEP - 1) / NH_STEP * NH_STEP,
    NH_DIM_V_PADDED = (NH_DIM_V + NH_STEP - 1) / NH_STEP * NH_STEP,
    NH_PITCH_K = NH_DIM_PADDED + NH_QUARTER,
    NH_PITCH_V = NH_DIM_V_PADDED + NH_QUARTER,
    /* room for queries, and later for their outputs */
    NH_PITCH_Q = NH_PITCH_K > NH_PITCH_V ? NH_PITCH_K : NH_PITCH_V
};

/* Copies one unit; writes zeros, and reads nothing, if it is not valid. */
NH_DEVICE void nh_copy_unit(elem *shared, const elem *global, bool valid) {
    if (NH_UNIT * NH_ELEMENT_BYTES == 16) {
        nh_copy16(shared, global, valid);
    } else if (NH_UNIT * NH_ELEMENT_BYTES == 4) {
        nh_copy4(shared, global, valid);
    } else {
        *shared = valid ? *global : elem();
    }
}

/* Stores one unit from shared memory to a tensor. */
NH_DEVICE void nh_store_unit(elem *global, const elem *shared) {
    if (NH_UNIT * NH_ELEMENT_BYTES == 16) {
        *(uint4 *)global = *(const uint4 *)shared;
    } else if (NH_UNIT * NH_ELEMENT_BYTES == 4) {
        *(unsigned *)global = *(const unsigned *)shared;
    } else {
        *global = *shared;
    }
}

/* Copies the block's own rows of a tensor. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_rows(const nh_cuda_args &args, const struct nh_block &block,
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
