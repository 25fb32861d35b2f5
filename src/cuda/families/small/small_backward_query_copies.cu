/* dQ of small windows whose halos are copied by threads. See small_backward_query.cuh. */
#include "small_backward_query.cuh"

#include "overlap.cuh"

namespace nh_small {

struct nh_shared {
    nh_key_halo halo;
    nh_rows rows;
    nh_tile_info info[2];
    nh_tables tables;
    nh_additive_masks additive_masks;
    nh_bias_sums sums;
};
static_assert(sizeof(nh_shared) == small_shared_bytes(&C), "the host's count of shared memory");

NH_DEVICE void nh_backward_query_copies(const nh_tiled_args &args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_let_next_begin();
    nh_key_halo &halo = shared.halo;
    nh_rows &rows = shared.rows;
    int warp = (int)(threadIdx.x / 32), current = 0, summed_head = 0;
    nh_bias_products products;
    nh_bias_products_clear(products);
    if (NH_ADDS_MASK) nh_additive_masks_fill(shared.additive_masks);
    if (nh_bias_wanted(args)) nh_bias_clear(shared.sums);
    nh_tables_start(args, shared.tables, shared.info);
    nh_tables_fill(shared.tables);
    __syncthreads();
    if (warp == 0) nh_work_tile_locate(args, shared.tables.digits, (int)NH_OWN_BLOCK, false, shared.info[0].work_tile);
    __syncthreads();
    for (int index = (int)NH_OWN_BLOCK; index < args.tiling.work_tiles; index += (int)NH_OWN_BLOCKS) {
        nh_tile_info &info = shared.info[current];
        const nh_work_tile &work_tile = info.work_tile;
        current ^= 1;
        nh_copy_halo<C.dim>(args, work_tile, NH_K, 0, halo.keys);
        nh_copy_halo<C.dim_v>(args, work_tile, NH_V, 0, halo.values);
        nh_copy_rows<C.dim, C.dim>(args, work_tile, NH_Q, rows.queries);
        nh_copy_rows<C.dim_v, C.dim_v>(args, work_tile, NH_O, rows.outputs);
        nh_copy_rows<C.dim_v, C.dim_v>(args, work_tile, NH_D_O, rows.d_outputs);
        nh_bias_head(args, summed_head, work_tile.head, shared.sums, products);
        nh_tile_info_fill(args, shared.tables, info, work_tile.head, (int)nh_thread_again(), NH_THREADS);
        nh_work_tile_locate_next(args, shared.tables, index + (int)NH_OWN_BLOCKS, shared.info[current].work_tile);
        nh_copy_wait();
        __syncthreads();
        nh_for_warp_tiles(args, work_tile, [&](int warp_tile) {
            nh_differentiate({args, shared.tables, shared.additive_masks}, info, {halo, rows}, {shared.sums, products},
                             warp_tile, rows.queries, [] {}, [] {});
            __syncwarp();
            if (args.tensor[NH_D_Q].data) nh_store_rows<C.dim, C.dim>(args, work_tile, NH_D_Q, rows.queries, warp_tile);
        });
        __syncthreads();
    }
    nh_bias_head(args, summed_head, (int)args.heads, shared.sums, products);
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_backward_query_copies(NH_PARAMETER(nh_tiled_args)) {
    NH_FOR_MEMBERS(nh_tiled_args, nh_backward_query_copies)
}
