/* delta = rowsum(dO * O) - dLSE, one group of lanes per query: what the softmax's gradient needs of a row. */
#include "naive.cuh"
#include "overlap.cuh"

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    delta(const __grid_constant__ nh_cuda_args args) {
    nh_follow_launches();
    const nh_cuda_tensor &d_lse = args.tensor[NH_D_LSE];
    long long rows = args.batch * args.heads * nh_token_count(args);
    for (long long row = nh_first_row(); row < rows; row += nh_row_step()) {
        nh_query query = nh_query_of(args, row, args.heads);
        nh_operand d_o;
        nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head),
                       args.dim_v);
        real sum = nh_group_sum(
            nh_product_part(d_o, nh_row(args.tensor[NH_O], query.batch, query.at, query.head)));
        if (d_lse.data) sum -= *nh_scalar(d_lse, query.batch, query.at, query.head);
        if (nh_lane() == 0)
            *nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head) = sum;
    }
}
