/* Clusters that share work tiles, if a launch has fewer of them than the device has multiprocessors. Each block loops
 * over its share of the tiles. At the end each adds up, for its share of the rows, the sums of all blocks, in the order
 * of the blocks, from their shared memory: always in the same order, and nothing passes through global memory. */
#pragma once
#include "wgmma90.cuh"

namespace nh_wgmma90 {

NH_DEVICE void sync_cluster(void) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The address, in the shared memory of another block, of what is at `address` in this block's. */
NH_DEVICE unsigned address_in(unsigned address, int rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

NH_DEVICE float4 load_four(unsigned from) {
    float4 to;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to.x), "=f"(to.y), "=f"(to.z), "=f"(to.w)
                 : "r"(from));
    return to;
}

NH_DEVICE float2 load_two(unsigned from) {
    float2 to;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(to.x), "=f"(to.y) : "r"(from));
    return to;
}

NH_DEVICE void store_two(unsigned to, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
}

/* Writes a thread's two rows of sums, or zeros if they do not count. It synchronizes the cluster first, as all blocks
 * must have finished with their tiles, and with the sums that were here before. */
template <int DIM> NH_DEVICE void lay_down(unsigned sums, int row, const float *sum, bool counts) {
    sync_cluster();
    NH_UNROLL for (int i = 0; i < DIM / 2; i += 2) {
        unsigned to = sums + (row + i / 2 % 2 * 8) * wgmma90_sums_pitch(DIM) + i / 4 * 32 + 8 * (threadIdx.x & 3);
        store_two(to, counts ? sum[i] : 0, counts ? sum[i + 1] : 0);
    }
}

/* How many rows of an owned tile a warp of this block adds up. */
constexpr int SHARED_ROWS = 16 / C.cluster;

NH_DEVICE int first_shared_row(void) {
    int rank = (int)NH_OWN_BLOCK % C.cluster, warp = (int)threadIdx.x / 32 - 4;
    return (rank * 4 * C.warpgroups + warp) * SHARED_ROWS;
}

/* Calls visit(row, column) for every four columns of these rows. */
template <int DIM, class Visit> NH_DEVICE void for_shared(Visit visit) {
    const int per_row = DIM / 4;
    for (int i = (int)threadIdx.x % 32; i < SHARED_ROWS * per_row; i += 32)
        visit(first_shared_row() + i / per_row, i % per_row * 4);
}

/* Adds up four columns of a row, each block's sums times its factor. */
template <int DIM> NH_DEVICE float4 add_up(unsigned sums, int row, int column, const float factor[C.cluster]) {
    float4 total = {0, 0, 0, 0};
    NH_UNROLL for (int rank = 0; rank < C.cluster; rank++) {
        float4 part = load_four(address_in(sums + row * wgmma90_sums_pitch(DIM) + 4 * column, rank));
        total.x += factor[rank] * part.x;
        total.y += factor[rank] * part.y;
        total.z += factor[rank] * part.z;
        total.w += factor[rank] * part.w;
    }
    return total;
}

/* Stores four columns of a row, times a factor. */
NH_DEVICE void store_four(elem *to, const float4 &sum, float factor) {
    *(uint2 *)to = make_uint2(nh_pack(sum.x * factor, sum.y * factor), nh_pack(sum.z * factor, sum.w * factor));
}

/* Adds up the sums of two rows over all blocks and stores them, if the tensor is asked for. Returns zero, or NaN if one
 * is not finite. Then the cluster synchronizes once more: no block may exit while its sums are read. */
template <int DIM>
NH_DEVICE float finish_shared_rows(const nh_tiled_args &args, const nh_work_tile &work_tile, int slot, unsigned sums,
                                   int row, const float *sum, bool counts, float factor) {
    const nh_cuda_tensor &t = args.tensor[slot];
    float zero = 0, ones[C.cluster];
    if (!t.data) return 0;
    NH_UNROLL for (int rank = 0; rank < C.cluster; rank++)
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

} // namespace nh_wgmma90
