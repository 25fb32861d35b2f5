/* O = softmax(scale Q K^T + bias) V of one query by a group of lanes: online softmax, ROW.keys keys at a time. */
#pragma once
#include "naive.cuh"

struct nh_sums {
    real largest, sum, lost; /* lost: rounding errors of long sums, see nh_add_compensated */
    real share;              /* what `out` has of weighted values: all, or less so that sums are finite */
    nh_long_row out;
};

/* Keys that follow each other: rows of K and V, and their biases or NULL. */
struct nh_key_run {
    const elem *k;
    long long k_step;
    const elem *v;
    long long v_step;
    const elem *bias;
    int count;
};

/* Processes up to ROW.keys keys of a run; those beyond count have a score of minus infinity. */
NH_DEVICE void nh_take_keys(nh_sums &s, const nh_operand &q, const nh_key_run &run, real scale, int dim_v) {
    real score[ROW.keys], largest = s.largest;
    NH_UNROLL for (int i = 0; i < ROW.keys; i++)
        score[i] = i < run.count ? nh_product_part(q, run.k + i * run.k_step) : 0;
    NH_UNROLL for (int i = 0; i < ROW.keys; i++) {
        score[i] = scale * nh_group_sum(score[i]);
        if (run.bias && i < run.count) score[i] += nh_load(run.bias[i]);
        if (i >= run.count) score[i] = NH_MINUS_INFINITY;
        largest = fmax(largest, score[i]);
    }
    real shift = largest == NH_MINUS_INFINITY ? 0 : largest;
    real shrink = nh_exp(s.largest - shift);
    if (!ROW_LEVELS || shrink != 1) {
        s.sum *= shrink;
        s.lost *= shrink;
        nh_long_scale(s.out, shrink);
    }
    NH_UNROLL for (int i = 0; i < ROW.keys; i++) {
        if (i >= run.count) continue;
        real weight = nh_exp(score[i] - shift), row[ROW_ELEMENTS];
        if (NH_LONG_SUMS) {
            nh_add_compensated(s.sum, s.lost, weight);
        } else {
            s.sum += weight;
        }
        nh_load_row(run.v + i * run.v_step, nh_chunk_first(), dim_v, row);
        nh_long_add(s.out, s.share == 1 ? nh_round(weight) : weight * s.share, row);
    }
    s.largest = largest;
}

/* Processes the keys of a box; k, v: the rows of the box. */
NH_DEVICE void nh_take_box(const nh_cuda_args &args, const nh_query &query, const nh_operand &q, const nh_box &box,
                           const nh_box_rows &k, const nh_box_rows &v, real scale, nh_sums &s) {
    nh_bias bias = nh_bias_of(args, query, box);
    for (int x = 0; x < box.count[0]; x++)
        for (int y = 0; y < box.count[1]; y++) {
            const elem *k_line = k.base + x * k.step[0] + y * k.step[1];
            const elem *v_line = v.base + x * v.step[0] + y * v.step[1];
            const elem *b = ROW.biased ? bias.base + x * bias.step[0] + y * bias.step[1] : 0;
            for (int z = 0; z < box.count[2]; z += ROW.keys)
                nh_take_keys(s, q,
                             {k_line + z * k.step[2], k.step[2], v_line + z * v.step[2], v.step[2],
                              ROW.biased ? b + z : 0, box.count[2] - z},
                             scale, (int)args.dim_v);
        }
}

/* Processes all keys of a query from the beginning. box: its window, or the first piece of it; k, v: its rows. */
NH_DEVICE void nh_take_window(const nh_cuda_args &args, const nh_query &query, const nh_operand &q, const nh_box &box,
                              const nh_box_rows &k, const nh_box_rows &v, nh_sums &s) {
    const long long kv_head = query.head / (args.heads / args.kv_heads);
    const real scale = (real)args.scale;
    s.largest = NH_MINUS_INFINITY;
    s.sum = s.lost = 0;
    nh_long_clear(s.out);
    nh_take_box(args, query, q, box, k, v, scale, s);
    for (int piece = 1; piece < ROW_PIECES; piece++) {
        const nh_box more = nh_window_box(args, query.at, piece);
        nh_take_box(args, query, q, more, nh_box_rows_of(args.tensor[NH_K], more, query.batch, kv_head),
                    nh_box_rows_of(args.tensor[NH_V], more, query.batch, kv_head), scale, s);
    }
    const nh_cuda_tensor &ek = args.tensor[NH_EXTRA_K], &ev = args.tensor[NH_EXTRA_V];
    const elem *k_extra = (const elem *)ek.data + query.batch * ek.batch + kv_head * ek.head;
    const elem *v_extra = (const elem *)ev.data + query.batch * ev.batch + kv_head * ev.head;
    long long ek_step = ek.axis[3 - args.rank], ev_step = ev.axis[3 - args.rank];
    for (long long m = 0; ROW.extra && m < args.extra_tokens; m += ROW.keys)
        nh_take_keys(s, q,
                     {k_extra + m * ek_step, ek_step, v_extra + m * ev_step, ev_step, 0,
                      (int)(args.extra_tokens - m < ROW.keys ? args.extra_tokens - m : ROW.keys)},
                     scale, (int)args.dim_v);
    nh_long_end(s.out);
    /* sum 0: the query has no key */
    nh_long_scale(s.out, NH_REGIONS && s.sum == 0 ? 0 : 1 / (s.sum * s.share));
}

/* Whether some element of a query's row, of which a lane has these, is too large to be stored, or NaN. */
NH_DEVICE bool nh_overflows(const real row[ROW_ELEMENTS]) {
    real beyond = 0;
    NH_UNROLL for (int i = 0; i < ROW_ELEMENTS; i++)
        if (!(fabs(row[i]) < NH_BEYOND_STORAGE)) beyond = 1;
    return nh_group_sum(beyond) != 0;
}

/* Weights are relative to the row's largest, so that sums of values near the largest number may overflow before they
 * are divided. Such rows are made again with this share of weights, which then add up to a quarter at most. */
NH_DEVICE real nh_small_share(const nh_cuda_args &args) {
    const real window = (real)args.axis[0].window * args.axis[1].window * args.axis[2].window;
    return (real)0.25 / (window + args.extra_tokens);
}

/* Computes and stores a query, with this share of its weights, see nh_small_share; returns whether it is to be made
 * again. box: its window, or the first piece of it; k, v: the rows of the box. */
NH_DEVICE bool nh_attend_to(const nh_cuda_args &args, const nh_query &query, const nh_box &box, const nh_box_rows &k,
                            const nh_box_rows &v, real share) {
    nh_operand q;
    nh_sums s;
    nh_operand_set(q, nh_row(args.tensor[NH_Q], query.batch, query.at, query.head), args.dim);
    s.share = share;
    nh_take_window(args, query, q, box, k, v, s);
    nh_store_row(nh_row(args.tensor[NH_O], query.batch, query.at, query.head), nh_chunk_first(), (int)args.dim_v,
                 s.out.sum);
    if (args.tensor[NH_LSE].data && nh_lane() == 0 && blockIdx.y == 0)
        *nh_scalar(args.tensor[NH_LSE], query.batch, query.at, query.head) = s.largest + nh_log(s.sum);
    return share == 1 && nh_overflows(s.out.sum);
}

NH_DEVICE bool nh_attend_by(const nh_cuda_args &args, const nh_query &query, real share) {
    long long kv_head = query.head / (args.heads / args.kv_heads);
    nh_box box = nh_window_box(args, query.at);
    return nh_attend_to(args, query, box, nh_box_rows_of(args.tensor[NH_K], box, query.batch, kv_head),
                        nh_box_rows_of(args.tensor[NH_V], box, query.batch, kv_head), share);
}

/* Repairs a query. */
NH_DEVICE void nh_attend(const nh_cuda_args &args, const nh_query &query) {
    real share = 1;
    NH_UNROLL_1 while (nh_attend_by(args, query, share))
        share = nh_small_share(args);
}

/* Whether the query has been stored with numbers that are too large. */
NH_DEVICE bool nh_stored_overflow(const nh_cuda_args &args, const nh_query &query) {
    real row[ROW_ELEMENTS];
    nh_load_row(nh_row(args.tensor[NH_O], query.batch, query.at, query.head), nh_chunk_first(), (int)args.dim_v, row);
    return nh_overflows(row);
}

/* Computes all queries of this group of lanes; those to be made again at the end, when nothing else is in registers. */
NH_DEVICE void nh_attend_rows(const nh_cuda_args &args) {
    real share = 1;
    bool again;
    NH_UNROLL_1 do {
        again = false;
        nh_for_rows(args, [&](const nh_query &query) {
            if (share == 1 || nh_stored_overflow(args, query)) again |= nh_attend_by(args, query, share);
        });
        share = nh_small_share(args);
    } while (again);
}
