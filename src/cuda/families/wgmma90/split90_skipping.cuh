/* What warpgroups and warps of cuda.split90 skip (C.skipping; backward90.c decides where). Loops go first along the
 * axis along which warpgroup tiles follow each other. A warpgroup skips the tiles of which none of its rows sees
 * anything. In volumes loop tiles are planes, and the 16 rows of a warp of a warpgroup tile of 4 x 4 x 4 lie in one
 * plane: a warp computes no weights of planes of which they see nothing, and multiplies zeros. What they see of a plane
 * is the same for all planes of a line. */
#pragma once
#include "fused90_skipping.cuh"

namespace nh_wgmma90 {

static_assert(!PASSES_OVER || (C.cluster == 1 && !C.extra && !C.biased && C.loop_boxes == 1),
              "loops of one block each, along the axis of warpgroup tiles");
static_assert(!SKIPS_PLANES || (C.stack == 0 && C.loop[0] == 1 && WARPGROUP_Y * WARPGROUP_Z == 16),
              "loop tiles are planes, and so are the rows of a warp");

/* ---- the producer ---- */

/* If loops have few tiles, all warpgroups soon wait for the one thread that fetches. So it has enough registers not to
 * spill (wgmma90_producer_registers), and computes coordinates once for a line of tiles. */

/* The work tiles whose own rows are in shared memory. The producer writes an entry before it arrives at the barrier of
 * these rows, and consumers read it: computing it again would take a division for every coordinate. */
NH_DEVICE nh_work_tile &work_tile_at(unsigned place) {
    static_assert(!PASSES_OVER || sizeof(nh_work_tile) <= wgmma90_work_tile_bytes(&C), "the host has room for it");
    __shared__ nh_work_tile work_tile[C.own_places];
    return work_tile[place];
}

/* Enumerates the work tiles of a block in the order of nh_work_tile_index, without its division. */
struct work_rounds {
    int first, place;
};

NH_DEVICE work_rounds first_round() {
    return {0, (int)NH_OWN_BLOCK};
}

NH_DEVICE int index_in(const work_rounds &r) {
    return r.first + r.place;
}

NH_DEVICE void next_round(work_rounds &r) {
    r.first += (int)NH_OWN_BLOCKS;
    if (++r.place == (int)NH_OWN_BLOCKS) r.place = 0;
}

/* Calls fetch(token) for every tile of a loop, line after line. */
template <class Fetch>
NH_DEVICE void fetch_lines(const nh_tiled_args &args, const nh_work_tile &work_tile, Fetch fetch) {
    int tile[3] = {0, 0, 0}, token[3];
    NH_UNROLL_1 for (; tile[LOOP_LAST] < work_tile.tiles[LOOP_LAST]; next_line(work_tile.tiles[LOOP_SECOND], tile)) {
        if (nh_wraps(LOOP_FIRST)) { /* A line may go on at the other end of the axis. */
            NH_UNROLL_1 for (; tile[LOOP_FIRST] < work_tile.tiles[LOOP_FIRST]; tile[LOOP_FIRST]++) {
                loop_token(args, work_tile, tile, token);
                fetch(token);
            }
            tile[LOOP_FIRST] = 0;
            continue;
        }
        const int step = C.loop[LOOP_FIRST] * (is_far(LOOP_FIRST) ? 1 : (int)args.axis[LOOP_FIRST].dilation);
        loop_token(args, work_tile, tile, token);
        NH_UNROLL_1 for (int left = work_tile.tiles[LOOP_FIRST]; left > 0; left--, token[LOOP_FIRST] += step)
            fetch(token);
    }
}

/* ---- the consumers ---- */

/* What a thread's two rows see of the even and odd columns of a plane of which they see something; whether all rows of
 * the warpgroup see all of it. */
struct plane_bits {
    unsigned row[2][2];
    bool whole;
};

NH_DEVICE void plane_bits_of(const kv_loop &loop, plane_bits &seen) {
    const tile_boxes start = starts_of(loop);
    seen.whole = seen_whole(loop, 1);
    NH_UNROLL for (int half = 0; half < 2; half++) {
        nh_visible_box visible = loop.visible[half];
        visible.begin[0] = start.box[0][0];
        visible.end[0] = visible.begin[0] + 1;
        NH_UNROLL for (int odd = 0; odd < 2; odd++)
            seen.row[half][odd] = tile_bits(visible, start, 2 * (threadIdx.x & 3) + odd);
    }
}

/* If loop tiles are planes across the stacking axis, as a warp's 16 rows are: whether these see any of this one. */
NH_DEVICE bool sees_plane(const kv_loop &loop) {
    const nh_visible_box &visible = loop.visible[0];
    return __any_sync(~0u, loop.tile[0] >= visible.begin[0] && loop.tile[0] < visible.end[0]);
}

/* Masks what rows do not see of a tile. first: whether it is the first of a line for this warpgroup. False, with
 * nothing masked: the warp's rows see nothing of it. */
NH_DEVICE bool mask_seen(const nh_tiled_args &args, const kv_loop &loop, bool first, float *score, plane_bits &seen) {
    if (!SKIPS_PLANES) {
        mask_tile(args, loop, score);
        return true;
    }
    note_tile(args, loop);
    if (first) plane_bits_of(loop, seen);
    if (!sees_plane(loop)) return false;
    if (!seen.whole) mask(score, seen.row[0][0], seen.row[0][1], seen.row[1][0], seen.row[1][1]);
    return true;
}

} // namespace nh_wgmma90
