/* The loop over the tiles of a work tile's halo: where each starts, how they follow each other, and the masks of those
 * that some row does not see entirely. */
#pragma once
#include "tile_note.cuh"
#include "wgmma90.cuh"

namespace nh_wgmma90 {

static_assert(C.mask == WGMMA90_MASK_PRODUCT || ((C.loop[2] % 8 == 0 || (C.loop[2] == 4 && C.loop[1] % 2 == 0)) &&
                                                 LOOP_ROWS % 16 == 0 && BOX_ROWS % 8 == 0),
              "loop tiles are runs of 8 rows, an even number of them, unless a step of the product masks scores");
static_assert(C.loop_boxes == 1 || (C.rank == 3 && C.cluster == 1), "lines that share tiles fill a plane of one block");

/* The place in shared memory of a block's n-th owned tile, and the parity of how often it was used before. */
NH_DEVICE unsigned own_place(unsigned work_tiles) {
    return work_tiles % C.own_places;
}

NH_DEVICE unsigned own_phase(unsigned work_tiles) {
    return work_tiles / C.own_places & 1;
}

/* Position, and token in the maps, at which a box of the work tile's halo starts. */
NH_DEVICE void loop_position(const nh_work_tile &work_tile, const int tile[3], int position[3]) {
    const int extent[3] = {C.loop[0], C.loop[1], C.loop[2]};
    NH_UNROLL for (int a = 0; a < 3; a++)
        position[a] = work_tile.halo[a] + tile[a] * extent[a];
}

NH_DEVICE void loop_token(const nh_tiled_args &args, const nh_work_tile &work_tile, const int tile[3], int token[3]) {
    int position[3];
    loop_position(work_tile, tile, position);
    NH_UNROLL for (int a = FIRST_AXIS; a < 3; a++)
        position[a] = nh_wrapped(work_tile, a, tile[a], position[a]);
    token_of<false>(args, work_tile, position, token);
}

/* The axis along which the tiles of a loop follow each other first, and those along which lines of them do. Where
 * warpgroups skip tiles, and always in the forward, lines go along the stacking axis. */
constexpr bool GOES_ALONG_STACK = C.kernel == WGMMA90_FORWARD || C.skipping != WGMMA90_SKIP_NOTHING;
constexpr int LOOP_FIRST = GOES_ALONG_STACK ? C.stack : 2, LOOP_SECOND = LOOP_FIRST == 2 ? 1 : 2,
              LOOP_LAST = 3 - LOOP_FIRST - LOOP_SECOND;

/* Moves to the box beside, in the next line; lines: per plane. */
NH_DEVICE void next_line(int lines, int box[3]) {
    if (++box[LOOP_SECOND] < lines) return;
    box[LOOP_SECOND] = 0;
    box[LOOP_LAST]++;
}

/* Moves from behind the last tile of a line to the next line. */
NH_DEVICE void end_line(const nh_work_tile &work_tile, int tile[3]) {
    if (tile[LOOP_FIRST] < work_tile.tiles[LOOP_FIRST]) return;
    tile[LOOP_FIRST] = 0;
    NH_UNROLL for (int i = 0; i < C.loop_boxes; i++)
        next_line(work_tile.tiles[LOOP_SECOND], tile);
}

/* Moves to the next tile: a box of each of C.loop_boxes lines, the first of which identifies it. Several small boxes
 * make up a tile where a large one would mostly be outside the window. After the last line no row sees anything. */
NH_DEVICE void next_tile(const nh_work_tile &work_tile, int tile[3]) {
    tile[LOOP_FIRST]++;
    end_line(work_tile, tile);
}

NH_DEVICE int window_tiles_of(const nh_work_tile &work_tile) {
    int lines = work_tile.tiles[LOOP_SECOND] * work_tile.tiles[LOOP_LAST];
    return work_tile.tiles[LOOP_FIRST] * ((lines + C.loop_boxes - 1) / C.loop_boxes);
}

/* The tiles [begin, end) of a loop that this block of a cluster takes, at least one: if there are fewer tiles than
 * blocks, some are taken twice, but only count once. */
struct share {
    int begin, end;
    bool counts;
};

NH_DEVICE share share_of(int tiles) {
    if (C.cluster == 1) return {0, tiles, true};
    int rank = (int)NH_OWN_BLOCK % C.cluster;
    share s = {tiles * rank / C.cluster, tiles * (rank + 1) / C.cluster, true};
    s.counts = s.begin < s.end;
    if (!s.counts) s.end = s.begin + 1;
    return s;
}

/* The coordinates of the n-th tile of a loop. */
NH_DEVICE void tile_at(const nh_work_tile &work_tile, int n, int tile[3]) {
    unsigned rest = (unsigned)n;
    tile[LOOP_FIRST] = tile[LOOP_SECOND] = 0;
    if (C.cluster > 1) tile[LOOP_FIRST] = nh_digit(&rest, work_tile.tiles[LOOP_FIRST]);
    if (C.cluster > 1) tile[LOOP_SECOND] = nh_digit(&rest, work_tile.tiles[LOOP_SECOND]);
    tile[LOOP_LAST] = (int)rest;
}

/* ---- consumers ---- */

struct kv_loop {
    int work_tile, t, last, window_tiles, lines, tile[3];
    bool counts; /* see struct share */
    nh_full full;
    nh_visible_box visible[2];
};

NH_DEVICE void advance(kv_loop &loop, const nh_work_tile &work_tile) {
    loop.t++;
    next_tile(work_tile, loop.tile);
}

NH_DEVICE void kv_loop_restart(kv_loop &loop) {
    loop.t = 0;
    loop.tile[0] = loop.tile[1] = loop.tile[2] = 0;
}

struct tile_boxes {
    int box[C.loop_boxes][3];
};

NH_DEVICE tile_boxes boxes_of(int lines, const int tile[3]) {
    tile_boxes boxes;
    int box[3] = {tile[0], tile[1], tile[2]};
    NH_UNROLL for (int i = 0; i < C.loop_boxes; i++) {
        if (i) next_line(lines, box);
        NH_UNROLL for (int a = 0; a < 3; a++)
            boxes.box[i][a] = box[a];
    }
    return boxes;
}

/* Whether every row of the warpgroup sees all of the tile, as far as axes in [first, end) are concerned. */
NH_DEVICE bool seen_whole(const kv_loop &loop, int first = FIRST_AXIS, int end = 3) {
    bool whole = true;
    const tile_boxes boxes = boxes_of(loop.lines, loop.tile);
    NH_UNROLL for (int i = 0; i < C.loop_boxes; i++)
        NH_UNROLL for (int a = FIRST_AXIS; a < 3; a++)
            if (a >= first && a < end)
                whole = whole && boxes.box[i][a] >= loop.full.begin[a] && boxes.box[i][a] < loop.full.end[a];
    return whole;
}

/* Whether the tile is not one of extra tokens. */
NH_DEVICE bool of_window(const kv_loop &loop) {
    return !C.extra || loop.t < loop.window_tiles;
}

/* Where the tile's boxes start, relative to the halo. */
NH_DEVICE tile_boxes starts_of(const kv_loop &loop) {
    const int extent[3] = {C.loop[0], C.loop[1], C.loop[2]};
    tile_boxes start = boxes_of(loop.lines, loop.tile);
    NH_UNROLL for (int i = 0; i < C.loop_boxes; i++)
        NH_UNROLL for (int a = 0; a < 3; a++)
            start.box[i][a] *= extent[a];
    return start;
}

/* The columns of a tile that a row sees: bit j is that of column 8 j + c. */
NH_DEVICE unsigned tile_bits(const nh_visible_box &visible, const tile_boxes &start, int c) {
    unsigned bits = 0;
    NH_UNROLL for (int i = 0; i < C.loop_boxes; i++)
        bits |= nh_visible_bits<T>(visible, start.box[i], c) << i * (BOX_ROWS / 8);
    return bits;
}

/* If warpgroups skip tiles, each of them notes which ones it multiplies. */
constexpr int NOTED_PARTS = GOES_ALONG_STACK ? C.warpgroups : 1;

NH_DEVICE void note_tile(const nh_tiled_args &args, const kv_loop &loop) {
    int part = ((int)threadIdx.x / 128 - 1) % NOTED_PARTS;
    if (NH_NOTED && threadIdx.x % 128 == 0 && loop.counts)
        nh_note_tile(args, loop.work_tile, loop.t * NOTED_PARTS + part, NOTED_PARTS > 1 || threadIdx.x == 128,
                     loop.t < loop.window_tiles && !seen_whole(loop));
}

/* Masks scores, one word of bits after the other: the compiler then turns seven bits at a time into predicates. */
NH_DEVICE void mask(float *score, unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
    const unsigned bits[4] = {a0, a1, b0, b1};
    NH_UNROLL for (int part = 0; part < 4; part++)
        NH_UNROLL for (int j = 0; j < LOOP_ROWS / 8; j++)
            score[4 * j + part] = bits[part] & 1u << j ? score[4 * j + part] : NH_MINUS_INFINITY;
}

NH_DEVICE void mask_tile(const nh_tiled_args &args, const kv_loop &loop, float *score) {
    int c = 2 * (threadIdx.x & 3);
    note_tile(args, loop);
    if (C.extra && loop.t >= loop.window_tiles) {
        int count = (int)args.extra_tokens - (loop.t - loop.window_tiles) * LOOP_ROWS;
        if (count >= LOOP_ROWS) return;
        unsigned even = nh_count_bits<T>(count, c), odd = nh_count_bits<T>(count, c + 1);
        mask(score, even, odd, even, odd);
        return;
    }
    if (seen_whole(loop)) return;
    const tile_boxes start = starts_of(loop);
    mask(score, tile_bits(loop.visible[0], start, c), tile_bits(loop.visible[0], start, c + 1),
         tile_bits(loop.visible[1], start, c), tile_bits(loop.visible[1], start, c + 1));
}

NH_DEVICE void kv_loop_begin(const nh_tiled_args &args, const nh_work_tile &work_tile, int warpgroup, int row,
                             kv_loop &loop) {
    const int extent[3] = {WARPGROUP_X, WARPGROUP_Y, WARPGROUP_Z};
    int first[3];
    nh_row_position<T>(64 * warpgroup, first);
    loop.full = nh_full_tiles<T>(args, work_tile, first, extent);
    loop.visible[0] = nh_visible_box_of<T>(args, work_tile, row);
    loop.visible[1] = nh_visible_box_of<T>(args, work_tile, row + 8);
    /* They are the same by construction. Assigning them tells the compiler, so that it computes their bits once. */
    if (8 % (WARPGROUP_Z * C.own_heads) == 0 || C.own_heads % 16 == 0) {
        loop.visible[1].begin[2] = loop.visible[0].begin[2];
        loop.visible[1].end[2] = loop.visible[0].end[2];
    }
    if (WARPGROUP_Y * WARPGROUP_Z * C.own_heads % 16 == 0) {
        loop.visible[1].begin[0] = loop.visible[0].begin[0];
        loop.visible[1].end[0] = loop.visible[0].end[0];
    }
    kv_loop_restart(loop);
    loop.counts = true;
    loop.work_tile = work_tile.index;
    loop.window_tiles = window_tiles_of(work_tile);
    loop.lines = work_tile.tiles[LOOP_SECOND];
    loop.last = loop.window_tiles + (C.extra ? args.tiling.extra_tiles : 0) - 1;
}

NH_DEVICE void take_share(const nh_work_tile &work_tile, kv_loop &loop) {
    share mine = share_of(loop.last + 1);
    loop.t = mine.begin;
    loop.last = mine.end - 1;
    loop.counts = mine.counts;
    tile_at(work_tile, loop.t, loop.tile);
}

} // namespace nh_wgmma90
