/* Where a launch has fewer work tiles than the device has multiprocessors, a cluster of blocks shares each: every block
 * loops over its share of the tiles, and at the end each adds up what all have for its share of the rows, in the order
 * of the blocks, from their shared memory. Sums come in the same order every time, and nothing passes through
 * memory. */
#pragma once
#include "fused90.cuh"

/* Sums of a row lie in f32 in what the tiles leave, and behind them two numbers that tell how to add the row up. Eight
 * more than their columns keep rows apart in the banks. */
#define SUMS_PITCH(dim) (((dim) + 8) * 4)

__device__ __forceinline__ void sync_cluster(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* An address of this block's shared memory, in that of another. */
__device__ __forceinline__ unsigned address_in(unsigned address, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

__device__ __forceinline__ float4 load_four(unsigned from) {
    float4 to;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to.x), "=f"(to.y), "=f"(to.z), "=f"(to.w)
                 : "r"(from));
    return to;
}

__device__ __forceinline__ float2 load_two(unsigned from) {
    float2 to;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(to.x), "=f"(to.y) : "r"(from));
    return to;
}

__device__ __forceinline__ void store_two(unsigned to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}

/* A thread's two rows of sums, or zeros for what does not count. All of the cluster must have read its tiles, and the
 * sums that lay here before: it synchronizes first. */
template <int DIM> __device__ __forceinline__ void lay_down(unsigned sums, int row, const float *sum, bool counts) {
    sync_cluster();
#pragma unroll
    for (int i = 0; i < DIM / 2; i += 2) {
        unsigned to = sums + (row + i / 2 % 2 * 8) * SUMS_PITCH(DIM) + i / 4 * 32 + 8 * (threadIdx.x & 3);
        store_two(to, counts ? sum[i] : 0, counts ? sum[i + 1] : 0);
    }
}

/* The rows of an owned tile that a warp of this block adds up: so many from the first one on. */
#define SHARED_ROWS (16 / NH_CLUSTER)

__device__ __forceinline__ int first_shared_row(void) {
    int rank = (int)blockIdx.x % NH_CLUSTER, warp = (int)threadIdx.x / 32 - 4;
    return (rank * 4 * NH_WARPGROUPS + warp) * SHARED_ROWS;
}

/* visit(row, column) for every four columns of them. */
template <int DIM, class Visit> __device__ __forceinline__ void for_shared(Visit visit) {
    const int per_row = DIM / 4;
    for (int i = (int)threadIdx.x % 32; i < SHARED_ROWS * per_row; i += 32)
        visit(first_shared_row() + i / per_row, i % per_row * 4);
}

/* Adds up four columns of a row, each block's sums multiplied with its factor. */
template <int DIM>
__device__ __forceinline__ float4 add_up(unsigned sums, int row, int column, const float factor[NH_CLUSTER]) {
    float4 total = {0, 0, 0, 0};
#pragma unroll
    for (int rank = 0; rank < NH_CLUSTER; rank++) {
        float4 part = load_four(address_in(sums + row * SUMS_PITCH(DIM) + 4 * column, rank));
        total.x += factor[rank] * part.x;
        total.y += factor[rank] * part.y;
        total.z += factor[rank] * part.z;
        total.w += factor[rank] * part.w;
    }
    return total;
}

/* Four columns of a row, each multiplied with a factor. */
__device__ __forceinline__ void store_four(elem *to, const float4 &sum, float factor) {
    *(uint2 *)to = make_uint2(nh_pack(sum.x * factor, sum.y * factor), nh_pack(sum.z * factor, sum.w * factor));
}

/* Adds up what a thread of every block has of two rows, and stores it, if the tensor is wanted; zero, or NaN if a sum
 * is not finite. After the last of these the cluster synchronizes once more: nobody may end whose sums are still
 * read. */
template <int DIM>
__device__ __forceinline__ float finish_shared_rows(const nh_tiled_args &args, const nh_work_tile &work_tile, int slot,
                                                    unsigned sums, int row, const float *sum, bool counts,
                                                    float factor) {
    const nh_cuda_tensor &t = args.tensor[slot];
    float zero = 0, ones[NH_CLUSTER];
    if (!t.data) return 0;
#pragma unroll
    for (int rank = 0; rank < NH_CLUSTER; rank++)
        ones[rank] = 1;
    lay_down<DIM>(sums, row, sum, counts);
    sync_cluster();
    for_shared<DIM>([&](int of, int column) {
        long long token[3];
        if (!row_token(args, work_tile, of, token)) return;
        float4 total = add_up<DIM>(sums, of, column, ones);
        store_four(nh_row(t, work_tile.batch, token, work_tile.head) + column, total, factor);
        zero += doubt<4>(&total.x);
    });
    return zero;
}
