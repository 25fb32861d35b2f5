/* dK = scale * dS^T Q and dV = P^T dO of one key: a group of lanes goes over its inverse neighborhood's queries. */
#pragma once
#include "naive.cuh"

struct nh_key_rows {
    nh_operand k, v;
    real scale;
    nh_long_row d_k, d_v;
};

NH_DEVICE void nh_take_query(const nh_cuda_args &args, nh_key_rows &r, const elem *q, const elem *d_o, real lse,
                             real delta, real bias) {
    real score = r.scale * nh_group_sum(nh_product_part(r.k, q)) + bias;
    real d_p = nh_group_sum(nh_product_part(r.v, d_o));
    real p = nh_weight_of(score, lse), row[ROW_ELEMENTS];
    nh_load_row(q, nh_chunk_first(), (int)args.dim, row);
    nh_long_add(r.d_k, r.scale * (p * (d_p - delta)), row);
    nh_load_row(d_o, nh_chunk_first(), (int)args.dim_v, row);
    nh_long_add(r.d_v, p, row);
}

/* The bias of the pair of the key and one query of its box. */
NH_DEVICE real nh_key_bias(const nh_cuda_args &args, const nh_box &box, const long long key[3], long long head, int x,
                           int y, int z) {
    if (!ROW.biased) return 0;
    const int at[3] = {x, y, z};
    long long entry = head;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        const nh_cuda_axis &axis = args.axis[a];
        entry = entry * (2 * axis.window - 1) + key[a] / axis.dilation - (box.position[a] + at[a]) + axis.window - 1;
    }
    return nh_load(((const elem *)args.tensor[NH_BIAS].data)[entry]);
}

/* Adds the queries of one head; q, d_o: their rows. */
NH_DEVICE void nh_add_head(const nh_cuda_args &args, nh_key_rows &r, const nh_query &key, const nh_box &box,
                           long long head, const nh_box_rows &q, const nh_box_rows &d_o) {
    const nh_cuda_tensor &lse = args.tensor[NH_LSE], &delta = args.tensor[NH_DELTA];
    const real *lse_base = nh_scalar(lse, key.batch, box.first, head);
    const real *delta_base = nh_scalar(delta, key.batch, box.first, head) + ROW.delta_at;
    for (int x = 0; x < box.count[0]; x++)
        for (int y = 0; y < box.count[1]; y++)
            for (int z = 0; z < box.count[2]; z++)
                nh_take_query(args, r, q.base + x * q.step[0] + y * q.step[1] + z * q.step[2],
                              d_o.base + x * d_o.step[0] + y * d_o.step[1] + z * d_o.step[2],
                              lse_base[nh_offset(lse, box, x, y, z)], delta_base[nh_offset(delta, box, x, y, z)],
                              nh_key_bias(args, box, key.at, head, x, y, z));
}

NH_DEVICE void nh_key_rows_set(const nh_cuda_args &args, const nh_query &key, nh_key_rows &r) {
    nh_operand_set(r.k, nh_row(args.tensor[NH_K], key.batch, key.at, key.head), args.dim);
    nh_operand_set(r.v, nh_row(args.tensor[NH_V], key.batch, key.at, key.head), args.dim_v);
    r.scale = (real)args.scale;
    nh_long_clear(r.d_k);
    nh_long_clear(r.d_v);
}

NH_DEVICE void nh_key_rows_store(const nh_cuda_args &args, const nh_query &key, nh_key_rows &r) {
    const nh_cuda_tensor &d_k = args.tensor[NH_D_K], &d_v = args.tensor[NH_D_V];
    nh_long_end(r.d_k);
    nh_long_end(r.d_v);
    if (d_k.data) nh_store_row(nh_row(d_k, key.batch, key.at, key.head), nh_chunk_first(), (int)args.dim, r.d_k.sum);
    if (d_v.data) nh_store_row(nh_row(d_v, key.batch, key.at, key.head), nh_chunk_first(), (int)args.dim_v, r.d_v.sum);
}

NH_DEVICE void nh_differentiate_key(const nh_cuda_args &args, const nh_query &key) {
    long long share = args.heads / args.kv_heads;
    nh_key_rows r;
    nh_key_rows_set(args, key, r);
    nh_box box = nh_inverse_box(args, key.at);
    for (long long head = key.head * share; head < (key.head + 1) * share; head++) {
        nh_add_head(args, r, key, box, head, nh_box_rows_of(args.tensor[NH_Q], box, key.batch, head),
                    nh_box_rows_of(args.tensor[NH_D_O], box, key.batch, head));
        for (int piece = 1; piece < ROW_PIECES; piece++) {
            const nh_box more = nh_inverse_box(args, key.at, piece);
            nh_add_head(args, r, key, more, head, nh_box_rows_of(args.tensor[NH_Q], more, key.batch, head),
                        nh_box_rows_of(args.tensor[NH_D_O], more, key.batch, head));
        }
    }
    nh_key_rows_store(args, key, r);
}
