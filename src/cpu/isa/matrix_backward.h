/* The backward on tiles. Its scores have a row per key and queries in the lanes, two query vectors (a pair) side by side:
 *
 *     S = K Qᵀ, dP = V dOᵀ    [32 keys][32 queries]      rows of keys x channels of queries
 *     P = 2^(S - LSE), dS     the same, rounded to bf16  LSE and delta belong to lanes
 *     dV += P dO, dK += dS Q  [32 keys][channel]         the pairs' 32 queries are the inner dimension; straight into the
 *                                                        partial gradients of the work tile
 *     dQᵀ += Kᵀ dS            [channel][32 queries]      summed up over some units at a time
 *
 * Products with weights of zero would spread NaN and infinities of one key or query to others. So if any input is not finite,
 * or LSE is so large that its rounding shows, the f32 kernels compute the work tile instead, see matrix.c. */
#ifndef NH_MATRIX_BACKWARD_H
#define NH_MATRIX_BACKWARD_H

#include "matrix_block.h"

#include <math.h>

/* LSE is an f32 number, which from 2^12 on is rounded by up to 2^-12: P is then off by an eighth of what it is rounded by as
 * bf16, up to 2^-9, and by more for larger LSEs. */
#define COARSE_LSE 4096.0f

struct backward {
    float factor, scale; /* make products scores to base 2; and dS gradients */
    vint first[MOST_VECTORS],
        last[MOST_VECTORS];          /* columns of each query; none for lanes without one */
    vec lse[MOST_VECTORS];           /* to base 2 */
    vec delta[MOST_VECTORS];         /* times the scale */
    int32_t units;                   /* whose dS is kept */
    const uint16_t *keys[D_Q_UNITS]; /* their columns of transposed keys */
    uint32_t met[D_Q_UNITS];         /* bits of the pairs of vectors that attend them */
    bool fresh[MOST_PAIRS];          /* the pair's dQ holds nothing yet */
};

static int32_t pair_count(const struct block *block) {
    return (block->vectors + 1) / 2;
}

/* ---- a block's queries ---- */

/* Packs one vector's rows of a tensor by pairs of channels, where two vectors lie side by side, and by pairs of queries, and checks
 * them. */
static void pack_queries(struct matrix *m, const struct block *block, int32_t v, int32_t tensor,
                         int64_t dim, int64_t width, uint32_t *channels, uint32_t *pairs) {
    struct rows rows = vector_rows(m, block, v, tensor, dim);
    const struct nh_vector *vector = block->vector[v];
    pack_channels(&rows, vector->first, vector->count, 0, width,
                  channels + v / 2 * 16 * width + v % 2 * 16, PAIR_QUERIES);
    rows.ahead = 0; /* they have been asked for */
    pack_pairs(&rows, vector->first, vector->count, 0, width, pairs + v * 8 * width, 16);
    bool not_finite = false;
    for (int32_t lane = 0; lane < vector->count; lane++)
        for (int32_t c = 0; c < rows.dim; c += 32) {
            const char *at = row_at(&rows, vector->first + lane) + (int64_t)c * 2;
            not_finite |= any_not_finite(load_halves(at, rows.dim - c));
        }
    m->not_finite |= not_finite;
}

/* Loads one number per query from a tensor of LSE's shape; 0 for lanes without a query. */
static vec vector_numbers(const struct matrix *m, const struct block *block, int32_t v,
                          int32_t tensor) {
    struct rows rows = vector_rows(m, block, v, tensor, 1);
    rows.dtype = NHOOD_DTYPE_F32;
    float lanes[16] = {0};
    for (int32_t lane = 0; lane < block->vector[v]->count; lane++)
        memcpy(&lanes[lane], row_at(&rows, block->vector[v]->first + lane), sizeof(float));
    return v_load(lanes);
}

/* Computes delta = rowsum(dO * O), by lane. */
static vec vector_deltas(const struct matrix *m, const struct block *block, int32_t v) {
    const int64_t dim = m->tile.problem->dim_v;
    const struct rows o = vector_rows(m, block, v, NHOOD_O, dim);
    const struct rows d_o = vector_rows(m, block, v, NHOOD_D_O, dim);
    vec sum[16] = {0};
    for (int32_t lane = 0; lane < block->vector[v]->count; lane++) {
        const char *a = row_at(&o, block->vector[v]->first + lane);
        const char *b = row_at(&d_o, block->vector[v]->first + lane);
        for (int32_t c = 0; c < o.dim; c += 32) {
            ask_ahead(&o, a + (int64_t)c * 2);
            const halves x = load_halves(a + (int64_t)c * 2, o.dim - c);
            const halves y = load_halves(b + (int64_t)c * 2, o.dim - c);
            sum[lane] = (vec)_mm512_dpbf16_ps((__m512)sum[lane], (__m512bh)x, (__m512bh)y);
        }
    }
    return lane_sums(sum);
}

/* Loads LSE and delta of a vector, and which columns its queries attend. */
static void set_vector(struct matrix *m, const struct block *block, struct backward *b, int32_t v) {
    vec lse = vector_numbers(m, block, v, NHOOD_LSE), delta = vector_deltas(m, block, v);
    if (m->tile.run->io->data[NHOOD_D_LSE]) delta -= vector_numbers(m, block, v, NHOOD_D_LSE);
    /* queries without keys: their weights are masked */
    lse = v_select((vint)(lse == v_set(-(float)INFINITY)), (vec){0}, lse);
    const vec limit = v_set(COARSE_LSE), check = delta * 0;
    m->not_finite |= v_any(~(vint)(v_max(lse, -lse) <= limit)) || v_any((vint)(check != check));
    b->lse[v] = lse * (float)log2_e;
    b->delta[v] = delta * b->scale;
    for (int32_t lane = 0; lane < 16; lane++) {
        b->first[v][lane] = block->first[v][lane];
        b->last[v][lane] = lane < block->vector[v]->count ? block->last[v][lane] : 0;
    }
}

static void pack_block(struct matrix *m, const struct block *block, struct backward *b) {
    const struct matrix_scratch *s = &m->s;
    const int64_t dim = m->tile.problem->dim, dim_v = m->tile.problem->dim_v;
    for (int32_t v = 0; v < block->vectors; v++) {
        pack_queries(m, block, v, NHOOD_Q, dim, s->width_k, s->q_channels, s->q_pairs);
        pack_queries(m, block, v, NHOOD_D_O, dim_v, s->width_v, s->d_o_channels, s->d_o_pairs);
        set_vector(m, block, b, v);
    }
    if (block->vectors % 2 == 0) return;
    /* The other half of the last pair has weights of zero, and must be finite. */
    const int32_t v = block->vectors;
    memset(s->q_pairs + v * 8 * s->width_k, 0, (size_t)(8 * s->width_k) * sizeof(uint32_t));
    memset(s->d_o_pairs + v * 8 * s->width_v, 0, (size_t)(8 * s->width_v) * sizeof(uint32_t));
}

/* ---- scores of a unit ---- */

/* P and dS of one key and a query vector whose lanes in the mask attend it. */
INLINE void weigh_key(uint32_t mask, const float *score, const float *d_p, float factor,
                      float scale, vec lse, vec delta, vec *p, vec *d_s) {
    *p = exp2_of(mask, v_load(score) * factor - lse);
    const vec rest = v_load(d_p) * scale - delta;
    *d_s = (vec)_mm512_maskz_mul_ps((__mmask16)mask, (__m512)*p, (__m512)rest);
}

INLINE halves round_both(vec low, vec high) {
    return (halves)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

INLINE uint32_t attending(vint first, vint last, int32_t column) {
    const __m512i x = _mm512_set1_epi32(column);
    const __mmask16 begun = _mm512_cmple_epi32_mask((__m512i)first, x);
    return _mm512_mask_cmpgt_epi32_mask(begun, (__m512i)last, x);
}

/* Turns the scores and dP of a unit into P and dS, by key for products with queries, and dS by pairs of keys for the product with
 * keys, whose queries are in the order of spread_queries. `met` has a bit for each vector of the pair that attends the unit.
 * Columns before `from` belong to another unit. No query of the block attends keys from `keys` on, whose weights are zeroed. */
static void weigh_unit(const struct matrix *m, const struct backward *b, int32_t pair, uint32_t met,
                       int32_t column, int32_t from, int32_t keys, uint32_t *d_s_pairs) {
    const struct matrix_scratch *s = &m->s;
    uint16_t *p_keys = s->p_keys + pair * UNIT_KEYS * PAIR_QUERIES;
    uint16_t *d_s_keys = s->d_s_keys + pair * UNIT_KEYS * PAIR_QUERIES;
    vint first[2], last[2];
    vec lse[2] = {{0}}, delta[2] = {{0}};
    for (int i = 0; i < 2; i++) {
        first[i] = last[i] = (vint){0};
        if (!(met >> i & 1)) continue;
        const int32_t v = 2 * pair + i;
        first[i] = (vint)_mm512_max_epi32((__m512i)b->first[v], _mm512_set1_epi32(from));
        last[i] = b->last[v];
        lse[i] = b->lse[v];
        delta[i] = b->delta[v];
    }
    for (int32_t key = 0; key < keys; key += 2) {
        halves d_s_of[2];
#pragma GCC unroll 2
        for (int32_t j = 0; j < 2; j++) {
            vec p[2], d_s[2];
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const int64_t at = (key + j) * PAIR_QUERIES + 16 * i;
                weigh_key(attending(first[i], last[i], column + key + j), s->s_keys + at,
                          s->d_p_keys + at, b->factor, b->scale, lse[i], delta[i], &p[i], &d_s[i]);
            }
            d_s_of[j] = round_both(d_s[0], d_s[1]);
            *(halves_anywhere *)(p_keys + (key + j) * PAIR_QUERIES) = round_both(p[0], p[1]);
            *(halves_anywhere *)(d_s_keys + (key + j) * PAIR_QUERIES) = d_s_of[j];
        }
        store_words(d_s_pairs + key / 2 * 16,
                    (words)_mm512_unpacklo_epi16((__m512i)d_s_of[0], (__m512i)d_s_of[1]));
        store_words(d_s_pairs + UNIT_KEYS / 2 * 16 + key / 2 * 16,
                    (words)_mm512_unpackhi_epi16((__m512i)d_s_of[0], (__m512i)d_s_of[1]));
    }
    const int32_t filled = (keys + 1) & ~1;
    const size_t bytes = (size_t)(UNIT_KEYS - filled) * PAIR_QUERIES * sizeof(uint16_t);
    if (bytes == 0) return;
    memset(p_keys + filled * PAIR_QUERIES, 0, bytes);
    memset(d_s_keys + filled * PAIR_QUERIES, 0, bytes);
    memset(d_s_pairs + filled / 2 * 16, 0, bytes / 2);
    memset(d_s_pairs + UNIT_KEYS / 2 * 16 + filled / 2 * 16, 0, bytes / 2);
}

/* The query of the pair that has column `at` of dQᵀ: weigh_unit interleaves pairs of keys within 128 bits, which leaves queries 0
 * to 3, 8 to 11, .. in the first 16 columns. */
static int32_t spread_queries(int32_t at) {
    return at % 16 / 4 * 8 + at / 16 * 4 + at % 4;
}

/* ---- products with weights ---- */

/* sums[key][channel] += sum over pairs of weights . queries, for 32 keys; if `fresh`, `sums` is overwritten. `met` has a bit for
 * each pair of vectors. */
static void add_to_keys(const uint16_t *weights, const uint32_t *queries, int64_t queries_width,
                        uint32_t met, int64_t width, bool fresh, float *sums) {
    const int64_t source_bytes = queries_width * 4;
    for (int64_t c = 0; c < width; c += 32) {
        const bool both = width - c > 16;
        begin_sums(sums + c, width, fresh, true, both);
        for (int32_t pair = 0; met >> pair; pair++) {
            if (!(met >> pair & 1)) continue;
            const uint16_t *weight = weights + pair * UNIT_KEYS * PAIR_QUERIES;
            const uint32_t *query = queries + pair * 16 * queries_width + c;
            TILE_LOAD(4, weight, 64);
            TILE_LOAD(5, weight + 16 * PAIR_QUERIES, 64);
            TILE_LOAD(6, query, source_bytes);
            TILE_MULTIPLY(0, 4, 6);
            TILE_MULTIPLY(2, 5, 6);
            TILE_LOAD(7, query + 16, source_bytes);
            TILE_MULTIPLY(1, 4, 7);
            TILE_MULTIPLY(3, 5, 7);
        }
        end_sums(sums + c, width, true, both);
    }
}

/* dQᵀ of a pair of vectors += sum over the kept units of transposed keys . dS. */
static void add_to_queries(const struct matrix *m, struct backward *b, int32_t pair) {
    const struct matrix_scratch *s = &m->s;
    const int64_t key_bytes = s->channel_pitch * 2;
    for (int64_t c = 0; c < s->width_k; c += 32) {
        float *sums = s->d_q + (pair * s->width_k + c) * PAIR_QUERIES;
        begin_sums(sums, PAIR_QUERIES, b->fresh[pair], true, true);
        for (int32_t u = 0; u < b->units; u++) {
            if (!(b->met[u] >> pair & 1)) continue;
            const uint32_t *d_s = s->d_s_pairs + (u * MOST_PAIRS + pair) * UNIT_KEYS * 16;
            TILE_LOAD(4, b->keys[u] + c * s->channel_pitch, key_bytes);
            TILE_LOAD(5, b->keys[u] + (c + 16) * s->channel_pitch, key_bytes);
            TILE_LOAD(6, d_s, 64);
            TILE_MULTIPLY(0, 4, 6);
            TILE_MULTIPLY(2, 5, 6);
            TILE_LOAD(7, d_s + UNIT_KEYS / 2 * 16, 64);
            TILE_MULTIPLY(1, 4, 7);
            TILE_MULTIPLY(3, 5, 7);
        }
        end_sums(sums, PAIR_QUERIES, true, true);
    }
    b->fresh[pair] = false;
}

static void empty_units(const struct matrix *m, const struct block *block, struct backward *b) {
    uint32_t met = 0;
    for (int32_t u = 0; u < b->units; u++)
        met |= b->met[u];
    for (int32_t pair = 0; pair < pair_count(block); pair++)
        if (met >> pair & 1) add_to_queries(m, b, pair);
    b->units = 0;
}

/* Adds the products of a unit to the partial gradients of its keys: all 32 of them or, if the row has fewer, those it has. */
static void add_to_partial(const struct matrix *m, const struct key_sums *sums, int64_t row,
                           int32_t column, const uint16_t *weights, const uint32_t *queries,
                           int64_t queries_width, uint32_t met) {
    const int32_t keys = (int32_t)nh_min(m->tile.box.keys[2] - column, UNIT_KEYS);
    const bool fresh = fill_for(&m->tile, sums, row, column, column + keys, true);
    float *out = sums->sum + (row * m->tile.box.keys[2] + column) * sums->width;
    if (keys == UNIT_KEYS) {
        add_to_keys(weights, queries, queries_width, met, sums->width, fresh, out);
        return;
    }
    add_to_keys(weights, queries, queries_width, met, sums->width, true, m->s.unit_sums);
    for (int64_t i = 0; i < keys * sums->width; i += 16)
        v_store(out + i,
                fresh ? v_load(m->s.unit_sums + i) : v_load(out + i) + v_load(m->s.unit_sums + i));
}

/* Computes what a unit adds to all gradients. */
static void backward_unit(struct matrix *m, const struct block *block, struct backward *b,
                          int32_t slow, int32_t middle, uint32_t met, int32_t column,
                          int32_t from) {
    const struct matrix_scratch *s = &m->s;
    const int64_t row = ring_row(m, slow, middle), at = row * s->row_columns + column;
    uint32_t pairs = 0;
    for (int32_t pair = 0; pair < pair_count(block); pair++) {
        const uint32_t own = met >> 2 * pair & 3;
        if (!own) continue;
        pairs |= 1u << pair;
        const uint32_t *q = s->q_channels + 2 * pair * 8 * s->width_k;
        const uint32_t *d_o = s->d_o_channels + 2 * pair * 8 * s->width_v;
        const bool both = 2 * pair + 1 < block->vectors;
        unit_scores(s->k_rows + at * s->width_k, q, PAIR_QUERIES, s->width_k, 3, both, s->s_keys);
        unit_scores(s->v_rows + at * s->width_v, d_o, PAIR_QUERIES, s->width_v, 3, both,
                    s->d_p_keys);
        weigh_unit(m, b, pair, own, column, from,
                   (int32_t)nh_min(block->end_column - column, UNIT_KEYS),
                   s->d_s_pairs + (b->units * MOST_PAIRS + pair) * UNIT_KEYS * 16);
    }
    const struct key_sums k = k_sums(&m->tile), v = v_sums(&m->tile);
    const int64_t partial = partial_row(&m->tile, slow, middle);
    add_to_partial(m, &v, partial, column, s->p_keys, s->d_o_pairs, s->width_v, pairs);
    add_to_partial(m, &k, partial, column, s->d_s_keys, s->q_pairs, s->width_k, pairs);
    b->keys[b->units] = s->k_transposed + row * s->width_k * s->channel_pitch + column;
    b->met[b->units++] = pairs;
    if (b->units == D_Q_UNITS) empty_units(m, block, b);
}

/* The block's vectors that attend keys of a unit. */
static uint32_t unit_vectors(const struct matrix *m, const struct block *block, int32_t middle,
                             int32_t column, int32_t from) {
    const struct nh_order *order = &m->tile.geometry->order[1];
    uint32_t met = 0;
    for (int32_t v = 0; v < block->vectors; v++)
        if (middle >= order->begin[block->middle[v]] && middle < order->end[block->middle[v]] &&
            block->first[v][0] < column + UNIT_KEYS && block->last[v][15] > from)
            met |= 1u << v;
    return met;
}

/* Visits the units of the block's window. The last one of a row of keys begins where the row has 32 keys left, if it has so
 * many. */
static void backward_units(struct matrix *m, const struct block *block, struct backward *b) {
    const struct nh_order *slow = &m->tile.geometry->order[0];
    const int32_t last_column = (int32_t)nh_max(0, m->tile.box.keys[2] - UNIT_KEYS);
    for (int32_t plane = slow->begin[block->slow]; plane < slow->end[block->slow]; plane++)
        for (int32_t middle = block->begin; middle < block->end; middle++)
            for (int32_t from = block->column; from < block->end_column; from += UNIT_KEYS) {
                const int32_t column = (int32_t)nh_min(from, last_column);
                const uint32_t met = unit_vectors(m, block, middle, column, from);
                if (met) backward_unit(m, block, b, plane, middle, met, column, from);
            }
    empty_units(m, block, b);
}

/* Stores dQ of a pair of vectors. */
static void store_d_q(const struct matrix *m, const struct block *block, const struct backward *b,
                      int32_t pair) {
    const struct matrix_scratch *s = &m->s;
    for (int32_t half = 0; half < 2; half++)
        for (int64_t c = 0; c < s->width_k; c += 16) {
            vec v[16];
            UNROLL
            for (int i = 0; i < 16; i++)
                v[i] =
                    b->fresh[pair]
                        ? (vec){0}
                        : v_load(s->d_q + (pair * s->width_k + c + i) * PAIR_QUERIES + 16 * half);
            transpose(v);
            UNROLL
            for (int i = 0; i < 16; i++)
                v_store(s->d_q_rows + spread_queries(16 * half + i) * s->width_k + c, v[i]);
        }
    for (int32_t v = 2 * pair; v < 2 * pair + 2 && v < block->vectors; v++) {
        const struct rows rows = vector_rows(m, block, v, NHOOD_D_Q, m->tile.problem->dim);
        rows_to(&rows, block->vector[v]->first, block->vector[v]->count, NULL,
                s->d_q_rows + v % 2 * 16 * s->width_k, s->width_k);
    }
}

static void backward_block(struct matrix *m, const struct block *block) {
    if (m->not_finite) return;
    struct backward b; /* what is unused is not zeroed */
    b.scale = (float)m->tile.problem->scale;
    b.factor = (float)(m->tile.problem->scale * log2_e);
    b.units = 0;
    for (int32_t pair = 0; pair < pair_count(block); pair++)
        b.fresh[pair] = true;
    pack_block(m, block, &b);
    if (m->not_finite) return;
    backward_units(m, block, &b);
    if (!m->tile.run->io->data[NHOOD_D_Q]) return;
    for (int32_t pair = 0; pair < pair_count(block); pair++)
        store_d_q(m, block, &b, pair);
}

#endif
