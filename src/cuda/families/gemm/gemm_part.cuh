/* A tile's box part by part: the whole box, or its planes along the first axis one after the other (NH_PLANES). The
 * rows of a part lie in shared memory all at once, so a query meets all its keys of a part in one go: a fixed pattern
 * of columns, begun at the query's own first one. What is known of a slot is worked out once per lane.
 *
 * Knobs: NH_SLOTS, of a query in a part; NH_PLANES. Tiles end with the rows of a warp: along the last axes they are no
 * wider than 16 rows. A warp's queries then meet one range of a part's columns. */
#pragma once
#include "gemm_part_args.h"
#include "gemm_tile.cuh"

/* The first axis along which columns of a part differ. */
#define NH_PART_AXIS (NH_PLANES && NH_FIRST_AXIS == 0 ? 1 : NH_FIRST_AXIS)
/* Rows of each warp of a team, in what is done row by row; those of products are their group's. */
#define NH_OWN_ROWS (16 / NH_TEAM)
/* Blocks that share the registers of a multiprocessor, at 80 a thread: enough warps to hide each other's latencies. */
#define NH_LEAST_BLOCKS (65536 / 80 / NH_THREADS)
/* In A a query's weights of a part are whole pieces of 16 bytes; from one part's to the next's. */
#define NH_PIECE_SLOTS (16 / (int)sizeof(elem))
#define NH_PART_PIECES ((NH_SLOTS + NH_PIECE_SLOTS - 1) / NH_PIECE_SLOTS)
#define NH_PART_ROW (NH_PART_PIECES * NH_PIECE_SLOTS)
#define NH_PLACE_OF_SLOT(slot) ((slot) / NH_SLOTS * NH_PART_ROW + (slot) % NH_SLOTS)
/* Products go past a range's end by less than this. */
#define NH_PAST 16

/* Extent of a warp's 16 rows. */
#define NH_WARP_TILE2 (NH_TILE2 < 16 ? NH_TILE2 : 16)
#define NH_WARP_TILE1 (NH_TILE1 * NH_WARP_TILE2 < 16 ? NH_TILE1 : 16 / NH_WARP_TILE2)
#define NH_WARP_TILE0 (16 / (NH_WARP_TILE1 * NH_WARP_TILE2))

/* What limits shared memory; gemm_part.c computes the same. Multiples of 16. */
struct nh_part_bounds {
    int rows;    /* of a part, and those past its end */
    int columns; /* of a part that meet one warp's queries */
};

/* The longest reach of `extent` consecutive positions. */
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

/* Parts of a tile's box. */
NH_DEVICE int nh_parts(const nh_tile &tile) {
    return NH_PART_AXIS > NH_FIRST_AXIS ? tile.axis[0].span : 1;
}

/* Columns of a part. */
NH_DEVICE int nh_part_columns(const nh_tile &tile) {
    int columns = 1;
#pragma unroll
    for (int a = NH_PART_AXIS; a < 3; a++)
        columns *= tile.axis[a].span;
    return columns;
}

/* Where the rows of a part are: `offset` of each in the first part of the first head; the others are `nh_part_step`
 * apart. */
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

/* Where those offsets count from, for a head that so many come before in the block, and a part. */
NH_DEVICE const elem *nh_part_data(const nh_cuda_args &args, int slot, int first, int head, int part) {
    int past = nh_key_head(args, first + head) - nh_key_head(args, first);
    return (const elem *)args.tensor[slot].data + past * args.tensor[slot].head +
           part * nh_part_step(args, slot);
}

/* The column of a part where the query's keys begin. */
NH_DEVICE int nh_part_begin(const nh_query &query, nh_spans spans) {
    int begin = NH_PART_AXIS == 0 ? query.begin[0] : 0;
    if (NH_PART_AXIS <= 1) begin = begin * spans.plane + query.begin[1];
    return begin * spans.line + query.begin[2];
}

/* Where each slot of a part lies, counted from the part's first, in the box, or with other widths in a bias table. */
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

/* The parts and, of each, the columns that meet the warp's queries; none if the warp has no query. */
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

/* queries: the warp's 16. */
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

/* A query's window starts so many parts into the box. */
NH_DEVICE int nh_first_part(const nh_query &query) {
    return NH_PART_AXIS > NH_FIRST_AXIS ? query.begin[0] : 0;
}

/* Whether the query has keys in the part, counted from its first. */
NH_DEVICE bool nh_has_part(const nh_query &query, const nh_cuda_args &args, int part) {
    if (NH_PART_AXIS == NH_FIRST_AXIS) return query.begin[0] != NH_NOWHERE;
    return (unsigned)part < (unsigned)args.axis[0].window;
}
