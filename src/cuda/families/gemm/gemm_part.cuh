/* A tile's box part by part: the whole box, or its planes along the first axis one after the other (NH_PLANES). The
 * rows of a part lie in shared memory all at once, so that a query finds all its keys of a part there: a fixed pattern
 * of columns that begins at the query's own first one. What depends on a slot is computed once per lane.
 *
 * Knobs: NH_SLOTS, of a query in a part; NH_PLANES. The last axes of a tile are no wider than a warp's 16 rows, so that
 * a warp's queries need one range of a part's columns. */
#pragma once
#include "gemm_part_args.h"
#include "gemm_tile.cuh"

/* The first axis along which columns of a part differ. */
#define NH_PART_AXIS (NH_PLANES && NH_FIRST_AXIS == 0 ? 1 : NH_FIRST_AXIS)
/* Rows that each warp of a team handles in steps that go row by row; products are shared by the whole team. */
#define NH_OWN_ROWS (16 / NH_TEAM)
/* Blocks that are resident on a multiprocessor with 80 registers per thread: enough warps to hide latencies. */
#define NH_LEAST_BLOCKS (65536 / 80 / NH_THREADS)
/* In A, a query's weights of a part fill whole pieces of 16 bytes. NH_PART_ROW: elements from one part's weights to the
 * next's. */
#define NH_PIECE_SLOTS (16 / (int)sizeof(elem))
#define NH_PART_PIECES ((NH_SLOTS + NH_PIECE_SLOTS - 1) / NH_PIECE_SLOTS)
#define NH_PART_ROW (NH_PART_PIECES * NH_PIECE_SLOTS)
#define NH_PLACE_OF_SLOT(slot) ((slot) / NH_SLOTS * NH_PART_ROW + (slot) % NH_SLOTS)
/* Products may reach this many columns beyond the end of a range. */
#define NH_PAST 16

/* Extents of a warp's 16 rows. */
#define NH_WARP_TILE2 (NH_TILE2 < 16 ? NH_TILE2 : 16)
#define NH_WARP_TILE1 (NH_TILE1 * NH_WARP_TILE2 < 16 ? NH_TILE1 : 16 / NH_WARP_TILE2)
#define NH_WARP_TILE0 (16 / (NH_WARP_TILE1 * NH_WARP_TILE2))

/* Sizes that determine shared memory, multiples of 16; gemm.c computes the same. */
struct nh_part_bounds {
    int rows;    /* rows of a part, with those past its end */
    int columns; /* columns of a part that one warp's queries need */
};

/* The most columns that `extent` consecutive positions reach along an axis. */
NH_DEVICE int nh_most_reach(const nh_tile &tile, const nh_cuda_args &args, int axis, int extent) {
    return min(tile.axis[axis].longest,
               extent + (int)args.axis[axis].window + (int)args.axis[axis].stride - 2);
}

NH_DEVICE nh_part_bounds nh_part_bounds_of(const nh_tile &tile, const nh_cuda_args &args) {
    const int extent[3] = {NH_TILE0, NH_TILE1, NH_TILE2},
              warp[3] = {NH_WARP_TILE0, NH_WARP_TILE1, NH_WARP_TILE2};
    int rows = 1, columns = 1;
#pragma unroll
    for (int a = 2; a >= NH_PART_AXIS; a--) {
        columns += (nh_most_reach(tile, args, a, warp[a]) - 1) * rows;
        rows *= nh_most_reach(tile, args, a, extent[a]);
    }
    nh_part_bounds bounds = {(rows + 15) / 16 * 16 + NH_PAST, (columns + 15) / 16 * 16};
    return bounds;
}

/* The number of parts of a tile's box. */
NH_DEVICE int nh_parts(const nh_tile &tile) {
    return NH_PART_AXIS > NH_FIRST_AXIS ? tile.axis[0].span : 1;
}

/* The number of columns of a part. */
NH_DEVICE int nh_part_columns(const nh_tile &tile) {
    int columns = 1;
#pragma unroll
    for (int a = NH_PART_AXIS; a < 3; a++)
        columns *= tile.axis[a].span;
    return columns;
}

/* Sets the offsets of a part's rows, for the first part of the first head; other parts are nh_part_step apart. */
NH_DEVICE void nh_part_rows(long long *offset, const nh_tile &tile, const nh_cuda_args &args,
                            int slot, int rows) {
    int columns = nh_part_columns(tile), head = nh_key_head(args, tile.head);
    const int low[3] = {tile.axis[0].low, tile.axis[1].low, tile.axis[2].low};
    long long first = nh_tile_offset(tile, args, slot, low, head), step[3];
#pragma unroll
    for (int a = NH_PART_AXIS; a < 3; a++)
        step[a] = args.axis[a].dilation * args.tensor[slot].axis[a];
#pragma unroll 1
    for (int row = (int)threadIdx.x; row < rows; row += NH_THREADS) {
        int at[3];
        long long place = first;
        nh_tile_column(tile, row, at);
#pragma unroll
        for (int a = NH_PART_AXIS; a < 3; a++)
            place += at[a] * step[a];
        offset[row] = row < columns ? place : NH_NONE;
    }
}

NH_DEVICE long long nh_part_step(const nh_cuda_args &args, int slot) {
    return NH_PART_AXIS > NH_FIRST_AXIS ? args.axis[0].dilation * args.tensor[slot].axis[0] : 0;
}

/* The address to which these offsets are relative, for a part and the head that is the `head`-th of the block. */
NH_DEVICE const elem *nh_part_data(const nh_cuda_args &args, int slot, int first, int head, int part) {
    int past = nh_key_head(args, first + head) - nh_key_head(args, first);
    return (const elem *)args.tensor[slot].data + past * args.tensor[slot].head +
           part * nh_part_step(args, slot);
}

/* The column of a part at which the query's keys begin. */
NH_DEVICE int nh_part_begin(const nh_query &query, nh_spans spans) {
    int begin = NH_PART_AXIS == 0 ? query.begin[0] : 0;
    if (NH_PART_AXIS <= 1) begin = begin * spans.plane + query.begin[1];
    return begin * spans.line + query.begin[2];
}

/* Sets the place of each slot of a part, relative to the first, in the box or, with other widths, in a bias table. */
NH_DEVICE void nh_part_places(unsigned short place[NH_SLOTS], const nh_cuda_args &args, int plane,
                              int line) {
    const nh_divisor by1 = nh_divisor_of((int)args.axis[1].window),
                     by2 = nh_divisor_of((int)args.axis[2].window);
    for (int slot = (int)threadIdx.x; slot < NH_SLOTS; slot += NH_THREADS) {
        int y = nh_divide(slot, by2), x = nh_divide(y, by1);
        int in_plane = y - x * (int)by1.divisor, in_line = slot - y * (int)by2.divisor;
        place[slot] = (unsigned short)((x * plane + in_plane) * line + in_line);
    }
}

/* The parts that the warp's queries need and, in each, their columns; none if the warp has no query. */
struct nh_warp_range {
    int first, end; /* parts */
    int column, columns;
};

NH_DEVICE int nh_warp_least(int x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = min(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* queries: the 16 of the warp. */
NH_DEVICE nh_warp_range nh_warp_range_of(const nh_query *queries, const unsigned short *place,
                                         const nh_tile &tile, const nh_cuda_args &args) {
    const nh_query &query = queries[threadIdx.x % 16];
    const nh_spans spans = nh_spans_of(tile);
    bool exists = query.begin[0] != NH_NOWHERE;
    int begin = nh_part_begin(query, spans);
    int last = begin + place[NH_SLOTS - 1];
    nh_warp_range range = {0, 1, nh_warp_least(exists ? begin : NH_NOWHERE), 0};
    range.columns = -nh_warp_least(exists ? -last : NH_NOWHERE) + 1 - range.column;
    if (NH_PART_AXIS > NH_FIRST_AXIS) {
        range.first = nh_warp_least(exists ? query.begin[0] : NH_NOWHERE);
        range.end =
            -nh_warp_least(exists ? -query.begin[0] : NH_NOWHERE) + (int)args.axis[0].window;
    }
    if (range.columns <= 0) range.end = range.columns = range.column = 0;
    return range;
}

/* The part of the box at which a query's window starts. */
NH_DEVICE int nh_first_part(const nh_query &query) {
    return NH_PART_AXIS > NH_FIRST_AXIS ? query.begin[0] : 0;
}

/* Whether the query has keys in a part, counted from its first one. */
NH_DEVICE bool nh_has_part(const nh_query &query, const nh_cuda_args &args, int part) {
    if (NH_PART_AXIS == NH_FIRST_AXIS) return query.begin[0] != NH_NOWHERE;
    return (unsigned)part < (unsigned)args.axis[0].window;
}
