/* O, one group of lanes per query. */
#include "naive_forward.cuh"

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    naive_forward(const __grid_constant__ nh_cuda_args args) {
    long long rows = args.batch * args.heads * nh_token_count(args);
    for (long long row = nh_first_row(); row < rows; row += nh_row_step())
        nh_attend(args, nh_query_of(args, row, args.heads));
}
