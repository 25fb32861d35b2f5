/* dK and dV, one group per key, so that nothing is added atomically and results are bit-equal run to run. */
#include "naive_backward_key.cuh"

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    naive_backward_key(const __grid_constant__ nh_cuda_args args) {
    long long rows = args.batch * args.kv_heads * nh_token_count(args);
    for (long long row = nh_first_row(); row < rows; row += nh_row_step())
        nh_differentiate_key(args, nh_query_of(args, row, args.kv_heads));
}
