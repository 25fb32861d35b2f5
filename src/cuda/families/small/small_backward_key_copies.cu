/* dK and dV of small windows whose halos are copied by threads. See small_backward_key.cuh. */
#include "small_backward_key.cuh"
#include "small_copy_statistics.cuh"

#include "overlap.cuh"

namespace nh_small {

static_assert(NH_WARP_TILES == C.warps, "one warp tile of a work tile per warp");

struct nh_shared {
    nh_halo halo; /* of one query head */
    nh_rows rows;
    nh_tile_info info[2];
    nh_tables tables;
    nh_additive_masks additive_masks;
    nh_kinds kinds;
};
static_assert(sizeof(nh_shared) == small_shared_bytes(&C), "the host's count of shared memory");

NH_DEVICE void nh_backward_key_copies(const nh_tiled_args &args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_halo &halo = shared.halo;
    nh_rows &rows = shared.rows;
    const int share = (int)(args.heads / args.kv_heads);
    int current = 0;
    nh_masks_fill(args, shared.additive_masks, shared.kinds);
    nh_tables_start(args, shared.tables, shared.info);
    nh_tables_fill(shared.tables);
    nh_wait_for_launches();
    __syncthreads();
    if (threadIdx.x / 32 == 0)
        nh_work_tile_locate(args, shared.tables.digits, (int)NH_OWN_BLOCK, false, shared.info[0].work_tile);
    __syncthreads();
    for (int index = (int)NH_OWN_BLOCK; index < args.tiling.work_tiles; index += (int)NH_OWN_BLOCKS) {
        nh_tile_info &info = shared.info[current];
        const nh_work_tile &work_tile = info.work_tile;
        nh_key_sums sums;
        current ^= 1;
        nh_copy_rows<C.dim, C.dim>(args, work_tile, NH_K, rows.keys);
        nh_copy_rows<C.dim_v, C.dim_v>(args, work_tile, NH_V, rows.values);
        nh_work_tile_locate_next(args, shared.tables, index + (int)NH_OWN_BLOCKS, shared.info[current].work_tile);
        NH_UNROLL_1 for (int member = 0; member < share; member++) {
            nh_copy_halo<C.dim>(args, work_tile, NH_Q, member * args.tensor[NH_Q].head, halo.queries);
            nh_copy_halo<C.dim_v>(args, work_tile, NH_D_O, member * args.tensor[NH_D_O].head, halo.d_outputs);
            nh_copy_statistics(args, work_tile, member, halo.statistics);
            nh_tile_info_fill(args, shared.tables, info, work_tile.head * share + member, (int)nh_thread_again(),
                              NH_THREADS);
            nh_copy_wait();
            __syncthreads();
            nh_for_warp_tiles(args, work_tile, [&](int warp_tile) {
                if (member == 0) nh_key_sums_start(sums, rows, warp_tile);
                nh_differentiate({args, shared.tables, shared.additive_masks}, shared.kinds, info, halo, warp_tile,
                                 sums, [] {});
                if (member + 1 < share) return;
                nh_finish(args, work_tile, warp_tile, sums, rows.keys, rows.values);
                __syncwarp();
                if (args.tensor[NH_D_K].data)
                    nh_store_rows<C.dim, C.dim>(args, work_tile, NH_D_K, rows.keys, warp_tile);
                if (args.tensor[NH_D_V].data)
                    nh_store_rows<C.dim_v, C.dim_v>(args, work_tile, NH_D_V, rows.values, warp_tile);
            });
            __syncthreads();
        }
    }
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_backward_key_copies(NH_PARAMETER(nh_tiled_args)) {
    NH_FOR_MEMBERS(nh_tiled_args, nh_backward_key_copies)
}
