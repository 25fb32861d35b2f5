/* delta = rowsum(dO * O) - dLSE, which is stored for the other gradients, and dQ: one group of lanes per query or, with
 * tiles, one thread. */
#include "naive_backward_query.cuh"

__device__ __forceinline__ real keep_delta(const nh_cuda_args &args, const nh_query &query, const nh_operand &d_o) {
    const real delta = nh_delta_of(args, query, d_o);
    if (nh_lane() == 0 && blockIdx.y == 0)
        *nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head) = delta;
    return delta;
}

#if NH_TILED
#include "naive_tile.cuh"

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    naive_backward_query(const __grid_constant__ nh_tiled_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_work_tile work_tile;
    nh_work_tile_at<TILES>(args, (int)blockIdx.x, work_tile);
    elem *k = (elem *)nh_shared_memory, *v = k + nh_staged_rows(work_tile) * NH_STAGED_ROW;
    if (args.tensor[NH_D_Q].data) nh_stage<NH_K, NH_V>(args, work_tile, work_tile.kv_head, k);
    nh_staged();
    nh_query query;
    if (!nh_tile_query(args, work_tile, (int)threadIdx.x, query)) return;
    nh_operand d_o;
    nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
    real delta = keep_delta(args, query, d_o);
    if (!args.tensor[NH_D_Q].data) return;
    nh_box box = nh_window_box(args, query.at);
    nh_differentiate_query_by(args, query, d_o, delta, box, nh_staged_box_rows(work_tile, box, k),
                              nh_staged_box_rows(work_tile, box, v));
}
#else
extern "C" __global__ void __launch_bounds__(NH_THREADS)
    naive_backward_query(const __grid_constant__ nh_cuda_args args) {
    nh_for_rows(args, [&](const nh_query &query) {
        nh_operand d_o;
        nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
        real delta = keep_delta(args, query, d_o);
        if (args.tensor[NH_D_Q].data) nh_differentiate_query(args, query, d_o, delta);
    });
}
#endif
