/* Forward: scores, online softmax in base 2, values. The scale and log2(e) are folded into the packed
 * queries, so a score is the exponent of its weight. */
#ifndef NH_FORWARD_H
#define NH_FORWARD_H

#include "bias.h"
#include "products.h"
#include "vector_math.h"

#include <float.h>
#include <math.h>

#if NH_REAL == 64
#define LOWEST (-DBL_MAX)
#else
#define LOWEST (-FLT_MAX)
#endif
static const double log2_e = 1.4426950408889634074, ln_2 = 0.69314718055994530942;

/* Slots beyond a lane's own window (causal borders) get -infinity. */
static void mask_unused(const struct tile *tile, const struct block *block, const struct step *step,
                        int32_t row) {
    const struct nh_vector *vector = block->vector[row];
    if (step->extra || vector->fewest_keys >= step->slot_end) return;
    vint keys = {0};
    for (int i = 0; i < VL; i++)
        keys[i] = vector->keys[i];
    real *at = row_scores(tile, tile->scratch.score, row);
    for (int32_t part = 0; part < step_parts(step, row); part++)
        for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL) {
            vint used = (vint)(keys > (vint){0} + slot);
            v_store(at, v_select(used, v_load(at), v_set(-(real)INFINITY)));
        }
}

/* Multiplies the lanes' results so far by `factor`. */
static void rescale(real *out, int64_t width, vec factor) {
    for (int lane = 0; lane < VL; lane++)
        for (int64_t c = 0; c < width; c += VL)
            v_store(out + lane * width + c, v_load(out + lane * width + c) * factor[lane]);
}

/* Scores to weights: 2^(score - largest), with largest, sum and results carried over from earlier steps. In the
 * first step there is nothing yet to rescale. */
static void soften(const struct tile *tile, const struct step *step, int32_t row) {
    const struct scratch *s = &tile->scratch;
    real *score = row_scores(tile, s->score, row);
    int64_t count = (int64_t)step_parts(step, row) * step_slots(step);
    vec old = v_load(s->largest + row * VL), largest = old, more = old;
    int64_t i = 0;
    for (; i + 2 <= count; i += 2) {
        largest = v_max(v_load(score + i * VL), largest);
        more = v_max(v_load(score + (i + 1) * VL), more);
    }
    for (; i < count; i++)
        largest = v_max(v_load(score + i * VL), largest);
    largest = v_max(more, largest);
    vec sum = v_load(s->sum + row * VL), rest = {0};
    if (v_any((vint)(largest > old) & (vint)(old > v_set(LOWEST)))) {
        vec factor = v_exp2(old - largest);
        sum *= factor;
        rescale(s->out + (int64_t)row * VL * s->width_v, s->width_v, factor);
    }
    for (i = 0; i + 2 <= count; i += 2) {
        vec a = v_exp2(v_load(score + i * VL) - largest);
        vec b = v_exp2(v_load(score + (i + 1) * VL) - largest);
        v_store(score + i * VL, a);
        v_store(score + (i + 1) * VL, b);
        sum += a;
        rest += b;
    }
    for (; i < count; i++) {
        vec a = v_exp2(v_load(score + i * VL) - largest);
        v_store(score + i * VL, a);
        sum += a;
    }
    v_store(s->largest + row * VL, largest);
    v_store(s->sum + row * VL, sum + rest);
}

static void forward_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    step_dots(tile, block, step, s->score, s->q_columns, (int32_t)tile->problem->dim, s->k_columns,
              s->extra_k_columns);
    step_bias(tile, block, step, s->score);
    for (int32_t r = 0; r < block->rows; r++) {
        if (!step_parts(step, r)) continue;
        mask_unused(tile, block, step, r);
        soften(tile, step, r);
    }
    gather_rows(tile, block, step, s->score, s->v_rows, s->extra_v_rows, tile->geometry->vectors_v,
                s->out);
}

/* Rows of a query-side tensor at one query vector of the block. */
INLINE struct rows query_rows(const struct tile *tile, const struct block *block, int32_t row,
                              int32_t tensor, int64_t dim) {
    int32_t middle = block->middle[row];
    struct rows rows = tensor_rows(tile, tensor, tile->head, block->slow, middle, dim);
    rows.ahead = query_bytes_ahead(tile, tensor, middle);
    return rows;
}

/* Packs the block's rows of a query-side tensor by channel: [row][channel][VL]. ask: for what is packed next, too. */
static void pack_query_columns(const struct tile *tile, const struct block *block, int32_t tensor,
                               int64_t dim, real factor, bool ask, real *columns) {
    for (int32_t r = 0; r < block->rows; r++) {
        struct rows rows = query_rows(tile, block, r, tensor, dim);
        if (!ask) rows.ahead = 0;
        columns_from(&rows, block->vector[r]->first, block->vector[r]->count, factor,
                     columns + r * dim * VL, VL);
    }
}

/* Rounds lane results to a query-side tensor; factor by lane. */
static void store_queries(const struct tile *tile, const struct block *block, int32_t row,
                          int32_t tensor, int64_t dim, const real *factor, const real *out,
                          int64_t width) {
    struct rows rows = query_rows(tile, block, row, tensor, dim);
    rows_to(&rows, block->vector[row]->first, block->vector[row]->count, factor,
            out + (int64_t)row * VL * width, width);
}

/* Rows of a tensor of LSE's shape, which has the dtype of `real`, at one query vector of the block. */
INLINE struct rows lane_numbers(const struct tile *tile, const struct block *block, int32_t row,
                                int32_t tensor) {
    struct rows rows = tensor_rows(tile, tensor, tile->head, block->slow, block->middle[row], 1);
    rows.dtype = NH_REAL == 64 ? NHOOD_DTYPE_F64 : NHOOD_DTYPE_F32;
    return rows;
}

/* ln(sum(exp(score))). */
static void store_lse(const struct tile *tile, const struct block *block, int32_t row) {
    const struct scratch *s = &tile->scratch;
    const struct nh_vector *vector = block->vector[row];
    struct rows lse = lane_numbers(tile, block, row, NHOOD_LSE);
    real value[NH_LANES];
    v_store(value,
            (v_load(s->largest + row * VL) + v_log2(v_load(s->sum + row * VL))) * (real)ln_2);
    for (int32_t lane = 0; lane < vector->count; lane++)
        memcpy((void *)(uintptr_t)row_at(&lse, vector->first + lane), &value[lane], sizeof(real));
}

static void forward_block(struct tile *tile, const struct block *block) {
    const struct scratch *s = &tile->scratch;
    const struct nh_problem *problem = tile->problem;
    pack_query_columns(tile, block, NHOOD_Q, problem->dim, (real)(problem->scale * log2_e), true,
                       s->q_columns);
    for (int i = 0; i < block->rows * VL; i++) {
        s->largest[i] = LOWEST;
        s->sum[i] = 0;
    }
    each_step(tile, block, forward_step);
    for (int32_t r = 0; r < block->rows; r++) {
        real factor[NH_MOST_LANES];
        v_store(factor, 1 / v_load(s->sum + r * VL));
        store_queries(tile, block, r, NHOOD_O, problem->dim_v, factor, s->out, s->width_v);
        if (tile->run->io->data[NHOOD_LSE]) store_lse(tile, block, r);
    }
}

static void forward_tile(struct tile *tile) {
    tile_pack(tile, 1);
    for (int64_t i = 0; i < tile->group; i++) {
        tile->head = tile->box.kv_head * tile->group + i;
        each_block(tile, forward_block);
    }
}

#endif
