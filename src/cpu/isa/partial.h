/* The partial gradients of a tile: what its queries add to the gradients of keys, before reduce.h adds up the tiles. */
#ifndef NH_PARTIAL_H
#define NH_PARTIAL_H

#include "tile_rows.h"

/* Whether a rolling tile stores the gradients of a key row once the window has passed it, and keeps only those of the packed
 * rows. This is possible if no two tiles share a key, because a tile's partial gradients are then those of the keys. */
static bool partial_rolls(const struct nh_geometry *geometry) {
    return geometry->rolling && geometry->tiles_apart;
}

/* The layout of partial gradients, as offsets in reals: keys and values of the halo, extra tokens, bias tables of the heads of
 * the group. It is the same for all tiles. */
struct partial {
    int64_t d_k, d_v, d_extra_k, d_extra_v, d_bias, reals;
};

static struct partial partial_layout(const struct nh_geometry *geometry) {
    const struct nh_problem *problem = &geometry->problem;
    struct partial partial = {0};
    bool bwd = problem->op == NHOOD_OP_BWD;
    if (!bwd && problem->op != NHOOD_OP_IN) return partial;
    int64_t keys = 1, group = problem->heads / problem->kv_heads;
    int64_t width_k = (int64_t)geometry->vectors_k * VL,
            width_v = (int64_t)geometry->vectors_v * VL;
    for (int a = 0; a < NH_AXES; a++)
        keys *=
            a == 1 && partial_rolls(geometry) ? geometry->packed_rows : geometry->tile[a].most_keys;
    partial.d_v = bwd ? keys * width_k : 0;
    partial.d_extra_k = partial.d_v + keys * width_v;
    partial.d_extra_v = partial.d_extra_k + (bwd ? problem->extra_tokens * width_k : 0);
    partial.d_bias = partial.d_extra_v + (bwd ? problem->extra_tokens * width_v : 0);
    partial.reals = partial.d_bias + (bwd && problem->has_bias ? group * problem->bias_count : 0);
    partial.reals = (partial.reals + NH_ALIGNMENT - 1) / NH_ALIGNMENT * NH_ALIGNMENT;
    return partial;
}

static int64_t partial_reals(const struct nh_geometry *geometry) {
    return partial_layout(geometry).reals;
}

/* The index of the first packed key row of a place of the slow axis. Tiles with rolling planes keep a ring of them. */
static int64_t packed_plane(const struct tile *tile, int32_t slow) {
    const struct nh_geometry *geometry = tile->geometry;
    return (int64_t)((slow - tile->box.key[0]) % geometry->packed_planes) * geometry->packed_rows;
}

/* The index of a key row's packed forms. Rolling tiles keep a ring of the rows last packed. */
static int64_t packed_row(const struct tile *tile, int32_t slow, int32_t middle) {
    return packed_plane(tile, slow) + (middle - tile->box.key[1]) % tile->geometry->packed_rows;
}

/* The index of a key row in the halo. */
static int64_t halo_row(const struct tile *tile, int32_t slow, int32_t middle) {
    return (int64_t)(slow - tile->box.key[0]) * tile->box.keys[1] + (middle - tile->box.key[1]);
}

/* The index of a key row among the tile's partial gradients. */
static int64_t partial_row(const struct tile *tile, int32_t slow, int32_t middle) {
    return partial_rolls(tile->geometry) ? packed_row(tile, slow, middle)
                                         : halo_row(tile, slow, middle);
}

/* Zeroes the partial gradients other than those of key rows. */
static void clear_partial_rest(const struct tile *tile) {
    const struct partial at = partial_layout(tile->geometry);
    memset(tile->partial + at.d_extra_k, 0, (size_t)(at.reals - at.d_extra_k) * sizeof(real));
}

/* Partial gradients of the tile's keys, dK or dV. They are zeroed no earlier than needed, and not at all where the first product
 * stores its sums: zeros of a whole tile would have left the caches before anything is added to them. */
struct key_sums {
    real *sum;       /* [partial row][key][width] */
    int32_t *filled; /* by partial row: keys before this one hold something */
    int64_t width;
};

static struct key_sums k_sums(const struct tile *tile) {
    const struct scratch *s = &tile->scratch;
    return (struct key_sums){tile->partial + partial_layout(tile->geometry).d_k, s->filled_k,
                             s->width_k};
}

static struct key_sums v_sums(const struct tile *tile) {
    const struct scratch *s = &tile->scratch;
    return (struct key_sums){tile->partial + partial_layout(tile->geometry).d_v, s->filled_v,
                             s->width_v};
}

/* Zeroes keys of a partial row up to `end` that hold nothing yet. */
static void fill_keys(const struct tile *tile, const struct key_sums *sums, int64_t row,
                      int32_t end) {
    const int32_t from = sums->filled[row];
    if (from >= end) return;
    memset(sums->sum + (row * tile->box.keys[2] + from) * sums->width, 0,
           (size_t)((end - from) * sums->width) * sizeof(real));
    sums->filled[row] = end;
}

/* Gets keys [begin, end) of a partial row ready for a product. Returns whether it has to store its sums: they hold nothing, and
 * `all` of them are its outputs, once each. */
static bool fill_for(const struct tile *tile, const struct key_sums *sums, int64_t row,
                     int32_t begin, int32_t end, bool all) {
    if (end > tile->box.keys[2]) end = tile->box.keys[2];
    if (!all || sums->filled[row] > begin) {
        fill_keys(tile, sums, row, end);
        return false;
    }
    fill_keys(tile, sums, row, begin);
    sums->filled[row] = end;
    return true;
}

/* The partial gradients of a key row hold nothing yet. */
static void empty_partial_row(const struct tile *tile, int64_t row) {
    const struct scratch *s = &tile->scratch;
    if (s->filled_k) s->filled_k[row] = 0;
    s->filled_v[row] = 0;
}

/* Zeroes the keys of a partial row that no product has met. */
static void fill_row(const struct tile *tile, int64_t row) {
    const struct key_sums k = k_sums(tile), v = v_sums(tile);
    if (k.filled) fill_keys(tile, &k, row, tile->box.keys[2]);
    fill_keys(tile, &v, row, tile->box.keys[2]);
}

/* A tensor of gradients of keys, and where it is among a tile's partial gradients. */
struct key_gradient {
    int32_t tensor;
    int64_t offset, width, dim;
};

/* Lists the gradients of keys that the caller wants, and returns their number. */
static int key_gradients(const struct nh_tile_run *run, struct key_gradient gradient[2]) {
    const struct nh_geometry *geometry = run->geometry;
    const struct nh_problem *problem = &geometry->problem;
    const struct partial at = partial_layout(geometry);
    int count = 0;
    if (problem->op == NHOOD_OP_BWD && run->io->data[NHOOD_D_K])
        gradient[count++] = (struct key_gradient){NHOOD_D_K, at.d_k,
                                                  (int64_t)geometry->vectors_k * VL, problem->dim};
    if (run->io->data[NHOOD_D_V])
        gradient[count++] = (struct key_gradient){
            NHOOD_D_V, at.d_v, (int64_t)geometry->vectors_v * VL, problem->dim_v};
    return count;
}

/* Stores the gradients of the tile's key rows before place `end` of the middle axis, to which no further query adds. */
static void store_key_rows(struct tile *tile, int32_t end) {
    struct key_gradient gradient[2];
    const int count = key_gradients(tile->run, gradient);
    const int32_t keys = tile->box.keys[2], first = tile->box.key[0];
    for (int32_t slow = first; slow < first + tile->box.keys[0]; slow++)
        for (int32_t middle = tile->stored_end; middle < end; middle++) {
            fill_row(tile, partial_row(tile, slow, middle));
            for (const struct key_gradient *g = gradient; g < gradient + count; g++) {
                struct rows rows =
                    tensor_rows(tile, g->tensor, tile->box.kv_head, slow, middle, g->dim);
                rows.ahead = key_bytes_ahead(tile, g->tensor, slow, middle);
                rows_to(&rows, tile->box.key[2], keys, NULL,
                        tile->partial + g->offset +
                            partial_row(tile, slow, middle) * keys * g->width,
                        g->width);
            }
        }
    tile->stored_end = end;
}

/* Stores the gradients of all remaining key rows, unless tiles have to be added up first. */
static void store_last_key_rows(struct tile *tile) {
    if (!tile->partial) return;
    if (tile->geometry->tiles_apart) {
        store_key_rows(tile, tile->box.key[1] + tile->box.keys[1]);
        return;
    }
    for (int64_t row = 0; row < (int64_t)tile->box.keys[0] * tile->box.keys[1]; row++)
        fill_row(tile, row);
}

#endif
