/* Tiles of rows from anywhere in memory to shared memory: asynchronous copies of UNIT elements each.
 *
 * Rows of a tile are PITCH elements apart: the padded width and 16 bytes more, an odd number of 16-byte units, so
 * that the eight rows of one matrix load fall into different banks. */
#pragma once

#include "tile_walk.cuh"

enum {
    NH_ELEMENT_BYTES = sizeof(elem),
    /* 16 bytes, else 4, else one element */
    NH_UNIT = NH_VECTOR * NH_ELEMENT_BYTES >= 16  ? 16 / NH_ELEMENT_BYTES
              : NH_VECTOR * NH_ELEMENT_BYTES >= 4 ? 4 / NH_ELEMENT_BYTES
                                                  : 1,
    /* elements of 16 bytes, and of one step of a tensor core product along the head dimension */
    NH_QUARTER = 16 / NH_ELEMENT_BYTES,
    NH_STEP = 32 / NH_ELEMENT_BYTES,
    NH_DIM_PADDED = (NH_DIM + NH_STEP - 1) / NH_STEP * NH_STEP,
    NH_DIM_V_PADDED = (NH_DIM_V + NH_STEP - 1) / NH_STEP * NH_STEP,
    NH_PITCH_K = NH_DIM_PADDED + NH_QUARTER,
    NH_PITCH_V = NH_DIM_V_PADDED + NH_QUARTER,
    /* queries, later their outputs */
    NH_PITCH_Q = NH_PITCH_K > NH_PITCH_V ? NH_PITCH_K : NH_PITCH_V
};

/* Zeros where not valid, and then nothing is read. */
NH_DEVICE void nh_copy_unit(elem *shared, const elem *global, bool valid) {
    if (NH_UNIT * NH_ELEMENT_BYTES == 16) {
        nh_copy16(shared, global, valid);
    } else if (NH_UNIT * NH_ELEMENT_BYTES == 4) {
        nh_copy4(shared, global, valid);
    } else {
        *shared = valid ? *global : elem();
    }
}

/* The same number of elements from shared memory to a tensor. */
NH_DEVICE void nh_store_unit(elem *global, const elem *shared) {
    if (NH_UNIT * NH_ELEMENT_BYTES == 16) {
        *(uint4 *)global = *(const uint4 *)shared;
    } else if (NH_UNIT * NH_ELEMENT_BYTES == 4) {
        *(unsigned *)global = *(const unsigned *)shared;
    } else {
        *global = *shared;
    }
}

/* Offsets of a key tile's rows from its origin, and their coordinates, one per byte. */
struct nh_row_tables {
    long long key[NH_COLUMNS], value[NH_COLUMNS];
    unsigned place[NH_COLUMNS];
};

NH_DEVICE void nh_row_tables_fill(const nh_cuda_args &args, struct nh_row_tables &tables) {
    for (int c = (int)threadIdx.x; c < NH_COLUMNS; c += NH_THREADS) {
        tables.key[c] = tables.value[c] = 0;
        tables.place[c] = 0;
#pragma unroll
        for (int a = 0; a < 3; a++) {
            int at = nh_column_axis(c, a);
            tables.key[c] += at * args.axis[a].dilation * args.tensor[NH_K].axis[a];
            tables.value[c] += at * args.axis[a].dilation * args.tensor[NH_V].axis[a];
            tables.place[c] |= (unsigned)at << 8 * a;
        }
    }
}

/* Rows at a coordinate of `count` or more on some axis are past the halo's end. A byte of nh_limits(..) less a
 * coordinate keeps its top bit exactly if the coordinate is below the count: all axes in one subtraction. */
NH_DEVICE unsigned nh_limits(const struct nh_halo &halo, const struct nh_cursor &tile) {
    unsigned limits = 0;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        int count = halo.end[a] - tile.at[a];
        limits |= (unsigned)(127 + (count < 128 ? count : 128)) << 8 * a;
    }
    return limits;
}

NH_DEVICE bool nh_within(unsigned limits, unsigned place) {
    return ((limits - place) & 0x808080u) == 0x808080u;
}

/* A key or value tile; `global` is the origin's row. */
NH_DEVICE void nh_copy_tile(elem *tile, int pitch, int width, const elem *global,
                            const long long *offset, const unsigned *place, unsigned limits) {
    const int units = width / NH_UNIT;
#pragma unroll 8
    for (int i = (int)threadIdx.x; i < NH_COLUMNS * units; i += NH_THREADS) {
        int row = i / units, column = i % units * NH_UNIT;
        nh_copy_unit(tile + row * pitch + column, global + offset[row] + column,
                     nh_within(limits, place[row]));
    }
}

/* `count` rows of extra tokens, `stride` elements apart. */
NH_DEVICE void nh_copy_extra(elem *tile, int pitch, int width, const elem *global, long long stride,
                             long long count) {
    const int units = width / NH_UNIT;
    for (int i = (int)threadIdx.x; i < NH_COLUMNS * units; i += NH_THREADS) {
        int row = i / units, column = i % units * NH_UNIT;
        nh_copy_unit(tile + row * pitch + column, global + row * stride + column, row < count);
    }
}

NH_DEVICE void nh_copy_queries(const nh_cuda_args &args, const struct nh_block &block, elem *tile) {
    const elem *global = (const elem *)args.tensor[NH_Q].data;
    const int units = NH_DIM / NH_UNIT;
    for (int i = (int)threadIdx.x; i < NH_ROWS * units; i += NH_THREADS) {
        int row = i / units, column = i % units * NH_UNIT;
        nh_copy_unit(tile + row * NH_PITCH_Q + column,
                     global + nh_query_offset(args, block, args.tensor[NH_Q], row) + column, true);
    }
}

/* Columns from `width` to `padded` take part in products: zeros, once, as copies never touch them. */
NH_DEVICE void nh_zero_padding(elem *tile, int rows, int pitch, int width, int padded) {
    int pad = padded - width;
    for (int i = (int)threadIdx.x; i < rows * pad; i += NH_THREADS)
        tile[i / pad * pitch + width + i % pad] = elem();
}
