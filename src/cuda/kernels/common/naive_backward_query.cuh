/* dQ = scale * dS K of one query, computed by a group of lanes. */
#pragma once
#include "naive.cuh"

struct nh_query_rows {
    nh_operand q, d_o;
    real lse, delta, scale;
};

NH_DEVICE void nh_take_key(const nh_query_rows &r, const elem *k, const elem *v, const elem *bias, int dim,
                           nh_long_row &d_q) {
    real score = r.scale * nh_group_sum(nh_product_part(r.q, k));
    real d_p = nh_group_sum(nh_product_part(r.d_o, v));
    if (bias) score += nh_load(*bias);
    real d_s = nh_weight_of(score, r.lse) * (d_p - r.delta), row[ROW_ELEMENTS];
    nh_load_row(k, nh_chunk_first(), dim, row);
    nh_long_add(d_q, r.scale * d_s, row);
}

/* Adds the keys of a box; k, v: the rows of the box. */
NH_DEVICE void nh_differentiate_box(const nh_cuda_args &args, const nh_query &query, const nh_query_rows &r,
                                    const nh_box &box, const nh_box_rows &k, const nh_box_rows &v, nh_long_row &d_q) {
    nh_bias bias = nh_bias_of(args, query, box);
    for (int x = 0; x < box.count[0]; x++)
        for (int y = 0; y < box.count[1]; y++)
            for (int z = 0; z < box.count[2]; z++)
                nh_take_key(r, k.base + x * k.step[0] + y * k.step[1] + z * k.step[2],
                            v.base + x * v.step[0] + y * v.step[1] + z * v.step[2],
                            ROW.biased ? bias.base + x * bias.step[0] + y * bias.step[1] + z : 0, (int)args.dim, d_q);
}

/* box: the query's window, or the first piece of it; k, v: the rows of the box. */
NH_DEVICE void nh_differentiate_query_by(const nh_cuda_args &args, const nh_query &query, const nh_operand &d_o,
                                         real delta, const nh_box &box, const nh_box_rows &k, const nh_box_rows &v) {
    long long kv_head = query.head / (args.heads / args.kv_heads);
    nh_query_rows r;
    r.d_o = d_o;
    r.delta = delta;
    nh_operand_set(r.q, nh_row(args.tensor[NH_Q], query.batch, query.at, query.head), args.dim);
    r.lse = *nh_scalar(args.tensor[NH_LSE], query.batch, query.at, query.head);
    r.scale = (real)args.scale;
    nh_long_row d_q;
    nh_long_clear(d_q);
    nh_differentiate_box(args, query, r, box, k, v, d_q);
    for (int piece = 1; piece < ROW_PIECES; piece++) {
        const nh_box more = nh_window_box(args, query.at, piece);
        nh_differentiate_box(args, query, r, more, nh_box_rows_of(args.tensor[NH_K], more, query.batch, kv_head),
                             nh_box_rows_of(args.tensor[NH_V], more, query.batch, kv_head), d_q);
    }
    const nh_cuda_tensor &ek = args.tensor[NH_EXTRA_K], &ev = args.tensor[NH_EXTRA_V];
    for (long long m = 0; ROW.extra && m < args.extra_tokens; m++)
        nh_take_key(r, (const elem *)ek.data + query.batch * ek.batch + kv_head * ek.head + m * ek.axis[3 - args.rank],
                    (const elem *)ev.data + query.batch * ev.batch + kv_head * ev.head + m * ev.axis[3 - args.rank], 0,
                    (int)args.dim, d_q);
    nh_long_end(d_q);
    nh_store_row(nh_row(args.tensor[NH_D_Q], query.batch, query.at, query.head), nh_chunk_first(), (int)args.dim,
                 d_q.sum);
}

NH_DEVICE void nh_differentiate_query(const nh_cuda_args &args, const nh_query &query, const nh_operand &d_o,
                                      real delta) {
    long long kv_head = query.head / (args.heads / args.kv_heads);
    nh_box box = nh_window_box(args, query.at);
    nh_differentiate_query_by(args, query, d_o, delta, box,
                              nh_box_rows_of(args.tensor[NH_K], box, query.batch, kv_head),
                              nh_box_rows_of(args.tensor[NH_V], box, query.batch, kv_head));
}
