/* Work tiles of the fused kernels: a tile of rows that a block owns, the tiles of its loop over their halo, and which
 * rows of these each of its own rows sees. Owned rows are queries and the loop's rows their keys or, where tiles are
 * `inverse`, owned rows are keys and the loop's rows the queries that attend them: in either case a row sees a box,
 * whose ends never decrease from row to row.
 *
 * A kernel says once how it cuts the problem, by a constant struct nh_tiles, and hands it to these functions as their
 * template argument T. An owned tile has the extents `own`, in positions of one dilation group, a box of the loop the
 * extents `loop`; rows of a box are numbered with z fastest. All positions are inside the dilation group.
 *
 * An owned tile consists of warpgroup tiles of at most 64 rows, which follow each other along the axis `stack`; rows
 * are numbered one warpgroup tile after the other, in each with z fastest. Every warpgroup tile counts as 64 rows:
 * those that its box lacks are padding. They have the position of its last row, with zeros for elements, and are not
 * stored.
 *
 * If several query heads share one key head, `own_heads` of them may share an owned tile: they are then the fastest
 * axis of its rows, the tile has that many times fewer positions, and its halo is smaller.
 *
 * For a part of a grid (region.cuh) owned rows are those that tensors have, and what they see is cut to the rows of the
 * loop that tensors have. On a periodic axis positions go on beyond both ends of the group. */
#pragma once
#include "prelude.cuh"
#include "region.cuh"

struct nh_tiles {
    int rank;
    int inverse; /* 1: owned rows are keys */
    int own[3], own_heads;
    int loop[3];
    int loop_boxes;   /* boxes, of neighboring lines, that a loop tile consists of */
    int stack;        /* axis along which warpgroup tiles follow each other */
    int run_axis;     /* see nh_runs */
    int outside_sees; /* 1: owned rows outside the dilation group see what its last row sees; 0: nothing */
    int cluster;      /* blocks that share a work tile, each with a part of its loop */
    int head_parts;   /* heads are divided into so many equal parts, which divide the number of blocks, and every block
                         keeps to one of them */
};

/* The problem's first axis. Axes before it have length 1, which lets the compiler drop them. */
template <nh_tiles T> constexpr int nh_first_axis = 3 - T.rank;

template <nh_tiles T> constexpr int nh_positions = T.own[0] * T.own[1] * T.own[2];

template <nh_tiles T> constexpr int nh_warpgroup_tiles = (nh_positions<T> * T.own_heads + 63) / 64;

/* The positions of a warpgroup tile, its padding rows, and its extent along an axis. */
template <nh_tiles T> constexpr int nh_warpgroup_positions = nh_positions<T> / nh_warpgroup_tiles<T>;

template <nh_tiles T> constexpr int nh_padding_rows = 64 - nh_warpgroup_positions<T> *T.own_heads;

template <nh_tiles T, int AXIS>
constexpr int nh_warpgroup_extent = T.own[AXIS] / (T.stack == AXIS ? nh_warpgroup_tiles<T> : 1);

/* Whether owned tiles can be cut into warpgroup tiles of at most 64 rows. */
template <nh_tiles T>
constexpr bool nh_tiles_are_cut = nh_positions<T> == nh_warpgroup_tiles<T> * nh_warpgroup_extent<T, 0> *
                                                         nh_warpgroup_extent<T, 1> * nh_warpgroup_extent<T, 2>;

/* Rows of a box, and of a tile, of the loop. */
template <nh_tiles T> constexpr int nh_rows_of_box = T.loop[0] * T.loop[1] * T.loop[2];

template <nh_tiles T> constexpr int nh_rows_of_loop = T.loop_boxes *nh_rows_of_box<T>;

NH_DEVICE int nh_min(int a, int b) {
    return a < b ? a : b;
}

NH_DEVICE int nh_max(int a, int b) {
    return a > b ? a : b;
}

/* What a work tile has besides where kernels are told the region, and where some axis is periodic. */
struct nh_region_tile {
    int grid[3];         /* length of the group in the grid */
    int rows[3];         /* position of its first row */
    nh_range columns[3]; /* positions that tensors have of the loop's rows */
};

struct nh_lap_tile : nh_region_tile {
    int lap[3];       /* start of the lap of columns in which the loop begins */
    int lap_tiles[3]; /* tiles of the loop before the next lap */
};

template <bool REGIONS, bool PERIODIC> struct nh_more_of_tile {};
template <> struct nh_more_of_tile<true, false> : nh_region_tile {};
template <> struct nh_more_of_tile<true, true> : nh_lap_tile {};

struct nh_work_tile : nh_more_of_tile<NH_REGIONS, NH_PERIODIC != 0> {
    int index;
    int batch;
    int head;    /* of the owned rows: a key head if these are keys, else the first of the query heads of the tile */
    int kv_head; /* the key head that the owned rows belong to */
    int group[3];  /* dilation group */
    int length[3]; /* length of the group; for a part of a grid, where its rows end */
    int own[3];    /* first position of the owned tile */
    int halo[3];   /* first position of the halo */
    int tiles[3];  /* number of tiles of the loop over the halo */
};

/* Splits off the lowest digit of *index. Work tiles are numbered with 32 bits. */
NH_DEVICE int nh_digit(unsigned *index, int base) {
    unsigned quotient = *index / (unsigned)base;
    int digit = (int)(*index - quotient * (unsigned)base);
    *index = quotient;
    return digit;
}

template <nh_tiles T> NH_DEVICE nh_range nh_seen_from(const nh_cuda_axis &axis, int length, int position) {
    return nh_seen_range(length, (int)axis.window, (int)NH_STRIDE(axis), NH_IS_CAUSAL(axis), false, T.inverse,
                         position);
}

/* The work tile that this block takes in its n-th round; past the last one it is done. Blocks change places from round
 * to round: otherwise, if the number of blocks is a multiple of the tiles along an axis, a block would get tiles at the
 * border, or inner ones, again and again. A cluster of blocks has only one work tile. */
template <nh_tiles T> NH_DEVICE int nh_work_tile_index(int round) {
    int blocks = (int)NH_OWN_BLOCKS;
    if (T.cluster > 1) return ((int)NH_OWN_BLOCK + round * blocks) / T.cluster;
    return round * blocks + ((int)NH_OWN_BLOCK + round) % blocks;
}

/* Moves a work tile to the rows that tensors have of its dilation group. */
template <nh_tiles T, class Args, class WorkTile>
NH_DEVICE void nh_work_tile_place(const Args &args, int a, WorkTile &work_tile) {
    const nh_cuda_region &region = args.region[a];
    const int dilation = (int)NH_DILATION(args.axis[a]);
    if (!nh_is_cut(a)) {
        work_tile.columns[a] = {0, work_tile.length[a]};
        work_tile.grid[a] = work_tile.length[a];
        work_tile.rows[a] = 0;
        return;
    }
    const nh_range rows = nh_covered(T.inverse ? region.key : region.query, dilation, work_tile.group[a]);
    work_tile.columns[a] = nh_covered(T.inverse ? region.query : region.key, dilation, work_tile.group[a]);
    work_tile.grid[a] = work_tile.length[a];
    work_tile.rows[a] = rows.begin;
    work_tile.own[a] += rows.begin;
    work_tile.length[a] = rows.end;
}

/* What the row at a position sees along an axis, of the loop's rows that tensors have. */
template <nh_tiles T, class WorkTile>
NH_DEVICE nh_range nh_seen_by(const nh_cuda_axis &axis, const WorkTile &work_tile, int a, int position) {
    if constexpr (NH_REGIONS) {
        const nh_range columns = work_tile.columns[a];
        if (!nh_is_cut(a)) return nh_seen_from<T>(axis, work_tile.length[a], position);
        if (work_tile.rows[a] >= work_tile.length[a]) return {columns.begin, columns.begin}; /* the group has no row */
        const nh_range seen = nh_seen_of_grid(axis, nh_wraps(a), T.inverse, work_tile.grid[a], position);
        return nh_covered_part(seen, columns, work_tile.grid[a], nh_wraps(a));
    } else {
        return nh_seen_from<T>(axis, work_tile.length[a], position);
    }
}

/* Aligns the loop to the seam. The copy engine's boxes cannot go around a periodic axis. So if a lap ends within a loop
 * up to `end`, the loop begins earlier, such that a tile ends there, and the next one begins with the first column that
 * tensors have. If a loop meets a second seam, the host makes sure that a tile ends there, too. */
template <nh_tiles T, class WorkTile> NH_DEVICE void nh_work_tile_align(int a, int end, WorkTile &work_tile) {
    const int extent[3] = {T.loop[0], T.loop[1], T.loop[2]};
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
template <class WorkTile> NH_DEVICE int nh_wrapped(const WorkTile &work_tile, int a, int n, int position) {
    if constexpr (NH_PERIODIC) {
        if (!nh_wraps(a)) return position;
        position -= work_tile.lap[a];
        if (n >= work_tile.lap_tiles[a]) position -= work_tile.grid[a];
        if (position >= work_tile.grid[a]) position -= work_tile.grid[a];
        position += work_tile.columns[a].begin;
    }
    return position;
}

/* Locates a work tile. A group may be too short for its last tile: that tile loops over what the group's last row sees,
 * and stores nothing. (Skipping it would put the products under a condition, see fused90_forward.cu.) A tile of a part
 * of a grid that sees nothing loops over one tile. */
template <nh_tiles T, class WorkTile>
NH_DEVICE void nh_work_tile_at(const nh_tiled_args &args, int index, WorkTile &work_tile) {
    const int q_tile[3] = {T.own[0], T.own[1], T.own[2]}, k_tile[3] = {T.loop[0], T.loop[1], T.loop[2]};
    /* Every T.head_parts-th work tile of a round belongs to this block's part of the heads. */
    unsigned rest = (unsigned)index / T.head_parts;
    int tile[3] = {0, 0, 0};
    NH_UNROLL for (int i = 0; i < T.rank; i++) {
        int axis = args.tiling.order[i], digit = nh_digit(&rest, args.tiling.tiles[axis]);
        NH_UNROLL for (int a = nh_first_axis<T>; a < 3; a++)
            if (a == axis) tile[a] = digit;
    }
    NH_UNROLL for (int a = 0; a < 3; a++) {
        const nh_cuda_axis &axis = args.axis[a];
        work_tile.group[a] = 0;
        work_tile.length[a] = 1;
        work_tile.own[a] = work_tile.halo[a] = 0;
        work_tile.tiles[a] = 1;
        if (a < nh_first_axis<T>) continue;
        if (NH_DILATION(axis) > 1) work_tile.group[a] = nh_digit(&rest, (int)NH_DILATION(axis));
        work_tile.length[a] = nh_axis_group_length((int)axis.length, (int)NH_DILATION(axis), work_tile.group[a]);
        work_tile.own[a] = tile[a] * q_tile[a];
        if constexpr (NH_REGIONS) nh_work_tile_place<T>(args, a, work_tile);
        int last = nh_min(work_tile.own[a] + q_tile[a], work_tile.length[a]) - 1;
        work_tile.halo[a] = nh_seen_by<T>(axis, work_tile, a, nh_min(work_tile.own[a], last)).begin;
        int end = nh_seen_by<T>(axis, work_tile, a, last).end;
        if constexpr (NH_PERIODIC) nh_work_tile_align<T>(a, end, work_tile);
        work_tile.tiles[a] = (end - work_tile.halo[a] + k_tile[a] - 1) / k_tile[a];
        if (nh_is_cut(a)) work_tile.tiles[a] = nh_max(work_tile.tiles[a], 1);
    }
    work_tile.index = index;
    int heads = (int)(T.inverse ? args.kv_heads : args.heads) / T.own_heads / T.head_parts;
    work_tile.head = (nh_digit(&rest, heads) + (int)NH_OWN_BLOCK % T.head_parts * heads) * T.own_heads;
    work_tile.batch = (int)rest;
    bool shared = !T.inverse && args.heads != args.kv_heads;
    work_tile.kv_head = shared ? work_tile.head / (int)(args.heads / args.kv_heads) : work_tile.head;
}

/* The loop tiles along each axis that every row of a box sees entirely: [begin, end). */
struct nh_full {
    int begin[3], end[3];
};

/* The same for the box of owned rows that starts at `first` (relative to the work tile) with this extent. */
template <nh_tiles T>
NH_DEVICE nh_full nh_full_tiles(const nh_cuda_args &args, const nh_work_tile &work_tile, const int first[3],
                                const int extent[3]) {
    const int k_tile[3] = {T.loop[0], T.loop[1], T.loop[2]};
    nh_full full;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        full.begin[a] = 0;
        full.end[a] = 1;
        if (a < nh_first_axis<T>) continue;
        int low = nh_min(work_tile.own[a] + first[a], work_tile.length[a] - 1);
        int high = nh_min(work_tile.own[a] + first[a] + extent[a], work_tile.length[a]) - 1;
        high = nh_max(high, low);
        int begin = nh_seen_by<T>(args.axis[a], work_tile, a, high).begin - work_tile.halo[a];
        int end = nh_seen_by<T>(args.axis[a], work_tile, a, low).end - work_tile.halo[a];
        full.begin[a] = (begin + k_tile[a] - 1) / k_tile[a];
        full.end[a] = end / k_tile[a];
        if (!T.outside_sees && work_tile.own[a] + first[a] + extent[a] > work_tile.length[a]) full.end[a] = 0;
    }
    return full;
}

/* Sets the position of a row relative to its work tile. */
template <nh_tiles T> NH_DEVICE void nh_row_position(int row, int at[3]) {
    constexpr int y = nh_warpgroup_extent<T, 1>, z = nh_warpgroup_extent<T, 2>;
    int position = row % 64 / T.own_heads;
    if (nh_padding_rows<T>) position = nh_min(position, nh_warpgroup_positions<T> - 1);
    at[0] = position / (z * y);
    at[1] = position / z % y;
    at[2] = position % z;
    at[T.stack] += row / 64 * nh_warpgroup_extent<T, T.stack>;
}

template <nh_tiles T> NH_DEVICE bool nh_row_is_padding(int row) {
    return nh_padding_rows<T> && row % 64 >= 64 - nh_padding_rows<T>;
}

/* The box that one row sees, relative to the start of the work tile's halo. */
struct nh_visible_box {
    int begin[3], end[3];
};

template <nh_tiles T>
NH_DEVICE nh_visible_box nh_visible_box_of(const nh_cuda_args &args, const nh_work_tile &work_tile, int row) {
    nh_visible_box visible;
    int at[3];
    nh_row_position<T>(row, at);
    NH_UNROLL for (int a = 0; a < 3; a++) {
        visible.begin[a] = 0;
        visible.end[a] = 1;
        if (a < nh_first_axis<T>) continue;
        nh_range keys =
            nh_seen_by<T>(args.axis[a], work_tile, a, nh_min(work_tile.own[a] + at[a], work_tile.length[a] - 1));
        visible.begin[a] = keys.begin - work_tile.halo[a];
        visible.end[a] = keys.end - work_tile.halo[a];
        if (!T.outside_sees && work_tile.own[a] + at[a] >= work_tile.length[a]) visible.end[a] = visible.begin[a];
    }
    return visible;
}

/* The low n bits, 0 <= n <= 31. */
NH_DEVICE unsigned nh_ones(int n) {
    return (1u << n) - 1u;
}

/* Eight consecutive columns of a box of the loop are a run: a part of a line along z or, if lines have 4 columns, two
 * lines. Runs repeat from line to line or, where the run axis is 1 instead of 2, from plane to plane; "line" below then
 * means a plane. */
template <nh_tiles T> constexpr int nh_line_runs = T.loop[2] == 4 ? 1 : T.loop[2] / 8;

template <nh_tiles T> constexpr int nh_runs = T.run_axis == 1 ? T.loop[1] * T.loop[2] / 8 : nh_line_runs<T>;

/* What the row sees of a box that starts at `start`, along one axis and relative to the box. */
template <nh_tiles T> NH_DEVICE nh_range nh_seen_of_tile(const nh_visible_box &visible, int axis, int start) {
    const int extent[3] = {T.loop[0], T.loop[1], T.loop[2]};
    nh_range seen = {0, extent[axis]};
    if (axis < nh_first_axis<T>) return seen;
    seen.begin = nh_min(nh_max(visible.begin[axis] - start, 0), extent[axis]);
    seen.end = nh_min(nh_max(visible.end[axis] - start, 0), extent[axis]);
    return seen;
}

/* The runs of a line that the row sees: bit i is that of column 8 i + c. */
template <nh_tiles T> NH_DEVICE unsigned nh_run_bits(const nh_visible_box &visible, const int start[3], int c) {
    if constexpr (T.run_axis != 1) {
        const nh_range z = nh_seen_of_tile<T>(visible, 2, start[2]);
        return nh_ones((z.end - c + 7) >> 3) & ~nh_ones((z.begin - c + 7) >> 3);
    }
    const bool pairs = T.loop[2] == 4;
    /* Even and odd column of a pair are in the same line: written so that the compiler compares once for both. */
    int y = start[1] + (pairs ? (int)threadIdx.x >> 1 & 1 : 0), z = start[2] + (pairs ? c & 3 : c);
    unsigned line = 0, runs = 0;
    NH_UNROLL for (int i = 0; i < nh_line_runs<T>; i++)
        line |= (unsigned)(z + 8 * i >= visible.begin[2] && z + 8 * i < visible.end[2]) << i;
    NH_UNROLL for (int i = 0; i < nh_runs<T>; i += nh_line_runs<T>, y += pairs ? 2 : 1)
        runs |= (y >= visible.begin[1] && y < visible.end[1] ? line : 0) << i;
    return runs;
}

/* The runs in lines of which the row sees something: bit j is that of the j-th group of 8 columns. run: which runs of
 * each line count. This is separable: lines are cut to a range in every plane, then planes. */
template <nh_tiles T> NH_DEVICE unsigned nh_line_bits(const nh_visible_box &visible, const int start[3], unsigned run) {
    const int plane = T.run_axis == 1 ? nh_runs<T> : T.loop[1] * nh_runs<T>, all = nh_rows_of_box<T> / 8;
    const unsigned every_run = nh_ones(plane) / nh_ones(nh_runs<T>), every_plane = nh_ones(all) / nh_ones(plane);
    nh_range x = nh_seen_of_tile<T>(visible, 0, start[0]), y = nh_seen_of_tile<T>(visible, 1, start[1]);
    unsigned lines = T.run_axis == 1 ? 1u : nh_ones(nh_runs<T> * y.end) & ~nh_ones(nh_runs<T> * y.begin) & every_run;
    return lines * run * every_plane & nh_ones(plane * x.end) & ~nh_ones(plane * x.begin);
}

/* The columns of the box that the row sees: bit j is that of column 8 j + c. */
template <nh_tiles T> NH_DEVICE unsigned nh_visible_bits(const nh_visible_box &visible, const int start[3], int c) {
    return nh_line_bits<T>(visible, start, nh_run_bits<T>(visible, start, c));
}

/* The columns below `count`: bit j is that of column 8 j + c. */
template <nh_tiles T> NH_DEVICE unsigned nh_count_bits(int count, int c) {
    return nh_ones((nh_min(nh_max(count, 0), nh_rows_of_loop<T>) - c + 7) >> 3);
}
