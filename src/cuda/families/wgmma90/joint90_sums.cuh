/* Sums of dQ that need no zeros: with STORES_FIRST, the first block that has dQ of a tile of queries stores it, and all
 * others add to it.
 *
 * Loop tiles then begin at multiples of their length, so that every key tile sees the same ones. Work tiles are claimed
 * from the last one to the first, each when its block begins it. So the first to claim a tile of queries is the last
 * key tile that sees one of them, at the beginning of its loop: queries that see a key tile begin and end no earlier
 * than those that see the one before. A word of the statistics of the tile's first query, which is zero at the
 * beginning (backward_stats.cu), says that the tile is stored; before they add to it, others wait for that.
 *
 * What a work tile waits for was claimed earlier, by a block that waits for earlier ones at most. So nobody waits for a
 * block that has not begun, however many of them run at a time.
 *
 * In one dimension, with stride and dilation 1 on a whole grid, who sees what follows from the windows alone. */
#pragma once
#include "fused90_key.cuh"
#include "work_queue.cuh"

namespace nh_wgmma90 {

/* The same as nh_backward90_stores_first of backward90.c. */
constexpr bool STORES_FIRST = C.rank == 1 && !C.strided && !C.dilated && !NH_REGIONS;

/* Locates a work tile. With STORES_FIRST its loop begins at a multiple of the loop tile's length. */
NH_DEVICE void locate(const nh_tiled_args &args, int index, nh_work_tile &work_tile) {
    nh_work_tile_at<T>(args, index, work_tile);
    if (!STORES_FIRST) return;
    const int last_key = nh_min(work_tile.own[2] + C.own[2], work_tile.length[2]) - 1;
    const int end = nh_seen_by<T>(args.axis[2], work_tile, 2, last_key).end;
    work_tile.halo[2] -= work_tile.halo[2] % C.loop[2];
    work_tile.tiles[2] = (end - work_tile.halo[2] + C.loop[2] - 1) / C.loop[2];
}

/* Claims the last work tile that is left, and passes it on. The number of work tiles: there is none. */
NH_DEVICE int claim_last(const nh_tiled_args &args, const layout &s, int n) {
    const unsigned all = (unsigned)args.tiling.work_tiles;
    const unsigned claimed = atomicAdd((unsigned *)args.tensor[NH_QUEUE].data, 1u);
    return pass_on_work_tile(s, n, claimed < all ? all - 1 - claimed : all);
}

/* For narrow heads (backward90.c), what a work tile begins and ends with takes up to a fifth of the time. So the next K
 * and V are fetched early, to a second place, work tiles are passed on located, as that takes a division for every
 * coordinate, and dV is stored while the last product for dK runs. */
constexpr bool TWO_PLACES = C.own_places > 1;
static_assert(!TWO_PLACES || STORES_FIRST, "work tiles are claimed from the last one on");
static_assert(!TWO_PLACES || wgmma90_shared_bytes(&C) + sizeof(nh_work_tile) <= 227 * 1024, "a block's shared memory");

/* The work tile that is passed on. */
NH_DEVICE nh_work_tile &passed_work_tile(void) {
    __shared__ nh_work_tile work_tile;
    return work_tile;
}

/* Claims the last work tile that is left, locates it and passes it on. */
NH_DEVICE int claim_and_locate(const nh_tiled_args &args, const layout &s, int n, nh_work_tile &work_tile) {
    const unsigned all = (unsigned)args.tiling.work_tiles;
    const unsigned claimed = atomicAdd((unsigned *)args.tensor[NH_QUEUE].data, 1u);
    if (claimed >= all) return pass_on_work_tile(s, n, all);
    locate(args, (int)(all - 1 - claimed), work_tile);
    nh_barrier_wait(s.queue_free, n & 1 ^ 1);
    passed_work_tile() = work_tile;
    return pass_on_work_tile(s, n, all - 1 - claimed);
}

/* Takes the block's next work tile, located if it is passed on so. Its number, or that of all: there is none. */
NH_DEVICE int take_work_tile(const layout &s, int n, nh_work_tile &work_tile) {
    if constexpr (!TWO_PLACES) return next_work_tile(s, n);
    int index;
    nh_barrier_wait(s.queue_full, n & 1);
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(index) : "r"(s.queue) : "memory");
    work_tile = passed_work_tile();
    nh_barrier_arrive(s.queue_free);
    return index;
}

/* How many tiles at the beginning of the loop no later key tile sees. */
NH_DEVICE int stored_tiles(const nh_tiled_args &args, const nh_work_tile &work_tile) {
    const int next = work_tile.own[2] + C.own[2];
    if (next >= work_tile.length[2]) return work_tile.tiles[2];
    return nh_seen_by<T>(args.axis[2], work_tile, 2, next).begin / C.loop[2] - work_tile.halo[2] / C.loop[2];
}

/* The word that says whether a tile of queries is stored. head: of all heads of all batch entries. */
NH_DEVICE unsigned *stored_word(const nh_tiled_args &args, int head, int tile) {
    const long long query[3] = {0, 0, tile * C.loop[2]};
    const int heads = (int)args.heads;
    return (unsigned *)nh_scalar(args.tensor[NH_DELTA], head / heads, query, head % heads) + 3;
}

/* Waits until what this thread has stored is in memory, and tells. */
NH_DEVICE void tell_stored(unsigned *word) {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async.global;" ::: "memory");
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(1u) : "memory");
}

/* Waits until another block has told. What this thread then asks of the copy engine comes after what was stored. */
NH_DEVICE void wait_for_store(const unsigned *word) {
    unsigned stored;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(stored) : "l"(word) : "memory");
    } while (!stored);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

} // namespace nh_wgmma90
