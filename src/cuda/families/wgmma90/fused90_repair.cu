/* Repairs rows of O that something not finite outside their windows has reached (repair_noted.cuh). */
#include "row_of_config.cuh"

#include "naive_forward.cuh"
#include "repair_noted.cuh"

extern "C" __global__ void __launch_bounds__(ROW.threads) fused90_repair(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    if (!nh_any_repair(args)) return;
    long long rows = args.batch * args.heads * nh_token_count(args);
    for (long long row = nh_first_row(); row < rows; row += nh_row_step()) {
        nh_query query = nh_query_of(args, row, args.heads);
        if (nh_row_needs_repair(args.tensor[NH_O], query, args.dim_v)) nh_attend(args, query);
    }
}
