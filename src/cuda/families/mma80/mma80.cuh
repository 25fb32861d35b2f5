/* The configuration of a kernel of this family, and what follows from it: tiles, and their rows in shared memory. */
#pragma once
#define NH_POSITION int /* window.h */
#include "mma.cuh"
#include "region.cuh"
#include "mma80_config.h"

namespace nh_mma80 {

constexpr mma80_config C = NH_CONFIG;
static_assert(C.element_bytes == sizeof(elem), "what NH_DTYPE says");

enum {
    NH_INVERSE = mma80_owns_keys(&C), /* columns are queries */
    NH_EXTRA_ROWS = C.pass == MMA80_EXTRA,
    NH_ROWS = mma80_row_count(&C),
    NH_COLUMNS = mma80_column_count(&C),
    NH_THREADS = 32 * C.warps,
    NH_WARP_ROWS = NH_ROWS / C.warps,
    NH_BLOCKS = NH_WARP_ROWS / 16, /* of 16 rows of a warp */
    /* elements per copy: 16 bytes, else 4 bytes, else one element */
    NH_UNIT_BYTES = C.vector * C.element_bytes >= 16  ? 16
                    : C.vector * C.element_bytes >= 4 ? 4
                                                      : C.element_bytes,
    NH_UNIT = NH_UNIT_BYTES / C.element_bytes,
    NH_QUARTER = 16 / C.element_bytes, /* elements in 16 bytes */
    NH_STEP = mma80_step(&C),
    NH_DIM_PADDED = mma80_padded(&C, C.dim),
    NH_DIM_V_PADDED = mma80_padded(&C, C.dim_v),
    NH_PITCH_K = mma80_pitch(&C, C.dim),
    NH_PITCH_V = mma80_pitch(&C, C.dim_v),
    NH_PITCH_Q = mma80_own_pitch(&C)
};

NH_DEVICE constexpr int nh_by_axis(int axis, int first, int second, int last) {
    return axis == 0 ? first : axis == 1 ? second : last;
}
NH_DEVICE constexpr int nh_tile_q(int axis) {
    return nh_by_axis(axis, C.rows[0], C.rows[1], C.rows[2]);
}
NH_DEVICE constexpr int nh_tile_k(int axis) {
    return nh_by_axis(axis, C.columns[0], C.columns[1], C.columns[2]);
}

/* The coordinate along an axis of position `index` in a box with these last two extents; the last axis is fastest. */
NH_DEVICE constexpr int nh_box_axis(int index, int axis, int extent1, int extent2) {
    return axis == 2 ? index % extent2 : axis == 1 ? index / extent2 % extent1 : index / (extent2 * extent1);
}
NH_DEVICE constexpr int nh_column_axis(int column, int axis) {
    return nh_box_axis(column, axis, C.columns[1], C.columns[2]);
}
NH_DEVICE constexpr int nh_row_axis(int row, int axis) {
    return nh_box_axis(row, axis, C.rows[1], C.rows[2]);
}

/* The first row of a thread's warp. After a loop it is computed again, from nh_thread_again(), as the compiler would
 * keep it, and what follows from it, in registers through the loop. */
NH_DEVICE int nh_first_row(int thread) {
    return thread / 32 * NH_WARP_ROWS;
}

} // namespace nh_mma80

/* What headers of kernels/common ask for. */
enum { NH_DIM = nh_mma80::C.dim, NH_DIM_V = nh_mma80::C.dim_v };
