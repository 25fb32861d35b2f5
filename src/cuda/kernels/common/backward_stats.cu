/* The statistics of a query that the fused backward passes need: LSE in base 2, delta = rowsum(dO * O) - dLSE, and two
 * zeros, so that the copy engine can move rows of 16 bytes. Layout [B, H, X, Y, Z, 4], f32. If dQ is summed in memory,
 * in rows of NH_SUM_COLUMNS (0: it is not), the query's row is cleared as well. */
#include "row_of_config.cuh"

#include "overlap.cuh"
#include "query_sums.cuh"

extern "C" __global__ void __launch_bounds__(ROW.threads)
    backward_stats(const __grid_constant__ nh_cuda_args args) {
    nh_let_next_begin();
    unsigned *queue = (unsigned *)args.tensor[NH_QUEUE].data;
    if (queue && blockIdx.x == 0 && threadIdx.x < 2) queue[threadIdx.x] = 0;
    nh_for_rows(args, [&](const nh_query &query) {
        nh_operand d_o;
        nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
        for (int column = 4 * nh_lane(); column < NH_SUM_COLUMNS; column += 4 * ROW.group)
            *(float4 *)(nh_sums_row(args, query) + column) = make_float4(0, 0, 0, 0);
        const real delta = nh_delta_of(args, query, d_o);
        if (nh_lane() != 0) return;
        float lse = *nh_scalar(args.tensor[NH_LSE], query.batch, query.at, query.head);
        /* A query without a key: with any finite number its masked scores have weights of zero. */
        if (NH_REGIONS && lse == NH_MINUS_INFINITY) lse = 0;
        *(float4 *)nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head) =
            make_float4(lse * (float)NH_LOG2E, delta, 0, 0);
    });
}
