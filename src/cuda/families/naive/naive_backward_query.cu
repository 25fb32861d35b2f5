/* delta = rowsum(dO * O) - dLSE, stored for other gradients, and dQ: a group of lanes or, with tiles, a thread each. */
#include "naive_tile.cuh"

#include "naive_backward_query.cuh"

using namespace nh_naive;

extern "C" __global__ void __launch_bounds__(ROW.threads, ROW.min_blocks)
    naive_backward_query(NH_PARAMETER(naive_args)) {
    NH_TAKE_MEMBER(naive_args)
    const bool wanted = args.tensor[NH_D_Q].data;
    nh_for_queries<NH_K, NH_V, NO_WEIGHTS>(args, wanted, [&](const nh_query &query, const nh_seen &seen) {
        nh_operand d_o;
        nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
        const real delta = nh_delta_of(args, query, d_o);
        if (nh_lane() == 0 && blockIdx.y == 0)
            *nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head) = delta;
        if (args.tensor[NH_D_Q].data)
            nh_differentiate_query_by(args, query, d_o, delta, seen.box, seen.first, seen.second);
    });
}
