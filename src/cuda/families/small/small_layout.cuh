/* Boxes of the small windows, and their rows in shared memory: see small.cuh.
 *
 * Knobs: NH_DTYPE; NH_TF32 (f32 in one product, not three); NH_RANK; NH_DIM, NH_DIM_V (multiples of 8 up to 128, in f32
 * of 32); NH_Q0.. (rows of a work tile), NH_S0.. (rows of a warp tile), NH_K0.. (columns of a warp tile), NH_H0..
 * (columns of a work tile, its halo); NH_WARPS (that compute), NH_FETCHERS (producer warps after them), NH_MIN_BLOCKS;
 * NH_WHOLE (work tiles have no padding rows); NH_INVERSE; NH_REGIONS, NH_PERIODIC and NH_SEAM_LINES (see
 * small_region.cuh); NH_STRIDED (some stride is not 1); NH_DILATED; NH_CHUNK_BLOCKS (see below); NH_DENSE (every row
 * sees all columns of its warp tile's box); NH_ADDITIVE_MASK (see small_additive_mask.cuh); NH_W0.. (windows, with
 * NH_ADDITIVE_MASK or a bias); NH_BIAS_COUNT (entries of a head's bias table, 0: none); NH_STAGES (pipeline stages of
 * the copy engine; 0: threads copy); NH_SLOTS (slots of a rolling halo; 0: each halo is fetched as a whole), NH_HELD
 * (work tiles whose part of the halo may be in use) and NH_NEAR_HEADS (see small_roll.cuh); NH_LEAST_PAIRS (pairs of
 * blocks, 16 columns, that every warp tile multiplies); NH_PLANE_CHUNKS (see below); NH_SHIFT1, NH_SHIFT2 (work tiles
 * begin so many rows before the first one on these axes); NH_SHARED_BYTES. */
#pragma once
#define NH_POSITION int
#include "gemm_fragment.cuh"
#include "tile_note.cuh"

#ifndef NH_HEAD_SLOWEST
#define NH_HEAD_SLOWEST 0
#endif

/* Whether a halo rolls by planes of a volume, one position each. */
#define NH_PLANES (NH_RANK == 3 && NH_SLOTS > 0 && NH_Q0 == 1)

/* Whether a plane is free as soon as the last warp tile that begins with it has passed it. If that warp tile then needs
 * repair, it reads columns from memory. Forward in f16, whose sums overflow earlier, that is not rare enough. */
#ifndef NH_PASSES
#define NH_PASSES 0
#endif

/* Whether each chunk of columns is a plane of the box, filled up to whole matrix loads. Warp tiles multiply the planes
 * that their rows see, which are the same for all 16, so that no mask concerns the first axis. Tables are those of one
 * plane. */
#ifndef NH_PLANE_CHUNKS
#define NH_PLANE_CHUNKS 0
#endif

#ifndef NH_SHIFT1
#define NH_SHIFT1 0
#endif
#ifndef NH_SHIFT2
#define NH_SHIFT2 0
#endif
#define NH_SHIFTED (NH_SHIFT1 > 0 || NH_SHIFT2 > 0)

/* Whether warp tiles stop at the last line that any of their rows sees. */
#ifndef NH_STOPS
#define NH_STOPS 0
#endif

/* Blocks of 8 columns in a chunk if masks are bits: a thread's share of them is 32 bits. */
#define NH_MASK_BLOCKS 16

/* The most blocks in a chunk. The host sets another number where a forward's masks are not bits (small_shape.c). */
#ifndef NH_CHUNK_BLOCKS
#define NH_CHUNK_BLOCKS NH_MASK_BLOCKS
#endif

/* The least number of rows from `rows` on that is congruent to `residue` modulo 8. */
#define NH_CONGRUENT(rows, residue) ((rows) + (((residue) - (rows)) % 8 + 8) % 8)

enum {
    NH_THREADS = 32 * (NH_WARPS + NH_FETCHERS),
    NH_FIRST_AXIS = 3 - NH_RANK, /* leading axes of length 1 are left out */
    NH_ROWS = NH_Q0 * NH_Q1 * NH_Q2,
    NH_WARP_TILES = NH_ROWS / 16,
    NH_AXIS_ROWS = NH_Q0 + NH_Q1 + NH_Q2,
    NH_BOX = NH_K0 * NH_K1 * NH_K2,
    /* A product has 8 columns, a matrix load 16, and a thread's masks of a chunk are 32 bits. */
    NH_BOX_BLOCKS = (NH_BOX + 7) / 8,
    NH_CHUNKS = NH_PLANE_CHUNKS ? NH_K0 : (NH_BOX_BLOCKS + NH_CHUNK_BLOCKS - 1) / NH_CHUNK_BLOCKS,
    NH_PAIRS = NH_PLANE_CHUNKS ? (NH_K1 * NH_K2 + 15) / 16 : ((NH_BOX_BLOCKS + NH_CHUNKS - 1) / NH_CHUNKS + 1) / 2,
    NH_BLOCKS = NH_CHUNKS == 1 ? NH_BOX_BLOCKS : 2 * NH_PAIRS,
    NH_CHUNK = 16 * NH_PAIRS,
    NH_COLUMNS = NH_CHUNKS * NH_CHUNK,
    /* chunks of which there are tables, their columns, and the first axis on which masks depend */
    NH_TABLE_CHUNKS = NH_PLANE_CHUNKS ? 1 : NH_CHUNKS,
    NH_TABLE_BOX = NH_PLANE_CHUNKS ? NH_K1 * NH_K2 : NH_BOX,
    NH_MASKED_AXIS = NH_PLANE_CHUNKS ? 1 : NH_FIRST_AXIS,
    /* the chunk with the last column of the box's first plane */
    NH_PASSING_CHUNK = (NH_K1 * NH_K2 - 1) / NH_CHUNK,
    NH_LINE = NH_H0 * NH_H1 == 1 ? NH_H2 : NH_CONGRUENT(NH_H2, NH_K2),
    NH_PLANE = NH_PLANE_CHUNKS ? NH_CONGRUENT(NH_H1 *NH_LINE, 0)
               : NH_H0 == 1    ? NH_H1 * NH_LINE
                               : NH_CONGRUENT(NH_H1 *NH_LINE, NH_K1 *NH_K2),
    /* the part of the halo that is fetched at a time; with NH_SLOTS it has a work tile's extent along the first axis */
    NH_FETCHED_ROWS = NH_PLANE_CHUNKS ? NH_H1 * NH_LINE
                      : NH_SLOTS      ? NH_H0 * NH_PLANE
                                      : (NH_H0 - 1) * NH_PLANE + (NH_H1 - 1) * NH_LINE + NH_H2,
    NH_SLOT_ROWS = NH_PLANE_CHUNKS ? NH_PLANE : NH_FETCHED_ROWS,
    NH_HALO_ROWS = NH_SLOTS ? NH_SLOTS * NH_SLOT_ROWS : NH_FETCHED_ROWS,
    /* Places for statistics of columns: the copy engine's boxes start at multiples of 128 bytes, so a slot of lines, or
     * a plane, has a multiple of 8 places. */
    NH_STATISTICS_LINE = NH_SLOTS && NH_RANK == 2 ? (NH_LINE + 1) / 2 * 2 : NH_LINE,
    NH_FETCHED_STATISTICS = NH_RANK == 2 && NH_SLOTS ? NH_H1 * NH_STATISTICS_LINE : NH_FETCHED_ROWS,
    NH_SLOT_STATISTICS = NH_PLANES ? NH_CONGRUENT(NH_FETCHED_STATISTICS, 0) : NH_FETCHED_STATISTICS,
    NH_STATISTICS = NH_SLOTS ? NH_SLOTS * NH_SLOT_STATISTICS : NH_FETCHED_STATISTICS,
    /* There is a single halo where threads copy, and where it rolls. */
    NH_HALOS = NH_STAGES == 0 || NH_SLOTS ? 1 : NH_STAGES,
    /* steps of products over a row's elements, and accumulators of 8 elements each */
    NH_STEPS = (NH_DIM + NH_STEP - 1) / NH_STEP,
    NH_STEPS_V = (NH_DIM_V + NH_STEP - 1) / NH_STEP,
    NH_SUMS = NH_STEPS * NH_STEP / 8,
    NH_SUMS_V = NH_STEPS_V * NH_STEP / 8,
    NH_WIDEST = NH_DIM > NH_DIM_V ? NH_DIM : NH_DIM_V,
    NH_STAGE_ALIGNMENT = NH_STAGES ? 1024 : 128 /* boxes start where a period of the copy engine's swizzle does */
};
static_assert(NH_STAGES || NH_WARP_TILES % NH_WARPS == 0, "every warp has as many warp tiles");
static_assert(!NH_PLANE_CHUNKS || NH_PLANES, "a chunk is a plane");
static_assert(!NH_SHIFTED || (NH_PLANES && !NH_REGIONS), "planes of whole grids");

/* ---- rows in shared memory: units of 16 bytes, two of which are a step of a product ---- */

NH_DEVICE constexpr int nh_units(int width) {
    return (width + NH_STEP - 1) / NH_STEP * 2;
}

/* If the number of units, which is even, is no power of two, rows get one more: then no swizzle is needed. */
NH_DEVICE constexpr bool nh_swizzled(int width) {
    return (nh_units(width) & (nh_units(width) - 1)) == 0;
}
NH_DEVICE constexpr int nh_row_bytes(int width) {
    return 16 * (nh_units(width) + !nh_swizzled(width));
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
    alignas(NH_STAGE_ALIGNMENT) char keys[NH_HALO_ROWS * nh_row_bytes(NH_DIM)];
    alignas(NH_STAGE_ALIGNMENT) char values[NH_HALO_ROWS * nh_row_bytes(NH_DIM_V)];
};

/* ---- boxes ---- */

NH_DEVICE constexpr int nh_axis_rows(int axis) {
    return axis == 0 ? NH_Q0 : axis == 1 ? NH_Q1 : NH_Q2;
}
NH_DEVICE constexpr int nh_axis_warp_tile(int axis) {
    return axis == 0 ? NH_S0 : axis == 1 ? NH_S1 : NH_S2;
}
NH_DEVICE constexpr int nh_axis_columns(int axis) {
    return axis == 0 ? NH_K0 : axis == 1 ? NH_K1 : NH_K2;
}
NH_DEVICE constexpr int nh_axis_halo(int axis) {
    return axis == 0 ? NH_H0 : axis == 1 ? NH_H1 : NH_H2;
}
/* Halo rows from one position to the next along an axis. */
NH_DEVICE constexpr int nh_axis_pitch(int axis) {
    return axis == 0 ? NH_PLANE : axis == 1 ? NH_LINE : 1;
}
NH_DEVICE constexpr int nh_statistics_pitch(int axis) {
    return axis == 1 ? NH_STATISTICS_LINE : NH_PLANES && axis == 0 ? NH_SLOT_STATISTICS : nh_axis_pitch(axis);
}
/* Rows by which work tiles begin before the first row. */
NH_DEVICE constexpr int nh_axis_shift(int axis) {
    return axis == 0 ? 0 : axis == 1 ? NH_SHIFT1 : NH_SHIFT2;
}
NH_DEVICE constexpr int nh_rows_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? NH_Q0 : NH_Q0 + NH_Q1;
}
NH_DEVICE constexpr int nh_prefixes_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? NH_K0 + 1 : NH_K0 + NH_K1 + 2;
}

/* Chunks that a warp tile multiplies; reach: columns up to the last line that any of its rows sees. */
NH_DEVICE int nh_chunks_of(int reach) {
    return NH_PLANE_CHUNKS ? reach / (NH_K1 * NH_K2) : NH_CHUNKS;
}

/* Coordinate of a column in its warp tile's box; the last axis is fastest. */
NH_DEVICE int nh_column_at(int column, int axis) {
    return axis == 2 ? column % NH_K2 : axis == 1 ? column / NH_K2 % NH_K1 : column / (NH_K2 * NH_K1);
}

/* Coordinate in the work tile of row 0 .. 15 of a warp tile. */
NH_DEVICE int nh_row_at(unsigned warp_tile, unsigned row, int axis) {
    const unsigned across = NH_Q2 / NH_S2, down = NH_Q1 / NH_S1;
    /* The compiler does not know that there are no more warp tiles than these. */
    const unsigned along = across == NH_WARP_TILES ? warp_tile : warp_tile % across;
    return (int)(axis == 2   ? along * NH_S2 + row % NH_S2
                 : axis == 1 ? warp_tile / across % down * NH_S1 + row / NH_S2 % NH_S1
                             : warp_tile / (across * down) * NH_S0 + row / (NH_S2 * NH_S1));
}

/* The number of that row in shared memory, where the last axis is fastest. */
NH_DEVICE int nh_row_number(int warp_tile, int row) {
    return (nh_row_at(warp_tile, row, 0) * NH_Q1 + nh_row_at(warp_tile, row, 1)) * NH_Q2 +
           nh_row_at(warp_tile, row, 2);
}

/* The number of that row's result in shared memory: the copy engine stores warp tiles; without it, results replace
 * rows. */
NH_DEVICE int nh_result_number(int warp_tile, int row) {
    return NH_STAGES ? row : nh_row_number(warp_tile, row);
}
