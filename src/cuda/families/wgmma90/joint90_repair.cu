/* Repairs rows of dQ, dK and dV that something not finite outside their windows has reached (repair_noted.cuh). */
#include "row_of_config.cuh"

#include "naive_backward_key.cuh"
#include "naive_backward_query.cuh"
#include "repair_noted.cuh"

NH_DEVICE void make_query(const nh_cuda_args &args, const nh_query &query) {
    nh_operand d_o;
    nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
    real delta = nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head)[ROW.delta_at];
    nh_differentiate_query(args, query, d_o, delta);
}

extern "C" __global__ void __launch_bounds__(ROW.threads) joint90_repair(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    if (!nh_any_repair(args)) return;
    long long query_tokens = args.batch * nh_token_count(args), key_tokens = args.batch * nh_token_count(args, true);
    for (long long row = nh_first_row(); row < query_tokens * args.heads; row += nh_row_step()) {
        nh_query query = nh_query_of(args, row, args.heads);
        if (nh_row_needs_repair(args.tensor[NH_D_Q], query, args.dim)) make_query(args, query);
    }
    for (long long row = nh_first_row(); row < key_tokens * args.kv_heads; row += nh_row_step()) {
        nh_query key = nh_query_of(args, row, args.kv_heads, true);
        bool repair = nh_row_needs_repair(args.tensor[NH_D_K], key, args.dim) ||
                      nh_row_needs_repair(args.tensor[NH_D_V], key, args.dim_v);
        if (repair) nh_differentiate_key(args, key);
    }
}
