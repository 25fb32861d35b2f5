/* The scratch of one worker of the matrix kernels: the packed keys and values of a work tile, and the queries, scores and
 * weights of one block. */
#ifndef NH_MATRIX_SCRATCH_H
#define NH_MATRIX_SCRATCH_H

#include "matrix_simd.h"
#include "matrix_tiles.h"
#include "tile_rows.h"

enum {
    UNIT_KEYS = 32,   /* keys of a unit: two tiles of columns */
    MOST_VECTORS = 2, /* query vectors of a block */
    MOST_GROUP = 5,   /* units whose scores are kept at a time: 20 KB, which stay in L1 */
    SLOTS = 16,       /* units whose weights are kept at a time */
    UNIT_SCORES = MOST_VECTORS * 16 * UNIT_KEYS,
    SHORT_WINDOW = 16 /* along the lane axis: one vector holds the scores of a query and key row */
};

/* Widths and counts are whole tiles. What is beyond a tensor's channels, keys and queries is packed as zeros. */
struct matrix_scratch {
    int64_t pitch, extra_pitch; /* columns (keys) of a packed key row, and of the extra tokens */
    int64_t width_k, width_v;   /* channels of a packed row: D, Dv */
    int32_t ring;               /* key rows of the middle axis that are kept packed */
    uint32_t *k_channels;       /* [packed row][channel pair][column] */
    uint32_t *v_keys;           /* [packed row][pair of columns][channel] */
    uint32_t *extra_k_channels, *extra_v_keys;
    uint16_t *q_rows;        /* [vector][16][width] */
    float *score;            /* [unit of a group][vector][16][UNIT_KEYS] */
    uint16_t *weights;       /* [vector][slot][16][UNIT_KEYS] */
    uint16_t *extra_weights; /* the same of extra tokens, one slot */
    float *out; /* [vector][16][width]: O before it is divided by the sums of weights */
};

/* The columns for `keys` keys after up to 15 others, with those that a unit reads beyond them. They are an odd number of cache
 * lines, as an even one would map the channels of a column to few sets of the cache. */
static int64_t padded_columns(int64_t keys) {
    return (nh_ceil_div(keys + 15 + UNIT_KEYS, 16) | 1) * 16;
}

/* How many of `left` places of the middle axis, or vectors, form the next block. */
static int32_t next_places(int32_t left) {
    return nh_even_share(left, MOST_VECTORS);
}

/* The number of key rows of the middle axis that are kept: all of a tile or, if a tile uses each in a single sweep, those that
 * a block needs. */
static int32_t ring_rows(const struct nh_geometry *geometry) {
    if (!geometry->rolling) return geometry->tile[1].most_keys;
    const struct nh_order *order = &geometry->order[1];
    int32_t most = 1;
    for (int32_t t = 0; t < geometry->tile[1].kept; t++) {
        const int32_t end = nh_tile_end(geometry, 1, t);
        for (int32_t first = nh_tile_first(geometry, 1, t), places; first < end; first += places) {
            places = next_places(end - first);
            most = (int32_t)nh_max(most, order->end[first + places - 1] - order->begin[first]);
        }
    }
    return most;
}

/* Lays the scratch out from `base` on, or only counts if `base` is NULL. Returns the number of reals, each of which has room for
 * two bf16 numbers. */
static int64_t matrix_layout(const struct nh_geometry *geometry, real *base,
                             struct matrix_scratch *s) {
    const struct nh_problem *problem = &geometry->problem;
    const bool extra = problem->extra_tokens > 0;
    const int64_t queries = MOST_VECTORS * 16, tile_reals = TILE_BYTES / (int64_t)sizeof(real);
    struct arena arena = {base, 0};
    s->pitch = padded_columns(geometry->tile[2].most_keys);
    s->extra_pitch = padded_columns(problem->extra_tokens);
    s->width_k = nh_ceil_div(problem->dim, 32) * 32;
    s->width_v = nh_ceil_div(problem->dim_v, 32) * 32;
    s->ring = ring_rows(geometry);
    const int64_t columns = (int64_t)geometry->tile[0].most_keys * s->ring * s->pitch;
    s->k_channels = (uint32_t *)arena_take(&arena, true, columns * s->width_k / 2);
    s->v_keys = (uint32_t *)arena_take(&arena, true, columns * s->width_v / 2);
    s->extra_k_channels = (uint32_t *)arena_take(&arena, extra, s->extra_pitch * s->width_k / 2);
    s->extra_v_keys = (uint32_t *)arena_take(&arena, extra, s->extra_pitch * s->width_v / 2);
    s->q_rows = (uint16_t *)arena_take(&arena, true, queries * s->width_k / 2);
    s->score = arena_take(&arena, true, MOST_GROUP * UNIT_SCORES);
    s->weights = (uint16_t *)arena_take(&arena, true, MOST_VECTORS * SLOTS * tile_reals);
    s->extra_weights = (uint16_t *)arena_take(&arena, extra, MOST_VECTORS * tile_reals);
    s->out = arena_take(&arena, true, queries * s->width_v);
    return arena.used;
}

#endif
