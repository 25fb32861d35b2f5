/* A[i, n] = scale * q_i . k_N(i,n) (+ bias): one group per query; a lane keeps every NH_GROUP-th slot so that the
 * group writes its line of A in one go. */
#include "naive.cuh"

__device__ __forceinline__ void weigh(const nh_cuda_args &args, const nh_query &query) {
    nh_operand q;
    nh_operand_set(q, nh_row(args.tensor[NH_Q], query.batch, query.at, query.head), args.dim);
    nh_box box = nh_window_box(args, query.at);
    nh_walk k = nh_walk_of(args.tensor[NH_K], box, query.batch,
                           query.head / (args.heads / args.kv_heads));
    nh_bias bias = nh_bias_of(args, query, box);
    elem *a = nh_row(args.tensor[NH_A], query.batch, query.at, query.head);
    real scale = (real)args.scale, unused = args.flags & NH_ZERO_FILL ? 0 : NH_MINUS_INFINITY;
    int window[3] = {(int)args.axis[0].window, (int)args.axis[1].window, (int)args.axis[2].window};
    long long line = 0;
    for (int x = 0; x < window[0]; x++)
        for (int y = 0; y < window[1]; y++, line += window[2])
            for (int first = 0; first < window[2]; first += NH_GROUP) {
                real mine = unused;
                for (int i = 0; i < NH_GROUP && first + i < window[2]; i++) {
                    int z = first + i;
                    if (x >= box.count[0] || y >= box.count[1] || z >= box.count[2]) break;
                    real score = scale * nh_group_sum(nh_product_part(
                                             q, k.base + x * k.step[0] + y * k.step[1] + z * k.step[2]));
                    if (NH_BIASED) score += nh_load(bias.base[x * bias.step[0] + y * bias.step[1] + z]);
                    if (i == nh_lane()) mine = score;
                }
                if (first + nh_lane() < window[2]) a[line + first + nh_lane()] = nh_store(mine);
            }
}

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    naive_pn(const __grid_constant__ nh_cuda_args args) {
    long long rows = args.batch * args.heads * nh_token_count(args);
    for (long long row = nh_first_row(); row < rows; row += nh_row_step())
        weigh(args, nh_query_of(args, row, args.heads));
}
