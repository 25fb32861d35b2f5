/* The forward on tiles: the scores of some units, their weights, and the product with values once the weights fill the slots.
 *
 * Weights are 2^(y - reference), where y is the score to base 2 and a query's reference is its largest score in the first unit
 * in which it has a key. Later scores may be larger, because f32 sums and bf16 weights have the range of f32. If a result
 * overflows, the f32 kernels compute the work tile again, see matrix.c. */
#ifndef NH_MATRIX_FORWARD_H
#define NH_MATRIX_FORWARD_H

#include "matrix_block.h"
#include "vector_math.h"

#include <float.h>
#include <math.h>

struct forward {
    struct unit unit[MOST_GROUP];
    int32_t units; /* of the group */
    struct product product;
    bool fresh;      /* nothing is in `out` yet */
    bool referenced; /* all queries have references */
    float factor;    /* makes products scores to base 2 */
    vec sum[2][16];  /* of weights, by lane of a vector of scores */
    float reference[2][16];
};

static float *unit_row(float *score, int32_t unit, int32_t v, int32_t lane) {
    return score + unit * UNIT_SCORES + (v * 16 + lane) * UNIT_KEYS;
}

static uint16_t *slot_row(uint16_t *weights, int32_t slots, int32_t slot, int32_t v, int32_t lane) {
    return weights + ((v * slots + slot) * 16 + lane) * UNIT_KEYS;
}

/* Sets the references of a vector's queries that have none yet, from the first unit of the group that the vector attends. */
static bool set_references(const struct matrix *m, const struct block *block, struct forward *f,
                           int32_t v) {
    int32_t u = 0;
    while (u < f->units && !(f->unit[u].met >> v & 1))
        u++;
    if (u == f->units) return false;
    vec most[16];
    const vec lowest = v_set(-FLT_MAX);
    for (int32_t lane = 0; lane < 16; lane++) {
        int32_t low, high;
        unit_columns(m, block, &f->unit[u], v, lane, &low, &high);
        const float *score = unit_row(m->s.score, u, v, lane);
        const uint32_t mask = column_mask(low, high);
        const vec left = select_lanes(mask & 0xffff, v_load(score) * f->factor, lowest);
        most[lane] = v_max(select_lanes(mask >> 16, v_load(score + 16) * f->factor, lowest), left);
    }
    const vec old = v_load(f->reference[v]);
    const vec now = v_select((vint)(old == lowest), lane_maxima(most), old);
    v_store(f->reference[v], now);
    return !v_any((vint)(now == lowest));
}

/* Computes the weights of a vector's queries in short windows. */
static void short_weights(const struct matrix *m, const struct block *block, struct forward *f,
                          int32_t v) {
    int32_t met[MOST_GROUP], units = 0;
    for (int32_t u = 0; u < f->units; u++)
        if (f->unit[u].met >> v & 1) met[units++] = u;
    for (int32_t lane = 0; lane < 16; lane++) {
        const int32_t offset = block->first[v][lane] - block->column;
        const uint32_t own = column_mask(0, block->last[v][lane] - block->first[v][lane]);
        const float *score = unit_row(m->s.score, 0, v, lane) + offset;
        uint16_t *weights = slot_row(m->s.weights, SLOTS, f->product.units, v, lane) + offset;
        const vec reference = v_set(f->reference[v][lane]);
        vec sum = f->sum[v][lane];
        for (int32_t u = 0; u < units; u++) {
            const vec s = load_lanes_of((vec){0}, own, score + met[u] * UNIT_SCORES);
            const vec weight = exp2_of(own, s * f->factor - reference);
            sum += weight;
            store_bf16(weights + met[u] * (TILE_BYTES / 2), weight);
        }
        f->sum[v][lane] = sum;
    }
}

/* Computes the weights of a vector's queries in units that they may attend in part. All columns are written. */
static void wide_weights(const struct matrix *m, const struct block *block, struct forward *f,
                         int32_t v, uint16_t *slots, int32_t slot_count, int32_t slot) {
    for (int32_t u = 0; u < f->units; u++) {
        const struct unit *unit = &f->unit[u];
        if (!(unit->met >> v & 1)) continue;
        for (int32_t lane = 0; lane < 16; lane++) {
            int32_t low, high;
            unit_columns(m, block, unit, v, lane, &low, &high);
            const uint32_t mask = column_mask(low, high);
            const vec reference = v_set(f->reference[v][lane]);
            const float *score = unit_row(m->s.score, u, v, lane);
            uint16_t *weights = slot_row(slots, slot_count, slot + u, v, lane);
            for (int32_t half = 0; half < 2; half++) {
                const uint32_t part = mask >> 16 * half & 0xffff;
                vec weight = {0};
                if (part) {
                    weight = exp2_of(part, v_load(score + 16 * half) * f->factor - reference);
                    f->sum[v][lane] += weight;
                }
                store_bf16(weights + 16 * half, weight);
            }
        }
    }
}

static void multiply_values(const struct matrix *m, const struct block *block, struct forward *f,
                            const uint16_t *slots, int32_t slot_count) {
    if (!f->product.units) return;
    add_product(&f->product, slots, (int64_t)slot_count * (TILE_BYTES / 2), m->s.width_v, f->fresh,
                block->vectors == 2, m->s.out);
    f->fresh = false;
    f->product.units = 0;
}

/* Computes scores and weights of the group's units, and the product with values if the next group needs the slots. */
static void run_group(struct matrix *m, const struct block *block, struct forward *f) {
    const struct matrix_scratch *s = &m->s;
    if (!f->units) return;
    const bool extra = f->unit[0].extra;
    for (int32_t u = 0; u < f->units; u++) {
        const struct unit *unit = &f->unit[u];
        unit_scores(s->q_rows, unit->k, unit->pitch, s->width_k, unit->met, unit->wide,
                    s->score + u * UNIT_SCORES);
    }
    if (!f->referenced) {
        f->referenced = true;
        for (int32_t v = 0; v < block->vectors; v++)
            f->referenced &= set_references(m, block, f, v);
    }
    for (int32_t v = 0; v < block->vectors; v++) {
        if (extra) {
            wide_weights(m, block, f, v, s->extra_weights, 1, 0);
        } else if (!m->is_short) {
            wide_weights(m, block, f, v, s->weights, SLOTS, f->product.units);
        } else {
            short_weights(m, block, f, v);
        }
    }
    for (int32_t u = 0; u < f->units; u++) {
        f->product.source[f->product.units] = f->unit[u].v_keys;
        f->product.met[f->product.units++] = f->unit[u].met;
    }
    f->units = 0;
    if (extra) {
        multiply_values(m, block, f, s->extra_weights, 1);
    } else if (f->product.units + MOST_GROUP > SLOTS) {
        multiply_values(m, block, f, s->weights, SLOTS);
    }
}

static void forward_unit(struct matrix *m, const struct block *block, const struct unit *unit,
                         void *state) {
    struct forward *f = state;
    f->unit[f->units++] = *unit;
    if (unit->extra || f->units == MOST_GROUP) run_group(m, block, f);
}

/* Stores O and LSE of a query vector. */
static void store_vector(struct matrix *m, const struct block *block, struct forward *f,
                         int32_t v) {
    const struct nh_vector *vector = block->vector[v];
    const struct matrix_scratch *s = &m->s;
    const float *out = s->out + v * 16 * s->width_v;
    const vec sum = lane_sums(f->sum[v]), none = (vec)(vint)(sum == (vec){0});
    float number[16];
    vec check = {0};
    for (int64_t i = 0; i < vector->count * s->width_v; i += 16)
        check += v_load(out + i) * 0;
    check += sum * 0;
    m->not_finite |= v_any((vint)(check != check));
    v_store(number, v_select((vint)none, (vec){0}, 1 / sum));
    const struct rows o = vector_rows(m, block, v, NHOOD_O, m->tile.problem->dim_v);
    for (int32_t lane = 0; lane < vector->count; lane++, out += s->width_v) {
        char *row = (char *)(uintptr_t)row_at(&o, vector->first + lane);
        for (int32_t c = 0; c < o.dim; c += 16, row += 32) {
            const vec result = v_load(out + c) * number[lane];
            ask_ahead(&o, row);
            if (o.dim - c >= 16) {
                v_store_as(NHOOD_DTYPE_BF16, row, result);
            } else {
                v_store_part(NHOOD_DTYPE_BF16, row, result, o.dim - c);
            }
        }
    }
    if (!m->tile.run->io->data[NHOOD_LSE]) return;
    struct rows lse = vector_rows(m, block, v, NHOOD_LSE, 1);
    lse.dtype = NHOOD_DTYPE_F32;
    v_store(number, v_select((vint)none, v_set(-(float)INFINITY),
                             (v_load(f->reference[v]) + v_log2(sum)) * (float)ln_2));
    for (int32_t lane = 0; lane < vector->count; lane++)
        memcpy((void *)(uintptr_t)row_at(&lse, vector->first + lane), &number[lane], sizeof(float));
}

static void forward_block(struct matrix *m, const struct block *block) {
    const struct nh_problem *problem = m->tile.problem;
    struct forward f;
    f.units = f.product.units = 0;
    f.fresh = true;
    f.referenced = false;
    f.factor = (float)(problem->scale * log2_e);
    for (int32_t v = 0; v < block->vectors; v++) {
        pack_vector(m, block, v, NHOOD_Q, problem->dim, m->s.width_k,
                    m->s.q_rows + v * 16 * m->s.width_k);
        memset(f.sum[v], 0, sizeof f.sum[v]);
        v_store(f.reference[v], v_set(-FLT_MAX));
    }
    each_unit(m, block, forward_unit, &f);
    run_group(m, block, &f);
    multiply_values(m, block, &f, m->s.weights, SLOTS);
    if (f.fresh) memset(m->s.out, 0, (size_t)(block->vectors * 16 * m->s.width_v) * sizeof(float));
    for (int32_t v = 0; v < block->vectors; v++)
        store_vector(m, block, &f, v);
}

#endif
