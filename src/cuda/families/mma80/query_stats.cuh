/* The statistics of a query that the backward pass needs: LSE and delta, as backward_stats.cu wrote them side by side.
 * They are read once if queries are rows, and copied tile by tile if they are columns. */
#pragma once

#include "kv_loop_copy.cuh"

namespace nh_mma80 {

/* LSE is in base 2 */
struct alignas(8) nh_stats {
    float lse, delta;
};

/* Copies the statistics of a tile at the loop's pointer, one column per thread. */
NH_DEVICE void nh_stats_copy(const nh_cuda_args &args, const nh_block &block,
                             const nh_loop_bounds &bounds, const nh_kv_loop &loop,
                             const nh_loop_tables &tables, nh_stats to[NH_COLUMNS]) {
    unsigned limits = nh_limits(bounds.halo, loop.cursor);
#pragma unroll 1
    for (int c = (int)threadIdx.x; c < NH_COLUMNS; c += NH_THREADS) {
        const char *from = loop.at[NH_LOOP_STATS] + tables.row[NH_LOOP_STATS][c];
        bool there = nh_within(limits, nh_place_of_column(c));
        if constexpr (NH_PERIODIC)
            from += nh_wrapped(args, block, bounds, loop.cursor, NH_DELTA, sizeof(float), nh_place_of_column(c), there);
        nh_copy8(&to[c], from, there);
    }
}

NH_DEVICE nh_stats nh_stats_at(const nh_cuda_args &args, long long offset) {
    return *(const nh_stats *)((const float *)args.tensor[NH_DELTA].data + offset);
}

} // namespace nh_mma80
