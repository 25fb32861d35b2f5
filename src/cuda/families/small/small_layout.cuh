/* The configuration of a kernel (small_config.h), and boxes and their rows in shared memory: see small.cuh. */
#pragma once
#define NH_POSITION int
#include "gemm_fragment.cuh"
#include "region.cuh"
#include "small_config.h"
#include "tile_note.cuh"

namespace nh_small {

constexpr small_config C = NH_CONFIG;
static_assert(C.element_bytes == sizeof(elem) && C.regions == NH_REGIONS && C.periodic == NH_PERIODIC,
              "what macros say to all families");

template <bool FIRST, typename A, typename B> struct nh_choose {
    typedef A type;
};
template <typename A, typename B> struct nh_choose<false, A, B> {
    typedef B type;
};

enum {
    NH_INVERSE = C.pass == SMALL_BY_KEY,
    NH_PLANES = C.pipeline == SMALL_PLANES,
    NH_BITS = C.mask == SMALL_BITS,
    NH_ADDS_MASK = small_adds_mask(&C),
    NH_SHIFTED = C.shift[1] > 0 || C.shift[2] > 0,
    /* Whether a plane is free as soon as the last warp tile that begins with it has passed it. If that then needs
     * repair, it reads columns from memory: in f16's forward pass, whose sums overflow earlier, not rare enough. */
    NH_PASSES = NH_PLANES && (C.pass != SMALL_FORWARD || NH_DTYPE != NH_F16),
    /* Whether warp tiles stop at the last line that any of their rows sees. */
    NH_STOPS = C.pass != SMALL_FORWARD && C.pipeline != SMALL_TURNS,
    NH_THREADS = 32 * (C.warps + C.fetchers),
    NH_FIRST_AXIS = small_first_axis(&C),
    NH_ROWS = small_work_tile_rows(&C),
    NH_WARP_TILES = small_warp_tiles(&C),
    NH_AXIS_ROWS = C.rows[0] + C.rows[1] + C.rows[2],
    NH_BOX = small_box_columns(&C),
    NH_CHUNKS = small_chunks(&C),
    NH_PAIRS = small_pairs(&C),
    NH_BLOCKS = NH_CHUNKS == 1 ? small_box_blocks(&C) : 2 * NH_PAIRS,
    NH_CHUNK = 16 * NH_PAIRS,
    NH_COLUMNS = small_chunk_columns(&C),
    NH_TABLE_CHUNKS = small_table_chunks(&C),
    NH_TABLE_BOX = C.plane_chunks ? C.columns[1] * C.columns[2] : NH_BOX,
    NH_MASKED_AXIS = small_masked_axis(&C),
    /* the chunk with the last column of the box's first plane */
    NH_PASSING_CHUNK = (C.columns[1] * C.columns[2] - 1) / NH_CHUNK,
    NH_LINE = small_line(&C),
    NH_PLANE = small_plane(&C),
    NH_FETCHED_ROWS = small_fetched_rows(&C),
    NH_SLOT_ROWS = small_slot_rows(&C),
    NH_HALO_ROWS = small_halo_rows(&C),
    NH_STATISTICS_LINE = small_statistics_line(&C),
    NH_FETCHED_STATISTICS = small_fetched_statistics(&C),
    NH_SLOT_STATISTICS = small_slot_statistics(&C),
    NH_STATISTICS = small_statistics(&C),
    NH_HALOS = small_halos(&C),
    /* steps of products over a row's elements, and accumulators of 8 elements each */
    NH_STEPS = (C.dim + NH_STEP - 1) / NH_STEP,
    NH_STEPS_V = (C.dim_v + NH_STEP - 1) / NH_STEP,
    NH_SUMS = NH_STEPS * NH_STEP / 8,
    NH_SUMS_V = NH_STEPS_V * NH_STEP / 8,
    NH_WIDEST = C.dim > C.dim_v ? C.dim : C.dim_v,
    NH_STAGE_ALIGNMENT = C.stages ? SMALL_BOX_ALIGNMENT : 128
};
static_assert(C.stages || NH_WARP_TILES % C.warps == 0, "every warp has as many warp tiles");
static_assert(!C.plane_chunks || NH_PLANES, "a chunk is a plane");
static_assert(!NH_SHIFTED || (NH_PLANES && !NH_REGIONS), "planes of whole grids");

} // namespace nh_small

/* What headers of kernels/common ask for. */
enum { NH_DIM = nh_small::C.dim, NH_DIM_V = nh_small::C.dim_v };
NH_DEVICE constexpr int nh_units(int width) {
    return small_units(width, sizeof(elem));
}
NH_DEVICE constexpr int nh_row_bytes(int width) {
    return small_row_bytes(width, sizeof(elem));
}

namespace nh_small {

/* ---- rows in shared memory ---- */

NH_DEVICE constexpr bool nh_swizzled(int width) {
    return small_is_swizzled(nh_units(width));
}

NH_DEVICE int nh_swizzle(int width, int row) {
    return !nh_swizzled(width)    ? 0
           : nh_units(width) == 2 ? row >> 2 & 1
           : nh_units(width) == 4 ? row >> 1 & 3
                                  : row & 7;
}

NH_DEVICE int nh_unit_offset(int width, int row, int unit) {
    return row * nh_row_bytes(width) + ((unit ^ nh_swizzle(width, row)) << 4);
}

/* The halo of launches by queries. */
struct nh_key_halo {
    alignas(NH_STAGE_ALIGNMENT) char keys[NH_HALO_ROWS * nh_row_bytes(C.dim)];
    alignas(NH_STAGE_ALIGNMENT) char values[NH_HALO_ROWS * nh_row_bytes(C.dim_v)];
};

/* ---- boxes ---- */

NH_DEVICE constexpr int nh_by_axis(int axis, int first, int second, int last) {
    return axis == 0 ? first : axis == 1 ? second : last;
}
NH_DEVICE constexpr int nh_axis_rows(int axis) {
    return nh_by_axis(axis, C.rows[0], C.rows[1], C.rows[2]);
}
NH_DEVICE constexpr int nh_axis_warp_tile(int axis) {
    return nh_by_axis(axis, C.warp_tile[0], C.warp_tile[1], C.warp_tile[2]);
}
NH_DEVICE constexpr int nh_axis_columns(int axis) {
    return nh_by_axis(axis, C.columns[0], C.columns[1], C.columns[2]);
}
NH_DEVICE constexpr int nh_axis_halo(int axis) {
    return nh_by_axis(axis, C.halo[0], C.halo[1], C.halo[2]);
}
NH_DEVICE constexpr int nh_axis_window(int axis) {
    return nh_by_axis(axis, C.window[0], C.window[1], C.window[2]);
}
/* Entries of the bias table per step along an axis. (With constants by axis in place of the products, kernels with a
 * bias took up to 22 registers more.) */
NH_DEVICE constexpr int nh_bias_step(int axis) {
    return axis == 2 ? 1 : nh_bias_step(axis + 1) * (2 * nh_axis_window(axis + 1) - 1);
}
static_assert(nh_bias_step(0) == small_bias_step(&C, 0) && nh_bias_step(1) == small_bias_step(&C, 1), "the host's");
/* Halo rows from one position to the next along an axis. */
NH_DEVICE constexpr int nh_axis_pitch(int axis) {
    return axis == 0 ? NH_PLANE : axis == 1 ? NH_LINE : 1;
}
NH_DEVICE constexpr int nh_statistics_pitch(int axis) {
    return axis == 1 ? NH_STATISTICS_LINE : NH_PLANES && axis == 0 ? NH_SLOT_STATISTICS : nh_axis_pitch(axis);
}
/* Rows by which work tiles begin before the first row. */
NH_DEVICE constexpr int nh_axis_shift(int axis) {
    return nh_by_axis(axis, 0, C.shift[1], C.shift[2]);
}
NH_DEVICE constexpr int nh_rows_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? C.rows[0] : C.rows[0] + C.rows[1];
}
NH_DEVICE constexpr int nh_prefixes_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? C.columns[0] + 1 : C.columns[0] + C.columns[1] + 2;
}

/* Chunks that a warp tile multiplies; reach: columns up to the last line that any of its rows sees. */
NH_DEVICE int nh_chunks_of(int reach) {
    return C.plane_chunks ? reach / (C.columns[1] * C.columns[2]) : NH_CHUNKS;
}

/* Coordinate of a column in its warp tile's box; the last axis is fastest. */
NH_DEVICE int nh_column_at(int column, int axis) {
    return axis == 2   ? column % C.columns[2]
           : axis == 1 ? column / C.columns[2] % C.columns[1]
                       : column / (C.columns[2] * C.columns[1]);
}

/* Coordinate in the work tile of row 0 .. 15 of a warp tile. */
NH_DEVICE int nh_row_at(unsigned warp_tile, unsigned row, int axis) {
    const unsigned across = C.rows[2] / C.warp_tile[2], down = C.rows[1] / C.warp_tile[1];
    /* The compiler does not know that there are no more warp tiles than these. */
    const unsigned along = across == NH_WARP_TILES ? warp_tile : warp_tile % across;
    return (int)(axis == 2   ? along * C.warp_tile[2] + row % C.warp_tile[2]
                 : axis == 1 ? warp_tile / across % down * C.warp_tile[1] + row / C.warp_tile[2] % C.warp_tile[1]
                             : warp_tile / (across * down) * C.warp_tile[0] + row / (C.warp_tile[2] * C.warp_tile[1]));
}

/* The number of that row in shared memory, where the last axis is fastest. */
NH_DEVICE int nh_row_number(int warp_tile, int row) {
    return (nh_row_at(warp_tile, row, 0) * C.rows[1] + nh_row_at(warp_tile, row, 1)) * C.rows[2] +
           nh_row_at(warp_tile, row, 2);
}

/* The number of that row's result in shared memory: the copy engine stores warp tiles; else, results replace rows. */
NH_DEVICE int nh_result_number(int warp_tile, int row) {
    return C.stages ? row : nh_row_number(warp_tile, row);
}

} // namespace nh_small
