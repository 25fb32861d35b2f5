/* The walk over a halo in whole key tiles. It starts at the halo's first key, so that every tile is needed by some
 * query, and extra tokens follow as tiles after the last. */
#pragma once

#include "tile_copy.cuh"
#include "tile_mask.cuh"
#include "tile_note.cuh"

NH_DEVICE void nh_advance(struct nh_cursor &cursor, const struct nh_halo &halo) {
    cursor.at[2] += NH_TILE_K2;
    if (cursor.at[2] < halo.end[2]) return;
    cursor.at[2] = halo.begin[2];
    cursor.at[1] += NH_TILE_K1;
    if (cursor.at[1] < halo.end[1]) return;
    cursor.at[1] = halo.begin[1];
    cursor.at[0] += NH_TILE_K0;
}

NH_DEVICE int nh_halo_tiles(const struct nh_halo &halo) {
    int tiles = 1;
#pragma unroll
    for (int a = 0; a < 3; a++)
        tiles *= (halo.end[a] - halo.begin[a] + nh_tile_k(a) - 1) / nh_tile_k(a);
    return tiles;
}

/* Whether every row of the warp attends every column of a tile. The warp's rows are a box, as the extents of a query
 * tile are powers of two. Read anew from shared memory for each tile: registers are dearer. */
NH_DEVICE bool nh_is_dense(const struct nh_mask_tables &tables, int first_row,
                           const struct nh_cursor &tile) {
    bool inside = true;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        int first = nh_rows_before(a) + nh_row_axis(first_row, a);
        int last = nh_rows_before(a) + nh_row_axis(first_row + NH_WARP_ROWS - 1, a);
        inside = inside && tile.at[a] >= tables.begin[last] &&
                 tile.at[a] + nh_tile_k(a) <= tables.end[first];
    }
    return inside;
}

/* The first `count` columns: the last tile of extra tokens. */
NH_DEVICE unsigned nh_first_columns(long long count) {
    if (count >= NH_COLUMNS) return ~0u;
    int below = (int)count;
    int bits = below / 8 * 2 + nh_clamp(below % 8 - 2 * ((int)threadIdx.x % 4), 0, 2);
    return (1u << bits) - 1;
}

/* ---- copies ---- */

/* The rows of one tensor that a block walks over: the row of the dilation group's first position, and the elements
 * from one position to the next on each axis. */
struct nh_grid_rows {
    const elem *first;
    long long step[3];
};

NH_DEVICE struct nh_grid_rows nh_grid_rows_of(const nh_cuda_args &args,
                                              const struct nh_block &block,
                                              const nh_cuda_tensor &tensor, int head) {
    struct nh_grid_rows rows;
    rows.first = (const elem *)tensor.data + block.batch * tensor.batch + head * tensor.head;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        rows.first += block.group[a] * tensor.axis[a];
        rows.step[a] = args.axis[a].dilation * tensor.axis[a];
    }
    return rows;
}

NH_DEVICE const elem *nh_grid_row(const struct nh_grid_rows &rows, const struct nh_cursor &tile) {
    return rows.first + tile.at[0] * rows.step[0] + tile.at[1] * rows.step[1] +
           tile.at[2] * rows.step[2];
}

/* Coordinates of a tile's row, one a byte. */
NH_DEVICE constexpr unsigned nh_place_of_column(int column) {
    return (unsigned)(nh_column_axis(column, 0) | nh_column_axis(column, 1) << 8 |
                      nh_column_axis(column, 2) << 16);
}

/* Of the two tensors that are walked: bytes from a tile's origin to its rows. And their coordinates, one a byte. */
struct nh_row_tables {
    long long first[NH_COLUMNS], second[NH_COLUMNS];
    unsigned place[NH_COLUMNS];
};

NH_DEVICE void nh_row_tables_fill(const nh_cuda_args &args, int first, int second,
                                  struct nh_row_tables &tables) {
    for (int c = (int)threadIdx.x; c < NH_COLUMNS; c += NH_THREADS) {
        tables.first[c] = tables.second[c] = 0;
        tables.place[c] = nh_place_of_column(c);
#pragma unroll
        for (int a = 0; a < 3; a++) {
            long long at = nh_column_axis(c, a) * args.axis[a].dilation;
            tables.first[c] += at * args.tensor[first].axis[a] * NH_ELEMENT_BYTES;
            tables.second[c] += at * args.tensor[second].axis[a] * NH_ELEMENT_BYTES;
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

/* The tile of columns at `cursor`. Where a row's units divide the threads, a thread keeps to one column and to rows
 * that are a power of two apart, as are the extents of tiles: coordinates then add without carry, and what is added
 * is the same for all threads. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_tile(elem *tile, const struct nh_grid_rows &rows,
                            const struct nh_cursor &cursor, const long long *offset,
                            const unsigned *place, unsigned limits) {
    const int units = WIDTH / NH_UNIT, at_once = NH_THREADS / units;
    const elem *origin = nh_grid_row(rows, cursor);
    if (NH_THREADS % units == 0 && (at_once & (at_once - 1)) == 0) {
        int row = (int)threadIdx.x / units, column = (int)threadIdx.x % units * NH_UNIT;
        if (row >= NH_COLUMNS) return;
        const elem *from = (const elem *)((const char *)origin + offset[row]) + column;
        unsigned room = limits - place[row];
#pragma unroll
        for (int r = 0; r < NH_COLUMNS; r += at_once) {
            long long step = nh_column_axis(r, 0) * rows.step[0] +
                             nh_column_axis(r, 1) * rows.step[1] +
                             nh_column_axis(r, 2) * rows.step[2];
            nh_copy_unit(tile + (row + r) * PITCH + column, from + step,
                         nh_within(room, nh_place_of_column(r)));
        }
    } else {
#pragma unroll 8
        for (int i = (int)threadIdx.x; i < NH_COLUMNS * units; i += NH_THREADS) {
            int row = i / units, column = i % units * NH_UNIT;
            nh_copy_unit(tile + row * PITCH + column,
                         (const elem *)((const char *)origin + offset[row]) + column,
                         nh_within(limits, place[row]));
        }
    }
}

/* `count` rows of extra tokens, `stride` elements apart. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_extra(elem *tile, const elem *global, long long stride, long long count) {
    const int units = WIDTH / NH_UNIT;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < NH_COLUMNS * units; i += NH_THREADS) {
        int row = i / units, column = i % units * NH_UNIT;
        nh_copy_unit(tile + row * PITCH + column, global + row * stride + column, row < count);
    }
}
