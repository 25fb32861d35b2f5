/* Sums of dS over queries, by entry of the bias table. A thread computes an entry, a block 128 entries of a head over a
 * share of the queries. The block first writes each query's window to shared memory; then a subtraction tells whether
 * the query has a key at the thread's offset. gemm_bias_sum.cu adds up the shares in a fixed order.
 *
 * NH_D_BIAS is bound to the shares' sums, f32: [H, .., entries], with the shares of one call next to each other. */
#include "overlap.cuh"
#include "prelude.cuh"

#define NH_THREADS 128

struct row {
    /* first key of the window relative to the query, per axis */
    int first[3];
    /* index of the query's first weight; negative: there is no query */
    long long weights;
};

static __shared__ row rows[NH_THREADS];

__device__ __forceinline__ row row_of(const nh_cuda_args &args, long long query, long long head) {
    row row;
    long long at[3];
#pragma unroll
    for (int a = 2; a >= 0; a--) {
        const nh_cuda_axis &axis = args.axis[a];
        long long rest = nh_split(&query, axis.length);
        at[a] = query;
        query = rest;
        long long group = at[a], position = nh_split(&group, axis.dilation);
        nh_range range = nh_window_range(nh_axis_group_length(axis.length, axis.dilation, group),
                                         axis.window, axis.stride, 0, position);
        row.first[a] = (int)(range.begin - position);
    }
    const nh_cuda_tensor &a = args.tensor[NH_A];
    row.weights = query * a.batch + at[0] * a.axis[0] + at[1] * a.axis[1] + at[2] * a.axis[2] +
                  head * a.head;
    return row;
}

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    gemm_bias_gradient(const __grid_constant__ nh_cuda_args args) {
    nh_follow_launches();
    int window[3], extent[3], entries = 1, offset[3];
#pragma unroll
    for (int a = 0; a < 3; a++) {
        window[a] = (int)args.axis[a].window;
        extent[a] = 2 * window[a] - 1;
        entries *= extent[a];
    }
    const nh_cuda_tensor &partial = args.tensor[NH_D_BIAS];
    long long shares = partial.batch / entries, head = blockIdx.x, share = nh_split(&head, args.heads);
    long long entry = nh_split(&share, shares) * NH_THREADS + threadIdx.x;
    offset[2] = (int)entry % extent[2] - window[2] + 1;
    offset[1] = (int)entry / extent[2] % extent[1] - window[1] + 1;
    offset[0] = (int)entry / extent[2] / extent[1] - window[0] + 1;
    long long queries = args.batch * args.axis[0].length * args.axis[1].length * args.axis[2].length;
    long long per_share = (queries + shares - 1) / shares;
    long long end = min(queries, (share + 1) * per_share);
    const elem *d_s = (const elem *)args.tensor[NH_A].data;
    float sum = 0;
    for (long long first = share * per_share; first < end; first += NH_THREADS) {
        int count = (int)min((long long)NH_THREADS, end - first);
        if ((int)threadIdx.x < count) rows[threadIdx.x] = row_of(args, first + threadIdx.x, head);
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            int x = offset[0] - rows[i].first[0], y = offset[1] - rows[i].first[1],
                z = offset[2] - rows[i].first[2];
            if ((unsigned)x < (unsigned)window[0] && (unsigned)y < (unsigned)window[1] &&
                (unsigned)z < (unsigned)window[2])
                sum += nh_load(d_s[rows[i].weights + (x * window[1] + y) * window[2] + z]);
        }
        __syncthreads();
    }
    if (entry < entries)
        ((float *)partial.data)[head * partial.head + share * entries + entry] = sum;
}
