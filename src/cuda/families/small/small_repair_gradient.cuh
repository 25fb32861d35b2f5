/* Repair in the backward pass: a whole warp computes the gradients of a query or, with NH_INVERSE, of a key and its
 * value, pair by pair from memory, if a NaN or infinity outside its window has reached them. */
#pragma once

#include "small_visibility.cuh"
#include "small_statistics.cuh"

#include "repair_pair.cuh"

namespace nh_small {

/* Adds the pair with the column at `at` to the gradient; member: of the query heads that share the keys. */
NH_DEVICE void nh_repair_column(const nh_tiled_args &args, const nh_work_tile &work_tile, int member,
                                const int (&position)[3], const int (&at)[3], const nh_lane_rows &row,
                                float2 statistics, nh_lane_rows &gradient) {
    const int first = NH_INVERSE ? NH_Q : NH_K, second = NH_INVERSE ? NH_D_O : NH_V;
    const int share = (int)(args.heads / args.kv_heads);
    long long offset[4] = {work_tile.origin[first] + member * args.tensor[first].head,
                           work_tile.origin[second] + member * args.tensor[second].head,
                           work_tile.origin[NH_DELTA] + member * args.tensor[NH_DELTA].head,
                           work_tile.origin[NH_LSE] + member * args.tensor[NH_LSE].head};
    int entry = (NH_INVERSE ? work_tile.head * share + member : work_tile.head) * C.bias_count;
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int ahead = nh_halo_place(work_tile, a, at[a]), difference = at[a] - position[a];
        offset[0] += ahead * work_tile.step[first][a];
        offset[1] += ahead * work_tile.step[second][a];
        offset[2] += ahead * work_tile.step[NH_DELTA][a];
        offset[3] += ahead * work_tile.step[NH_LSE][a];
        entry += ((NH_INVERSE ? -difference : difference) + (int)args.axis[a].window - 1) * nh_bias_step(a);
    }
    const nh_lane_rows column = nh_lane_rows_load((const elem *)args.tensor[first].data + offset[0],
                                                  (const elem *)args.tensor[second].data + offset[1]);
    const float scale = (float)(args.scale * NH_LOG2E);
    if (NH_INVERSE) {
        const nh_statistics query =
            nh_statistics_sum(*(const uint4 *)((const float *)args.tensor[NH_DELTA].data + offset[2]));
        const float lse = nh_seen_lse(((const float *)args.tensor[NH_LSE].data)[offset[3]]);
        statistics = make_float2(lse * -(float)NH_LOG2E, -query.delta);
    }
    nh_repair_pair(row, column, statistics, scale,
                  C.bias_count ? nh_load(((const elem *)args.tensor[NH_BIAS].data)[entry]) : 0.f, gradient);
}

/* Calls first(row, i, element) for the row's gradient and, with NH_INVERSE, second(row, i, element) for its value's.
 * statistics: those of the query, without NH_INVERSE. */
template <typename First, typename Second>
static __device__ __noinline__ void nh_repair_gradient(const nh_tiled_args &args, const nh_work_tile &work_tile,
                                                       int warp_tile, int row, float2 statistics, First first,
                                                       Second second) {
    if (!nh_row_exists(work_tile, warp_tile, row)) return;
    const int tensor = NH_INVERSE ? NH_K : NH_Q, tensor2 = NH_INVERSE ? NH_V : NH_D_O;
    const nh_lane_rows own =
        nh_lane_rows_load((const elem *)args.tensor[tensor].data + nh_row_offset(work_tile, tensor, warp_tile, row),
                          (const elem *)args.tensor[tensor2].data + nh_row_offset(work_tile, tensor2, warp_tile, row));
    nh_lane_rows gradient = {};
    nh_range range[3] = {{0, 1}, {0, 1}, {0, 1}};
    int position[3] = {0, 0, 0};
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        position[a] = work_tile.row[a] + nh_row_at(warp_tile, row, a);
        range[a] = nh_columns_of(args.axis[a], nh_group_of(work_tile, a), position[a], nh_axis_wraps(a));
    }
    const int members = NH_INVERSE ? (int)(args.heads / args.kv_heads) : 1;
    for (int member = 0; member < members; member++)
        for (int x = range[0].begin; x < range[0].end; x++)
            for (int y = range[1].begin; y < range[1].end; y++)
                for (int z = range[2].begin; z < range[2].end; z++) {
                    const int at[3] = {x, y, z};
                    nh_repair_column(args, work_tile, member, position, at, own, statistics, gradient);
                }
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        const int element = (int)(threadIdx.x % 32) + 32 * i;
        if (element < C.dim) first(row, element, nh_store(gradient.first[i] * (float)args.scale));
        if (NH_INVERSE && element < C.dim_v) second(row, element, nh_store(gradient.second[i]));
    }
}

} // namespace nh_small
