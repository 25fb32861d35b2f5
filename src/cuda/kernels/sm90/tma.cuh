/* The copy engine (TMA) of sm_90, and the barriers in shared memory that count its bytes (mbarrier). */
#pragma once
#include "prelude.cuh"

/* CUtensorMap */
struct alignas(64) nh_tensor_map {
    unsigned long long word[16];
};

__device__ __forceinline__ void nh_barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Called after the inits and before anybody uses the barriers; a __syncthreads must follow. */
__device__ __forceinline__ void nh_barrier_init_done(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives, and announces bytes that copies will bring. */
__device__ __forceinline__ void nh_barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void nh_barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* The same as soon as this thread's cp.async copies have landed; the thread does not wait. */
__device__ __forceinline__ void nh_barrier_arrive_copied(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void nh_barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void nh_prefetch_map(const nh_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Copies a box from memory to shared memory. All its bytes count at the barrier; those outside the tensor are zeros. */
__device__ __forceinline__ void nh_copy_box(unsigned to, const nh_tensor_map *map, unsigned barrier, const int at[5]) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
                 : "memory");
}

/* Copies consecutive rows of an im2col map, from these coordinates on along axis 1; at its end the rows go on with its
 * beginning and the next coordinate of axis 2. */
__device__ __forceinline__ void nh_copy_pixels(unsigned to, const nh_tensor_map *map, unsigned barrier,
                                               const int at[5]) {
    const unsigned short none = 0;
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], {%8, %9, %10};" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "h"(none),
                 "h"(none), "h"(none)
                 : "memory");
}

/* Adds a box of f32 in shared memory to one in memory, inside the tensor. The former may be overwritten after the same
 * thread has called nh_add_boxes_done; the sums are complete when the kernel has ended. */
__device__ __forceinline__ void nh_add_box(const nh_tensor_map *map, unsigned from, const int at[5]) {
    asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group"
                 " [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map),
                 "r"(from), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
                 : "memory");
}

__device__ __forceinline__ void nh_add_boxes_done(void) {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Makes what this thread wrote to shared memory visible to the copy engine and to wgmma; a barrier must follow. */
__device__ __forceinline__ void nh_show_shared(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Copies a box from shared memory to memory, inside the tensor. nh_add_boxes_done applies to it, too. */
__device__ __forceinline__ void nh_store_box(const nh_tensor_map *map, const int at[5], unsigned from) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];" ::"l"(map),
                 "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "r"(from)
                 : "memory");
}

/* Coordinates of a map's five axes, by layout (enum nh_map_layout). 0: D, head, z, y, batch (ranks 1, 2); 1: D, head,
 * z, y, x (one batch entry); 2: head and D, z, y, x, batch (heads next to each other); 3: D, z, y, x, batch and head;
 * 4: D, z, y, x, and an origin in place of `head`, which includes everything else (wgmma90.cuh). */
template <int LAYOUT>
__device__ __forceinline__ void place(int to[5], int column, int head, int heads, int dim, const int token[3],
                                      int batch) {
    to[0] = LAYOUT == 2 ? head * dim + column : column;
    if (LAYOUT < 2) {
        to[1] = head;
        to[2] = token[2];
        to[3] = token[1];
        to[4] = LAYOUT == 0 ? batch : token[0];
    } else {
        to[1] = token[2];
        to[2] = token[1];
        to[3] = token[0];
        to[4] = LAYOUT == 2 ? batch : LAYOUT == 3 ? batch * heads + head : head;
    }
}
