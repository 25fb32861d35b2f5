/* The scratch of one worker of the matrix kernels: the packed keys and values of a work tile, and the queries, scores and
 * weights of one block. The forward and the backward each have their own. */
#ifndef NH_MATRIX_SCRATCH_H
#define NH_MATRIX_SCRATCH_H

#include "matrix_simd.h"
#include "matrix_tiles.h"
#include "tile_rows.h"

enum {
    UNIT_KEYS = 32,      /* keys of a unit: two tiles */
    FORWARD_VECTORS = 2, /* query vectors of a block */
    BACKWARD_VECTORS = 4,
    MOST_VECTORS = BACKWARD_VECTORS,
    MOST_GROUP = 5, /* units whose scores are kept at a time: 20 KB, which stay in L1 */
    SLOTS = 16,     /* units whose weights are kept at a time */
    UNIT_SCORES = FORWARD_VECTORS * 16 * UNIT_KEYS,
    SHORT_WINDOW = 16, /* along the lane axis: one vector holds the scores of a query and key row */
    PAIR_QUERIES =
        32, /* queries of a pair of query vectors: the inner dimension of a tile product */
    MOST_PAIRS = BACKWARD_VECTORS / 2,
    D_Q_UNITS = 4 /* units whose dS is kept for the product with keys, 16 KB */
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

    /* The backward. Its scores have a row per key, and queries in the lanes. */
    int64_t
        row_columns; /* columns of a packed key row: those of the halo, and what a unit reads beyond them */
    int64_t channel_pitch;     /* the same for rows of one channel, an odd number of cache lines */
    uint16_t *k_rows, *v_rows; /* [packed row][column][width] */
    uint16_t *k_transposed;    /* [packed row][channel][column] */
    uint32_t *q_channels, *d_o_channels; /* [pair of vectors][channel pair][PAIR_QUERIES] */
    uint32_t *q_pairs, *d_o_pairs;       /* [pair of vectors][pair of queries][channel] */
    float *s_keys, *d_p_keys;            /* [key][PAIR_QUERIES], of one pair of vectors */
    uint16_t *p_keys, *d_s_keys;         /* [pair of vectors][key][PAIR_QUERIES] */
    uint32_t
        *d_s_pairs;   /* [unit][pair of vectors][2][pair of keys][16 queries, see spread_queries] */
    float *d_q;       /* [pair of vectors][channel][PAIR_QUERIES], queries as in d_s_pairs */
    float *d_q_rows;  /* [PAIR_QUERIES][width] */
    float *unit_sums; /* [UNIT_KEYS][width]: of a row with fewer keys than a unit */
    int32_t *filled_k, *filled_v; /* see struct key_sums */
};

/* The columns for `keys` keys after up to 15 others, with those that a unit reads beyond them. They are an odd number of cache
 * lines, as an even one would map the channels of a column to few sets of the cache. */
static int64_t padded_columns(int64_t keys) {
    return (nh_ceil_div(keys + 15 + UNIT_KEYS, 16) | 1) * 16;
}

/* How many of `left` places of the middle axis, or vectors, form the next block. */
static int32_t next_places(const struct nh_geometry *geometry, int32_t left) {
    const bool backward = geometry->problem.op == NHOOD_OP_BWD;
    return nh_even_share(left, backward ? BACKWARD_VECTORS : FORWARD_VECTORS);
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
            places = next_places(geometry, end - first);
            most = (int32_t)nh_max(most, order->end[first + places - 1] - order->begin[first]);
        }
    }
    return most;
}

/* Takes room for `count` bf16 numbers. */
static uint16_t *take_halves(struct arena *arena, int64_t count) {
    return (uint16_t *)arena_take(arena, true, (count + 1) / 2);
}

static uint32_t *take_words(struct arena *arena, int64_t count) {
    return (uint32_t *)arena_take(arena, true, count);
}

static void backward_layout(const struct nh_geometry *geometry, struct matrix_scratch *s,
                            struct arena *arena) {
    const int64_t keys = geometry->tile[2].most_keys, vectors = BACKWARD_VECTORS;
    const int64_t rows = (int64_t)geometry->tile[0].most_keys * s->ring;
    const int64_t key_rows = (int64_t)geometry->tile[0].most_keys * geometry->tile[1].most_keys;
    const int64_t unit = UNIT_KEYS * PAIR_QUERIES;
    s->row_columns = keys + UNIT_KEYS;
    s->channel_pitch = (nh_ceil_div(keys + UNIT_KEYS, 32) | 1) * 32;
    s->k_rows = take_halves(arena, rows * s->row_columns * s->width_k);
    s->v_rows = take_halves(arena, rows * s->row_columns * s->width_v);
    s->k_transposed = take_halves(arena, rows * s->width_k * s->channel_pitch);
    s->q_channels = take_words(arena, vectors * 8 * s->width_k);
    s->d_o_channels = take_words(arena, vectors * 8 * s->width_v);
    s->q_pairs = take_words(arena, vectors * 8 * s->width_k);
    s->d_o_pairs = take_words(arena, vectors * 8 * s->width_v);
    s->s_keys = arena_take(arena, true, unit);
    s->d_p_keys = arena_take(arena, true, unit);
    s->p_keys = take_halves(arena, MOST_PAIRS * unit);
    s->d_s_keys = take_halves(arena, MOST_PAIRS * unit);
    s->d_s_pairs = take_words(arena, D_Q_UNITS * MOST_PAIRS * unit / 2);
    s->d_q = arena_take(arena, true, MOST_PAIRS * PAIR_QUERIES * s->width_k);
    s->d_q_rows = arena_take(arena, true, PAIR_QUERIES * s->width_k);
    s->unit_sums = arena_take(arena, true, UNIT_KEYS * nh_max(s->width_k, s->width_v));
    s->filled_k = (int32_t *)arena_take(arena, true, key_rows);
    s->filled_v = (int32_t *)arena_take(arena, true, key_rows);
}

/* Lays the scratch out from `base` on, or only counts if `base` is NULL. Returns the number of reals, each of which has room for
 * two bf16 numbers. */
static int64_t matrix_layout(const struct nh_geometry *geometry, real *base,
                             struct matrix_scratch *s) {
    const struct nh_problem *problem = &geometry->problem;
    const bool extra = problem->extra_tokens > 0;
    const int64_t queries = FORWARD_VECTORS * 16, tile_reals = TILE_BYTES / (int64_t)sizeof(real);
    struct arena arena = {base, 0};
    s->pitch = padded_columns(geometry->tile[2].most_keys);
    s->extra_pitch = padded_columns(problem->extra_tokens);
    s->width_k = nh_ceil_div(problem->dim, 32) * 32;
    s->width_v = nh_ceil_div(problem->dim_v, 32) * 32;
    s->ring = ring_rows(geometry);
    if (problem->op == NHOOD_OP_BWD) {
        backward_layout(geometry, s, &arena);
        return arena.used;
    }
    const int64_t columns = (int64_t)geometry->tile[0].most_keys * s->ring * s->pitch;
    s->k_channels = (uint32_t *)arena_take(&arena, true, columns * s->width_k / 2);
    s->v_keys = (uint32_t *)arena_take(&arena, true, columns * s->width_v / 2);
    s->extra_k_channels = (uint32_t *)arena_take(&arena, extra, s->extra_pitch * s->width_k / 2);
    s->extra_v_keys = (uint32_t *)arena_take(&arena, extra, s->extra_pitch * s->width_v / 2);
    s->q_rows = (uint16_t *)arena_take(&arena, true, queries * s->width_k / 2);
    s->score = arena_take(&arena, true, MOST_GROUP * UNIT_SCORES);
    s->weights = (uint16_t *)arena_take(&arena, true, FORWARD_VECTORS * SLOTS * tile_reals);
    s->extra_weights = (uint16_t *)arena_take(&arena, extra, FORWARD_VECTORS * tile_reals);
    s->out = arena_take(&arena, true, queries * s->width_v);
    return arena.used;
}

#endif
