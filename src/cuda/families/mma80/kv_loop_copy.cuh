/* Copies of the tiles of a KV loop (kv_loop.cuh) to shared memory.
 *
 * Addresses are kept from tile to tile so that a step takes a few additions: each thread copies the same places of
 * every tile and has a pointer to them in each tensor, which moves by one of four distances. Nothing is read from
 * shared memory between copies, as the compiler puts three dummy loads between such a load and the next copy. */
#pragma once

#include "kv_loop.cuh"

namespace nh_mma80 {

/* The coordinates of a tile's row, one per byte. */
NH_DEVICE constexpr unsigned nh_place_of_column(int column) {
    return (unsigned)(nh_column_axis(column, 0) | nh_column_axis(column, 1) << 8 |
                      nh_column_axis(column, 2) << 16);
}

/* Rows whose coordinate on some axis is at least `count` are past the halo's end. A byte of nh_limits less a coordinate
 * keeps its top bit if and only if the coordinate is below the count, so that one subtraction tests all axes. */
NH_DEVICE unsigned nh_limits(const nh_halo &halo, const nh_cursor &tile) {
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

/* Whether no row of the tile is past the halo's end. */
NH_DEVICE bool nh_is_whole(const nh_halo &halo, const nh_cursor &tile) {
    return tile.at[0] + C.columns[0] <= halo.end[0] & tile.at[1] + C.columns[1] <= halo.end[1] &
           tile.at[2] + C.columns[2] <= halo.end[2];
}

/* The tensors that the loop reads: two of rows, and the statistics of queries if those are the columns. */
enum { NH_LOOP_FIRST, NH_LOOP_SECOND, NH_LOOP_STATS, NH_LOOP_TENSORS = mma80_loop_tensors(&C) };

/* Byte offsets from a tile's first row to its other rows, and from a tile to the next one by the number of axes that
 * start over; the last of these leads to the next query head. */
struct nh_loop_tables {
    long long row[NH_LOOP_TENSORS][NH_COLUMNS];
    long long step[4][NH_LOOP_TENSORS];
};
static_assert(sizeof(nh_loop_tables) == mma80_loop_table_bytes(&C), "the host's count");

/* The offset of a column; `column` is the same for all threads. */
NH_DEVICE long long nh_column_bytes(const nh_cuda_args &args, int slot, int column, int bytes) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    long long offset = 0;
#pragma unroll
    for (int a = 0; a < 3; a++)
        offset += nh_column_axis(column, a) * (args.axis[a].dilation * tensor.axis[a]);
    return offset * bytes;
}

/* Called by the whole block after a barrier; another one must follow. bytes: of an element. */
NH_DEVICE void nh_loop_table_fill(const nh_cuda_args &args, const nh_halo &halo, int slot, int bytes, int which,
                                  nh_loop_tables &tables) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    for (int i = (int)threadIdx.x; i < NH_COLUMNS + 4; i += NH_THREADS) {
        int again = i - NH_COLUMNS;
        long long offset = again == 3 ? tensor.head : 0;
#pragma unroll
        for (int a = 0; a < 3; a++) {
            int positions = again < 0            ? nh_column_axis(i, a)
                            : a == 2 - again     ? nh_tile_k(a)
                            : a < 2 - again      ? 0
                                                 : (1 - nh_halo_tiles(halo, a)) * nh_tile_k(a);
            offset += positions * args.axis[a].dilation * tensor.axis[a];
        }
        (again < 0 ? tables.row[which][i] : tables.step[again][which]) = offset * bytes;
    }
}

/* The state of the loop: pointers to the thread's places in the current tile, or to the tile's first statistics. */
struct nh_kv_loop {
    nh_cursor cursor;
    /* tiles left, including this one; the query head */
    int left, head;
    const char *at[NH_LOOP_TENSORS];
};

/* How threads share a tensor's rows. If 16 bytes are copied at a time, the number of lanes per row is a power of two
 * that divides its units: what a thread adds to its pointer is then a constant, or the same for all threads. */
template <int WIDTH> struct nh_share {
    enum {
        REGULAR = NH_UNIT_BYTES == 16,
        UNITS = WIDTH / NH_UNIT,
        LANES = (UNITS & -UNITS) < NH_THREADS ? (UNITS & -UNITS) : NH_THREADS,
        ROWS = NH_THREADS / LANES
    };
};

/* Byte offset from a tile's first row to the thread's first place. */
template <int WIDTH> NH_DEVICE long long nh_share_offset(const long long *row) {
    typedef nh_share<WIDTH> share;
    if (!share::REGULAR) return 0;
    return row[(int)threadIdx.x / share::LANES % NH_COLUMNS] +
           (int)threadIdx.x % share::LANES * (NH_UNIT_BYTES);
}

NH_DEVICE nh_cursor nh_loop_origin(const nh_halo &halo) {
    return {{halo.begin[0], halo.begin[1], halo.begin[2]}};
}

NH_DEVICE const char *nh_loop_start(const nh_cuda_args &args, const nh_block &block, const nh_halo &halo,
                                    int slot, int head, int bytes) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    long long offset = block.batch * tensor.batch + head * tensor.head;
#pragma unroll
    for (int a = 0; a < 3; a++)
        offset += nh_column_offset(args, block, tensor, a, halo.begin[a]);
    return (const char *)tensor.data + offset * bytes;
}

/* How many laps a position of the halo is ahead of the lap in which the loop starts; a halo is at most two laps
 * long. */
NH_DEVICE int nh_laps_ahead(const auto &block, const auto &bounds, int axis, int position) {
    const int ahead = position - bounds.lap[axis], length = block.grid[axis];
    return (ahead >= length) + (ahead >= 2 * length);
}

/* Byte offset from where the loop's steps would lead for a column of the current tile to where the tensor has it, on
 * periodic axes. Sets `there` to false if the tensor does not have it. */
NH_DEVICE long long nh_wrapped(const nh_cuda_args &args, const auto &block,
                               const auto &bounds, const nh_cursor &tile, int slot, int bytes,
                               unsigned place, bool &there) {
    long long offset = 0;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        if (!nh_wraps(a)) continue;
        const int position = tile.at[a] + (int)(place >> 8 * a & 255);
        const int laps = nh_laps_ahead(block, bounds, a, position);
        const int in_lap = position - bounds.lap[a] - laps * block.grid[a];
        offset -= laps * (args.axis[a].length * args.tensor[slot].axis[a]);
        there = there && in_lap < block.columns[a].end - block.columns[a].begin;
    }
    return offset * bytes;
}

/* Whether the part of a tile that is in the halo lies in one lap, and tensors have all of it. */
NH_DEVICE bool nh_in_one_lap(const auto &block, const auto &bounds,
                             const nh_cursor &tile) {
    bool one = true;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        if (!nh_wraps(a)) continue;
        const int laps = nh_laps_ahead(block, bounds, a, tile.at[a]), end = tile.at[a] + nh_tile_k(a);
        const int last = end < bounds.halo.end[a] ? end : bounds.halo.end[a];
        const int in_lap = last - bounds.lap[a] - laps * block.grid[a];
        one = one && in_lap <= block.columns[a].end - block.columns[a].begin;
    }
    return one;
}

NH_DEVICE void nh_next(nh_kv_loop &loop, const nh_loop_bounds &bounds,
                       const nh_loop_tables &tables) {
    int again = nh_advance(loop.cursor, bounds.halo);
    loop.left--;
    if (again == 3) loop.head++;
#pragma unroll
    for (int i = 0; i < NH_LOOP_TENSORS; i++)
        loop.at[i] += tables.step[again][i];
}

/* ---- copies ---- */

/* Copies the tile at a loop's pointer `from`; rows past the halo's end are zeros. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_tile(elem *tile, const nh_cuda_args &args, int slot, const char *from,
                            const long long *row_offset, bool whole, unsigned limits) {
    typedef nh_share<WIDTH> share;
    if (share::REGULAR) {
        int row = (int)threadIdx.x / share::LANES, lane = (int)threadIdx.x % share::LANES;
        if (share::ROWS > NH_COLUMNS && row >= NH_COLUMNS) return;
        unsigned to = nh_shared_address(tile + row * PITCH + lane * NH_UNIT);
        unsigned room = whole ? ~0u : limits - nh_place_of_column(row);
#pragma unroll
        for (int r = 0; r < NH_COLUMNS; r += share::ROWS) {
            const char *source = from + nh_column_bytes(args, slot, r, C.element_bytes);
            bool valid = whole || nh_within(room, nh_place_of_column(r));
#pragma unroll
            for (int u = 0; u < share::UNITS; u += share::LANES)
                nh_copy16_at(to + (r * PITCH + u * NH_UNIT) * C.element_bytes,
                             source + u * (NH_UNIT_BYTES), valid);
        }
    } else {
#pragma unroll 8
        for (int i = (int)threadIdx.x; i < NH_COLUMNS * share::UNITS; i += NH_THREADS) {
            int row = i / share::UNITS, column = i % share::UNITS * NH_UNIT;
            nh_copy_unit(tile + row * PITCH + column,
                         (const elem *)(from + row_offset[row]) + column,
                         nh_within(limits, nh_place_of_column(row)));
        }
    }
}

/* Copies a tile that crosses a seam, row by row. from: its pointer, without the thread's own place. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_seam(elem *tile, const nh_cuda_args &args, const auto &block,
                            const auto &bounds, const nh_cursor &cursor, int slot,
                            const char *from, const long long *row_offset) {
    const int units = WIDTH / NH_UNIT;
    const unsigned limits = nh_limits(bounds.halo, cursor);
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < NH_COLUMNS * units; i += NH_THREADS) {
        const int row = i / units, column = i % units * NH_UNIT;
        const unsigned place = nh_place_of_column(row);
        bool there = nh_within(limits, place);
        const long long moved = nh_wrapped(args, block, bounds, cursor, slot, C.element_bytes, place, there);
        nh_copy_unit(tile + row * PITCH + column, (const elem *)(from + row_offset[row] + moved) + column, there);
    }
}

/* Copies `count` rows of extra tokens, `stride` elements apart. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_extra(elem *tile, const elem *global, long long stride, long long count) {
    const int units = WIDTH / NH_UNIT;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < NH_COLUMNS * units; i += NH_THREADS) {
        int row = i / units, column = i % units * NH_UNIT;
        nh_copy_unit(tile + row * PITCH + column, global + row * stride + column, row < count);
    }
}

NH_DEVICE const elem *nh_extra_row(const nh_cuda_args &args, const nh_block &block, int slot,
                                   long long token) {
    const nh_cuda_tensor &extra = args.tensor[slot];
    return (const elem *)extra.data + block.batch * extra.batch + block.kv_head * extra.head +
           token * extra.axis[3 - args.rank];
}

/* Starts the copy of the loop's current tile of one tensor, be it of the halo or of extra tokens. */
template <int WIDTH, int PITCH, int TENSOR>
NH_DEVICE void nh_copy_next(elem *to, const nh_cuda_args &args, const nh_block &block,
                            const nh_loop_bounds &bounds, const nh_loop_tables &tables,
                            const nh_kv_loop &loop) {
    const char *from = loop.at[TENSOR];
    const int slot = TENSOR == NH_LOOP_FIRST ? (NH_INVERSE ? NH_Q : NH_K) : (NH_INVERSE ? NH_D_O : NH_V);
    const int extra_slot = TENSOR == NH_LOOP_FIRST ? NH_EXTRA_K : NH_EXTRA_V;
    if (nh_is_extra(bounds, loop.left)) {
        long long first = nh_extra_first(bounds, loop.left);
        nh_copy_extra<WIDTH, PITCH>(to, nh_extra_row(args, block, extra_slot, first),
                                    args.tensor[extra_slot].axis[3 - args.rank], bounds.extra_tokens - first);
        return;
    }
    if constexpr (NH_PERIODIC) {
        if (!nh_in_one_lap(block, bounds, loop.cursor)) {
            nh_copy_seam<WIDTH, PITCH>(to, args, block, bounds, loop.cursor, slot,
                                       from - nh_share_offset<WIDTH>(tables.row[TENSOR]), tables.row[TENSOR]);
            return;
        }
        bool there = true;
        from += nh_wrapped(args, block, bounds, loop.cursor, slot, C.element_bytes, 0, there);
    }
    if (nh_share<WIDTH>::REGULAR && nh_is_whole(bounds.halo, loop.cursor)) {
        nh_copy_tile<WIDTH, PITCH>(to, args, slot, from, tables.row[TENSOR], true, ~0u);
    } else {
        nh_copy_tile<WIDTH, PITCH>(to, args, slot, from, tables.row[TENSOR], false,
                                   nh_limits(bounds.halo, loop.cursor));
    }
}

} // namespace nh_mma80
