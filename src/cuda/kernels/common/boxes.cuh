/* Work items of the fused kernels: a tile of rows that a block owns, the tiles it walks, and which rows of these each
 * of its own rows sees. Owned rows are queries and walked rows their keys or, with NH_INVERSE, owned rows are keys and
 * walked rows the queries that attend them: the ranges of both are boxes whose ends never decrease from row to row.
 *
 * An owned tile is NH_OWN_X x NH_OWN_Y x NH_OWN_Z positions of one dilation group, a walked tile NH_WALK_X x NH_WALK_Y
 * x NH_WALK_Z; rows of a walked tile are numbered with z fastest. All positions are inside the dilation group.
 *
 * An owned tile is slabs of at most 64 rows, one per warpgroup, stacked along the axis NH_STACK; rows are numbered slab
 * by slab, in these with z fastest. Every slab counts as 64 rows: those that its box lacks are void. They are at the
 * place of its last row, with zeros for elements, and nothing of them is stored.
 *
 * Where several query heads share one key head, NH_OWN_HEADS of them may share an owned tile: they are then the fastest
 * axis of its rows, the tile has so many fewer positions, and its halo is smaller.
 *
 * Of a part of a grid (region.cuh) owned rows are those that tensors have, and what they see is cut to the walked rows
 * that tensors have. On a periodic axis positions are counted on beyond both ends of the group. */
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
#define STACKED(EXTENT) ((EXTENT) > 1 && (EXTENT) % SLABS == 0)
#define NH_STACK (STACKED(NH_OWN_X) ? 0 : STACKED(NH_OWN_Y) ? 1 : 2)
#endif

#define POSITIONS (NH_OWN_X * NH_OWN_Y * NH_OWN_Z)
#define SLABS ((POSITIONS * NH_OWN_HEADS + 63) / 64)
#define SLAB (POSITIONS / SLABS)
#define VOID_ROWS (64 - SLAB * NH_OWN_HEADS)
#define SLAB_X (NH_OWN_X / (NH_STACK == 0 ? SLABS : 1))
#define SLAB_Y (NH_OWN_Y / (NH_STACK == 1 ? SLABS : 1))
#define SLAB_Z (NH_OWN_Z / (NH_STACK == 2 ? SLABS : 1))
#if SLAB_X * SLAB_Y * SLAB_Z * SLABS != POSITIONS
#error "the owned tile is no stack of slabs of at most 64 rows"
#endif

/* Heads in so many equal parts, of which every block keeps to one: their number divides that of the blocks. */
#ifndef NH_HEAD_PARTS
#define NH_HEAD_PARTS 1
#endif

/* Blocks that share an item, each with a part of its walk. */
#ifndef NH_CLUSTER
#define NH_CLUSTER 1
#endif

/* Whether owned rows outside the dilation group see what its last row sees, or nothing. */
#ifndef NH_OUTSIDE_SEES
#define NH_OUTSIDE_SEES 1
#endif

#define NH_OWN_TILE {NH_OWN_X, NH_OWN_Y, NH_OWN_Z}
#define NH_WALK_TILE {NH_WALK_X, NH_WALK_Y, NH_WALK_Z}
/* A walked tile is so many boxes of these extents, of lines that are walked abreast (fused90_kv_loop.cuh). */
#ifndef NH_ABREAST
#define NH_ABREAST 1
#endif
#define NH_BOX_ROWS (NH_WALK_X * NH_WALK_Y * NH_WALK_Z)
#define NH_WALK_ROWS (NH_ABREAST * NH_BOX_ROWS)

/* Axes in front of the problem's first have length 1: the compiler then drops them. */
#define NH_FIRST_AXIS (3 - NH_RANK)

__device__ __forceinline__ int nh_min(int a, int b) {
    return a < b ? a : b;
}

__device__ __forceinline__ int nh_max(int a, int b) {
    return a > b ? a : b;
}

struct nh_item {
    int index;
    int batch;
    int head;    /* of the owned rows: a key head with NH_INVERSE, else the first of NH_OWN_HEADS query heads */
    int kv_head; /* that the owned rows belong to */
    int group[3];  /* of dilation */
    int length[3]; /* of the group; of a part of a grid, where its rows end */
    int own[3];    /* first position of the owned tile */
    int walk[3];   /* first position of the walk */
    int tiles[3];  /* of the walk */
#if NH_REGIONS
    int grid[3];         /* length of the group */
    int rows[3];         /* position of its first row */
    nh_range columns[3]; /* positions of the walked rows that tensors have of it */
#endif
#if NH_PERIODIC
    int lap[3];       /* position of the first walked row of the lap in which the walk begins */
    int lap_tiles[3]; /* tiles of the walk before the next lap */
#endif
};

/* Number of a division by a run-time constant; items fit 32 bits. */
__device__ __forceinline__ int nh_digit(unsigned *index, int base) {
    unsigned quotient = *index / (unsigned)base;
    int digit = (int)(*index - quotient * (unsigned)base);
    *index = quotient;
    return digit;
}

__device__ __forceinline__ nh_range nh_seen_from(const nh_cuda_axis &axis, int length, int position) {
    return nh_seen_range(length, (int)axis.window, (int)axis.stride, axis.causal, false, NH_INVERSE, position);
}

/* The item that this block takes in its n-th round; past the last one it is done. Blocks change places from round to
 * round: were they to keep them, a block would get the border's tiles, or the inner ones, again and again wherever the
 * number of blocks is a multiple of the tiles along an axis. A cluster of blocks has one item and no other. */
__device__ __forceinline__ int nh_item_index(int round) {
    int blocks = (int)gridDim.x;
    if (NH_CLUSTER > 1) return ((int)blockIdx.x + round * blocks) / NH_CLUSTER;
    return round * blocks + ((int)blockIdx.x + round) % blocks;
}

#if NH_REGIONS
/* Moves an item to the rows that tensors have of its dilation group. */
__device__ __forceinline__ void nh_item_place(const nh_cuda_args &args, int a, nh_item &item) {
    const nh_cuda_region &region = args.region[a];
    const int dilation = (int)args.axis[a].dilation;
    const nh_range rows = nh_covered(NH_INVERSE ? region.key : region.query, dilation, item.group[a]);
    item.columns[a] = nh_covered(NH_INVERSE ? region.query : region.key, dilation, item.group[a]);
    item.grid[a] = item.length[a];
    item.rows[a] = rows.begin;
    item.own[a] += rows.begin;
    item.length[a] = rows.end;
}

__device__ __forceinline__ nh_range nh_covered_seen(const nh_cuda_axis &axis, const nh_item &item, int a,
                                                    int position) {
    const nh_range columns = item.columns[a];
    if (item.rows[a] >= item.length[a]) return {columns.begin, columns.begin}; /* the group has no row */
    const nh_range seen = nh_seen_of_grid(axis, nh_wraps(a), NH_INVERSE, item.grid[a], position);
    return nh_covered_part(seen, columns, item.grid[a], nh_wraps(a));
}
#endif

/* What the row at a position sees of an axis, of the walked rows that tensors have. A macro: with a function in its
 * place the compiler orders the instructions of kernels for whole grids in another way, and these have been measured as
 * they are. */
#if NH_REGIONS
#define NH_SEEN_BY(axis, item, a, position) nh_covered_seen(axis, item, a, position)
#else
#define NH_SEEN_BY(axis, item, a, position) nh_seen_from(axis, (item).length[a], position)
#endif

#if NH_PERIODIC
/* The copy engine cannot go around. So a walk up to `end` begins earlier if a lap ends within it: then a tile ends
 * there, too, and the next begins with the first row that tensors have. The host sees to it that one ends with the
 * second lap as well, where a walk meets the ends of two. */
__device__ __forceinline__ void nh_item_align(int a, int end, nh_item &item) {
    const int extent[3] = NH_WALK_TILE;
    const int first = item.columns[a].begin, length = item.grid[a];
    item.lap[a] = first;
    item.lap_tiles[a] = 1 << 30;
    if (!nh_wraps(a)) return;
    item.lap[a] += nh_laps(item.walk[a], first, length) * length;
    const int seam = item.lap[a] + length;
    if (seam >= end) return;
    item.lap_tiles[a] = (seam - item.walk[a] + extent[a] - 1) / extent[a];
    item.walk[a] = seam - item.lap_tiles[a] * extent[a];
}

/* The position, in the lap that tensors have, at which the tile begins that is the n-th of a walk along an axis. */
__device__ __forceinline__ int nh_wrapped(const nh_item &item, int a, int n, int position) {
    if (!nh_wraps(a)) return position;
    position -= item.lap[a];
    if (n >= item.lap_tiles[a]) position -= item.grid[a];
    if (position >= item.grid[a]) position -= item.grid[a];
    return position + item.columns[a].begin;
}
#endif

/* A group may be too short for its last tile: that tile walks what the group's last row sees and stores nothing.
 * (Passing over it would put the products under a condition, see fused90_forward.cu.) Of a part of a grid one that
 * sees nothing walks one tile. */
__device__ __forceinline__ void nh_item_at(const nh_tiled_args &args, int index, nh_item &item) {
    const int q_tile[3] = NH_OWN_TILE, k_tile[3] = NH_WALK_TILE;
    /* Of the items of a round, every NH_HEAD_PARTS-th is one of this block's part. */
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
        item.group[a] = 0;
        item.length[a] = 1;
        item.own[a] = item.walk[a] = 0;
        item.tiles[a] = 1;
        if (a < NH_FIRST_AXIS) continue;
        if (axis.dilation > 1) item.group[a] = nh_digit(&rest, (int)axis.dilation);
        item.length[a] = nh_axis_group_length((int)axis.length, (int)axis.dilation, item.group[a]);
        item.own[a] = tile[a] * q_tile[a];
#if NH_REGIONS
        nh_item_place(args, a, item);
#endif
        int last = nh_min(item.own[a] + q_tile[a], item.length[a]) - 1;
        item.walk[a] = NH_SEEN_BY(axis, item, a, nh_min(item.own[a], last)).begin;
        int end = NH_SEEN_BY(axis, item, a, last).end;
#if NH_PERIODIC
        nh_item_align(a, end, item);
#endif
        item.tiles[a] = (end - item.walk[a] + k_tile[a] - 1) / k_tile[a];
#if NH_REGIONS
        item.tiles[a] = nh_max(item.tiles[a], 1);
#endif
    }
    item.index = index;
    int heads = (int)(NH_INVERSE ? args.kv_heads : args.heads) / NH_OWN_HEADS / NH_HEAD_PARTS;
    item.head = (nh_digit(&rest, heads) + (int)blockIdx.x % NH_HEAD_PARTS * heads) * NH_OWN_HEADS;
    item.batch = (int)rest;
    bool shared = !NH_INVERSE && args.heads != args.kv_heads;
    item.kv_head = shared ? item.head / (int)(args.heads / args.kv_heads) : item.head;
}

/* The walked tiles of an axis that every row of a box sees as a whole: [begin, end). */
struct nh_full {
    int begin[3], end[3];
};

/* For the box of owned rows that starts at `first` (position inside the item's tile) with this extent. */
__device__ __forceinline__ nh_full nh_full_tiles(const nh_cuda_args &args, const nh_item &item,
                                                 const int first[3], const int extent[3]) {
    const int k_tile[3] = NH_WALK_TILE;
    nh_full full;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        full.begin[a] = 0;
        full.end[a] = 1;
        if (a < NH_FIRST_AXIS) continue;
        int low = nh_min(item.own[a] + first[a], item.length[a] - 1);
        int high = nh_min(item.own[a] + first[a] + extent[a], item.length[a]) - 1;
        high = nh_max(high, low);
        int begin = NH_SEEN_BY(args.axis[a], item, a, high).begin - item.walk[a];
        int end = NH_SEEN_BY(args.axis[a], item, a, low).end - item.walk[a];
        full.begin[a] = (begin + k_tile[a] - 1) / k_tile[a];
        full.end[a] = end / k_tile[a];
        if (!NH_OUTSIDE_SEES && item.own[a] + first[a] + extent[a] > item.length[a]) full.end[a] = 0;
    }
    return full;
}

/* Where in an item's tile a row is. */
__device__ __forceinline__ void nh_row_position(int row, int at[3]) {
    const int slab[3] = {SLAB_X, SLAB_Y, SLAB_Z};
    int position = row % 64 / NH_OWN_HEADS;
    if (VOID_ROWS) position = nh_min(position, SLAB - 1);
    at[0] = position / (SLAB_Z * SLAB_Y);
    at[1] = position / SLAB_Z % SLAB_Y;
    at[2] = position % SLAB_Z;
    at[NH_STACK] += row / 64 * slab[NH_STACK];
}

__device__ __forceinline__ bool nh_row_void(int row) {
    return VOID_ROWS && row % 64 >= 64 - VOID_ROWS;
}

/* What one row sees, relative to the start of the item's walk. */
struct nh_sight {
    int begin[3], end[3];
};

__device__ __forceinline__ nh_sight nh_sight_of(const nh_cuda_args &args, const nh_item &item, int row) {
    nh_sight sight;
    int at[3];
    nh_row_position(row, at);
#pragma unroll
    for (int a = 0; a < 3; a++) {
        sight.begin[a] = 0;
        sight.end[a] = 1;
        if (a < NH_FIRST_AXIS) continue;
        nh_range keys = NH_SEEN_BY(args.axis[a], item, a, nh_min(item.own[a] + at[a], item.length[a] - 1));
        sight.begin[a] = keys.begin - item.walk[a];
        sight.end[a] = keys.end - item.walk[a];
        if (!NH_OUTSIDE_SEES && item.own[a] + at[a] >= item.length[a]) sight.end[a] = sight.begin[a];
    }
    return sight;
}

/* The low n bits, 0 <= n <= 31. */
__device__ __forceinline__ unsigned nh_ones(int n) {
    return (1u << n) - 1u;
}

/* Eight columns of a walked box that follow each other are a run: a part of a line along z or, where lines are 4 long,
 * two of them. Runs repeat from line to line or, with NH_RUN_AXIS 1, from plane to plane: what is said of lines
 * holds of planes then. */
#ifndef NH_RUN_AXIS
#define NH_RUN_AXIS (NH_WALK_Z == 4 ? 1 : 2)
#endif
#define NH_LINE_RUNS (NH_WALK_Z == 4 ? 1 : NH_WALK_Z / 8)
#define NH_RUNS (NH_RUN_AXIS == 1 ? NH_WALK_Y * NH_WALK_Z / 8 : NH_LINE_RUNS)

/* What the row sees of a box that starts at `start`, on one axis and relative to it. */
__device__ __forceinline__ nh_range nh_seen_of_tile(const nh_sight &sight, int axis, int start) {
    const int extent[3] = NH_WALK_TILE;
    nh_range seen = {0, extent[axis]};
    if (axis < NH_FIRST_AXIS) return seen;
    seen.begin = nh_min(nh_max(sight.begin[axis] - start, 0), extent[axis]);
    seen.end = nh_min(nh_max(sight.end[axis] - start, 0), extent[axis]);
    return seen;
}

/* Bit i: column 8 i + c of a line is seen by the row. */
__device__ __forceinline__ unsigned nh_run_bits(const nh_sight &sight, const int start[3], int c) {
#if NH_RUN_AXIS == 1
    const bool pairs = NH_WALK_Z == 4;
    /* The line of a pair is that of the even column, too: said, so that the compiler compares once for both. */
    int y = start[1] + (pairs ? (int)threadIdx.x >> 1 & 1 : 0), z = start[2] + (pairs ? c & 3 : c);
    unsigned line = 0, runs = 0;
#pragma unroll
    for (int i = 0; i < NH_LINE_RUNS; i++)
        line |= (unsigned)(z + 8 * i >= sight.begin[2] && z + 8 * i < sight.end[2]) << i;
#pragma unroll
    for (int i = 0; i < NH_RUNS; i += NH_LINE_RUNS, y += pairs ? 2 : 1)
        runs |= (y >= sight.begin[1] && y < sight.end[1] ? line : 0) << i;
    return runs;
#else
    nh_range z = nh_seen_of_tile(sight, 2, start[2]);
    return nh_ones((z.end - c + 7) >> 3) & ~nh_ones((z.begin - c + 7) >> 3);
#endif
}

/* Bit j: group j of 8 columns stands in a line that the row sees something of; `run`: of the groups of each line only
 * these. Separable: lines are cut to a range in every plane, then the planes. */
__device__ __forceinline__ unsigned nh_line_bits(const nh_sight &sight, const int start[3], unsigned run) {
    const int plane = NH_RUN_AXIS == 1 ? NH_RUNS : NH_WALK_Y * NH_RUNS, all = NH_BOX_ROWS / 8;
    const unsigned every_run = nh_ones(plane) / nh_ones(NH_RUNS), every_plane = nh_ones(all) / nh_ones(plane);
    nh_range x = nh_seen_of_tile(sight, 0, start[0]), y = nh_seen_of_tile(sight, 1, start[1]);
    unsigned lines = NH_RUN_AXIS == 1 ? 1u : nh_ones(NH_RUNS * y.end) & ~nh_ones(NH_RUNS * y.begin) & every_run;
    return lines * run * every_plane & nh_ones(plane * x.end) & ~nh_ones(plane * x.begin);
}

/* Bit j: column 8 j + c of the box is seen by the row. */
__device__ __forceinline__ unsigned nh_sight_bits(const nh_sight &sight, const int start[3], int c) {
    return nh_line_bits(sight, start, nh_run_bits(sight, start, c));
}

/* Bit j: column 8 j + c is below `count`. */
__device__ __forceinline__ unsigned nh_count_bits(int count, int c) {
    return nh_ones((nh_min(nh_max(count, 0), NH_WALK_ROWS) - c + 7) >> 3);
}
