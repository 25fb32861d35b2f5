/* Gradients of RMS norm, scale and rotary positions in one pass: see norm_rope.cuh. With z the output's gradient,
 * rotated back, n the norm and f the weight times the scale:
 *
 *     dx = n (z f - x n^2 mean(z f x)),   d_weight = sum over rows of z x n scale
 *
 * Each block adds up the weight gradients of its rows, in a fixed order, and leaves the sums to norm_rope_weight.cu. */
#include "norm_rope.cuh"

namespace nh_norm_rope {

/* Rows of the tensors, or NULL. */
struct nh_row_pointers {
    elem *x, *d_y, *d_x;
};

NH_DEVICE void nh_rows_backward(const nh_norm_rope_args &args, const nh_unit unit[C.units], const nh_factors &factors,
                                const nh_token &token, const nh_row_pointers &at, int rows,
                                real d_weight[C.units][2 * C.pairs]) {
    nh_raw raw[C.rows][C.units], gradient[C.rows][C.units];
    real back[C.rows][C.units][2 * C.pairs], sum[2 * C.rows];
    NH_UNROLL for (int r = 0; r < C.rows; r++)
        sum[2 * r] = sum[2 * r + 1] = 0;
    nh_rows_load(args.x, unit, at.x, rows, raw);
    nh_rows_load(args.d_y, unit, at.d_y, rows, gradient);
    NH_UNROLL for (int j = 0; j < C.units; j++) {
        real factor[2 * C.pairs];
        nh_factors_of(args, unit, factors, j, factor);
        const nh_angles angles = nh_token_angles(unit, token, j);
        NH_UNROLL for (int r = 0; r < C.rows; r++)
            NH_UNROLL for (int p = 0; p < C.pairs; p++) {
                const int a = nh_first(p), b = nh_second(p);
                const real first = nh_raw_at(gradient[r][j], a), second = nh_raw_at(gradient[r][j], b);
                const real x_a = nh_raw_at(raw[r][j], a), x_b = nh_raw_at(raw[r][j], b);
                back[r][j][a] = first * angles.cosine[p] + second * angles.sine[p];
                back[r][j][b] = second * angles.cosine[p] - first * angles.sine[p];
                sum[2 * r] += x_a * x_a + x_b * x_b;
                sum[2 * r + 1] += back[r][j][a] * factor[a] * x_a + back[r][j][b] * factor[b] * x_b;
            }
    }
    if (C.norm) nh_row_sums<2 * C.rows>(sum);
    NH_UNROLL for (int r = 0; r < C.rows; r++) {
        sum[2 * r] = C.norm ? nh_norm_of(args, sum[2 * r]) : (real)1;
        sum[2 * r + 1] *= C.norm ? sum[2 * r] * sum[2 * r] * (real)args.inverse_channels : (real)0;
    }
    NH_UNROLL for (int j = 0; j < C.units; j++) {
        real factor[2 * C.pairs];
        nh_factors_of(args, unit, factors, j, factor);
        NH_UNROLL for (int r = 0; r < C.rows; r++) {
            const real norm = sum[2 * r], pull = sum[2 * r + 1], of_weight = norm * (real)args.scale;
            real value[2 * C.pairs];
            NH_UNROLL for (int i = 0; i < 2 * C.pairs; i++) {
                const real x = nh_raw_at(raw[r][j], i);
                value[i] = norm * (back[r][j][i] * factor[i] - x * pull);
                /* rows that do not exist are zeros */
                if (C.weight) d_weight[j][i] += back[r][j][i] * (x * of_weight);
            }
            if (unit[j].there && (C.full || r < rows) && at.d_x)
                nh_unit_store(args.d_x, at.d_x + r * args.d_x.head, unit[j], value);
        }
    }
}

/* Sums over the block's rows, which the first lanes of the last warp get: over a warp's groups, then over warps. */
template <int LANES> NH_DEVICE void nh_add_groups(real d_weight[C.units][2 * C.pairs]) {
    __shared__ real total[LANES * C.units * 2 * C.pairs];
    NH_UNROLL for (int j = 0; j < C.units; j++)
        NH_UNROLL for (int i = 0; i < 2 * C.pairs; i++)
            NH_UNROLL for (int step = LANES; step < NORM_ROPE_WARP; step *= 2)
                d_weight[j][i] += __shfl_xor_sync(~0u, d_weight[j][i], step);
    for (int w = 0; w < C.threads / NORM_ROPE_WARP; w++) {
        if (threadIdx.x / NORM_ROPE_WARP == w && threadIdx.x % NORM_ROPE_WARP < LANES)
            NH_UNROLL for (int j = 0; j < C.units; j++)
                NH_UNROLL for (int i = 0; i < 2 * C.pairs; i++) {
                    real &sum = total[(j * 2 * C.pairs + i) * LANES + nh_lane()];
                    if (w > 0) d_weight[j][i] += sum;
                    sum = d_weight[j][i];
                }
        __syncthreads();
    }
}

template <int LANES = C.group>
NH_DEVICE void nh_block_sums(const nh_norm_rope_args &args, const nh_unit unit[C.units],
                             real d_weight[C.units][2 * C.pairs]) {
    real *to = (real *)args.sums + (long long)blockIdx.x * args.channels;
    if constexpr (LANES <= NORM_ROPE_WARP) {
        nh_add_groups<LANES>(d_weight);
        const int last = C.threads - NORM_ROPE_WARP;
        if ((int)threadIdx.x < last || threadIdx.x % NORM_ROPE_WARP >= LANES) return;
    }
    NH_UNROLL for (int j = 0; j < C.units; j++)
        NH_UNROLL for (int i = 0; i < 2 * C.pairs; i++)
            if (unit[j].there) to[nh_weight_at(args, unit[j], i)] = d_weight[j][i];
}

} // namespace nh_norm_rope

using namespace nh_norm_rope;

extern "C" __global__ void __launch_bounds__(C.threads, C.min_blocks)
    norm_rope_backward(const __grid_constant__ nh_norm_rope_args args) {
    nh_unit unit[C.units];
    nh_factors factors;
    real d_weight[C.units][2 * C.pairs];
    nh_units_set(args, unit);
    nh_all_factors_set(args, unit, factors);
    NH_UNROLL for (int j = 0; j < C.units; j++)
        NH_UNROLL for (int i = 0; i < 2 * C.pairs; i++)
            d_weight[j][i] = 0;
    for (long long index = nh_first_item(); index < args.items; index += nh_item_step()) {
        nh_token token;
        nh_token_set(args, unit, index, token);
        const nh_item &item = token.item;
        nh_row_pointers at = {nh_item_row(args.x, item), nh_item_row(args.d_y, item),
                              args.d_x.data ? nh_item_row(args.d_x, item) : 0};
        for (int head = item.head; head < item.end; head += C.rows) {
            nh_rows_backward(args, unit, factors, token, at, item.end - head, d_weight);
            at.x += C.rows * args.x.head;
            at.d_y += C.rows * args.d_y.head;
            if (at.d_x) at.d_x += C.rows * args.d_x.head;
        }
    }
    if (!C.weight || !args.sums) return;
    __syncwarp();
    nh_block_sums(args, unit, d_weight);
}
