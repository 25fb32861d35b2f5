/* Packs a tile's keys and values, and the extra tokens. */
#ifndef NH_TILE_PACK_H
#define NH_TILE_PACK_H

#include "partial.h"

/* The packed row after `row`. */
static int64_t next_packed_row(const struct tile *tile, int64_t row, int32_t slow) {
    int64_t first = packed_plane(tile, slow);
    return row + 1 < first + tile->geometry->packed_rows ? row + 1 : first;
}

/* Packs one key row, in the forms of K and V for which the pass has scratch. */
static void pack_key_row(const struct tile *tile, int32_t slow, int32_t middle) {
    const struct scratch *s = &tile->scratch;
    int64_t dim = tile->problem->dim, dim_v = tile->problem->dim_v,
            row = packed_row(tile, slow, middle);
    int32_t first = tile->box.key[2], count = tile->box.keys[2];
    const int32_t op = tile->problem->op;
    const bool in_place = (op == NHOOD_OP_FWD || op == NHOOD_OP_NN) && !s->v_rows;
    struct rows k = {0}, v = {0};
    if (s->k_columns) k = tensor_rows(tile, NHOOD_K, tile->box.kv_head, slow, middle, dim);
    if (s->v_columns || s->v_rows || in_place)
        v = tensor_rows(tile, NHOOD_V, tile->box.kv_head, slow, middle, dim_v);
    k.ahead = key_bytes_ahead(tile, NHOOD_K, slow, middle);
    v.ahead = key_bytes_ahead(tile, NHOOD_V, slow, middle);
    if (s->k_columns)
        columns_from(&k, first, count, 1, s->k_columns + row * key_row_reals(s, dim), s->key_pitch);
    if (s->v_columns)
        columns_from(&v, first, count, 1, s->v_columns + row * key_row_reals(s, dim_v),
                     s->key_pitch);
    if (s->k_rows)
        rows_from(&k, first, count, tile->k_factor,
                  s->k_rows + row * tile->box.keys[2] * s->width_k, s->width_k);
    if (in_place) ask_rows(&v, first, count);
    if (s->v_rows)
        rows_from(&v, first, count, 1, s->v_rows + row * tile->box.keys[2] * s->width_v,
                  s->width_v);
}

/* Packs key rows [begin, end) of the middle axis at places [slow, slow_end), and begins their partial gradients. */
static void pack_key_rows(const struct tile *tile, int32_t slow, int32_t slow_end, int32_t begin,
                          int32_t end) {
    for (; slow < slow_end; slow++)
        for (int32_t middle = begin; middle < end; middle++) {
            pack_key_row(tile, slow, middle);
            if (tile->partial) empty_partial_row(tile, partial_row(tile, slow, middle));
        }
}

/* Packs the key rows before place `end` of the middle axis that are not packed yet, from `begin` on. */
static void pack_keys(struct tile *tile, int32_t begin, int32_t end) {
    if (begin < tile->packed_end) begin = tile->packed_end;
    pack_key_rows(tile, tile->box.key[0], tile->box.key[0] + tile->box.keys[0], begin, end);
    if (end > tile->packed_end) tile->packed_end = end;
}

/* Packs the planes of key rows before place `end` of the slow axis that are not packed yet, from `begin` on. */
static void pack_planes(struct tile *tile, int32_t begin, int32_t end) {
    if (begin < tile->packed_planes_end) begin = tile->packed_planes_end;
    pack_key_rows(tile, begin, end, tile->box.key[1], tile->box.key[1] + tile->box.keys[1]);
    if (end > tile->packed_planes_end) tile->packed_planes_end = end;
}

/* Extra token `token`, as the row at place 0. */
static struct rows extra_rows(const struct tile *tile, int32_t tensor, int32_t token, int64_t dim) {
    static const int32_t first[1] = {0};
    const nhood_strides *strides = &tile->problem->strides[tensor];
    const char *data = tile->run->io->data[tensor];
    int64_t element = tile->box.batch * strides->batch + tile->box.kv_head * strides->head +
                      token * strides->axis[0];
    int32_t dtype = tile->problem->dtype;
    return (struct rows){
        data + element * (int64_t)nh_dtype_bytes(dtype), 0, first, dtype, (int32_t)dim, 0};
}

/* Packs the extra tokens by channel, one token at a time, as there are few of them compared to windows. */
static void extra_columns(const struct tile *tile, int32_t tensor, int64_t dim, real *columns) {
    int64_t pitch = tile->scratch.extra_pitch;
    int32_t dtype = tile->problem->dtype;
    for (int32_t token = 0; token < tile->problem->extra_tokens; token++) {
        struct rows rows = extra_rows(tile, tensor, token, dim);
        for (int64_t c = 0; c < dim; c++)
            columns[c * pitch + token] = (real)nh_load_f64(dtype, rows.base, c);
    }
}

static void pack_extra(const struct tile *tile) {
    const struct scratch *s = &tile->scratch;
    int64_t dim = tile->problem->dim, dim_v = tile->problem->dim_v;
    if (s->extra_k_columns) extra_columns(tile, NHOOD_EXTRA_K, dim, s->extra_k_columns);
    if (s->extra_v_columns) extra_columns(tile, NHOOD_EXTRA_V, dim_v, s->extra_v_columns);
    for (int32_t token = 0; token < tile->problem->extra_tokens; token++) {
        if (s->extra_k_rows) {
            struct rows k = extra_rows(tile, NHOOD_EXTRA_K, token, dim);
            rows_from(&k, 0, 1, tile->k_factor, s->extra_k_rows + token * s->width_k, s->width_k);
        }
        if (s->extra_v_rows) {
            struct rows v = extra_rows(tile, NHOOD_EXTRA_V, token, dim_v);
            rows_from(&v, 0, 1, 1, s->extra_v_rows + token * s->width_v, s->width_v);
        }
    }
}

/* Packs everything that a tile needs before its blocks. Rolling tiles pack their keys in the loop over blocks, and
 * those with rolling planes in the loop over the slow axis. */
static void tile_pack(struct tile *tile, real k_factor) {
    tile->k_factor = k_factor;
    if (tile->partial) clear_partial_rest(tile);
    if (!tile->geometry->rolling && !tile->geometry->rolling_planes)
        pack_keys(tile, tile->box.key[1], tile->box.key[1] + tile->box.keys[1]);
    pack_extra(tile);
}

#endif
