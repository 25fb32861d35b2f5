/* The part of a block's walk that concerns one warpgroup. Its slab of the block's queries sees nothing of some key
 * tiles that the other slabs need, at the ends of the axis along which they are stacked: these it passes over. Tiles
 * follow each other along that axis first, so that all warpgroups pass over some of every line, each at another time,
 * and the stages of the ring make up for it. */
#pragma once
#include "fused90_kv_loop.cuh"

/* Blocks that share a walk have few tiles each: their warpgroups pass over none, so that each has one to multiply. */
#define PASSES_OVER (NH_CLUSTER == 1)

/* Of the tiles of the window: those at [begin, end) on that axis. `last`: the number of the last tile to multiply,
 * extra tokens included. */
struct part {
    int begin, end, last;
};

__device__ __forceinline__ void part_begin(const nh_tiled_args &args, const nh_item &item, int warpgroup, const walk &w,
                                           part &p) {
    const int slab[3] = {SLAB_X, SLAB_Y, SLAB_Z}, tile[3] = NH_WALK_TILE;
    const int a = NH_STACK, extent = tile[a];
    int first = item.own[a] + warpgroup * slab[a], last_row = item.length[a] - 1;
    nh_range low = NH_SEEN_BY(args.axis[a], item, a, nh_min(first, last_row));
    nh_range high = NH_SEEN_BY(args.axis[a], item, a, nh_min(first + slab[a] - 1, last_row));
    p.begin = (low.begin - item.walk[a]) / extent;
    p.end = (high.end - item.walk[a] + extent - 1) / extent;
#if NH_REGIONS
    /* One tile where it sees none. */
    p.begin = nh_min(p.begin, item.tiles[a] - 1);
    p.end = nh_max(p.end, p.begin + 1);
#endif
    /* Nothing of this warpgroup is stored. */
    if (first > last_row) p.end = p.begin + 1;
    /* The last tile of the last line. */
    p.last = NH_EXTRA || !PASSES_OVER ? w.last : w.window_tiles - item.tiles[a] + p.end - 1;
}

/* Whether no query of the warpgroup sees anything of the tile. */
__device__ __forceinline__ bool outside_part(const walk &w, const part &p) {
    bool inside = w.tile[NH_STACK] >= p.begin && w.tile[NH_STACK] < p.end;
    return PASSES_OVER && !inside && w.t < w.window_tiles;
}

/* To the next tile. True: it follows in the part's line, so that nothing is to be passed over and the walk goes on. */
__device__ __forceinline__ bool next_of_line(walk &w, const nh_item &item, const part &p) {
    if (PASSES_OVER && w.tile[NH_STACK] + 1 < p.end && of_window(w)) {
        w.t++;
        w.tile[NH_STACK]++;
        return true;
    }
    advance(w, item);
    return false;
}
