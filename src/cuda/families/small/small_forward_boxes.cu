/* Forward pass of small windows whose halos the copy engine fetches, as a whole or where they roll on: its stages are
 * for several work tiles, so that the copies of one overlap with the products of others. See small_boxes.cuh. */
#include "small_boxes.cuh"
#include "small_forward.cuh"

namespace nh_small {

struct nh_shared {
    nh_key_halo halo[NH_HALOS];
    nh_rows rows[C.stages];
    alignas(1024) char results[C.warps][16 * nh_row_bytes(NH_WIDEST)];
    nh_ring ring;
    nh_tables tables;
    nh_additive_masks additive_masks;
    float *volatile lse; /* the output; here because the compiler would keep an argument in registers */
};
static_assert(sizeof(nh_shared) == small_shared_bytes(&C), "the host's count of shared memory");

struct nh_row_maps {
    nh_tensor_map q, k, v, o;
};
typedef nh_maps_with<nh_row_maps> nh_maps;

NH_DEVICE void nh_forward_boxes(const nh_tiled_args &args, const nh_maps &maps) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const int heads = (int)args.heads, kv_heads = (int)args.kv_heads;
    if (threadIdx.x == 0) shared.lse = (float *)args.tensor[NH_LSE].data;
    nh_pipeline_start(args, maps, shared.ring, shared.tables);
    if (threadIdx.x >= NH_CONSUMERS) {
        if (NH_BITS) nh_sync_tables();
        const auto fetch = [&](const nh_work_tile &work_tile, int stage, int, unsigned barrier) {
            nh_key_halo &halo = shared.halo[stage % NH_HALOS];
            nh_fetch_rows<C.q_map>(args, work_tile, maps.q, barrier, shared.rows[stage].queries, work_tile.head, heads);
            nh_fetch_halo<C.k_map>(args, work_tile, maps.k, barrier, halo.keys, work_tile.column_head, kv_heads);
            nh_fetch_halo<C.v_map>(args, work_tile, maps.v, barrier, halo.values, work_tile.column_head, kv_heads);
        };
        nh_fetch_work_tiles<2 * NH_FETCHED_ROWS * nh_row_bytes(C.dim), NH_ROWS * nh_row_bytes(C.dim)>(
            args, shared.tables, shared.ring, 1, fetch,
            [&](const nh_work_tile &work_tile, int stage, int, int lane, nh_boxes_landed landed) {
                nh_fetch_key_seam(args, work_tile, maps, shared.halo[stage % NH_HALOS], lane, landed);
            });
    } else {
        if (NH_ADDS_MASK) nh_additive_masks_fill(shared.additive_masks);
        nh_tables_fill(shared.tables);
        nh_sync_tables();
        const auto work = [&](const nh_tile_info &info, int stage, int warp_tile, int) {
            nh_attention attention;
            const nh_state &state = attention.state;
            const float(&output)[NH_SUMS_V][4] = attention.output;
            const bool held = nh_attend({args, shared.tables, shared.additive_masks}, info,
                                        shared.halo[stage % NH_HALOS], shared.rows[stage], warp_tile, attention,
                                        [&] { nh_rows_taken(shared.ring, stage); },
                                        [&] { nh_plane_passed(shared.ring, nh_current_again(shared.ring).done); });
            const nh_current now = nh_current_again(shared.ring);
            const nh_tile_info &same = shared.ring.info[now.info];
            char *results = shared.results[nh_thread_again() / 32];
            float2 lse;
            if constexpr (NH_PASSES) {
                lse = nh_finish(now.warp_tile, results, state, output);
                if (!held)
                    lse = nh_repair_passed(args, same, now.warp_tile, results,
                                           !nh_held(same.visibility, state, output, now.warp_tile, 0),
                                           !nh_held(same.visibility, state, output, now.warp_tile, 1), lse);
            } else {
                lse = held ? nh_finish(now.warp_tile, results, state, output)
                           : nh_repair_attention(args, same, shared.tables, shared.additive_masks,
                                                 shared.halo[now.number / NH_WARP_TILES % C.stages % NH_HALOS],
                                                 now.warp_tile, results);
            }
            /* Between the two halves of nh_results_ready, so that its fence does not wait for LSE. */
            if (!C.dilated) nh_show_shared();
            nh_store_lse(shared.lse, same.work_tile, now.warp_tile, lse);
            __syncwarp();
            nh_store_results<C.o_map, true>(args, same.work_tile, maps.o, NH_O, now.warp_tile, results, heads,
                                            now.done);
            return now.number;
        };
        nh_do_work_tiles<true>(args, shared.ring, 1, work);
    }
    nh_ring_end(shared.ring);
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_forward_boxes(NH_PARAMETERS(nh_tiled_args, nh_maps)) {
    NH_FOR_MEMBERS_WITH_MAPS(nh_tiled_args, nh_maps, nh_forward_boxes)
}
