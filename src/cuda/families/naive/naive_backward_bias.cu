/* Gradient of the bias: one block per head and table entry computes dS again for every query that has a key at that
 * offset, and adds it up in a fixed order. Deterministic, and without memory for dS. */
#include "row_of_config.cuh"

#include "naive.cuh"

namespace nh_naive {

__shared__ real part[ROW.threads / ROW.group];

NH_DEVICE real d_s_of(const nh_cuda_args &args, const nh_query &query, const long long key[3], real bias) {
    long long kv_head = query.head / (args.heads / args.kv_heads);
    nh_operand q, d_o;
    nh_operand_set(q, nh_row(args.tensor[NH_Q], query.batch, query.at, query.head), args.dim);
    nh_operand_set(d_o, nh_row(args.tensor[NH_D_O], query.batch, query.at, query.head), args.dim_v);
    real score =
        (real)args.scale * nh_group_sum(nh_product_part(q, nh_row(args.tensor[NH_K], query.batch, key, kv_head))) +
        bias;
    real d_p = nh_group_sum(nh_product_part(d_o, nh_row(args.tensor[NH_V], query.batch, key, kv_head)));
    real p = nh_weight_of(score, *nh_scalar(args.tensor[NH_LSE], query.batch, query.at, query.head));
    return p * (d_p - *nh_scalar(args.tensor[NH_DELTA], query.batch, query.at, query.head));
}

/* Sets the key of a query for this entry of the table; false if it is not in the query's window. */
template <class Args>
NH_DEVICE bool key_at(const Args &args, const nh_query &query, const long long offset[3], long long key[3]) {
    NH_UNROLL for (int a = 0; a < 3; a++) {
        const nh_cuda_axis &axis = args.axis[a];
        long long rest = query.at[a], position = nh_split(&rest, axis.dilation);
        long long want = position + offset[a];
        const long long length = nh_axis_group_length(axis.length, axis.dilation, rest);
        const nh_range range =
            nh_seen_range(length, axis.window, axis.stride, NH_REGIONS && axis.causal, nh_wraps(a), false, position);
        if (want < range.begin || want >= range.end) return false;
        if constexpr (NH_REGIONS) {
            const nh_range covered = nh_covered(nh_rows_box(args, a, true), axis.dilation, rest);
            if (!nh_find_column(covered, nh_wraps(a), length, want)) return false;
        }
        key[a] = want * axis.dilation + rest;
    }
    return true;
}

} // namespace nh_naive

using namespace nh_naive;

extern "C" __global__ void __launch_bounds__(ROW.threads) naive_backward_bias(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    long long extent[3], entries = 1;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        extent[a] = 2 * args.axis[a].window - 1;
        entries *= extent[a];
    }
    long long rows = args.batch * nh_token_count(args);
    const elem *bias = (const elem *)args.tensor[NH_BIAS].data;
    elem *d_bias = (elem *)args.tensor[NH_D_BIAS].data;
    for (long long index = NH_OWN_BLOCK; index < args.heads * entries; index += NH_OWN_BLOCKS) {
        long long rest = index, offset[3], head = nh_split(&rest, entries);
        long long x = nh_split(&rest, extent[1] * extent[2]), y = nh_split(&rest, extent[2]);
        offset[0] = x - (args.axis[0].window - 1);
        offset[1] = y - (args.axis[1].window - 1);
        offset[2] = rest - (args.axis[2].window - 1);
        real sum = 0, lost = 0, value = nh_load(bias[index]);
        for (long long row = threadIdx.x / ROW.group; row < rows; row += ROW.threads / ROW.group) {
            nh_query query = nh_query_of(args, row, 1);
            long long key[3];
            query.head = head;
            if (!key_at(args, query, offset, key)) continue;
            const real d_s = d_s_of(args, query, key, value);
            if (NH_LONG_SUMS) {
                nh_add_compensated(sum, lost, d_s);
            } else {
                sum += d_s;
            }
        }
        if (nh_lane() == 0) part[threadIdx.x / ROW.group] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            real total = 0;
            for (int g = 0; g < ROW.threads / ROW.group; g++)
                total += part[g];
            d_bias[index] = nh_store(total);
        }
        __syncthreads();
    }
}
