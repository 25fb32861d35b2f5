/* Gradients of RMS norm, scale and rotary positions in one pass: see norm_rope.cuh. With z the output's gradient,
 * rotated back, n the norm and f the weight times the scale:
 *
 *     dx = n (z f - x n^2 mean(z f x)),   d_weight = sum over rows of z x n scale
 *
 * Each block adds up the weight gradients of its rows, in a fixed order, and leaves the sums to norm_rope_weight.cu. */
#include "norm_rope.cuh"

__device__ __forceinline__ void nh_rows_backward(const nh_norm_rope_args &args, const nh_unit unit[NH_UNITS],
                                                 const nh_factors &factors, const nh_token &token, elem *x, elem *d_y,
                                                 elem *d_x, int rows, real d_weight[NH_UNITS][2 * NH_PAIRS]) {
    nh_raw raw[NH_ROWS][NH_UNITS], gradient[NH_ROWS][NH_UNITS];
    real back[NH_ROWS][NH_UNITS][2 * NH_PAIRS], sum[2 * NH_ROWS];
#pragma unroll
    for (int r = 0; r < NH_ROWS; r++)
        sum[2 * r] = sum[2 * r + 1] = 0;
    nh_rows_load(args.x, unit, x, rows, raw);
    nh_rows_load(args.d_y, unit, d_y, rows, gradient);
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++) {
        real factor[2 * NH_PAIRS];
        nh_factors_of(args, unit, factors, j, factor);
        const nh_angles angles = nh_angles_of(unit, token, j);
#pragma unroll
        for (int r = 0; r < NH_ROWS; r++)
#pragma unroll
            for (int p = 0; p < NH_PAIRS; p++) {
                const int a = NH_FIRST(p), b = NH_SECOND(p);
                const real first = nh_raw_at(gradient[r][j], a), second = nh_raw_at(gradient[r][j], b);
                const real x_a = nh_raw_at(raw[r][j], a), x_b = nh_raw_at(raw[r][j], b);
                back[r][j][a] = first * angles.cosine[p] + second * angles.sine[p];
                back[r][j][b] = second * angles.cosine[p] - first * angles.sine[p];
                sum[2 * r] += x_a * x_a + x_b * x_b;
                sum[2 * r + 1] += back[r][j][a] * factor[a] * x_a + back[r][j][b] * factor[b] * x_b;
            }
    }
    if (NH_NORM) nh_row_sums<2 * NH_ROWS>(sum);
#pragma unroll
    for (int r = 0; r < NH_ROWS; r++) {
        sum[2 * r] = NH_NORM ? nh_norm_of(args, sum[2 * r]) : (real)1;
        sum[2 * r + 1] *= NH_NORM ? sum[2 * r] * sum[2 * r] * (real)args.inverse_channels : (real)0;
    }
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++) {
        real factor[2 * NH_PAIRS];
        nh_factors_of(args, unit, factors, j, factor);
#pragma unroll
        for (int r = 0; r < NH_ROWS; r++) {
            const real norm = sum[2 * r], pull = sum[2 * r + 1], of_weight = norm * (real)args.scale;
            real value[2 * NH_PAIRS];
#pragma unroll
            for (int i = 0; i < 2 * NH_PAIRS; i++) {
                const real at = nh_raw_at(raw[r][j], i);
                value[i] = norm * (back[r][j][i] * factor[i] - at * pull);
                /* rows that do not exist are zeros */
                if (NH_WEIGHT) d_weight[j][i] += back[r][j][i] * (at * of_weight);
            }
            if (unit[j].there && (NH_FULL || r < rows) && d_x)
                nh_unit_store(args.d_x, d_x + r * args.d_x.head, unit[j], value);
        }
    }
}

#if NH_GROUP <= 32
__shared__ real nh_total[NH_GROUP * NH_UNITS * 2 * NH_PAIRS];
#endif

/* Sums over the block's rows: over the groups of a warp by shuffles, then warp after warp. */
__device__ __forceinline__ void nh_block_sums(const nh_norm_rope_args &args, const nh_unit unit[NH_UNITS],
                                              real d_weight[NH_UNITS][2 * NH_PAIRS]) {
    real *to = (real *)args.sums + (long long)blockIdx.x * args.channels;
#if NH_GROUP <= 32
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++)
#pragma unroll
        for (int i = 0; i < 2 * NH_PAIRS; i++)
#pragma unroll
            for (int step = NH_GROUP; step < 32; step *= 2)
                d_weight[j][i] += __shfl_xor_sync(~0u, d_weight[j][i], step);
    for (int w = 0; w < NH_THREADS / 32; w++) {
        if (warp == w && threadIdx.x % 32 < NH_GROUP)
#pragma unroll
            for (int j = 0; j < NH_UNITS; j++)
#pragma unroll
                for (int i = 0; i < 2 * NH_PAIRS; i++) {
                    real &sum = nh_total[(j * 2 * NH_PAIRS + i) * NH_GROUP + nh_lane()];
                    if (w > 0) d_weight[j][i] += sum;
                    sum = d_weight[j][i];
                }
        __syncthreads();
    }
    if (warp != NH_THREADS / 32 - 1 || threadIdx.x % 32 >= NH_GROUP) return;
#endif
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++)
#pragma unroll
        for (int i = 0; i < 2 * NH_PAIRS; i++)
            if (unit[j].there) to[nh_weight_at(args, unit[j], i)] = d_weight[j][i];
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    norm_rope_backward(const __grid_constant__ nh_norm_rope_args args) {
    nh_unit unit[NH_UNITS];
    nh_factors factors;
    real d_weight[NH_UNITS][2 * NH_PAIRS];
    nh_units_set(args, unit);
    nh_all_factors_set(args, unit, factors);
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++)
#pragma unroll
        for (int i = 0; i < 2 * NH_PAIRS; i++)
            d_weight[j][i] = 0;
    for (long long index = nh_first_item(); index < args.items; index += nh_item_step()) {
        nh_token token;
        nh_token_set(args, unit, index, token);
        const nh_item &item = token.item;
        elem *x = nh_item_row(args.x, item), *d_y = nh_item_row(args.d_y, item);
        elem *d_x = args.d_x.data ? nh_item_row(args.d_x, item) : 0;
        for (int head = item.head; head < item.end; head += NH_ROWS) {
            nh_rows_backward(args, unit, factors, token, x, d_y, d_x, item.end - head, d_weight);
            x += NH_ROWS * args.x.head;
            d_y += NH_ROWS * args.d_y.head;
            if (d_x) d_x += NH_ROWS * args.d_x.head;
        }
    }
    if (!NH_WEIGHT || !args.sums) return;
    __syncwarp();
    nh_block_sums(args, unit, d_weight);
}
