/* RMS norm, scale and rotary positions in one pass: see norm_rope.cuh. */
#include "norm_rope.cuh"

namespace nh_norm_rope {

NH_DEVICE void nh_rows_forward(const nh_norm_rope_args &args, const nh_unit unit[C.units], const nh_factors &factors,
                               const nh_token &token, const nh_raw raw[C.rows][C.units], elem *y, int rows) {
    real sum[C.rows];
    NH_UNROLL for (int r = 0; r < C.rows; r++) {
        sum[r] = 0;
        NH_UNROLL for (int j = 0; j < C.units; j++)
            NH_UNROLL for (int i = 0; i < 2 * C.pairs; i++) {
                const real value = nh_raw_at(raw[r][j], i);
                sum[r] += value * value;
            }
    }
    if (C.norm) nh_row_sums<C.rows>(sum);
    NH_UNROLL for (int r = 0; r < C.rows; r++)
        sum[r] = C.norm ? nh_norm_of(args, sum[r]) : (real)1;
    NH_UNROLL for (int j = 0; j < C.units; j++) {
        real factor[2 * C.pairs];
        nh_factors_of(args, unit, factors, j, factor);
        const nh_angles angles = nh_token_angles(unit, token, j);
        NH_UNROLL for (int r = 0; r < C.rows; r++) {
            real value[2 * C.pairs];
            NH_UNROLL for (int p = 0; p < C.pairs; p++) {
                const int a = nh_first(p), b = nh_second(p);
                const real first = nh_raw_at(raw[r][j], a) * sum[r] * factor[a];
                const real second = nh_raw_at(raw[r][j], b) * sum[r] * factor[b];
                value[a] = first * angles.cosine[p] - second * angles.sine[p];
                value[b] = first * angles.sine[p] + second * angles.cosine[p];
            }
            if (unit[j].there && (C.full || r < rows)) nh_unit_store(args.y, y + r * args.y.head, unit[j], value);
        }
    }
}

/* A block has one row at a time. The next is loaded before the barriers of its sums, to have loads in flight. */
NH_DEVICE void nh_one_by_one(const nh_norm_rope_args &args, const nh_unit unit[C.units], const nh_factors &factors) {
    long long index = nh_first_item();
    nh_token token, next;
    nh_raw raw[C.rows][C.units], ahead[C.rows][C.units];
    nh_token_set(args, unit, index, token);
    nh_rows_load(args.x, unit, nh_item_row(args.x, token.item), C.rows, raw);
    for (bool more = true; more;) {
        index += nh_item_step();
        more = index < args.items;
        if (more) {
            nh_token_set(args, unit, index, next);
            nh_rows_load(args.x, unit, nh_item_row(args.x, next.item), C.rows, ahead);
        }
        nh_rows_forward(args, unit, factors, token, raw, nh_item_row(args.y, token.item), C.rows);
        token = next;
        NH_UNROLL for (int j = 0; j < C.units; j++)
            raw[0][j] = ahead[0][j];
    }
}

/* A warp has several rows at a time. */
NH_DEVICE void nh_side_by_side(const nh_norm_rope_args &args, const nh_unit unit[C.units], const nh_factors &factors) {
    for (long long index = nh_first_item(); index < args.items; index += nh_item_step()) {
        nh_token token;
        nh_token_set(args, unit, index, token);
        elem *x = nh_item_row(args.x, token.item), *y = nh_item_row(args.y, token.item);
        for (int head = token.item.head; head < token.item.end; head += C.rows) {
            nh_raw raw[C.rows][C.units];
            nh_rows_load(args.x, unit, x, token.item.end - head, raw);
            nh_rows_forward(args, unit, factors, token, raw, y, token.item.end - head);
            x += C.rows * args.x.head;
            y += C.rows * args.y.head;
        }
    }
}

} // namespace nh_norm_rope

using namespace nh_norm_rope;

extern "C" __global__ void __launch_bounds__(C.threads, C.min_blocks)
    norm_rope_forward(const __grid_constant__ nh_norm_rope_args args) {
    nh_unit unit[C.units];
    nh_factors factors;
    nh_units_set(args, unit);
    nh_all_factors_set(args, unit, factors);
    if constexpr (LAZY) {
        nh_one_by_one(args, unit, factors);
    } else {
        nh_side_by_side(args, unit, factors);
    }
}
