/* The walk over the tiles of an item: where each starts, how they follow each other, and the masks of those that some
 * row does not see as a whole. */
#pragma once
#include "fused90.cuh"

#if (NH_WALK_Z % 8 && (NH_WALK_Z != 4 || NH_WALK_Y % 2)) || NH_WALK_ROWS % 16 || NH_BOX_ROWS % 8
#error "walked tiles are runs of 8 rows, an even number of them"
#endif
#if NH_ABREAST > 1 && (NH_RANK < 3 || NH_CLUSTER > 1)
#error "lines abreast fill a plane, and are walked by one block"
#endif

/* Position and token at which a box of the item's walk starts. */
__device__ __forceinline__ void walk_position(const nh_item &item, const int tile[3], int position[3]) {
    const int extent[3] = NH_WALK_TILE;
#pragma unroll
    for (int a = 0; a < 3; a++)
        position[a] = item.walk[a] + tile[a] * extent[a];
}

__device__ __forceinline__ void walk_token(const nh_tiled_args &args, const nh_item &item, const int tile[3],
                                           int token[3]) {
    int position[3];
    walk_position(item, tile, position);
#if NH_PERIODIC
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        position[a] = nh_wrapped(item, a, tile[a], position[a]);
#endif
    token_of<false>(args, item, position, token);
}

/* The axis along which the tiles of a walk follow each other first. */
#ifndef WALK_FIRST
#define WALK_FIRST 2
#endif
#define WALK_SECOND (WALK_FIRST == 2 ? 1 : 2)
#define WALK_LAST (3 - WALK_FIRST - WALK_SECOND)

/* To the box beside, of the next line; `lines`: in a plane. */
__device__ __forceinline__ void next_line(int lines, int box[3]) {
    if (++box[WALK_SECOND] < lines) return;
    box[WALK_SECOND] = 0;
    box[WALK_LAST]++;
}

/* NH_ABREAST lines are walked at once: a tile is a box of each, and named by that of the first. Boxes are small where
 * much would be beyond the window in larger ones; several make a tile of as many columns. After the last line come
 * boxes of which nothing is seen. */
__device__ __forceinline__ void next_tile(const nh_item &item, int tile[3]) {
    if (++tile[WALK_FIRST] < item.tiles[WALK_FIRST]) return;
    tile[WALK_FIRST] = 0;
#pragma unroll
    for (int i = 0; i < NH_ABREAST; i++)
        next_line(item.tiles[WALK_SECOND], tile);
}

__device__ __forceinline__ int window_tiles_of(const nh_item &item) {
    int lines = item.tiles[WALK_SECOND] * item.tiles[WALK_LAST];
    return item.tiles[WALK_FIRST] * ((lines + NH_ABREAST - 1) / NH_ABREAST);
}

/* Of the tiles of a walk those that this block of a cluster takes: [begin, end). There is one at least: where tiles are
 * fewer than blocks some are taken twice, and count once. */
struct share {
    int begin, end;
    bool counts;
};

__device__ __forceinline__ share share_of(int tiles) {
    if (NH_CLUSTER == 1) return {0, tiles, true};
    int rank = (int)blockIdx.x % NH_CLUSTER;
    share s = {tiles * rank / NH_CLUSTER, tiles * (rank + 1) / NH_CLUSTER, true};
    s.counts = s.begin < s.end;
    if (!s.counts) s.end = s.begin + 1;
    return s;
}

/* The place of the n-th tile of a walk. */
__device__ __forceinline__ void tile_at(const nh_item &item, int n, int tile[3]) {
    unsigned rest = (unsigned)n;
    tile[WALK_FIRST] = tile[WALK_SECOND] = 0;
    if (NH_CLUSTER > 1) tile[WALK_FIRST] = nh_digit(&rest, item.tiles[WALK_FIRST]);
    if (NH_CLUSTER > 1) tile[WALK_SECOND] = nh_digit(&rest, item.tiles[WALK_SECOND]);
    tile[WALK_LAST] = (int)rest;
}

/* ---- consumers ---- */

/* The walk of a consumer over the key tiles of its item. */
struct walk {
    int item, t, last, window_tiles, lines, tile[3];
    bool counts; /* see struct share */
    nh_full full;
    nh_sight sight[2];
};

__device__ __forceinline__ void advance(walk &w, const nh_item &item) {
    w.t++;
    next_tile(item, w.tile);
}

/* Back to the first tile. */
__device__ __forceinline__ void walk_again(walk &w) {
    w.t = 0;
    w.tile[0] = w.tile[1] = w.tile[2] = 0;
}

/* The boxes of the tile. */
struct abreast {
    int box[NH_ABREAST][3];
};

__device__ __forceinline__ abreast boxes_of(int lines, const int tile[3]) {
    abreast boxes;
    int box[3] = {tile[0], tile[1], tile[2]};
#pragma unroll
    for (int i = 0; i < NH_ABREAST; i++) {
        if (i) next_line(lines, box);
#pragma unroll
        for (int a = 0; a < 3; a++)
            boxes.box[i][a] = box[a];
    }
    return boxes;
}

/* Every row of the warpgroup sees all of the tile, as far as axes [first, 3) are concerned or those below `end`. */
__device__ __forceinline__ bool seen_whole(const walk &w, int first = NH_FIRST_AXIS, int end = 3) {
    bool whole = true;
    const abreast boxes = boxes_of(w.lines, w.tile);
#pragma unroll
    for (int i = 0; i < NH_ABREAST; i++)
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++)
            if (a >= first && a < end)
                whole = whole && boxes.box[i][a] >= w.full.begin[a] && boxes.box[i][a] < w.full.end[a];
    return whole;
}

/* The tile is not one of extra tokens. */
__device__ __forceinline__ bool of_window(const walk &w) {
    return !NH_EXTRA || w.t < w.window_tiles;
}

/* Where the tile's boxes start, relative to the walk. */
__device__ __forceinline__ abreast starts_of(const walk &w) {
    const int extent[3] = NH_WALK_TILE;
    abreast start = boxes_of(w.lines, w.tile);
#pragma unroll
    for (int i = 0; i < NH_ABREAST; i++)
#pragma unroll
        for (int a = 0; a < 3; a++)
            start.box[i][a] *= extent[a];
    return start;
}

/* Bit j: column 8 j + c of the tile is seen by the row. */
__device__ __forceinline__ unsigned tile_bits(const nh_sight &sight, const abreast &start, int c) {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < NH_ABREAST; i++)
        bits |= nh_sight_bits(sight, start.box[i], c) << i * (NH_BOX_ROWS / 8);
    return bits;
}

/* Warpgroups that pass over tiles note what each of them multiplies. */
#ifndef NOTED_PARTS
#define NOTED_PARTS 1
#endif

__device__ __forceinline__ void note_tile(const nh_tiled_args &args, const walk &w) {
    int part = ((int)threadIdx.x / 128 - 1) % NOTED_PARTS;
    if (NH_NOTED && threadIdx.x % 128 == 0 && w.counts)
        nh_note_tile(args, w.item, w.t * NOTED_PARTS + part, NOTED_PARTS > 1 || threadIdx.x == 128,
                     w.t < w.window_tiles && !seen_whole(w));
}

/* One word after the other: the compiler then turns seven bits at a time into predicates. */
__device__ __forceinline__ void mask(float *score, unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
    const unsigned bits[4] = {a0, a1, b0, b1};
#pragma unroll
    for (int part = 0; part < 4; part++)
#pragma unroll
        for (int j = 0; j < NH_WALK_ROWS / 8; j++)
            score[4 * j + part] = bits[part] & 1u << j ? score[4 * j + part] : NH_MINUS_INFINITY;
}

__device__ __forceinline__ void mask_tile(const nh_tiled_args &args, const walk &w, float *score) {
    int c = 2 * (threadIdx.x & 3);
    note_tile(args, w);
#if NH_EXTRA
    if (w.t >= w.window_tiles) {
        int count = (int)args.extra_tokens - (w.t - w.window_tiles) * NH_WALK_ROWS;
        if (count >= NH_WALK_ROWS) return;
        unsigned even = nh_count_bits(count, c), odd = nh_count_bits(count, c + 1);
        mask(score, even, odd, even, odd);
        return;
    }
#endif
    if (seen_whole(w)) return;
    const abreast start = starts_of(w);
    mask(score, tile_bits(w.sight[0], start, c), tile_bits(w.sight[0], start, c + 1),
         tile_bits(w.sight[1], start, c), tile_bits(w.sight[1], start, c + 1));
}

__device__ __forceinline__ void walk_begin(const nh_tiled_args &args, const nh_item &item, int warpgroup, int row,
                                           walk &w) {
    const int extent[3] = {SLAB_X, SLAB_Y, SLAB_Z};
    int first[3];
    nh_row_position(64 * warpgroup, first);
    w.full = nh_full_tiles(args, item, first, extent);
    w.sight[0] = nh_sight_of(args, item, row);
    w.sight[1] = nh_sight_of(args, item, row + 8);
    /* The same by construction: said, so that the compiler makes their bits once. */
    if (8 % (SLAB_Z * NH_OWN_HEADS) == 0 || NH_OWN_HEADS % 16 == 0) {
        w.sight[1].begin[2] = w.sight[0].begin[2];
        w.sight[1].end[2] = w.sight[0].end[2];
    }
    if (SLAB_Y * SLAB_Z * NH_OWN_HEADS % 16 == 0) {
        w.sight[1].begin[0] = w.sight[0].begin[0];
        w.sight[1].end[0] = w.sight[0].end[0];
    }
    walk_again(w);
    w.counts = true;
    w.item = item.index;
    w.window_tiles = window_tiles_of(item);
    w.lines = item.tiles[WALK_SECOND];
    w.last = w.window_tiles + (NH_EXTRA ? args.tiling.extra_tiles : 0) - 1;
}

/* Cuts a walk down to this block's share. */
__device__ __forceinline__ void take_share(const nh_item &item, walk &w) {
    share mine = share_of(w.last + 1);
    w.t = mine.begin;
    w.last = mine.end - 1;
    w.counts = mine.counts;
    tile_at(item, w.t, w.tile);
}
