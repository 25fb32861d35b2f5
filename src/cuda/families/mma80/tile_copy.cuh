/* Copies of tiles of rows from anywhere in memory to shared memory: asynchronous, NH_UNIT elements each. Addresses are
 * kept from tile to tile (kv_loop.cuh). Nothing is read from shared memory between copies, as the compiler puts three
 * dummy loads between such a load and the next copy. */
#pragma once

#include "kv_loop.cuh"

namespace nh_mma80 {

/* Copies one unit; writes zeros, and reads nothing, if it is not valid. */
NH_DEVICE void nh_copy_unit(elem *shared, const elem *global, bool valid) {
    if (NH_UNIT_BYTES == 16)
        nh_copy16(shared, global, valid);
    else if (NH_UNIT_BYTES == 4)
        nh_copy4(shared, global, valid);
    else
        *shared = valid ? *global : elem();
}

NH_DEVICE void nh_store_unit(elem *global, const elem *shared) {
    if (NH_UNIT_BYTES == 16)
        *(uint4 *)global = *(const uint4 *)shared;
    else if (NH_UNIT_BYTES == 4)
        *(unsigned *)global = *(const unsigned *)shared;
    else
        *global = *shared;
}

/* Zeros the columns from `width` to `padded`, which take part in products. Once is enough: copies never touch them. */
NH_DEVICE void nh_zero_padding(elem *tile, int rows, int pitch, int width, int padded) {
    int pad = padded - width;
    for (int i = (int)threadIdx.x; i < rows * pad; i += NH_THREADS)
        tile[i / pad * pitch + width + i % pad] = elem();
}

/* ---- the block's own rows ---- */

template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_rows(const nh_cuda_args &args, const nh_block &block, int slot, elem *tile) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    const int units = WIDTH / NH_UNIT;
    for (int i = (int)threadIdx.x; i < NH_ROWS * units; i += NH_THREADS) {
        int row = i / units, column = i % units * NH_UNIT;
        nh_copy_unit(tile + row * PITCH + column,
                     (const elem *)tensor.data + nh_row_offset(args, block, tensor, row) + column, true);
    }
}

/* Stores a warp's rows of a tensor, if that is given. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_store_rows(const nh_cuda_args &args, const nh_block &block, int slot, int first_row,
                             const elem *rows) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    const int units = WIDTH / NH_UNIT;
    if (!tensor.data) return;
    for (int i = (int)(nh_thread_again() % 32); i < NH_WARP_ROWS * units; i += 32) {
        int row = i / units, column = i % units * NH_UNIT;
        if (nh_row_exists(block, first_row + row))
            nh_store_unit((elem *)tensor.data + nh_row_offset(args, block, tensor, first_row + row) + column,
                          rows + row * PITCH + column);
    }
}

/* ---- which columns of a tile are in the halo ---- */

/* The coordinates of a tile's column, one per byte. */
NH_DEVICE constexpr unsigned nh_place_of_column(int column) {
    return (unsigned)(nh_column_axis(column, 0) | nh_column_axis(column, 1) << 8 | nh_column_axis(column, 2) << 16);
}

/* Columns whose coordinate on some axis is at least `count` are past the halo's end. A byte of nh_limits less a
 * coordinate keeps its top bit only if the coordinate is below the count: one subtraction tests all axes. */
NH_DEVICE unsigned nh_limits(const nh_halo &halo, const nh_cursor &tile) {
    unsigned limits = 0;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        int count = halo.end[a] - tile.at[a];
        limits |= (unsigned)(127 + (count < 128 ? count : 128)) << 8 * a;
    }
    return limits;
}

NH_DEVICE bool nh_within(unsigned limits, unsigned place) {
    return ((limits - place) & 0x808080u) == 0x808080u;
}

/* Whether no column of the tile is past the halo's end. */
NH_DEVICE bool nh_is_whole(const nh_halo &halo, const nh_cursor &tile) {
    return tile.at[0] + C.columns[0] <= halo.end[0] & tile.at[1] + C.columns[1] <= halo.end[1] &
           tile.at[2] + C.columns[2] <= halo.end[2];
}

/* ---- tiles of the loop ---- */

/* Copies the tile at a loop's pointer `from`; rows past the halo's end are zeros. */
template <int TENSOR>
NH_DEVICE void nh_copy_tile(elem *tile, const nh_cuda_args &args, const char *from, const nh_loop_tables &tables,
                            bool whole, unsigned limits) {
    typedef nh_share<TENSOR> share;
    if (share::REGULAR) {
        int row = (int)threadIdx.x / share::LANES, lane = (int)threadIdx.x % share::LANES;
        if (share::ROWS > NH_COLUMNS && row >= NH_COLUMNS) return;
        unsigned to = nh_shared_address(tile + row * share::PITCH + lane * NH_UNIT);
        unsigned room = whole ? ~0u : limits - nh_place_of_column(row);
        NH_UNROLL for (int r = 0; r < NH_COLUMNS; r += share::ROWS) {
            const char *source = from + nh_column_bytes(args, TENSOR, r);
            bool valid = whole || nh_within(room, nh_place_of_column(r));
            NH_UNROLL for (int u = 0; u < share::UNITS; u += share::LANES)
                nh_copy16_at(to + (r * share::PITCH + u * NH_UNIT) * C.element_bytes, source + u * NH_UNIT_BYTES,
                             valid);
        }
    } else {
#pragma unroll 8
        for (int i = (int)threadIdx.x; i < NH_COLUMNS * share::UNITS; i += NH_THREADS) {
            int row = i / share::UNITS, column = i % share::UNITS * NH_UNIT;
            nh_copy_unit(tile + row * share::PITCH + column, (const elem *)(from + tables.row[TENSOR][row]) + column,
                         nh_within(limits, nh_place_of_column(row)));
        }
    }
}

/* Calls copy(row, column, to) for every unit of a tile, one after the other: for tiles that few loops have. */
template <int TENSOR> NH_DEVICE void nh_for_units(elem *tile, const auto &copy) {
    typedef nh_share<TENSOR> share;
    NH_UNROLL_1 for (int i = (int)threadIdx.x; i < NH_COLUMNS * share::UNITS; i += NH_THREADS) {
        int row = i / share::UNITS, column = i % share::UNITS * NH_UNIT;
        copy(row, column, tile + row * share::PITCH + column);
    }
}

/* Copies a tile that crosses a seam, row by row. */
template <int TENSOR>
NH_DEVICE void nh_copy_seam(elem *tile, const nh_cuda_args &args, const auto &block, const nh_loop_tables &tables,
                            const nh_kv_loop &loop) {
    const char *from = loop.at[TENSOR] - nh_share_offset<TENSOR>(tables);
    const unsigned limits = nh_limits(block.halo, loop.cursor);
    nh_for_units<TENSOR>(tile, [&](int row, int column, elem *to) {
        const unsigned place = nh_place_of_column(row);
        bool there = nh_within(limits, place);
        const long long moved = nh_wrapped(args, block, loop.cursor, TENSOR, place, there);
        nh_copy_unit(to, (const elem *)(from + tables.row[TENSOR][row] + moved) + column, there);
    });
}

template <int TENSOR>
NH_DEVICE void nh_copy_extra(elem *tile, const nh_cuda_args &args, const nh_block &block, int left) {
    const int slot = TENSOR == NH_LOOP_FIRST ? NH_EXTRA_K : NH_EXTRA_V;
    const long long first = nh_extra_first(block, left), count = args.extra_tokens - first;
    const long long stride = args.tensor[slot].axis[3 - args.rank];
    const elem *global = nh_extra_row(args, block, slot, first);
    nh_for_units<TENSOR>(
        tile, [&](int row, int column, elem *to) { nh_copy_unit(to, global + row * stride + column, row < count); });
}

/* Starts the copy of the loop's current tile of one tensor, be it of the halo or of extra tokens. */
template <int TENSOR>
NH_DEVICE void nh_copy_next(elem *to, const nh_cuda_args &args, const nh_block &block, const nh_loop_tables &tables,
                            const nh_kv_loop &loop) {
    const char *from = loop.at[TENSOR];
    if (nh_is_extra(block, loop.left)) {
        nh_copy_extra<TENSOR>(to, args, block, loop.left);
        return;
    }
    if constexpr (NH_PERIODIC != 0) {
        if (!nh_in_one_lap(block, loop.cursor)) {
            nh_copy_seam<TENSOR>(to, args, block, tables, loop);
            return;
        }
        bool there = true;
        from += nh_wrapped(args, block, loop.cursor, TENSOR, 0, there);
    }
    if (nh_share<TENSOR>::REGULAR && nh_is_whole(block.halo, loop.cursor))
        nh_copy_tile<TENSOR>(to, args, from, tables, true, ~0u);
    else
        nh_copy_tile<TENSOR>(to, args, from, tables, false, nh_limits(block.halo, loop.cursor));
}

/* ---- statistics of queries ---- */

/* What the backward needs of a query, as backward_stats.cu wrote it: LSE in base 2, and delta. They are read once if
 * queries are rows, and copied tile by tile if they are columns. */
struct alignas(8) nh_stats {
    float lse, delta;
};

/* Copies those of a tile at the loop's pointer, one column per thread. */
NH_DEVICE void nh_stats_copy(const nh_cuda_args &args, const nh_block &block, const auto &loop,
                             const nh_loop_tables &tables, nh_stats to[NH_COLUMNS]) {
    unsigned limits = nh_limits(block.halo, loop.cursor);
    NH_UNROLL_1 for (int c = (int)threadIdx.x; c < NH_COLUMNS; c += NH_THREADS) {
        const char *from = loop.at[NH_LOOP_STATS] + tables.row[NH_LOOP_STATS][c];
        bool there = nh_within(limits, nh_place_of_column(c));
        if constexpr (NH_PERIODIC != 0)
            from += nh_wrapped(args, block, loop.cursor, NH_LOOP_STATS, nh_place_of_column(c), there);
        nh_copy8(&to[c], from, there);
    }
}

NH_DEVICE nh_stats nh_stats_at(const nh_cuda_args &args, long long offset) {
    return *(const nh_stats *)((const float *)args.tensor[NH_DELTA].data + offset);
}

/* The same for repair: with any LSE. */
NH_DEVICE nh_stats nh_repair_stats_at(const nh_cuda_args &args, long long offset) {
    const float *stats = (const float *)args.tensor[NH_DELTA].data + offset;
    return {stats[2], stats[1]};
}

} // namespace nh_mma80
