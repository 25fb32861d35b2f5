/* Work tiles of the fused kernels: a tile of rows that a block owns, the tiles of its loop over their halo, and which
 * rows of these each of its own rows sees. Owned rows are queries and the loop's rows their keys or, with NH_INVERSE,
 * owned rows are keys and the loop's rows the queries that attend them: in either case a row sees a box, whose ends
 * never decrease from row to row.
 *
 * An owned tile is NH_OWN_X x NH_OWN_Y x NH_OWN_Z positions of one dilation group, a loop tile NH_LOOP_X x NH_LOOP_Y x
 * NH_LOOP_Z; rows of a loop tile are numbered with z fastest. All positions are inside the dilation group.
 *
 * An owned tile consists of warpgroup tiles of at most 64 rows, which follow each other along the axis NH_STACK; rows
 * are numbered one warpgroup tile after the other, in each with z fastest. Every warpgroup tile counts as 64 rows:
 * those that its box lacks are padding. They have the position of its last row, with zeros for elements, and are not
 * stored.
 *
 * If several query heads share one key head, NH_OWN_HEADS of them may share an owned tile: they are then the fastest
 * axis of its rows, the tile has that many times fewer positions, and its halo is smaller.
 *
 * For a part of a grid (region.cuh) owned rows are those that tensors have, and what they see is cut to the rows of the
 * loop that tensors have. On a periodic axis positions go on beyond both ends of the group. */
#pragma once
#include "prelude.cuh"
#include "region.cuh"
#include "tile_note.cuh"

#ifndef NH_OWN_HEADS
#define NH_OWN_HEADS 1
#endif
#ifndef NH_INVERSE
#define NH_INVERSE 0
#endif
#ifndef NH_STACK
#define STACKED(EXTENT) ((EXTENT) > 1 && (EXTENT) % WARPGROUP_TILES == 0)
#define NH_STACK (STACKED(NH_OWN_X) ? 0 : STACKED(NH_OWN_Y) ? 1 : 2)
#endif

#define POSITIONS (NH_OWN_X * NH_OWN_Y * NH_OWN_Z)
#define WARPGROUP_TILES ((POSITIONS * NH_OWN_HEADS + 63) / 64)
#define WARPGROUP_POSITIONS (POSITIONS / WARPGROUP_TILES)
#define PADDING_ROWS (64 - WARPGROUP_POSITIONS * NH_OWN_HEADS)
#define WARPGROUP_X (NH_OWN_X / (NH_STACK == 0 ? WARPGROUP_TILES : 1))
#define WARPGROUP_Y (NH_OWN_Y / (NH_STACK == 1 ? WARPGROUP_TILES : 1))
#define WARPGROUP_Z (NH_OWN_Z / (NH_STACK == 2 ? WARPGROUP_TILES : 1))
#if WARPGROUP_X * WARPGROUP_Y * WARPGROUP_Z * WARPGROUP_TILES != POSITIONS
#error "the owned tile cannot be cut into warpgroup tiles of at most 64 rows"
#endif

/* Heads are divided into this many equal parts, and every block keeps to one of them; the number divides that of the
 * blocks. */
#ifndef NH_HEAD_PARTS
#define NH_HEAD_PARTS 1
#endif

/* Blocks that share a work tile, each with a part of its loop. */
#ifndef NH_CLUSTER
#define NH_CLUSTER 1
#endif

/* Whether owned rows outside the dilation group see what its last row sees, or nothing. */
#ifndef NH_OUTSIDE_SEES
#define NH_OUTSIDE_SEES 1
#endif

#define NH_OWN_TILE {NH_OWN_X, NH_OWN_Y, NH_OWN_Z}
#define NH_LOOP_TILE {NH_LOOP_X, NH_LOOP_Y, NH_LOOP_Z}
/* The number of boxes of these extents, of neighboring lines, that a loop tile consists of (fused90_kv_loop.cuh). */
#ifndef NH_TILE_BOXES
#define NH_TILE_BOXES 1
#endif
#define NH_BOX_ROWS (NH_LOOP_X * NH_LOOP_Y * NH_LOOP_Z)
#define NH_LOOP_ROWS (NH_TILE_BOXES * NH_BOX_ROWS)

/* The problem's first axis. Axes before it have length 1, which lets the compiler drop them. */
#define NH_FIRST_AXIS (3 - NH_RANK)

__device__ __forceinline__ int nh_min(int a, int b) {
    return a < b ? a : b;
}

__device__ __forceinline__ int nh_max(int a, int b) {
    return a > b ? a : b;
}

struct nh_work_tile {
    int index;
    int batch;
    int head;    /* of the owned rows: a key head with NH_INVERSE, else the first of NH_OWN_HEADS query heads */
    int kv_head; /* the key head that the owned rows belong to */
    int group[3];  /* dilation group */
    int length[3]; /* length of the group; for a part of a grid, where its rows end */
    int own[3];    /* first position of the owned tile */
    int halo[3];   /* first position of the halo */
    int tiles[3];  /* number of tiles of the loop over the halo */
#if NH_REGIONS
    int grid[3];         /* length of the group in the grid */
    int rows[3];         /* position of its first row */
    nh_range columns[3]; /* positions that tensors have of the loop's rows */
#endif
#if NH_PERIODIC
    int lap[3];       /* start of the lap of columns in which the loop begins */
    int lap_tiles[3]; /* tiles of the loop before the next lap */
#endif
};

/* Splits off the lowest digit of *index. Work tiles are numbered with 32 bits. */
__device__ __forceinline__ int nh_digit(unsigned *index, int base) {
    unsigned quotient = *index / (unsigned)base;
    int digit = (int)(*index - quotient * (unsigned)base);
    *index = quotient;
    return digit;
}

__device__ __forceinline__ nh_range nh_seen_from(const nh_cuda_axis &axis, int length, int position) {
    return nh_seen_range(length, (int)axis.window, (int)NH_STRIDE(axis), NH_IS_CAUSAL(axis), false, NH_INVERSE,
                         position);
}

/* The work tile that this block takes in its n-th round; past the last one it is done. Blocks change places from round
 * to round: otherwise, if the number of blocks is a multiple of the tiles along an axis, a block would get tiles at the
 * border, or inner ones, again and again. A cluster of blocks has only one work tile. */
__device__ __forceinline__ int nh_work_tile_index(int round) {
    int blocks = (int)gridDim.x;
    if (NH_CLUSTER > 1) return ((int)blockIdx.x + round * blocks) / NH_CLUSTER;
    return round * blocks + ((int)blockIdx.x + round) % blocks;
}

#if NH_REGIONS
/* Moves a work tile to the rows that tensors have of its dilation group. */
__device__ __forceinline__ void nh_work_tile_place(const nh_cuda_args &args, int a, nh_work_tile &work_tile) {
    const nh_cuda_region &region = args.region[a];
    const int dilation = (int)NH_DILATION(args.axis[a]);
    if (!nh_is_cut(a)) {
        work_tile.columns[a] = {0, work_tile.length[a]};
        work_tile.grid[a] = work_tile.length[a];
        work_tile.rows[a] = 0;
        return;
    }
    const nh_range rows = nh_covered(NH_INVERSE ? region.key : region.query, dilation, work_tile.group[a]);
    work_tile.columns[a] = nh_covered(NH_INVERSE ? region.query : region.key, dilation, work_tile.group[a]);
    work_tile.grid[a] = work_tile.length[a];
    work_tile.rows[a] = rows.begin;
    work_tile.own[a] += rows.begin;
    work_tile.length[a] = rows.end;
}

__device__ __forceinline__ nh_range nh_covered_seen(const nh_cuda_axis &axis, const nh_work_tile &work_tile, int a,
                                                    int position) {
    const nh_range columns = work_tile.columns[a];
    if (!nh_is_cut(a)) return nh_seen_from(axis, work_tile.length[a], position);
    if (work_tile.rows[a] >= work_tile.length[a]) return {columns.begin, columns.begin}; /* the group has no row */
    const nh_range seen = nh_seen_of_grid(axis, nh_wraps(a), NH_INVERSE, work_tile.grid[a], position);
    return nh_covered_part(seen, columns, work_tile.grid[a], nh_wraps(a));
}
#endif

/* What the row at a position sees along an axis, of the loop's rows that tensors have. It is a macro because with a
 * function the compiler orders the instructions of kernels for whole grids differently from those that were
 * measured. */
#if NH_REGIONS
#define NH_SEEN_BY(axis, work_tile, a, position) nh_covered_seen(axis, work_tile, a, position)
#else
#define NH_SEEN_BY(axis, work_tile, a, position) nh_seen_from(axis, (work_tile).length[a], position)
#endif

#if NH_PERIODIC
/* Aligns the loop to the seam. The copy engine's boxes cannot go around a periodic axis. So if a lap ends within a loop
 * up to `end`, the loop begins earlier, such that a tile ends there, and the next one begins with the first column that
 * tensors have. If a loop meets a second seam, the host makes sure that a tile ends there, too. */
__device__ __forceinline__ void nh_work_tile_align(int a, int end, nh_work_tile &work_tile) {
    const int extent[3] = NH_LOOP_TILE;
    const int first = work_tile.columns[a].begin, length = work_tile.grid[a];
    work_tile.lap[a] = first;
    work_tile.lap_tiles[a] = 1 << 30;
    if (!nh_wraps(a)) return;
    work_tile.lap[a] += nh_laps(work_tile.halo[a], first, length) * length;
    const int seam = work_tile.lap[a] + length;
    if (seam >= end) return;
    work_tile.lap_tiles[a] = (seam - work_tile.halo[a] + extent[a] - 1) / extent[a];
    work_tile.halo[a] = seam - work_tile.lap_tiles[a] * extent[a];
}

/* The position, in the lap that tensors have, at which the n-th tile of the loop along an axis begins. */
__device__ __forceinline__ int nh_wrapped(const nh_work_tile &work_tile, int a, int n, int position) {
    if (!nh_wraps(a)) return position;
    position -= work_tile.lap[a];
    if (n >= work_tile.lap_tiles[a]) position -= work_tile.grid[a];
    if (position >= work_tile.grid[a]) position -= work_tile.grid[a];
    return position + work_tile.columns[a].begin;
}
#endif

/* Locates a work tile. A group may be too short for its last tile: that tile loops over what the group's last row sees,
 * and stores nothing. (Skipping it would put the products under a condition, see fused90_forward.cu.) A tile of a part
 * of a grid that sees nothing loops over one tile. */
__device__ __forceinline__ void nh_work_tile_at(const nh_tiled_args &args, int index, nh_work_tile &work_tile) {
    const int q_tile[3] = NH_OWN_TILE, k_tile[3] = NH_LOOP_TILE;
    /* Every NH_HEAD_PARTS-th work tile of a round belongs to this block's part of the heads. */
    unsigned rest = (unsigned)index / NH_HEAD_PARTS;
    int tile[3] = {0, 0, 0};
#pragma unroll
    for (int i = 0; i < NH_RANK; i++) {
        int axis = args.tiling.order[i], digit = nh_digit(&rest, args.tiling.tiles[axis]);
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++)
            if (a == axis) tile[a] = digit;
    }
#pragma unroll
    for (int a = 0; a < 3; a++) {
        const nh_cuda_axis &axis = args.axis[a];
        work_tile.group[a] = 0;
        work_tile.length[a] = 1;
        work_tile.own[a] = work_tile.halo[a] = 0;
        work_tile.tiles[a] = 1;
        if (a < NH_FIRST_AXIS) continue;
        if (NH_DILATION(axis) > 1) work_tile.group[a] = nh_digit(&rest, (int)NH_DILATION(axis));
        work_tile.length[a] = nh_axis_group_length((int)axis.length, (int)NH_DILATION(axis), work_tile.group[a]);
        work_tile.own[a] = tile[a] * q_tile[a];
#if NH_REGIONS
        nh_work_tile_place(args, a, work_tile);
#endif
        int last = nh_min(work_tile.own[a] + q_tile[a], work_tile.length[a]) - 1;
        work_tile.halo[a] = NH_SEEN_BY(axis, work_tile, a, nh_min(work_tile.own[a], last)).begin;
        int end = NH_SEEN_BY(axis, work_tile, a, last).end;
#if NH_PERIODIC
        nh_work_tile_align(a, end, work_tile);
#endif
        work_tile.tiles[a] = (end - work_tile.halo[a] + k_tile[a] - 1) / k_tile[a];
#if NH_REGIONS
        if (nh_is_cut(a)) work_tile.tiles[a] = nh_max(work_tile.tiles[a], 1);
#endif
    }
    work_tile.index = index;
    int heads = (int)(NH_INVERSE ? args.kv_heads : args.heads) / NH_OWN_HEADS / NH_HEAD_PARTS;
    work_tile.head = (nh_digit(&rest, heads) + (int)blockIdx.x % NH_HEAD_PARTS * heads) * NH_OWN_HEADS;
    work_tile.batch = (int)rest;
    bool shared = !NH_INVERSE && args.heads != args.kv_heads;
    work_tile.kv_head = shared ? work_tile.head / (int)(args.heads / args.kv_heads) : work_tile.head;
}

/* The loop tiles along each axis that every row of a box sees entirely: [begin, end). */
struct nh_full {
    int begin[3], end[3];
};

/* The same for the box of owned rows that starts at `first` (relative to the work tile) with this extent. */
__device__ __forceinline__ nh_full nh_full_tiles(const nh_cuda_args &args, const nh_work_tile &work_tile,
                                                 const int first[3], const int extent[3]) {
    const int k_tile[3] = NH_LOOP_TILE;
    nh_full full;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        full.begin[a] = 0;
        full.end[a] = 1;
        if (a < NH_FIRST_AXIS) continue;
        int low = nh_min(work_tile.own[a] + first[a], work_tile.length[a] - 1);
        int high = nh_min(work_tile.own[a] + first[a] + extent[a], work_tile.length[a]) - 1;
        high = nh_max(high, low);
        int begin = NH_SEEN_BY(args.axis[a], work_tile, a, high).begin - work_tile.halo[a];
        int end = NH_SEEN_BY(args.axis[a], work_tile, a, low).end - work_tile.halo[a];
        full.begin[a] = (begin + k_tile[a] - 1) / k_tile[a];
        full.end[a] = end / k_tile[a];
        if (!NH_OUTSIDE_SEES && work_tile.own[a] + first[a] + extent[a] > work_tile.length[a]) full.end[a] = 0;
    }
    return full;
}

/* Sets the position of a row relative to its work tile. */
__device__ __forceinline__ void nh_row_position(int row, int at[3]) {
    const int warpgroup_tile[3] = {WARPGROUP_X, WARPGROUP_Y, WARPGROUP_Z};
    int position = row % 64 / NH_OWN_HEADS;
    if (PADDING_ROWS) position = nh_min(position, WARPGROUP_POSITIONS - 1);
    at[0] = position / (WARPGROUP_Z * WARPGROUP_Y);
    at[1] = position / WARPGROUP_Z % WARPGROUP_Y;
    at[2] = position % WARPGROUP_Z;
    at[NH_STACK] += row / 64 * warpgroup_tile[NH_STACK];
}

__device__ __forceinline__ bool nh_row_is_padding(int row) {
    return PADDING_ROWS && row % 64 >= 64 - PADDING_ROWS;
}

/* The box that one row sees, relative to the start of the work tile's halo. */
struct nh_visible_box {
    int begin[3], end[3];
};

__device__ __forceinline__ nh_visible_box nh_visible_box_of(const nh_cuda_args &args, const nh_work_tile &work_tile,
                                                            int row) {
    nh_visible_box visible;
    int at[3];
    nh_row_position(row, at);
#pragma unroll
    for (int a = 0; a < 3; a++) {
        visible.begin[a] = 0;
        visible.end[a] = 1;
        if (a < NH_FIRST_AXIS) continue;
        nh_range keys =
            NH_SEEN_BY(args.axis[a], work_tile, a, nh_min(work_tile.own[a] + at[a], work_tile.length[a] - 1));
        visible.begin[a] = keys.begin - work_tile.halo[a];
        visible.end[a] = keys.end - work_tile.halo[a];
        if (!NH_OUTSIDE_SEES && work_tile.own[a] + at[a] >= work_tile.length[a]) visible.end[a] = visible.begin[a];
    }
    return visible;
}

/* The low n bits, 0 <= n <= 31. */
__device__ __forceinline__ unsigned nh_ones(int n) {
    return (1u << n) - 1u;
}

/* Eight consecutive columns of a box of the loop are a run: a part of a line along z or, if lines have 4 columns, two
 * lines. Runs repeat from line to line or, with NH_RUN_AXIS 1, from plane to plane; "line" below then means a plane. */
#ifndef NH_RUN_AXIS
#define NH_RUN_AXIS (NH_LOOP_Z == 4 ? 1 : 2)
#endif
#define NH_LINE_RUNS (NH_LOOP_Z == 4 ? 1 : NH_LOOP_Z / 8)
#define NH_RUNS (NH_RUN_AXIS == 1 ? NH_LOOP_Y * NH_LOOP_Z / 8 : NH_LINE_RUNS)

/* What the row sees of a box that starts at `start`, along one axis and relative to the box. */
__device__ __forceinline__ nh_range nh_seen_of_tile(const nh_visible_box &visible, int axis, int start) {
    const int extent[3] = NH_LOOP_TILE;
    nh_range seen = {0, extent[axis]};
    if (axis < NH_FIRST_AXIS) return seen;
    seen.begin = nh_min(nh_max(visible.begin[axis] - start, 0), extent[axis]);
    seen.end = nh_min(nh_max(visible.end[axis] - start, 0), extent[axis]);
    return seen;
}

/* The runs of a line that the row sees: bit i is that of column 8 i + c. */
__device__ __forceinline__ unsigned nh_run_bits(const nh_visible_box &visible, const int start[3], int c) {
#if NH_RUN_AXIS == 1
    const bool pairs = NH_LOOP_Z == 4;
    /* Even and odd column of a pair are in the same line: written so that the compiler compares once for both. */
    int y = start[1] + (pairs ? (int)threadIdx.x >> 1 & 1 : 0), z = start[2] + (pairs ? c & 3 : c);
    unsigned line = 0, runs = 0;
#pragma unroll
    for (int i = 0; i < NH_LINE_RUNS; i++)
        line |= (unsigned)(z + 8 * i >= visible.begin[2] && z + 8 * i < visible.end[2]) << i;
#pragma unroll
    for (int i = 0; i < NH_RUNS; i += NH_LINE_RUNS, y += pairs ? 2 : 1)
        runs |= (y >= visible.begin[1] && y < visible.end[1] ? line : 0) << i;
    return runs;
#else
    nh_range z = nh_seen_of_tile(visible, 2, start[2]);
    return nh_ones((z.end - c + 7) >> 3) & ~nh_ones((z.begin - c + 7) >> 3);
#endif
}

/* The runs in lines of which the row sees something: bit j is that of the j-th group of 8 columns. run: which runs of
 * each line count. This is separable: lines are cut to a range in every plane, then planes. */
__device__ __forceinline__ unsigned nh_line_bits(const nh_visible_box &visible, const int start[3], unsigned run) {
    const int plane = NH_RUN_AXIS == 1 ? NH_RUNS : NH_LOOP_Y * NH_RUNS, all = NH_BOX_ROWS / 8;
    const unsigned every_run = nh_ones(plane) / nh_ones(NH_RUNS), every_plane = nh_ones(all) / nh_ones(plane);
    nh_range x = nh_seen_of_tile(visible, 0, start[0]), y = nh_seen_of_tile(visible, 1, start[1]);
    unsigned lines = NH_RUN_AXIS == 1 ? 1u : nh_ones(NH_RUNS * y.end) & ~nh_ones(NH_RUNS * y.begin) & every_run;
    return lines * run * every_plane & nh_ones(plane * x.end) & ~nh_ones(plane * x.begin);
}

/* The columns of the box that the row sees: bit j is that of column 8 j + c. */
__device__ __forceinline__ unsigned nh_visible_bits(const nh_visible_box &visible, const int start[3], int c) {
    return nh_line_bits(visible, start, nh_run_bits(visible, start, c));
}

/* The columns below `count`: bit j is that of column 8 j + c. */
__device__ __forceinline__ unsigned nh_count_bits(int count, int c) {
    return nh_ones((nh_min(nh_max(count, 0), NH_LOOP_ROWS) - c + 7) >> 3);
}
