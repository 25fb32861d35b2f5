/* Gradients of the extra tokens: one block per token and key head goes over every query, distributed over its groups,
 * and adds up the groups' sums in a fixed order. */
#include "row_of_config.cuh"

#include "naive.cuh"

namespace nh_naive {

__shared__ real part[2][ROW.threads / ROW.group][ROW_CHUNK];

struct token_rows {
    nh_operand k, v;
    nh_long_row d_k, d_v;
};

NH_DEVICE void take(const nh_cuda_args &args, token_rows &r, const nh_query &query) {
    const elem *q = nh_row(args.tensor[NH_Q], query.batch, query.at, query.head);
    const elem *d_o = nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head);
    real scale = (real)args.scale, row[ROW_ELEMENTS];
    real score = scale * nh_group_sum(nh_product_part(r.k, q));
    real d_p = nh_group_sum(nh_product_part(r.v, d_o));
    real p = nh_weight_of(score, *nh_scalar(args.tensor[NH_LSE], query.batch, query.at, query.head));
    real d_s = p * (d_p - *nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head));
    nh_load_row(q, nh_chunk_first(), (int)args.dim, row);
    nh_long_add(r.d_k, scale * d_s, row);
    nh_load_row(d_o, nh_chunk_first(), (int)args.dim_v, row);
    nh_long_add(r.d_v, p, row);
}

/* Writes the groups' sums to shared memory and adds them up, group 0 first. */
NH_DEVICE void add_groups(const real sum[ROW_ELEMENTS], real (*to)[ROW_CHUNK], elem *row, int dim) {
    NH_UNROLL for (int v = 0; v < ROW.vectors; v++)
        NH_UNROLL for (int i = 0; i < ROW.vector; i++)
            to[threadIdx.x / ROW.group][(v * ROW.group + nh_lane()) * ROW.vector + i] = sum[v * ROW.vector + i];
    __syncthreads();
    for (int column = threadIdx.x; column < ROW_CHUNK && nh_chunk_first() + column < dim; column += ROW.threads) {
        real total = 0;
        for (int g = 0; g < ROW.threads / ROW.group; g++)
            total += to[g][column];
        if (row) row[nh_chunk_first() + column] = nh_store(total);
    }
}

NH_DEVICE elem *token_row(const nh_cuda_args &args, int slot, long long batch, long long m, long long head) {
    const nh_cuda_tensor &t = args.tensor[slot];
    if (!t.data) return 0;
    return (elem *)t.data + batch * t.batch + head * t.head + m * t.axis[3 - args.rank];
}

} // namespace nh_naive

using namespace nh_naive;

extern "C" __global__ void __launch_bounds__(ROW.threads) naive_backward_extra(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    long long tokens = nh_token_count(args), share = args.heads / args.kv_heads;
    long long count = args.batch * args.extra_tokens * args.kv_heads;
    for (long long index = NH_OWN_BLOCK; index < count; index += NH_OWN_BLOCKS) {
        long long rest = index, batch_token = nh_split(&rest, args.kv_heads), head = rest;
        long long batch = nh_split(&batch_token, args.extra_tokens), m = batch_token;
        token_rows r;
        nh_operand_set(r.k, token_row(args, NH_EXTRA_K, batch, m, head), args.dim);
        nh_operand_set(r.v, token_row(args, NH_EXTRA_V, batch, m, head), args.dim_v);
        nh_long_clear(r.d_k);
        nh_long_clear(r.d_v);
        for (long long row = threadIdx.x / ROW.group; row < tokens * share; row += ROW.threads / ROW.group) {
            nh_query query = nh_query_of(args, row, share); /* rows are counted within one batch entry */
            query.batch = batch;
            query.head += head * share;
            take(args, r, query);
        }
        nh_long_end(r.d_k);
        nh_long_end(r.d_v);
        add_groups(r.d_k.sum, part[0], token_row(args, NH_D_EXTRA_K, batch, m, head), (int)args.dim);
        add_groups(r.d_v.sum, part[1], token_row(args, NH_D_EXTRA_V, batch, m, head), (int)args.dim_v);
        __syncthreads();
    }
}
