/* Rows of dQ, dK and dV that something not finite outside their windows has spoilt, made again, if an earlier launch
 * has noted one: the products take masked pairs along with a weight of zero, and zero times NaN or infinity is NaN.
 * Rows that are not finite are made as cuda.naive does, from what they attend and nothing else. */
#define NH_VECTOR 8
#define NH_VECTORS 1
#define NH_RESIDENT 1
#define NH_BIASED 0
#define NH_EXTRA 0
#define NH_DELTA_AT 1 /* of stats */
#include "naive_backward_key.cuh"
#include "naive_backward_query.cuh"

/* Not if nobody wants the tensor. */
__device__ __forceinline__ bool is_spoilt(const nh_cuda_tensor &t, const nh_query &at, long long dim) {
    real part[NH_LANE_ELEMENTS], zero = 0;
    if (!t.data) return false;
    nh_load_row(nh_row(t, at.batch, at.at, at.head), 0, (int)dim, part);
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        zero = fmaf(0, part[i], zero);
    return nh_group_sum(zero) != 0;
}

__device__ __forceinline__ void make_query(const nh_cuda_args &args, const nh_query &query) {
    nh_operand d_o;
    nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
    real delta = nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head)[NH_DELTA_AT];
    nh_differentiate_query(args, query, d_o, delta);
}

extern "C" __global__ void __launch_bounds__(NH_THREADS) joint90_again(const __grid_constant__ nh_cuda_args args) {
    if (!((const unsigned *)args.tensor[NH_QUEUE].data)[1]) return;
    long long tokens = args.batch * nh_token_count(args);
    for (long long row = nh_first_row(); row < tokens * args.heads; row += nh_row_step()) {
        nh_query query = nh_query_of(args, row, args.heads);
        if (is_spoilt(args.tensor[NH_D_Q], query, args.dim)) make_query(args, query);
    }
    for (long long row = nh_first_row(); row < tokens * args.kv_heads; row += nh_row_step()) {
        nh_query key = nh_query_of(args, row, args.kv_heads);
        if (is_spoilt(args.tensor[NH_D_K], key, args.dim) || is_spoilt(args.tensor[NH_D_V], key, args.dim_v))
            nh_differentiate_key(args, key);
    }
}
