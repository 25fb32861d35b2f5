/* Backward: P and dS of each block recomputed from LSE, then five products. dQ belongs to the block; dK and
 * dV go to the tile's own partial gradients, which reduce.h adds up. */
#ifndef NH_BACKWARD_H
#define NH_BACKWARD_H

#include "forward.h"

/* Turns scores into weights that are not normalised yet. Their sum, and the sums of their products with dP - delta and with |dP|,
 * are added to those of the row, in two chains each. */
static void weigh(const struct tile *tile, const struct step *step, int32_t row) {
    const struct scratch *s = &tile->scratch;
    real *score = row_scores(tile, s->score, row);
    const real *d_score = row_scores(tile, s->d_score, row);
    const int64_t count = (int64_t)step_parts(step, row) * step_slots(step);
    const vec lse = v_load(s->lse + row * VL), delta = v_load(s->delta + row * VL);
    vec sum[2] = {v_load(s->sum + row * VL)}, weighted[2] = {v_load(s->weighted + row * VL)};
    vec spread[2] = {v_load(s->spread + row * VL)};
    /* An LSE of 1e10 is rounded by hundreds: the sums stay finite so that settle() can divide by them. */
    const vec most = v_set(NH_REAL == 64 ? 500 : 50);
    for (int64_t i = 0; i < count; i += 2)
#pragma GCC unroll 2
        for (int64_t j = 0; j < 2; j++) {
            if (i + j == count) break;
            const int64_t at = (i + j) * VL;
            const vec above = v_min(most, v_load(score + at) - lse),
                      d_weight = v_load(d_score + at);
            const vec weight = v_exp(above);
            v_store(score + at, weight);
            sum[j] += weight;
            weighted[j] += weight * (d_weight - delta);
            spread[j] += weight * v_max(d_weight, -d_weight);
        }
    v_store(s->sum + row * VL, sum[0] + sum[1]);
    v_store(s->weighted + row * VL, weighted[0] + weighted[1]);
    v_store(s->spread + row * VL, spread[0] + spread[1]);
}

/* Turns weights and dP into P, in score, and dS, in d_score. */
static void normalise(const struct tile *tile, const struct step *step, int32_t row) {
    const struct scratch *s = &tile->scratch;
    real *score = row_scores(tile, s->score, row), *d_score = row_scores(tile, s->d_score, row);
    const int64_t reals = (int64_t)step_parts(step, row) * step_slots(step) * VL;
    const vec norm = v_load(s->norm + row * VL), shift = v_load(s->shift + row * VL);
    const vec delta = v_load(s->delta + row * VL);
    for (int64_t i = 0; i < reals; i += VL) {
        const vec p = norm * v_load(score + i);
        v_store(score + i, p);
        v_store(d_score + i, p * (v_load(d_score + i) - delta - shift));
    }
}

/* Computes the products S and dP. */
static void backward_dots(const struct tile *tile, const struct block *block,
                          const struct step *step) {
    const struct scratch *s = &tile->scratch;
    step_dots(tile, block, step, s->score, s->q_columns, (int32_t)tile->problem->dim, s->k_columns,
              s->extra_k_columns);
    step_bias(tile, block, step, s->score);
    step_dots(tile, block, step, s->d_score, s->d_o_columns, (int32_t)tile->problem->dim_v,
              s->v_columns, s->extra_v_columns);
}

/* Loads one number per query of a row from a tensor of LSE's shape. Lanes without a query repeat the last one. */
static vec load_lanes(const struct tile *tile, const struct block *block, int32_t row,
                      int32_t tensor) {
    const int32_t first = block->vector[row]->first, count = block->vector[row]->count;
    real lanes[2 * NH_LANES] = {
        0}; /* each place fills a vector, the next one what is not its own */
    real *at = lanes;
    for (int32_t p = block->first_of[row]; p < block->first_of[row + 1]; p++, at += count) {
        struct rows rows = lane_numbers(tile, block, p, tensor);
        for (int32_t lane = 0; lane < VL; lane++) {
            int32_t used = lane < count ? lane : count - 1;
            memcpy(&at[lane], row_at(&rows, first + used), sizeof(real));
        }
    }
    return v_load(lanes);
}

/* Lanes whose LSE is so large that its rounding shows in P: f32 holds 32 to 2e-6, 80,000 to 0.004, f64 1e9 to 1e-7. */
static vint coarse_lse(vec lse) {
    const vec limit = v_set(NH_REAL == 64 ? (real)0x1p30 : 32);
    return (vint)(v_max(lse, -lse) > limit);
}

/* The lanes of the row whose queries have all keys of their windows in the key box. */
static vint complete_lanes(const struct tile *tile, const struct block *block, int32_t row) {
    vint complete = ~(vint){0};
    if (!tile->geometry->cut) return complete;
    const struct nh_order *order = tile->geometry->order;
    const struct nh_vector *vector = block->vector[row];
    int lane = 0;
    for (int32_t p = block->first_of[row]; p < block->first_of[row + 1]; p++)
        for (int32_t i = 0; i < vector->count; i++, lane++) {
            const int32_t place[NH_AXES] = {block->slow, block->middle[p], vector->first + i};
            for (int a = 0; a < NH_AXES; a++)
                if (order[a].missing && order[a].missing[place[a]]) complete[lane] = 0;
        }
    return complete;
}

/* How much of the mean |dP| delta may be off by the rounding of O, on average over its channels, and of sums in dP. */
INLINE real rounding_unit(int32_t dtype) {
    return dtype == NHOOD_DTYPE_BF16  ? (real)0x1p-7
           : dtype == NHOOD_DTYPE_F16 ? (real)0x1p-10
           : NH_REAL == 64            ? (real)0x1p-49
                                      : (real)0x1p-20;
}

/* Makes P of the row add up to 1 in the lanes of `lanes`, and delta equal to sum(P * dP), from sums over the whole window, so that
 * gradients cancel as in exact arithmetic: LSE and O are rounded, and so is delta, of which `shift` is the rest.
 *
 * That would be wrong where LSE and O are those of more keys than are here, as the caller has merged results. Windows that the key
 * box cuts are therefore left as they are. In whole ones, LSE and O may still be those of further keys, of extra tokens of another
 * problem, say. So nothing is changed by more than rounding explains, and then no more than rounding did. But weights never add up
 * to more than 1: where they do by far, they are divided by their sum anyway. */
static void settle(const struct tile *tile, const struct block *block, int32_t row, vint lanes) {
    const struct scratch *s = &tile->scratch;
    const vec lse = v_load(s->lse + row * VL), sum = v_load(s->sum + row * VL), one = v_set(1);
    const vec norm = one / sum, shift = v_load(s->shift + row * VL);
    const vec rest = v_load(s->weighted + row * VL) * norm;
    /* LSE is rounded by a 2^-24th of itself at most (f64: 2^-53); twice that and, near 0, the rounding of what it is the sum of.
     * From 2^12 (f64: 2^41) on P would be off by 2^-12 or more without correction, so that there is room for scores that another
     * solver's forward rounded in another way, too. */
    const vec size = v_max(lse, -lse), large = v_set(NH_REAL == 64 ? (real)0x1p41 : (real)0x1p12);
    const vec unit = v_set(NH_REAL == 64 ? (real)0x1p-52 : (real)0x1p-23);
    const vec room = v_exp((size + 8) * v_select((vint)(size < large), unit, 8 * unit));
    const vec most = v_load(s->spread + row * VL) * rounding_unit(tile->problem->dtype);
    const vint own = lanes & complete_lanes(tile, block, row) & (vint)(sum <= room) &
                     (vint)(norm <= room) & (vint)(v_max(rest, -rest) <= most) &
                     (vint)(sum > (vec){0});
    const vint divided = own | (lanes & (vint)(sum > v_min(room, v_set(2))));
    v_store(s->shift + row * VL, v_select(own, shift + rest, shift));
    v_store(s->norm + row * VL, v_select(divided, norm, one));
}

/* Masks the scores and dP of slots that a lane does not have, so that they do not count in sums over the window. */
static void mask_both(const struct tile *tile, const struct block *block, const struct step *step,
                      int32_t row) {
    const struct scratch *s = &tile->scratch;
    mask_unused(tile, block, step, row, s->score, -(real)INFINITY);
    mask_unused(tile, block, step, row, s->d_score, 0);
}

static void state_step(struct tile *tile, const struct block *block, const struct step *step) {
    if (step->only) return;
    backward_dots(tile, block, step);
    for (int32_t r = 0; r < block->rows; r++) {
        if (!step_parts(step, r)) continue;
        mask_both(tile, block, step, r);
        weigh(tile, step, r);
    }
}

static void backward_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    const struct nh_geometry *geometry = tile->geometry;
    const struct partial at = partial_layout(geometry);
    backward_dots(tile, block, step);
    for (int32_t r = 0; r < block->rows; r++) {
        if (!step_parts(step, r)) continue;
        if (step->only) mask_both(tile, block, step, r);
        weigh(tile, step, r);
        if (step->only) settle(tile, block, r, ~(vint){0});
        normalise(tile, step, r);
    }
    step_bias_gradient(tile, block, step, s->d_score);
    gather_rows(tile, block, step, s->d_score, s->k_rows, s->extra_k_rows, geometry->vectors_k,
                s->d_q);
    end_chain(s->d_q, s->total, block->rows * VL * s->width_k, step->number);
    const struct scatter keys_and_values[] = {
        {s->d_score, s->q_rows, geometry->vectors_k, k_sums(tile), tile->partial + at.d_extra_k},
        {s->score, s->d_o_rows, geometry->vectors_v, v_sums(tile), tile->partial + at.d_extra_v}};
    scatter_rows(tile, block, step, keys_and_values, 2);
}

/* Packs the block's rows of a query-side tensor as rows: [row][VL][width]. */
static void pack_query_rows(const struct tile *tile, const struct block *block, int32_t tensor,
                            int64_t dim, real factor, real *out, int64_t width) {
    for (int32_t p = 0; p < block->places; p++) {
        const struct nh_vector *vector = place_vector(block, p);
        struct rows rows = query_rows(tile, block, p, tensor, dim);
        rows_from(&rows, vector->first, vector->count, factor, out + block->lane[p] * width, width);
    }
}

/* Computes delta = rowsum(dO * O), by lane, and *size, the same of absolute values. */
static vec row_deltas(const struct tile *tile, const struct block *block, int32_t row, vec *size) {
    const struct scratch *s = &tile->scratch;
    const int32_t first = block->vector[row]->first, count = block->vector[row]->count;
    real lanes[2 * NH_LANES] = {0}, sizes[2 * NH_LANES] = {0}; /* room as in load_lanes */
    real *at = lanes, *size_at = sizes;
    for (int32_t p = block->first_of[row]; p < block->first_of[row + 1];
         p++, at += count, size_at += count) {
        vec of_place;
        struct rows o = query_rows(tile, block, p, NHOOD_O, tile->problem->dim_v);
        v_store(at, dots_with(&o, first, count, s->d_o_rows + block->lane[p] * s->width_v,
                              s->width_v, &of_place));
        v_store(size_at, of_place);
    }
    *size = v_load(sizes);
    return v_load(lanes);
}

/* Loads LSE, computes delta = rowsum(dO * O), and sets `shift`, which is subtracted from dP beside delta, to -dLSE. */
static void pack_softmax_state(const struct tile *tile, const struct block *block, int32_t row) {
    const struct scratch *s = &tile->scratch;
    vec shift = {0}, size;
    if (tile->run->io->data[NHOOD_D_LSE]) shift -= load_lanes(tile, block, row, NHOOD_D_LSE);
    v_store(s->delta + row * VL, row_deltas(tile, block, row, &size));
    vec lse = load_lanes(tile, block, row, NHOOD_LSE);
    if (tile->geometry->none) /* weights of lanes without keys stay 0, not infinity - infinity */
        lse = v_select((vint)(lse == v_set(-(real)INFINITY)), (vec){0}, lse);
    v_store(s->lse + row * VL, lse);
    v_store(s->norm + row * VL, v_set(1));
    v_store(s->shift + row * VL, shift);
    v_store(s->sum + row * VL, (vec){0});
    v_store(s->weighted + row * VL, (vec){0});
    /* The share of what rounding_unit() is of the sums in delta, which are of f32 (f64) whatever O is stored as. */
    const real sums = NH_REAL == 64 ? (real)0x1p-50 : (real)0x1p-21;
    v_store(s->spread + row * VL, size * (sums / rounding_unit(tile->problem->dtype)));
}

/* If some LSE is coarse and the window has several steps, goes through the window once before the gradients do. Lanes whose LSE is
 * not coarse are left as they are, whatever the other queries of the block are. */
static void settle_coarse(struct tile *tile, const struct block *block) {
    const struct scratch *s = &tile->scratch;
    bool any = false;
    for (int32_t r = 0; r < block->rows; r++)
        any |= v_any(coarse_lse(v_load(s->lse + r * VL)));
    if (!any) return;
    each_step(tile, block, state_step);
    for (int32_t r = 0; r < block->rows; r++)
        settle(tile, block, r, coarse_lse(v_load(s->lse + r * VL)));
}

static void backward_block(struct tile *tile, const struct block *block) {
    const struct scratch *s = &tile->scratch;
    const struct nh_problem *problem = tile->problem;
    real scale = (real)problem->scale;
    /* Rows are packed before columns, as reading line after line waits least for memory. */
    pack_query_rows(tile, block, NHOOD_Q, problem->dim, scale, s->q_rows, s->width_k);
    pack_query_columns(tile, block, NHOOD_Q, problem->dim, scale, false, s->q_columns);
    pack_query_rows(tile, block, NHOOD_D_O, problem->dim_v, 1, s->d_o_rows, s->width_v);
    pack_query_columns(tile, block, NHOOD_D_O, problem->dim_v, 1, false, s->d_o_columns);
    for (int32_t r = 0; r < block->rows; r++)
        pack_softmax_state(tile, block, r);
    settle_coarse(tile, block);
    clear_results(tile, block, s->d_q, s->width_k);
    const int32_t steps = each_step(tile, block, backward_step);
    if (!tile->run->io->data[NHOOD_D_Q]) return;
    add_chains(s->d_q, s->total, block->rows * VL * s->width_k, steps);
    for (int32_t p = 0; p < block->places; p++)
        store_queries(tile, block, p, NHOOD_D_Q, problem->dim, NULL, s->d_q, s->width_k);
}

static void backward_tile(struct tile *tile) {
    const struct nh_problem *problem = tile->problem;
    const struct partial at = partial_layout(tile->geometry);
    tile_pack(tile, (real)problem->scale);
    for (int64_t i = 0; i < tile->group; i++) {
        tile->head = tile->box.kv_head * tile->group + i;
        real *lanes = tile->scratch.bias_lanes;
        if (lanes) memset(lanes, 0, (size_t)(problem->bias_count * VL) * sizeof(real));
        each_block(tile, backward_block);
        for (int64_t b = 0; lanes && b < problem->bias_count; b++)
            tile->partial[at.d_bias + i * problem->bias_count + b] = v_sum(v_load(lanes + b * VL));
    }
    store_last_key_rows(tile);
}

#endif
