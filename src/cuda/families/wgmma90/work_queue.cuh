/* Work items handed out one after the other, to whichever block is the first to ask. All blocks are then at items that
 * follow each other in the launch's order, however long each takes, and what these share stays in the L2.
 *
 * A block starts with the item of its own number. One thread claims the next by a counter in memory, which an earlier
 * launch has set to zero, and passes it to the other threads through shared memory. */
#pragma once
#include "boxes.cuh"
#include "tma.cuh"

/* Addresses in shared memory: the item, and its barriers. */
struct item_queue {
    unsigned item, full, free;
};

/* Readers: threads that call next_item. */
__device__ __forceinline__ void init_queue(const item_queue &queue, unsigned readers) {
    nh_barrier_init(queue.full, 1);
    nh_barrier_init(queue.free, readers);
}

/* The block's n-th item; from the number of items on there is none. */
__device__ __forceinline__ int claim_item(const nh_tiled_args &args, const item_queue &queue, int n) {
    unsigned item = blockIdx.x;
    if (n > 0) item = gridDim.x + atomicAdd((unsigned *)args.tensor[NH_QUEUE].data, 1u);
    if (item > (unsigned)args.tiling.items) item = (unsigned)args.tiling.items;
    nh_barrier_wait(queue.free, n & 1 ^ 1);
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(queue.item), "r"(item) : "memory");
    nh_barrier_arrive(queue.full);
    return (int)item;
}

/* The same for those who are told. */
__device__ __forceinline__ int next_item(const item_queue &queue, int n) {
    int item;
    nh_barrier_wait(queue.full, n & 1);
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(item) : "r"(queue.item) : "memory");
    nh_barrier_arrive(queue.free);
    return item;
}
