/* delta = rowsum(dO * O) - dLSE, which the softmax's gradient needs of each query; a group of lanes computes one. */
#include "naive.cuh"
#include "overlap.cuh"

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    delta(const __grid_constant__ nh_cuda_args args) {
    nh_follow_launches();
    nh_for_rows(args, [&](const nh_query &query) {
        nh_operand d_o;
        nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
        const real delta = nh_delta_of(args, query, d_o);
        if (nh_lane() == 0) *nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head) = delta;
    });
}
