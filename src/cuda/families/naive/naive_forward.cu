/* O: one group of lanes per query or, with tiles, one thread. */
#include "naive_forward.cuh"

#if NH_TILED
#include "naive_tile.cuh"

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    naive_forward(const __grid_constant__ nh_tiled_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_work_tile work_tile;
    nh_work_tile_at<TILES>(args, (int)blockIdx.x, work_tile);
    elem *k = (elem *)nh_shared_memory, *v = k + nh_staged_rows(work_tile) * NH_STAGED_ROW;
    nh_stage<NH_K, NH_V>(args, work_tile, work_tile.kv_head, k);
    nh_staged();
    nh_query query;
    if (!nh_tile_query(args, work_tile, (int)threadIdx.x, query)) return;
    const nh_box box = nh_window_box(args, query.at);
    const nh_box_rows key_rows = nh_staged_box_rows(work_tile, box, k);
    const nh_box_rows value_rows = nh_staged_box_rows(work_tile, box, v);
    real share = 1;
#pragma unroll 1
    while (nh_attend_to(args, query, box, key_rows, value_rows, share))
        share = nh_small_share(args);
}
#else
extern "C" __global__ void __launch_bounds__(NH_THREADS)
    naive_forward(const __grid_constant__ nh_cuda_args args) {
    nh_attend_rows(args);
}
#endif
