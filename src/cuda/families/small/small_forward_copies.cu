/* Forward pass of small windows whose halos are copied by threads. Several blocks share a multiprocessor, so that the
 * copies of one overlap with the products of the others. See small.cuh. */
#include "small_forward.cuh"

namespace nh_small {

struct nh_shared {
    nh_key_halo halo;
    nh_rows rows;
    nh_tile_info info[2];
    nh_tables tables;
    nh_additive_masks additive_masks;
    float *volatile lse; /* the output; here because the compiler would keep an argument in registers */
};
static_assert(sizeof(nh_shared) == small_shared_bytes(&C), "the host's count of shared memory");

NH_DEVICE void nh_forward_copies(const nh_tiled_args &args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_key_halo &halo = shared.halo;
    nh_rows &rows = shared.rows;
    int warp = (int)(threadIdx.x / 32), current = 0;
    if (threadIdx.x == 0) shared.lse = (float *)args.tensor[NH_LSE].data;
    if (NH_ADDS_MASK) nh_additive_masks_fill(shared.additive_masks);
    nh_tables_start(args, shared.tables, shared.info);
    nh_tables_fill(shared.tables);
    __syncthreads();
    if (warp == 0) nh_work_tile_locate(args, shared.tables.digits, (int)NH_OWN_BLOCK, false, shared.info[0].work_tile);
    __syncthreads();
    for (int index = (int)NH_OWN_BLOCK; index < args.tiling.work_tiles; index += (int)NH_OWN_BLOCKS) {
        nh_tile_info &info = shared.info[current];
        current ^= 1;
        nh_copy_halo<C.dim>(args, info.work_tile, NH_K, 0, halo.keys);
        nh_copy_halo<C.dim_v>(args, info.work_tile, NH_V, 0, halo.values);
        nh_copy_rows<C.dim, NH_WIDEST>(args, info.work_tile, NH_Q, rows.queries);
        nh_tile_info_fill(args, shared.tables, info, info.work_tile.head, (int)nh_thread_again(), NH_THREADS);
        nh_work_tile_locate_next(args, shared.tables, index + (int)NH_OWN_BLOCKS, shared.info[current].work_tile);
        nh_copy_wait();
        __syncthreads();
        nh_for_warp_tiles(args, info.work_tile, [&](int warp_tile) {
            nh_attention attention;
            const bool held = nh_attend({args, shared.tables, shared.additive_masks}, info, halo, rows, warp_tile,
                                        attention, [] {}, [] {});
            const float2 lse = held ? nh_finish(warp_tile, rows.queries, attention.state, attention.output)
                                    : nh_repair_attention(args, info, shared.tables, shared.additive_masks, halo,
                                                          warp_tile, rows.queries);
            nh_store_lse(shared.lse, info.work_tile, warp_tile, lse);
            __syncwarp();
            nh_store_rows<C.dim_v, NH_WIDEST>(args, info.work_tile, NH_O, rows.queries, warp_tile);
        });
        __syncthreads();
    }
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_forward_copies(NH_PARAMETER(nh_tiled_args)) {
    NH_FOR_MEMBERS(nh_tiled_args, nh_forward_copies)
}
