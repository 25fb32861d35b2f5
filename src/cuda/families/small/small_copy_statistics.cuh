/* Threads copy the statistics of a work tile's columns to shared memory: see small_statistics.cuh. */
#pragma once

#include "small.cuh"

namespace nh_small {

/* Copies those of the i-th column of the halo; `from` points to those of the first. */
NH_DEVICE void nh_copy_statistic(const nh_work_tile &work_tile, const float *from, int i, uint4 *statistics) {
    int at[3] = {i / (C.halo[1] * C.halo[2]), i / C.halo[2] % C.halo[1], i % C.halo[2]};
    long long offset = 0;
    bool inside = true;
    int row = 0;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        const int place = at[a];
        inside = inside && nh_halo_position(work_tile, a, at[a]);
        offset += at[a] * work_tile.step[NH_DELTA][a];
        row += place * nh_statistics_pitch(a);
    }
    nh_copy16(&statistics[row], from + offset, inside);
}

/* Copies those of the query head `member` of those that share the keys. */
NH_DEVICE void nh_copy_statistics(const nh_tiled_args &args, const nh_work_tile &work_tile, int member,
                                  uint4 *statistics) {
    const nh_cuda_tensor &tensor = args.tensor[NH_DELTA];
    const float *from = (const float *)tensor.data + work_tile.origin[NH_DELTA] + member * tensor.head;
    for (int i = (int)nh_thread_again(); i < C.halo[0] * C.halo[1] * C.halo[2]; i += NH_THREADS)
        nh_copy_statistic(work_tile, from, i, statistics);
}

} // namespace nh_small
