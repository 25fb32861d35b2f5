/* One row of the forward pass, key by key, by a whole warp: over its window and nothing else.
 *
 * Tensor cores multiply the zero weight of a key outside the window with its value: a NaN or infinity there makes the
 * sum NaN, though the key is none of the query's business. Rows that come out so are done again here; if the window
 * itself holds the NaN, it comes out again. */
#pragma once

#include "small_sight.cuh"

#include "exact_key.cuh"

/* Writes the row to `outputs`; returns its LSE. The query is read from memory: its place holds outputs by now. */
static __device__ __noinline__ float nh_exact_row(const nh_cuda_args &args, const nh_scene &scene,
                                                  const char *keys, const char *values, int subtile,
                                                  int row, char *outputs) {
    const nh_item &item = scene.item;
    int lane = (int)(threadIdx.x % 32);
    if (!nh_row_exists(item, subtile, row)) return 0.f;
    const elem *query =
        (const elem *)args.tensor[NH_Q].data + nh_row_offset(item, NH_Q, subtile, row);
    nh_exact state = {{}, {}, -1e30f, 0.f};
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        if (lane + 32 * i < NH_DIM) state.query[i] = nh_load(query[lane + 32 * i]);
    nh_range window[3] = {{0, 1}, {0, 1}, {0, 1}};
    int position[3] = {0, 0, 0};
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        position[a] = item.row[a] + nh_row_at(subtile, row, a);
        window[a] = nh_columns_of(args.axis[a], item.length[a], position[a]);
    }
    for (int x = window[0].begin; x < window[0].end; x++)
        for (int y = window[1].begin; y < window[1].end; y++)
            for (int z = window[2].begin; z < window[2].end; z++) {
                const int at[3] = {x, y, z};
                int halo_row = 0, entry = 0;
                for (int a = NH_FIRST_AXIS; a < 3; a++) {
                    halo_row += nh_axis_pitch(a) * (NH_SLOTS && a == NH_FIRST_AXIS ? nh_roll_line(item.roll, at[a])
                                                                                   : at[a] - item.column[a]);
                    entry += (at[a] - position[a] + (int)args.axis[a].window - 1) * nh_bias_step(a);
                }
                nh_exact_key(state, keys, values, halo_row, (float)(args.scale * NH_LOG2E),
                             NH_BIAS_COUNT ? scene.bias[NH_BIAS_MARGIN + entry] : 0.f);
            }
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        int element = lane + 32 * i;
        char *to = outputs + nh_unit_offset(NH_WIDEST, nh_result_number(subtile, row), element / NH_PER_UNIT);
        if (element < NH_DIM_V)
            *(elem *)(to + element % NH_PER_UNIT * sizeof(elem)) = nh_store(state.output[i] / state.sum);
    }
    return (state.top + log2f(state.sum)) * (float)NH_LN2;
}

/* Does the rows of a subtile again whose sums are not finite. lse: of rows g and g + 8. */
NH_DEVICE void nh_exact_rows(const nh_cuda_args &args, const nh_scene &scene, const char *keys,
                             const char *values, int subtile, char *outputs,
                             const float (&sum)[NH_SUMS_V][4], float2 &lse) {
    const int g = (int)(threadIdx.x % 32) / 4;
    nh_for_spoilt_rows(nh_spoilt(sum, 0), nh_spoilt(sum, 1), [&](int row) {
        float exact = nh_exact_row(args, scene, keys, values, subtile, row, outputs);
        if (row == g) lse.x = exact;
        if (row == g + 8) lse.y = exact;
    });
}
