/* dQ = scale * its f32 sums, whose columns are put in order: of each 16, lane t of joint90.cu's four held 2t, 2t + 1,
 * 2t + 8 and 2t + 9, and wrote them to every other unit of four columns, the even or the odd ones (store_d_q there). A
 * thread makes 16 columns, the threads of a row together.
 *
 * Rows of gradients that are not finite are made again as cuda.naive does, from what they attend and nothing else: the
 * products take masked pairs along with a weight of zero, and zero times NaN or infinity is NaN. */
#define NH_VECTOR 8
#define NH_VECTORS 2
#define NH_RESIDENT 0
#define NH_BIASED 0
#define NH_EXTRA 0
#define NH_DELTA_AT 1 /* of stats */
#include "naive_backward_key.cuh"
#include "naive_backward_query.cuh"
#include "query_sums.cuh"

__device__ __forceinline__ void make_again(const nh_cuda_args &args, const nh_query &query) {
    nh_operand d_o;
    nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
    real delta = nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head)[NH_DELTA_AT];
    nh_differentiate_query(args, query, d_o, delta);
}

/* One row of dQ. */
__device__ __forceinline__ void convert(const nh_cuda_args &args, const nh_query &query) {
    int run = nh_lane();
    const float4 *from = (const float4 *)nh_sums_row(args, query) + run / 2 * 8 + run % 2;
    elem *to = nh_row(args.tensor[NH_D_Q], query.batch, query.at, query.head) + 16 * run;
    real column[16], zero = 0;
    bool own = 16 * run < args.dim; /* what fills up a row may be anything */
#pragma unroll
    for (int t = 0; t < 4; t++) {
        float4 four = own ? from[2 * t] : make_float4(0, 0, 0, 0);
        column[2 * t] = four.x * (float)args.scale;
        column[2 * t + 1] = four.y * (float)args.scale;
        column[2 * t + 8] = four.z * (float)args.scale;
        column[2 * t + 9] = four.w * (float)args.scale;
        zero = fmaf(0, four.x, fmaf(0, four.y, fmaf(0, four.z, fmaf(0, four.w, zero))));
    }
    if (nh_group_sum(zero) != 0) {
        make_again(args, query);
    } else if (own) {
        nh_store_vector<8>(to, column);
        nh_store_vector<8>(to + 8, column + 8);
    }
}

/* Whether a row is not finite; not if nobody wants the tensor. */
__device__ __forceinline__ bool is_spoilt(const nh_cuda_tensor &t, const nh_query &key, long long dim) {
    real part[NH_LANE_ELEMENTS], zero = 0;
    if (!t.data) return false;
    nh_load_row(nh_row(t, key.batch, key.at, key.head), 0, (int)dim, part);
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        zero = fmaf(0, part[i], zero);
    return nh_group_sum(zero) != 0;
}

extern "C" __global__ void __launch_bounds__(NH_THREADS) joint90_convert(const __grid_constant__ nh_cuda_args args) {
    long long rows = args.batch * args.heads * nh_token_count(args);
    for (long long row = nh_first_row(); args.tensor[NH_D_Q].data && row < rows; row += nh_row_step())
        convert(args, nh_query_of(args, row, args.heads));
    if (!((const unsigned *)args.tensor[NH_QUEUE].data)[1]) return;
    rows = rows / args.heads * args.kv_heads;
    for (long long row = nh_first_row(); row < rows; row += nh_row_step()) {
        nh_query key = nh_query_of(args, row, args.kv_heads);
        if (is_spoilt(args.tensor[NH_D_K], key, args.dim) || is_spoilt(args.tensor[NH_D_V], key, args.dim_v))
            nh_differentiate_key(args, key);
    }
}
