/* Partial gradients of a tile: what its queries add to the gradients of their keys, until reduce.h sums up the tiles. */
#ifndef NH_PARTIAL_H
#define NH_PARTIAL_H

#include "tile_rows.h"

/* Where they are, in this order: keys and values of the halo, extra tokens, bias tables of the heads of the group.
 * Offsets in reals; the same for all tiles. */
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
        keys *= geometry->tile[a].most_keys;
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

/* Which key row of the halo. */
static int64_t halo_row(const struct tile *tile, int32_t slow, int32_t middle) {
    return (int64_t)(slow - tile->box.key[0]) * tile->box.keys[1] + (middle - tile->box.key[1]);
}

/* Zeroes what is not of a key row. */
static void clear_partial_rest(const struct tile *tile) {
    const struct partial at = partial_layout(tile->geometry);
    memset(tile->partial + at.d_extra_k, 0, (size_t)(at.reals - at.d_extra_k) * sizeof(real));
}

/* Zeroes one key row. */
static void clear_partial_row(const struct tile *tile, int32_t slow, int32_t middle) {
    const struct partial at = partial_layout(tile->geometry);
    const int64_t row = halo_row(tile, slow, middle), keys = tile->box.keys[2];
    const struct scratch *s = &tile->scratch;
    if (at.d_v > at.d_k)
        memset(tile->partial + at.d_k + row * keys * s->width_k, 0,
               (size_t)(keys * s->width_k) * sizeof(real));
    memset(tile->partial + at.d_v + row * keys * s->width_v, 0,
           (size_t)(keys * s->width_v) * sizeof(real));
}

#endif
