/* dK and dV of small windows whose halos the copy engine fetches. See small_backward_key.cuh and small_boxes.cuh. */
#include "small_backward_key.cuh"
#include "small_boxes.cuh"

#include "overlap.cuh"

namespace nh_small {

struct nh_shared {
    nh_halo halo[NH_HALOS]; /* of one query head */
    nh_rows rows[C.stages];
    struct {
        alignas(1024) char keys[16 * nh_row_bytes(C.dim)], values[16 * nh_row_bytes(C.dim_v)];
    } results[C.warps];
    nh_ring ring;
    nh_tables tables;
    nh_additive_masks additive_masks;
    nh_kinds kinds;
};
static_assert(sizeof(nh_shared) == small_shared_bytes(&C), "the host's count of shared memory");

struct nh_row_maps {
    nh_tensor_map q, k, v, d_o, d_k, d_v, statistics;
};
typedef nh_maps_with<nh_row_maps> nh_maps;
enum {
    NH_STATISTICS_MAP = 3,
    STATISTICS_BYTES = NH_FETCHED_STATISTICS * (int)sizeof(uint4),
    SLOT_BYTES = NH_SLOT_STATISTICS * (int)sizeof(uint4)
};

/* The lanes of a warp copy the statistics of the queries of a halo with a seam: lines of statistics do not start at
 * multiples of 128 bytes, to which the copy engine is limited. */
NH_DEVICE void nh_copy_statistic_lines(const nh_tiled_args &args, const auto &work_tile, int member, nh_halo &halo,
                                       int lane) {
    const nh_cuda_tensor &delta = args.tensor[NH_DELTA];
    NH_UNROLL_1 for (int i = lane; i < nh_halo_lines(work_tile) * C.halo[2]; i += 32) {
        const nh_halo_line line = nh_halo_line_of(work_tile, i / C.halo[2]);
        const int at[3] = {line.at[0], line.at[1], nh_column_around(work_tile, 2, line.at[2] + i % C.halo[2])};
        const int row = line.box * NH_SLOT_STATISTICS + line.within[0] * nh_statistics_pitch(0) +
                        line.within[1] * nh_statistics_pitch(1) + i % C.halo[2];
        long long offset = work_tile.origin[NH_DELTA] + member * delta.head;
        NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
            offset += (at[a] - work_tile.span[a].ahead) * work_tile.step[NH_DELTA][a];
        nh_copy16(&halo.statistics[row], (const float *)delta.data + offset, true);
    }
}

NH_DEVICE nh_seam_unit nh_seam_statistic(const nh_tiled_args &args, const nh_work_tile &work_tile, int member,
                                         nh_halo &halo, const nh_seam_column &column) {
    const nh_cuda_tensor &delta = args.tensor[NH_DELTA];
    long long offset = work_tile.origin[NH_DELTA] + member * delta.head;
    int row = column.box * NH_SLOT_STATISTICS;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        row += column.within[a] * nh_statistics_pitch(a);
        offset += column.at[a] * work_tile.step[NH_DELTA][a];
    }
    return {(const float *)delta.data + offset, (char *)&halo.statistics[row]};
}

/* Copies the queries, output gradients and statistics that boxes lack: see small_seam.cuh. */
NH_DEVICE void nh_copy_query_seam(const nh_tiled_args &args, const auto &work_tile, int member, nh_halo &halo, int lane,
                                  nh_boxes_landed landed) {
    const int units = nh_units(C.dim);
    nh_copy_seam_units<2 * units + 1>(
        work_tile, lane,
        [&](const nh_seam_column &column, int part) -> nh_seam_unit {
            if (part == 2 * units) return nh_seam_statistic(args, work_tile, member, halo, column);
            const bool gradients = part >= units;
            return nh_seam_unit_of<C.dim>(args, work_tile, gradients ? NH_D_O : NH_Q, member,
                                           gradients ? halo.d_outputs : halo.queries, column, part % units);
        },
        landed);
}

/* Fetches the queries, output gradients and statistics that the boxes of a halo with a seam lack. */
NH_DEVICE void nh_fetch_query_seam(const nh_tiled_args &args, const auto &work_tile, const auto &maps, int member,
                                   nh_halo &halo, int lane, nh_boxes_landed landed) {
    if constexpr (C.seam_lines > 0) {
        nh_fetch_lines(args, work_tile, maps.lines, landed.barrier, halo.queries, halo.d_outputs,
                       work_tile.column_head + member, lane);
        nh_copy_statistic_lines(args, work_tile, member, halo, lane);
    } else if constexpr (NH_PERIODIC != 0) {
        nh_copy_query_seam(args, work_tile, member, halo, lane, landed);
    }
}

NH_DEVICE void nh_backward_key_boxes(const nh_tiled_args &args, const nh_maps &maps) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const int heads = (int)args.heads, kv_heads = (int)args.kv_heads, share = heads / kv_heads;
    nh_pipeline_start(args, maps, shared.ring, shared.tables);
    if (threadIdx.x >= NH_CONSUMERS) {
        if (NH_BITS) nh_sync_tables();
        nh_wait_for_launches();
        const auto fetch = [&](const nh_work_tile &work_tile, int stage, int member, unsigned barrier) {
            nh_halo &halo = shared.halo[stage % NH_HALOS];
            nh_rows &rows = shared.rows[stage];
            int head = work_tile.column_head + member;
            nh_fetch_rows<C.k_map>(args, work_tile, maps.k, barrier, rows.keys, work_tile.head, kv_heads);
            nh_fetch_rows<C.v_map>(args, work_tile, maps.v, barrier, rows.values, work_tile.head, kv_heads);
            nh_fetch_halo<C.q_map>(args, work_tile, maps.q, barrier, halo.queries, head, heads);
            nh_fetch_halo<C.d_o_map>(args, work_tile, maps.d_o, barrier, halo.d_outputs, head, heads);
            nh_fetch_halo<NH_STATISTICS_MAP, SLOT_BYTES>(args, work_tile, maps.statistics, barrier,
                                                         (char *)halo.statistics, head, heads);
        };
        nh_fetch_work_tiles<2 * NH_FETCHED_ROWS * nh_row_bytes(C.dim) + STATISTICS_BYTES,
                            2 * NH_ROWS * nh_row_bytes(C.dim), C.seam_lines ? STATISTICS_BYTES : 0>(
            args, shared.tables, shared.ring, (unsigned)share, fetch,
            [&](const nh_work_tile &work_tile, int stage, int member, int lane, nh_boxes_landed landed) {
                nh_fetch_query_seam(args, work_tile, maps, member, shared.halo[stage % NH_HALOS], lane, landed);
            });
    } else {
        nh_masks_fill(args, shared.additive_masks, shared.kinds);
        nh_tables_fill(shared.tables);
        nh_wait_for_launches();
        nh_sync_tables();
        nh_key_sums sums;
        char *keys = shared.results[threadIdx.x / 32].keys, *values = shared.results[threadIdx.x / 32].values;
        const auto work = [&](const nh_tile_info &info, int stage, int warp_tile, int member) {
            if (member == 0) nh_key_sums_start(sums, shared.rows[stage], warp_tile);
            nh_rows_taken(shared.ring, stage);
            nh_differentiate({args, shared.tables, shared.additive_masks}, shared.kinds, info,
                             shared.halo[stage % NH_HALOS], warp_tile, sums,
                             [&] { nh_plane_passed(shared.ring, nh_current_again(shared.ring).done); });
            if (member + 1 < share) return;
            nh_finish(args, info.work_tile, warp_tile, sums, keys, values);
            nh_results_ready();
            if (args.tensor[NH_D_K].data)
                nh_store_results<C.d_k_map>(args, info.work_tile, maps.d_k, NH_D_K, warp_tile, keys, kv_heads);
            if (args.tensor[NH_D_V].data)
                nh_store_results<C.d_v_map>(args, info.work_tile, maps.d_v, NH_D_V, warp_tile, values, kv_heads);
        };
        nh_do_work_tiles(args, shared.ring, (unsigned)share, work);
    }
    nh_ring_end(shared.ring);
}

} // namespace nh_small

using namespace nh_small;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks)
    small_backward_key_boxes(NH_PARAMETERS(nh_tiled_args, nh_maps)) {
    NH_FOR_MEMBERS_WITH_MAPS(nh_tiled_args, nh_maps, nh_backward_key_boxes)
}
