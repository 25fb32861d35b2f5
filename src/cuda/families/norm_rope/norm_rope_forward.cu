/* RMS norm, scale and rotary positions in one pass: see norm_rope.cuh. */
#include "norm_rope.cuh"

__device__ __forceinline__ void nh_rows_forward(const nh_norm_rope_args &args, const nh_unit unit[NH_UNITS],
                                                const nh_factors &factors, const nh_token &token,
                                                const nh_raw raw[NH_ROWS][NH_UNITS], elem *y, int rows) {
    real sum[NH_ROWS];
#pragma unroll
    for (int r = 0; r < NH_ROWS; r++) {
        sum[r] = 0;
#pragma unroll
        for (int j = 0; j < NH_UNITS; j++)
#pragma unroll
            for (int i = 0; i < 2 * NH_PAIRS; i++) {
                const real value = nh_raw_at(raw[r][j], i);
                sum[r] += value * value;
            }
    }
    if (NH_NORM) nh_row_sums<NH_ROWS>(sum);
#pragma unroll
    for (int r = 0; r < NH_ROWS; r++)
        sum[r] = NH_NORM ? nh_norm_of(args, sum[r]) : (real)1;
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++) {
        real factor[2 * NH_PAIRS];
        nh_factors_of(args, unit, factors, j, factor);
        const nh_angles angles = nh_angles_of(unit, token, j);
#pragma unroll
        for (int r = 0; r < NH_ROWS; r++) {
            real value[2 * NH_PAIRS];
#pragma unroll
            for (int p = 0; p < NH_PAIRS; p++) {
                const int a = NH_FIRST(p), b = NH_SECOND(p);
                const real first = nh_raw_at(raw[r][j], a) * sum[r] * factor[a];
                const real second = nh_raw_at(raw[r][j], b) * sum[r] * factor[b];
                value[a] = first * angles.cosine[p] - second * angles.sine[p];
                value[b] = first * angles.sine[p] + second * angles.cosine[p];
            }
            if (unit[j].there && (NH_FULL || r < rows)) nh_unit_store(args.y, y + r * args.y.head, unit[j], value);
        }
    }
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    norm_rope_forward(const __grid_constant__ nh_norm_rope_args args) {
    nh_unit unit[NH_UNITS];
    nh_factors factors;
    nh_units_set(args, unit);
    nh_all_factors_set(args, unit, factors);
    long long index = nh_first_item();
#if NH_LAZY
    /* The next row is loaded before the sums of this one are computed: after their barriers, no loads would be in
     * flight. */
    nh_token token, next;
    nh_raw raw[NH_ROWS][NH_UNITS], ahead[NH_ROWS][NH_UNITS];
    nh_token_set(args, unit, index, token);
    nh_rows_load(args.x, unit, nh_item_row(args.x, token.item), NH_ROWS, raw);
    for (bool more = true; more;) {
        index += nh_item_step();
        more = index < args.items;
        if (more) {
            nh_token_set(args, unit, index, next);
            nh_rows_load(args.x, unit, nh_item_row(args.x, next.item), NH_ROWS, ahead);
        }
        nh_rows_forward(args, unit, factors, token, raw, nh_item_row(args.y, token.item), NH_ROWS);
        token = next;
#pragma unroll
        for (int j = 0; j < NH_UNITS; j++)
            raw[0][j] = ahead[0][j];
    }
#else
    for (; index < args.items; index += nh_item_step()) {
        nh_token token;
        nh_token_set(args, unit, index, token);
        elem *x = nh_item_row(args.x, token.item), *y = nh_item_row(args.y, token.item);
        for (int head = token.item.head; head < token.item.end; head += NH_ROWS) {
            nh_raw raw[NH_ROWS][NH_UNITS];
            nh_rows_load(args.x, unit, x, token.item.end - head, raw);
            nh_rows_forward(args, unit, factors, token, raw, y, token.item.end - head);
            x += NH_ROWS * args.x.head;
            y += NH_ROWS * args.y.head;
        }
    }
#endif
}
