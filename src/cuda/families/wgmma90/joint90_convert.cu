/* dQ = scale * its f32 sums, with columns put in order. In joint90.cu, lane t of four held columns 2t, 2t + 1, 2t + 8
 * and 2t + 9 of each 16, and wrote them to every other unit of four columns, the even or the odd ones (store_d_q
 * there). A thread converts 16 columns; several threads share a row. */
#include "row_of_config.cuh"

#include "overlap.cuh"
#include "query_sums.cuh"

extern "C" __global__ void __launch_bounds__(ROW.threads) joint90_convert(const __grid_constant__ nh_cuda_args args) {
    long long rows = args.batch * args.heads * nh_token_count(args);
    int run = nh_lane();
    nh_follow_launches();
    if (16 * run >= args.dim) return; /* columns that fill up a row are undefined */
    for (long long row = nh_first_row(); row < rows; row += nh_row_step()) {
        nh_query query = nh_query_of(args, row, args.heads);
        const float4 *from = (const float4 *)nh_sums_row(args, query) + run / 2 * 8 + run % 2;
        elem *to = nh_row(args.tensor[NH_D_Q], query.batch, query.at, query.head) + 16 * run;
        real column[16], zero = 0;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            float4 four = from[2 * t];
            column[2 * t] = four.x * (float)args.scale;
            column[2 * t + 1] = four.y * (float)args.scale;
            column[2 * t + 8] = four.z * (float)args.scale;
            column[2 * t + 9] = four.w * (float)args.scale;
            zero = fmaf(0, four.x, fmaf(0, four.y, fmaf(0, four.z, fmaf(0, four.w, zero))));
        }
        nh_store_vector<8>(to, column);
        nh_store_vector<8>(to + 8, column + 8);
        if (zero != 0) ((unsigned *)args.tensor[NH_QUEUE].data)[1] = 1; /* for joint90_repair.cu */
    }
}
