/* Softmax of every row of scores by NH_GROUP lanes: S (f32, packed) becomes P (storage type) in the same memory, at the
 * start of its row, and LSE is stored if it is asked for. Rows of up to NH_GROUP * NH_HELD scores are held in
 * registers; longer ones (NH_HELD 0) are read three times, the second and third time from a cache. */
#include "lanes.cuh"
#include "mma.cuh"
#include "overlap.cuh"
#include "prelude.cuh"

#define NH_THREADS 128
/* Lanes of the same row: rows of one warp may end at different times. */
#define OWN_LANES nh_lanes_mask<NH_GROUP>()

NH_DEVICE void write_lse(const nh_cuda_args &args, long long row, float lse) {
    long long at[3];
    long long rest = nh_split(&row, args.heads), head = row;
    row = rest;
#pragma unroll
    for (int a = 2; a >= 0; a--) {
        rest = nh_split(&row, args.axis[a].length);
        at[a] = row;
        row = rest;
    }
    *nh_scalar(args.tensor[NH_LSE], row, at, head) = lse;
}

/* e^(s - most) */
NH_DEVICE float power(float s, float most) {
    return nh_exp2((s - most) * (float)NH_LOG2E);
}

#if NH_HELD

NH_DEVICE float softmax(const float *s, elem *p, int count, int lane) {
    float score[NH_HELD], most = NH_MINUS_INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < NH_HELD; i++) {
        int n = lane + i * NH_GROUP;
        score[i] = n < count ? s[n] : NH_MINUS_INFINITY;
        most = fmaxf(most, score[i]);
    }
    most = nh_lanes_max<NH_GROUP>(most, OWN_LANES);
#pragma unroll
    for (int i = 0; i < NH_HELD; i++)
        sum += score[i] = power(score[i], most);
    sum = nh_lanes_sum<NH_GROUP>(sum, OWN_LANES);
#pragma unroll
    for (int i = 0; i < NH_HELD; i++)
        if (lane + i * NH_GROUP < count) p[lane + i * NH_GROUP] = nh_store(score[i] / sum);
    return most + logf(sum);
}

#else

NH_DEVICE float softmax(const float *s, elem *p, int count, int lane) {
    float most = NH_MINUS_INFINITY, sum = 0;
    for (int n = lane; n < count; n += NH_GROUP)
        most = fmaxf(most, s[n]);
    most = nh_lanes_max<NH_GROUP>(most, OWN_LANES);
    for (int n = lane; n < count; n += NH_GROUP)
        sum += power(s[n], most);
    sum = nh_lanes_sum<NH_GROUP>(sum, OWN_LANES);
    /* p[n], of 16 bits, overwrites scores that this or an earlier round has read. */
    for (int first = 0; first < count; first += NH_GROUP) {
        int n = first + lane;
        float score = n < count ? s[n] : 0;
        __syncwarp();
        if (n < count) p[n] = nh_store(power(score, most) / sum);
        __syncwarp();
    }
    return most + logf(sum);
}

#endif

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    gemm_softmax(const __grid_constant__ nh_cuda_args args) {
    nh_follow_launches();
    long long row = (long long)blockIdx.x * (NH_THREADS / NH_GROUP) + threadIdx.x / NH_GROUP;
    long long rows = args.batch * args.heads * args.axis[0].length * args.axis[1].length *
                     args.axis[2].length;
    if (row >= rows) return;
    int lane = threadIdx.x % NH_GROUP, count = (int)args.window_count;
    float *s = (float *)args.tensor[NH_A].data + row * count;
    float lse = softmax(s, (elem *)s, count, lane);
    if (lane == 0 && args.tensor[NH_LSE].data) write_lse(args, row, lse);
}
