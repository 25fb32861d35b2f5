/* The scratch of one worker for a tile: the packed keys and values of the tile's halo, and the queries, scores and results of
 * one block of query vectors. */
#ifndef NH_SCRATCH_H
#define NH_SCRATCH_H

#include "geometry.h"
#include "simd.h"

struct scratch {
    int64_t key_pitch;           /* places of one channel of a packed key row */
    int64_t extra_pitch;         /* the same for the extra tokens */
    int64_t width_k, width_v;    /* reals of a packed row of D, Dv: whole vectors */
    real *k_columns, *v_columns; /* [packed row][channel][key_pitch] */
    real *k_rows, *v_rows;       /* [packed row][key][width]; v_rows NULL where V itself is so */
    real *wrapped_v_rows;        /* v_rows of tiles whose keys go on at the axis's other end */
    real *extra_k_columns, *extra_v_columns, *extra_k_rows, *extra_v_rows;
    real *q_columns, *d_o_columns; /* [channel][row][VL] */
    real *q_rows, *d_o_rows;       /* [row][VL][width] */
    real *out, *d_q;               /* [row][VL][width]: unnormalised results */
    real *score, *d_score;         /* [row][slots][VL] */
    real *largest, *sum;           /* [row][VL]: online softmax */
    real *lse, *delta;             /* [row][VL] */
    real *norm,
        *shift; /* [row][VL]: factor of P; what is left of delta, see settle(), or forward_block() */
    real *weighted, *spread; /* [row][VL]: sums of P times (dP - delta), and of P times |dP| beside
                                      rowsum(|dO * O|), weighted as in settle() */
    real *bias_lanes;        /* [bias_count][VL]: gradient of one head's table, by lane */
    real *sum_total;         /* [row][VL]: the sum's earlier chains */
    real *line,
        *total; /* [REDUCE_SPAN][width] each: sums of the reduction, of many steps; first of all */
    struct nh_band *gather, *scatter;
    int32_t *filled_k, *filled_v; /* by partial row, see struct key_sums */
};

/* The number of keys whose gradients one reduction job sums up. */
enum { REDUCE_SPAN = 64 };

struct arena {
    real *base;
    int64_t used;
};

static real *arena_take(struct arena *arena, bool wanted, int64_t count) {
    if (!wanted) return NULL;
    real *memory = arena->base ? arena->base + arena->used : NULL;
    arena->used += (count + NH_ALIGNMENT - 1) / NH_ALIGNMENT * NH_ALIGNMENT;
    return memory;
}

/* The places of a channel for `count` keys. A row of one to two vectors, as tiles of one vector have, is not padded: its products
 * read the whole row, channel after channel. Of longer rows a product reads the same few places of every channel, so they are
 * rounded up to whole vectors or, beyond some cache lines, to an odd number of lines, as an even number would map these places
 * to half of the cache sets or fewer. */
static int64_t padded_places(int64_t count) {
    enum { LINE = 64 / sizeof(real), LINES = 4 };
    if (count > VL && count < 2 * VL) return count;
    const int64_t places = (count + VL - 1) / VL * VL;
    return places < LINES * LINE ? places : ((count + LINE - 1) / LINE | 1) * LINE;
}

/* Room after the last channel, because vectors are read from any key on, two at a time. What they read there is used by no
 * lane. Nor is what they read up to window / 2 places before the first channel, which lies in `line`, `total` or this room. */
#define COLUMNS_SLACK (2 * VL)

/* The reals of a packed key row of `dim` channels, with room for the last channel's vectors, as packing stores whole ones. */
static int64_t key_row_reals(const struct scratch *s, int64_t dim) {
    return dim * s->key_pitch + (s->key_pitch % VL != 0 ? VL : 0);
}

/* Whether V's rows are read from the tensor itself. That takes rows as they would be packed, of reals in whole vectors and at
 * one distance from token to token, and so few query rows per key row that packing does not pay (fewer if other data lies
 * between the tokens). */
static bool values_in_place(const struct nh_problem *problem) {
    const int64_t window_rows = problem->axis[0].window * problem->axis[1].window;
    return problem->dtype == (NH_REAL == 64 ? NHOOD_DTYPE_F64 : NHOOD_DTYPE_F32) &&
           problem->dim_v % VL == 0 && problem->axis[2].dilation == 1 &&
           window_rows <= (problem->strides[NHOOD_V].axis[2] == problem->dim_v ? 4 : 1);
}

static void scratch_windows(const struct nh_geometry *geometry, struct scratch *s,
                            struct arena *arena) {
    const struct nh_problem *problem = &geometry->problem;
    int64_t dim = problem->dim, dim_v = problem->dim_v, extra = problem->extra_tokens;
    bool fwd = problem->op == NHOOD_OP_FWD, bwd = problem->op == NHOOD_OP_BWD;
    bool dots = fwd || bwd || problem->op == NHOOD_OP_PN;
    bool values = fwd || problem->op == NHOOD_OP_NN, in_place = values && values_in_place(problem);
    int64_t keys = geometry->tile[2].most_keys;
    int64_t rows = (int64_t)geometry->packed_planes * geometry->packed_rows;
    s->key_pitch = padded_places(keys);
    s->extra_pitch = padded_places(extra);
    s->width_k = (int64_t)geometry->vectors_k * VL;
    s->width_v = (int64_t)geometry->vectors_v * VL;
    s->k_columns = arena_take(arena, dots, rows * key_row_reals(s, dim) + COLUMNS_SLACK);
    s->v_columns = arena_take(arena, bwd, rows * key_row_reals(s, dim_v) + COLUMNS_SLACK);
    s->k_rows = arena_take(arena, bwd, rows * keys * s->width_k);
    s->v_rows = arena_take(arena, values && !in_place, rows * keys * s->width_v);
    s->wrapped_v_rows =
        arena_take(arena, in_place && problem->axis[2].periodic, rows * keys * s->width_v);
    if (!in_place) s->wrapped_v_rows = s->v_rows;
    s->extra_k_columns = arena_take(arena, extra > 0, dim * s->extra_pitch + COLUMNS_SLACK);
    s->extra_v_columns =
        arena_take(arena, extra > 0 && bwd, dim_v * s->extra_pitch + COLUMNS_SLACK);
    s->extra_k_rows = arena_take(arena, extra > 0 && bwd, extra * s->width_k);
    s->extra_v_rows = arena_take(arena, extra > 0 && fwd, extra * s->width_v);
}

/* Lays the scratch out from `base` on, or only counts if `base` is NULL. Returns the number of reals. */
static int64_t scratch_layout(const struct nh_geometry *geometry, real *base, struct scratch *s) {
    const struct nh_problem *problem = &geometry->problem;
    struct arena arena = {base, 0};
    bool fwd = problem->op == NHOOD_OP_FWD, bwd = problem->op == NHOOD_OP_BWD;
    bool dots = fwd || bwd || problem->op == NHOOD_OP_PN, in = problem->op == NHOOD_OP_IN;
    int64_t rows = geometry->rows, lanes = rows * VL;
    int32_t vectors =
        geometry->vectors_k > geometry->vectors_v ? geometry->vectors_k : geometry->vectors_v;
    s->line = arena_take(&arena, bwd || in, (int64_t)REDUCE_SPAN * vectors * VL);
    s->total = arena_take(&arena, problem->op != NHOOD_OP_PN, (int64_t)REDUCE_SPAN * vectors * VL);
    (void)arena_take(&arena, problem->op == NHOOD_OP_PN, COLUMNS_SLACK);
    scratch_windows(geometry, s, &arena);
    s->q_columns = arena_take(&arena, dots, lanes * problem->dim);
    s->d_o_columns = arena_take(&arena, bwd, lanes * problem->dim_v);
    s->q_rows = arena_take(&arena, bwd, lanes * s->width_k);
    s->d_o_rows = arena_take(&arena, bwd || in, lanes * s->width_v);
    s->out = arena_take(&arena, fwd || problem->op == NHOOD_OP_NN, lanes * s->width_v);
    s->d_q = arena_take(&arena, bwd, lanes * s->width_k);
    s->score = arena_take(&arena, true, lanes * geometry->slots);
    s->d_score = arena_take(&arena, bwd, lanes * geometry->slots);
    s->largest = arena_take(&arena, fwd, lanes);
    s->sum_total = arena_take(&arena, fwd, lanes);
    s->sum = arena_take(&arena, fwd || bwd, lanes);
    s->lse = arena_take(&arena, bwd, lanes);
    s->delta = arena_take(&arena, bwd, lanes);
    s->norm = arena_take(&arena, bwd, lanes);
    s->shift = arena_take(&arena, fwd || bwd, lanes);
    s->weighted = arena_take(&arena, bwd, lanes);
    s->spread = arena_take(&arena, bwd, lanes);
    s->bias_lanes = arena_take(&arena, bwd && problem->has_bias, problem->bias_count * VL);
    int64_t steps = nh_band_bound(VL, geometry->slots);
    int64_t step_reals = (int64_t)(sizeof(struct nh_band) / sizeof(real)) + 1;
    s->gather = (struct nh_band *)(void *)arena_take(&arena, true, lanes * step_reals);
    s->scatter = (struct nh_band *)(void *)arena_take(&arena, bwd || in, steps * step_reals);
    const int64_t key_rows = (int64_t)geometry->tile[0].most_keys * geometry->tile[1].most_keys;
    s->filled_k = (int32_t *)(void *)arena_take(&arena, bwd, key_rows);
    s->filled_v = (int32_t *)(void *)arena_take(&arena, bwd || in, key_rows);
    return arena.used;
}

#endif
