/* dQ = scale * its f32 sums, with columns put in order. In joint90.cu, lane t of four held columns 2t, 2t + 1, 2t + 8
 * and 2t + 9 of each 16, and wrote them to every other unit of four columns (store_d_q). Here each lane has a unit, and
 * swaps two columns with the lane of the next t: each has four that follow each other, and 8 lanes store 32. */
#include "row_of_config.cuh"

#include "overlap.cuh"
#include "query_sums.cuh"
#include "row_runs.cuh"

/* The columns of this lane's unit, in order: four of them, from `first_column` on. */
NH_DEVICE uint2 in_order(float4 unit, float scale) {
    const bool odd = nh_lane() / 2 % 2;
    const unsigned low = nh_pack(unit.x * scale, unit.y * scale), high = nh_pack(unit.z * scale, unit.w * scale);
    const unsigned got = __shfl_xor_sync(nh_lanes_mask<8>(), odd ? low : high, 2);
    return odd ? make_uint2(got, high) : make_uint2(low, got);
}

NH_DEVICE int first_column(void) {
    const int unit = nh_lane() % 8, t = unit / 2;
    return nh_lane() / 8 * 32 + unit % 2 * 16 + t % 2 * 8 + t / 2 * 4;
}

struct take {
    template <int COUNT> static __device__ __forceinline__ void rows(const nh_cuda_args &args, const nh_query &query) {
        const float4 *from = (const float4 *)nh_sums_row(args, query) + nh_lane();
        elem *to = nh_row(args.tensor[NH_D_Q], query.batch, query.at, query.head) + first_column();
        float4 unit[COUNT];
        float zero = 0;
        NH_UNROLL for (int i = 0; i < COUNT; i++)
            unit[i] = from[i * (args.tensor[NH_D_Q_SUMS].axis[2] / 4)];
        NH_UNROLL for (int i = 0; i < COUNT; i++) {
            zero = fmaf(0, unit[i].x, fmaf(0, unit[i].y, fmaf(0, unit[i].z, fmaf(0, unit[i].w, zero))));
            *(uint2 *)(to + i * args.tensor[NH_D_Q].axis[2]) = in_order(unit[i], (float)args.scale);
        }
        if (zero != 0) ((unsigned *)args.tensor[NH_QUEUE].data)[1] = 1; /* for joint90_repair.cu */
    }
};

extern "C" __global__ void __launch_bounds__(ROW.threads) joint90_convert(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    nh_follow_launches();
    if (first_column() >= args.dim) return; /* columns that fill up a row are undefined */
    nh_for_runs<NH_RUN, take>(args, args.axis[2].dilation == 1);
}
