/* dQ of small windows whose halos the copy engine fetches. See small_backward_query.cuh and small_boxes.cuh. */
#include "small_backward_query.cuh"
#include "small_boxes.cuh"

#include "overlap.cuh"

namespace nh_small {

struct nh_shared {
    nh_key_halo halo[NH_HALOS];
    nh_rows rows[C.stages];
    alignas(1024) char results[C.warps][16 * nh_row_bytes(C.dim)];
    nh_ring ring;
    nh_tables tables;
    nh_additive_masks additive_masks;
    nh_bias_sums sums;
};
static_assert(sizeof(nh_shared) == small_shared_bytes(&C), "the host's count of shared memory");

struct nh_row_maps {
    nh_tensor_map q, k, v, o, d_o, d_q;
};
typedef nh_maps_with<nh_row_maps> nh_maps;

NH_DEVICE void nh_backward_query_boxes(const nh_tiled_args &args, const nh_maps &maps) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_let_next_begin();
    const int heads = (int)args.heads, kv_heads = (int)args.kv_heads;
    nh_pipeline_start(args, maps, shared.ring, shared.tables);
    if (threadIdx.x >= NH_CONSUMERS) {
        if (NH_BITS) nh_sync_tables();
        const auto fetch = [&](const nh_work_tile &work_tile, int stage, int, unsigned barrier) {
            nh_key_halo &halo = shared.halo[stage % NH_HALOS];
            nh_rows &rows = shared.rows[stage];
            nh_fetch_rows<C.q_map>(args, work_tile, maps.q, barrier, rows.queries, work_tile.head, heads);
            nh_fetch_rows<C.o_map>(args, work_tile, maps.o, barrier, rows.outputs, work_tile.head, heads);
            nh_fetch_rows<C.d_o_map>(args, work_tile, maps.d_o, barrier, rows.d_outputs, work_tile.head, heads);
            nh_fetch_halo<C.k_map>(args, work_tile, maps.k, barrier, halo.keys, work_tile.column_head, kv_heads);
            nh_fetch_halo<C.v_map>(args, work_tile, maps.v, barrier, halo.values, work_tile.column_head, kv_heads);
        };
        nh_fetch_work_tiles<2 * NH_FETCHED_ROWS * nh_row_bytes(C.dim), 3 * NH_ROWS * nh_row_bytes(C.dim)>(
            args, shared.tables, shared.ring, 1, fetch,
            [&](const nh_work_tile &work_tile, int stage, int, int lane, nh_boxes_landed landed) {
                nh_fetch_key_seam(args, work_tile, maps, shared.halo[stage % NH_HALOS], lane, landed);
            });
    } else {
        if (NH_ADDS_MASK) nh_additive_masks_fill(shared.additive_masks);
        if (nh_bias_wanted(args)) nh_bias_clear(shared.sums);
        nh_tables_fill(shared.tables);
        nh_sync_tables();
        int summed_head = 0;
        nh_bias_products products;
        nh_bias_products_clear(products);
        char *results = shared.results[threadIdx.x / 32];
        const auto work = [&](const nh_tile_info &info, int stage, int warp_tile, int) {
            nh_bias_head(args, summed_head, info.work_tile.head, shared.sums, products);
            nh_differentiate({args, shared.tables, shared.additive_masks}, info,
                             {shared.halo[stage % NH_HALOS], shared.rows[stage]}, {shared.sums, products}, warp_tile,
                             results, [&] { nh_rows_taken(shared.ring, stage); },
                             [&] { nh_plane_passed(shared.ring, nh_current_again(shared.ring).done); });
            nh_results_ready();
            if (args.tensor[NH_D_Q].data)
                nh_store_results<C.d_q_map>(args, info.work_tile, maps.d_q, NH_D_Q, warp_tile, results, heads);
        };
        nh_do_work_tiles(args, shared.ring, 1, work);
        nh_bias_head(args, summed_head, heads, shared.sums, products);
    }
    nh_ring_end(shared.ring);
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_backward_query_boxes(NH_PARAMETERS(nh_tiled_args, nh_maps)) {
    NH_FOR_MEMBERS_WITH_MAPS(nh_tiled_args, nh_maps, nh_backward_query_boxes)
}
