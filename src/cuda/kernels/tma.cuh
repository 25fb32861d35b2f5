/* The copy engine of sm_90 and the barriers in shared memory that count its bytes. */
#pragma once
#include "prelude.cuh"

/* CUtensorMap */
struct alignas(64) nh_tensor_map {
    unsigned long long word[16];
};

__device__ __forceinline__ void nh_barrier_init(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* After the inits, before anybody uses the barriers (and a __syncthreads). */
__device__ __forceinline__ void nh_barrier_init_done(void) {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrives and announces bytes that copies will bring. */
__device__ __forceinline__ void nh_barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void nh_barrier_arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void nh_barrier_wait(unsigned barrier, unsigned parity) {
    asm volatile("{\n.reg .pred p;\nAGAIN:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE;\nbra AGAIN;\nDONE:\n}\n" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* A box from memory to shared memory; every byte of the box counts, those outside the tensor arrive as zeros. */
__device__ __forceinline__ void nh_copy_box(unsigned to, const nh_tensor_map *map, unsigned barrier,
                                            const int at[5]) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
                 : "memory");
}

/* Adds a box of f32 in shared memory to one in memory; what is outside the tensor is left out. The box may be written
 * again after nh_add_boxes_done by the same thread; the sums are there when the kernel has ended. */
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

/* What threads wrote to shared memory is seen by the copy engine and by wgmma, once they meet at a barrier. */
__device__ __forceinline__ void nh_show_shared(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void nh_prefetch_map(const nh_tensor_map *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
