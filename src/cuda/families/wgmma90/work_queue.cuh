/* A dynamic tile scheduler: work tiles are handed out to whichever block asks first. All blocks are then at work tiles
 * that follow each other in the launch's order, however long each takes, and what these share stays in the L2. A block
 * starts with the work tile of its own number. One thread claims the next one by a counter in memory, which an earlier
 * launch has cleared, and passes it to the other threads through shared memory. */
#pragma once
#include "wgmma90.cuh"

namespace nh_wgmma90 {

/* readers: the number of threads that call next_work_tile. */
NH_DEVICE void init_queue(const layout &s, unsigned readers) {
    nh_barrier_init(s.queue_full, 1);
    nh_barrier_init(s.queue_free, readers);
}

/* Passes the block's n-th work tile on; called by one thread. The number of work tiles: there is none. */
NH_DEVICE int pass_on_work_tile(const layout &s, int n, unsigned work_tile) {
    nh_barrier_wait(s.queue_free, n & 1 ^ 1);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(s.queue), "r"(work_tile) : "memory");
    nh_barrier_arrive(s.queue_full);
    return (int)work_tile;
}

/* Claims the block's n-th work tile and passes it on. */
NH_DEVICE int claim_work_tile(const nh_tiled_args &args, const layout &s, int n) {
    unsigned work_tile = NH_OWN_BLOCK;
    if (n > 0) work_tile = NH_OWN_BLOCKS + atomicAdd((unsigned *)args.tensor[NH_QUEUE].data, 1u);
    if (work_tile > (unsigned)args.tiling.work_tiles) work_tile = (unsigned)args.tiling.work_tiles;
    return pass_on_work_tile(s, n, work_tile);
}

/* Returns the work tile that was claimed, to the threads to which it is passed. */
NH_DEVICE int next_work_tile(const layout &s, int n) {
    int work_tile;
    nh_barrier_wait(s.queue_full, n & 1);
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(work_tile) : "r"(s.queue) : "memory");
    nh_barrier_arrive(s.queue_free);
    return work_tile;
}

} // namespace nh_wgmma90
