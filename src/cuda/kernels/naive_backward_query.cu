/* delta = rowsum(dO * O) - dLSE, kept for the other gradients, and dQ, one group per query. */
#include "naive_backward_query.cuh"

__device__ __forceinline__ real delta_of(const nh_cuda_args &args, const nh_query &query,
                                         const nh_operand &d_o) {
    const nh_cuda_tensor &d_lse = args.tensor[NH_D_LSE];
    real delta = nh_group_sum(
        nh_product_part(d_o, nh_row(args.tensor[NH_O], query.batch, query.at, query.head)));
    if (d_lse.data) delta -= *nh_scalar(d_lse, query.batch, query.at, query.head);
    if (nh_lane() == 0 && blockIdx.y == 0)
        *nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head) = delta;
    return delta;
}

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    naive_backward_query(const __grid_constant__ nh_cuda_args args) {
    long long rows = args.batch * args.heads * nh_token_count(args);
    for (long long row = nh_first_row(); row < rows; row += nh_row_step()) {
        nh_query query = nh_query_of(args, row, args.heads);
        nh_operand d_o;
        nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
        real delta = delta_of(args, query, d_o);
        if (args.tensor[NH_D_Q].data) nh_differentiate_query(args, query, d_o, delta);
    }
}
