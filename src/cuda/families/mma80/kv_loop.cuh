/* The KV loop: over a halo in whole tiles of columns, from its first position, so that every tile is needed by some
 * row; then over tiles of extra tokens. Where rows are keys, it goes over the halo once for each query head that shares
 * them. A thread copies the same places of each tile: it keeps a pointer per tensor, which the next tile moves by one
 * of a few distances that depend on how many axes start over. */
#pragma once

#include "tile_mask.cuh"

namespace nh_mma80 {

/* The tensors that the loop reads: two of rows, and the statistics of queries if those are the columns. */
enum { NH_LOOP_FIRST, NH_LOOP_SECOND, NH_LOOP_STATS, NH_LOOP_TENSORS = mma80_loop_tensors(&C) };

NH_DEVICE constexpr int nh_loop_slot(int tensor) {
    return tensor == NH_LOOP_FIRST    ? (NH_INVERSE ? NH_Q : NH_K)
           : tensor == NH_LOOP_SECOND ? (NH_INVERSE ? NH_D_O : NH_V)
                                      : NH_DELTA;
}
/* Bytes of an element. */
NH_DEVICE constexpr int nh_loop_bytes(int tensor) {
    return tensor == NH_LOOP_STATS ? (int)sizeof(float) : C.element_bytes;
}

/* ---- which tiles ---- */

NH_DEVICE int nh_halo_tiles(const nh_block &block, int axis) {
    return (block.halo.end[axis] - block.halo.begin[axis] + nh_tile_k(axis) - 1) / nh_tile_k(axis);
}

/* The number of query heads whose columns a row is multiplied with. */
NH_DEVICE int nh_heads_of_row(const nh_cuda_args &args) {
    return NH_INVERSE ? (int)(args.heads / args.kv_heads) : 1;
}

NH_DEVICE int nh_loop_tiles(const nh_cuda_args &args, const nh_block &block) {
    return nh_heads_of_row(args) * nh_halo_tiles(block, 0) * nh_halo_tiles(block, 1) * nh_halo_tiles(block, 2) +
           block.extra_tiles;
}

/* Moves to the next tile of the halo. Returns how many axes start over: 3 after the last tile. */
NH_DEVICE int nh_advance(nh_cursor &cursor, const nh_halo &halo) {
    int again = 0;
    NH_UNROLL for (int a = 2; a >= 0; a--) {
        cursor.at[a] += nh_tile_k(a);
        if (cursor.at[a] < halo.end[a]) break;
        cursor.at[a] = halo.begin[a];
        again++;
    }
    return again;
}

/* ---- where they lie ---- */

/* Byte offsets from a tile's first row to its other rows, and from a tile to the next one by the number of axes that
 * start over; the last of these leads to the next query head. */
struct nh_loop_tables {
    long long row[NH_LOOP_TENSORS][NH_COLUMNS];
    long long step[4][NH_LOOP_TENSORS];
};
static_assert(sizeof(nh_loop_tables) == mma80_loop_table_bytes(&C), "the host's count");

/* Called by the whole block after a barrier; another one must follow. */
NH_DEVICE void nh_loop_table_fill(const nh_cuda_args &args, const nh_block &block, int which, nh_loop_tables &tables) {
    const nh_cuda_tensor &tensor = args.tensor[nh_loop_slot(which)];
    for (int i = (int)threadIdx.x; i < NH_COLUMNS + 4; i += NH_THREADS) {
        int again = i - NH_COLUMNS;
        long long offset = again == 3 ? tensor.head : 0;
        NH_UNROLL for (int a = 0; a < 3; a++) {
            int positions = again < 0        ? nh_column_axis(i, a)
                            : a == 2 - again ? nh_tile_k(a)
                            : a < 2 - again  ? 0
                                             : (1 - nh_halo_tiles(block, a)) * nh_tile_k(a);
            offset += positions * args.axis[a].dilation * tensor.axis[a];
        }
        (again < 0 ? tables.row[which][i] : tables.step[again][which]) = offset * nh_loop_bytes(which);
    }
}

/* The offset of a column; `column` is the same for all threads. */
NH_DEVICE long long nh_column_bytes(const nh_cuda_args &args, int which, int column) {
    const nh_cuda_tensor &tensor = args.tensor[nh_loop_slot(which)];
    long long offset = 0;
    NH_UNROLL for (int a = 0; a < 3; a++)
        offset += nh_column_axis(column, a) * (args.axis[a].dilation * tensor.axis[a]);
    return offset * nh_loop_bytes(which);
}

/* The state of the loop: pointers to the thread's places in the current tile, or to the tile's first statistics. */
struct nh_kv_loop {
    nh_cursor cursor;
    /* tiles left, including this one; the query head */
    int left, head;
    const char *at[NH_LOOP_TENSORS];
};

/* How threads share the rows of one of the first two tensors. If 16 bytes are copied at a time, the lanes per row are a
 * power of two that divides its units: what a thread adds to its pointer is then a constant, or the same for all. */
template <int TENSOR> struct nh_share {
    enum {
        REGULAR = NH_UNIT_BYTES == 16,
        WIDTH = TENSOR == NH_LOOP_FIRST ? C.dim : C.dim_v,
        PITCH = mma80_pitch(&C, WIDTH),
        UNITS = WIDTH / NH_UNIT,
        LANES = (UNITS & -UNITS) < NH_THREADS ? (UNITS & -UNITS) : NH_THREADS,
        ROWS = NH_THREADS / LANES
    };
};

/* Byte offset from a tile's first row to the thread's first place. */
template <int TENSOR> NH_DEVICE long long nh_share_offset(const nh_loop_tables &tables) {
    typedef nh_share<TENSOR> share;
    if (!share::REGULAR) return 0;
    return tables.row[TENSOR][(int)threadIdx.x / share::LANES % NH_COLUMNS] +
           (int)threadIdx.x % share::LANES * NH_UNIT_BYTES;
}

NH_DEVICE const char *nh_loop_start(const nh_cuda_args &args, const nh_block &block, int which, int head) {
    const nh_cuda_tensor &tensor = args.tensor[nh_loop_slot(which)];
    const long long offset = nh_column_offset(args, block, tensor, head, block.halo.begin);
    return (const char *)tensor.data + offset * nh_loop_bytes(which);
}

NH_DEVICE nh_kv_loop nh_loop_begin(const nh_cuda_args &args, const nh_block &block, const nh_loop_tables &tables) {
    /* of the columns: the first of the query heads that share the key head, or the key head */
    const int head = NH_INVERSE ? block.head * nh_heads_of_row(args) : block.kv_head;
    nh_kv_loop loop = {{{block.halo.begin[0], block.halo.begin[1], block.halo.begin[2]}},
                       nh_loop_tiles(args, block),
                       NH_INVERSE ? head : block.head,
                       {}};
    NH_UNROLL for (int i = 0; i < NH_LOOP_TENSORS; i++)
        loop.at[i] = nh_loop_start(args, block, i, head);
    loop.at[NH_LOOP_FIRST] += nh_share_offset<NH_LOOP_FIRST>(tables);
    loop.at[NH_LOOP_SECOND] += nh_share_offset<NH_LOOP_SECOND>(tables);
    return loop;
}

NH_DEVICE void nh_next(nh_kv_loop &loop, const nh_block &block, const nh_loop_tables &tables) {
    int again = nh_advance(loop.cursor, block.halo);
    loop.left--;
    if (again == 3) loop.head++;
    NH_UNROLL for (int i = 0; i < NH_LOOP_TENSORS; i++)
        loop.at[i] += tables.step[again][i];
}

/* ---- on periodic axes ---- */

/* How many laps a position of the halo is ahead of the lap in which the loop starts; a halo has at most two laps. */
NH_DEVICE int nh_laps_ahead(const auto &block, int axis, int position) {
    const int ahead = position - block.lap[axis], length = block.grid[axis];
    return (ahead >= length) + (ahead >= 2 * length);
}

/* Byte offset from where the loop's steps would lead for a column of the current tile to where the tensor has it, on
 * periodic axes. Sets `there` to false if the tensor does not have it. */
NH_DEVICE long long nh_wrapped(const nh_cuda_args &args, const auto &block, const nh_cursor &tile, int which,
                               unsigned place, bool &there) {
    long long offset = 0;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        if (!nh_wraps(a)) continue;
        const int position = tile.at[a] + (int)(place >> 8 * a & 255);
        const int laps = nh_laps_ahead(block, a, position);
        const int in_lap = position - block.lap[a] - laps * block.grid[a];
        offset -= laps * (args.axis[a].length * args.tensor[nh_loop_slot(which)].axis[a]);
        there = there && in_lap < block.columns[a].end - block.columns[a].begin;
    }
    return offset * nh_loop_bytes(which);
}

/* Whether the part of a tile that is in the halo lies in one lap, and tensors have all of it. */
NH_DEVICE bool nh_in_one_lap(const auto &block, const nh_cursor &tile) {
    bool one = true;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        if (!nh_wraps(a)) continue;
        const int laps = nh_laps_ahead(block, a, tile.at[a]), end = tile.at[a] + nh_tile_k(a);
        const int last = end < block.halo.end[a] ? end : block.halo.end[a];
        const int in_lap = last - block.lap[a] - laps * block.grid[a];
        one = one && in_lap <= block.columns[a].end - block.columns[a].begin;
    }
    return one;
}

} // namespace nh_mma80
