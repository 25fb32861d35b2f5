/* Repair of a row of the forward pass: a warp computes it key by key over exactly its window (see repair_key.cuh). */
#pragma once

#include "small_visibility.cuh"

#include "repair_key.cuh"

namespace nh_small {

/* Calls write(row, i, element) for the row's output; returns its LSE. Reads memory alone: shared memory may hold other
 * work tiles by now. (`write` by reference would keep its captures in local memory even if no row is repaired.) */
template <typename Write>
static __device__ __noinline__ float nh_repair_row(const nh_tiled_args &args, const nh_tile_info &info, int warp_tile,
                                                  int row, Write write) {
    const nh_work_tile &work_tile = info.work_tile;
    if (!nh_row_exists(work_tile, warp_tile, row)) return 0.f;
    const elem *tensor[3] = {(const elem *)args.tensor[NH_Q].data + nh_row_offset(work_tile, NH_Q, warp_tile, row),
                             (const elem *)args.tensor[NH_K].data + work_tile.origin[NH_K],
                             (const elem *)args.tensor[NH_V].data + work_tile.origin[NH_V]};
    nh_repair state;
    nh_repair_start(state, tensor[0]);
    nh_range window[3] = {{0, 1}, {0, 1}, {0, 1}};
    int position[3] = {0, 0, 0};
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        position[a] = work_tile.row[a] + nh_row_at(warp_tile, row, a);
        window[a] = nh_columns_of(args.axis[a], nh_group_of(work_tile, a), position[a], nh_axis_wraps(a));
    }
    for (int x = window[0].begin; x < window[0].end; x++)
        for (int y = window[1].begin; y < window[1].end; y++)
            for (int z = window[2].begin; z < window[2].end; z++) {
                const int at[3] = {x, y, z};
                long long to_key = 0, to_value = 0;
                int entry = 0;
                for (int a = NH_FIRST_AXIS; a < 3; a++) {
                    to_key += nh_halo_place(work_tile, a, at[a]) * work_tile.step[NH_K][a];
                    to_value += nh_halo_place(work_tile, a, at[a]) * work_tile.step[NH_V][a];
                    entry += (at[a] - position[a] + (int)args.axis[a].window - 1) * nh_bias_step(a);
                }
                nh_repair_key(state, tensor[1] + to_key, tensor[2] + to_value, (float)(args.scale * NH_LOG2E),
                             C.bias_count ? info.bias[NH_BIAS_MARGIN + entry] : 0.f);
            }
    return nh_repair_finish(state, [&](int i, elem element) { write(row, i, element); });
}

/* Repairs the rows of a warp tile whose sums are not finite. repair, lse: of rows g and g + 8. Calls write(row, i,
 * element) for the elements of their outputs. */
template <typename Write>
NH_DEVICE void nh_repair_rows(const nh_tiled_args &args, const nh_tile_info &info, int warp_tile,
                              const bool (&repair)[2], float2 &lse, Write write) {
    const int g = (int)(threadIdx.x % 32) / 4;
    nh_for_rows_to_repair(repair[0], repair[1], [&](int row) {
        const float repaired = nh_repair_row(args, info, warp_tile, row, write);
        if (row == g) lse.x = repaired;
        if (row == g + 8) lse.y = repaired;
    });
}

} // namespace nh_small
