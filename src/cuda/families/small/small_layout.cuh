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

template <bool FIRST, typename A, typename B> struct nh_choose { typedef A type; };
template <typename A, typename B> struct nh_choose<false, A, B> { typedef B type; };

enum {
    NH_INVERSE = C.pass == SMALL_BY_KEY,
    NH_PLANES = C.pipeline == SMALL_PLANES,
    NH_BITS = C.mask == SMALL_BITS,
    NH_ADDS_MASK = small_adds_mask(&C),
    NH_SHIFTED = C.shift[1] > 0 || C.shift[2] > 0,
    NH_HAS_ENDS = small_has_ends(&C),
    /* Whether a plane is free as soon as the last warp tile that begins with it has passed it. If that then needs
     * repair, it reads columns from memory: in f16's forward pass, whose sums overflow earlier, not rare enough. */
    NH_PASSES = NH_PLANES && (C.pass != SMALL_FORWARD || NH_DTYPE != NH_F16),
    /* Whether warp tiles stop at the last line that any of their rows sees. */
    NH_STOPS = C.pass != SMALL_FORWARD && C.pipeline != SMALL_TURNS,
    NH_THREADS = 32 * (C.warps + C.fetchers),
    NH_CONSUMERS = 32 * C.warps, /* threads that compute; they also fill the block's tables */
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
static_assert(!NH_HAS_ENDS || (C.stages && !NH_REGIONS && !C.dilated && !NH_SHIFTED),
              "the copy engine, and whole grids");

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
NH_DEVICE constexpr int nh_axis_ends(int axis) {
    return nh_by_axis(axis, C.ends[0], C.ends[1], C.ends[2]);
}
NH_DEVICE int nh_last_work_tile(int axis, int length, int tiles) {
    return small_last_work_tile(&C, axis, length, tiles);
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

/* The boxes of a grid that tensors cover, and periodic axes (NH_REGIONS, NH_PERIODIC: region.cuh), in the small
 * windows.
 *
 * A work tile's boxes of rows begin with the first row that tensors have of the dilation group, and what a row sees is
 * cut to the columns that they have; the halo follows from both. On a periodic axis, positions of rows and columns may
 * be before or after the group: the columns of tensors repeat with each lap of its length. A halo that goes on in the
 * next lap has a seam, beyond which positions are looked up one by one. */

NH_DEVICE int nh_least(int a, int b) {
    return a < b ? a : b;
}

/* The row, or the first one if the row is one of those by which work tiles begin before it. */
NH_DEVICE int nh_shifted_row(int axis, int row) {
    return nh_axis_shift(axis) && row < 0 ? 0 : row;
}

/* Whether the axis is periodic. */
NH_DEVICE bool nh_axis_wraps(int axis) {
    return NH_PERIODIC >> axis & 1;
}

/* Columns that the row at a position of a dilation group sees in the whole grid. */
NH_DEVICE nh_range nh_columns_of(const nh_cuda_axis &axis, int length, int position, bool wraps) {
#if NH_TABLES
    /* If all axes have tables there is no branch. */
    if (NH_TABLES >> NH_FIRST_AXIS == 7 >> NH_FIRST_AXIS || axis.seen[NH_INVERSE])
        return nh_seen_of_table(axis, NH_INVERSE, position);
#endif
    const int stride = C.strided ? (int)axis.stride : 1;
    if (NH_PERIODIC && wraps) return nh_seen_range(length, (int)axis.window, stride, 0, 1, NH_INVERSE, position);
    if (NH_INVERSE) return nh_inverse_range(length, (int)axis.window, stride, axis.causal, position);
    return nh_window_range(length, (int)axis.window, stride, axis.causal, position);
}

/* What tensors have of a dilation group on one axis. */
struct nh_covered_group {
    int grid;         /* positions of the group in the grid */
    int first;        /* position of the first row */
    nh_range columns; /* on a periodic axis, those of one lap */
};

/* length: positions of the group in the grid; set to the position after its last row. A group without rows gets no
 * columns. */
NH_DEVICE nh_covered_group nh_covered_group_of(const auto &args, int a, int group, int &length) {
    const int dilation = C.dilated ? (int)args.axis[a].dilation : 1;
    const nh_cuda_region &region = args.region[a];
    const nh_range rows = nh_covered(NH_INVERSE ? region.key : region.query, dilation, group);
    nh_covered_group covered = {length, rows.begin,
                                nh_covered(NH_INVERSE ? region.query : region.key, dilation, group)};
    if (rows.begin == rows.end) covered.columns.end = covered.columns.begin;
    length = rows.end;
    return covered;
}

/* Columns of tensors that the row at a position sees. */
NH_DEVICE nh_range nh_columns_of(const nh_cuda_axis &axis, const nh_covered_group &covered, int position, bool wraps) {
    return nh_covered_part(nh_columns_of(axis, covered.grid, position, wraps), covered.columns, covered.grid, wraps);
}

/* Where a halo lies on an axis, counted from the first column of the lap in which it begins. If it goes on in the next
 * lap, it has a seam: the copy engine fetches a box that begins at `boxed`, which is before the lap if most of the halo
 * is in the next one, and the columns of the box beyond either end of a lap are copied one by one. */
struct nh_halo_span {
    int ahead, boxed;
    int count; /* columns that the work tile's rows see; 0 if the axis is not periodic */
};

NH_DEVICE nh_halo_span nh_halo_span_of(const nh_cuda_axis &axis, const nh_covered_group &covered, int begin,
                                       int last_row, bool wraps) {
    int ahead = begin - covered.columns.begin;
    if (!wraps) return {ahead, ahead, 0};
    ahead -= nh_laps(begin, covered.columns.begin, covered.grid) * covered.grid;
    const int count = nh_columns_of(axis, covered, last_row, true).end - begin, rest = ahead + count - covered.grid;
    return {ahead, C.dilated || rest <= covered.grid - ahead ? ahead : ahead - covered.grid, count};
}

NH_DEVICE bool nh_span_has_seam(const nh_covered_group &covered, const nh_halo_span &span) {
    return span.ahead + span.count > covered.grid;
}

/* A dilation group on one axis: its length, or what tensors have of it. */
typedef nh_choose<NH_REGIONS, nh_covered_group, int>::type nh_group;

/* The first group on an axis, of so many positions; sets `length` to the position after its last row. */
NH_DEVICE auto nh_first_group(const auto &args, int a, int &length) {
    if constexpr (NH_REGIONS)
        return nh_covered_group_of(args, a, 0, length);
    else
        return length;
}

/* The first row that tensors have of a group. */
NH_DEVICE int nh_group_first(int) {
    return 0;
}
NH_DEVICE int nh_group_first(const nh_covered_group &group) {
    return group.first;
}

} // namespace nh_small
