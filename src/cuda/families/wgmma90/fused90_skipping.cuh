/* Warpgroup skipping. A warpgroup's tile of the block's queries sees nothing of some key tiles that other warpgroups
 * need, at the ends of the stacking axis: it skips these. Loops go along that axis first, so that every warpgroup skips
 * some tiles of every line, each at another time, and the stages of the ring even that out. */
#pragma once
#include "fused90_kv_loop.cuh"

namespace nh_wgmma90 {

/* Blocks that share a work tile have few key tiles each: their warpgroups skip none, so that each multiplies one. */
constexpr bool PASSES_OVER = C.skipping != WGMMA90_SKIP_NOTHING;
constexpr bool SKIPS_PLANES = C.skipping == WGMMA90_SKIP_PLANES;
static_assert(!PASSES_OVER || C.cluster == 1, "blocks of a cluster skip nothing");

/* The tiles of the window that a warpgroup multiplies, [begin, end) along that axis. last: with extra tokens. */
struct seen_tiles {
    int begin, end, last;
};

NH_DEVICE void find_seen_tiles(const nh_tiled_args &args, const nh_work_tile &work_tile, int warpgroup,
                               const kv_loop &loop, seen_tiles &seen) {
    const int warpgroup_tile[3] = {WARPGROUP_X, WARPGROUP_Y, WARPGROUP_Z}, tile[3] = {C.loop[0], C.loop[1], C.loop[2]};
    const int a = C.stack, extent = tile[a];
    int first = work_tile.own[a] + warpgroup * warpgroup_tile[a], last_row = work_tile.length[a] - 1;
    nh_range low = nh_seen_by<T>(args.axis[a], work_tile, a, nh_min(first, last_row));
    nh_range high = nh_seen_by<T>(args.axis[a], work_tile, a, nh_min(first + warpgroup_tile[a] - 1, last_row));
    seen.begin = (low.begin - work_tile.halo[a]) / extent;
    seen.end = (high.end - work_tile.halo[a] + extent - 1) / extent;
    if (nh_is_cut(a)) { /* one tile if the warpgroup's rows see none */
        seen.begin = nh_min(seen.begin, work_tile.tiles[a] - 1);
        seen.end = nh_max(seen.end, seen.begin + 1);
    }
    /* The warpgroup has only padding rows, which are not stored. */
    if (first > last_row) seen.end = seen.begin + 1;
    /* the last tile of the last line */
    seen.last = C.extra || !PASSES_OVER ? loop.last : loop.window_tiles - work_tile.tiles[a] + seen.end - 1;
}

/* Whether no query of the warpgroup sees any of the tile. */
NH_DEVICE bool outside_seen(const kv_loop &loop, const seen_tiles &seen) {
    bool inside = loop.tile[C.stack] >= seen.begin && loop.tile[C.stack] < seen.end;
    return PASSES_OVER && !inside && loop.t < loop.window_tiles;
}

/* next_of_line() in two steps: to the next tile, and, if that is behind the line's last one, to the next line. */
NH_DEVICE void step(kv_loop &loop) {
    loop.t++;
    loop.tile[C.stack]++;
}

NH_DEVICE bool stays_in_line(kv_loop &loop, const nh_work_tile &work_tile, const seen_tiles &seen) {
    if (PASSES_OVER && loop.tile[C.stack] < seen.end) return true;
    end_line(work_tile, loop.tile);
    return false;
}

/* Moves to the next tile. True if it is in the same line of the warpgroup's tiles: nothing is skipped. */
NH_DEVICE bool next_of_line(kv_loop &loop, const nh_work_tile &work_tile, const seen_tiles &seen) {
    if (PASSES_OVER && loop.tile[C.stack] + 1 < seen.end && of_window(loop)) {
        step(loop);
        return true;
    }
    advance(loop, work_tile);
    return false;
}

} // namespace nh_wgmma90
