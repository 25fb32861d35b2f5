/* Forward: scores, online softmax, values. The scale is folded into the packed queries. log2(e) is not, because the rounding of
 * queries multiplied by it would shift all scores of a row, and LSE would be rounded twice on its way to base 2 and back. */
#ifndef NH_FORWARD_H
#define NH_FORWARD_H

#include "bias.h"
#include "chain.h"
#include "products.h"
#include "vector_math.h"

#include <float.h>
#include <math.h>

#if NH_REAL == 64
#define LOWEST (-DBL_MAX)
#else
#define LOWEST (-FLT_MAX)
#endif

/* The lanes of the row whose places attend a key row of the middle axis. */
static vint attending(const struct block *block, const struct step *step, int32_t row,
                      int32_t middle) {
    int32_t place = block->first_of[row], end = block->first_of[row + 1], low = 0, high = VL;
    vint lane = {0};
    for (int i = 0; i < VL; i++)
        lane[i] = i;
    for (; place < end && middle >= step->place_end[place]; place++)
        low += block->vector[row]->count;
    for (; end > place && middle < step->place_begin[end - 1]; end--)
        high = (int32_t)block->lane[end - 1] % VL;
    return (vint)(lane >= (vint){0} + low) & (vint)(lane < (vint){0} + high);
}

/* Sets slots outside a lane's own window to `value`. These occur at causal borders, at borders of key boxes, and at key rows
 * that only other places of the vector attend. */
static void mask_unused(const struct tile *tile, const struct block *block, const struct step *step,
                        int32_t row, real *score, real value) {
    const struct nh_vector *vector = block->vector[row];
    const bool all = vector->lanes->fewest_keys >= step->slot_end;
    if (step->extra || (all && tile->geometry->fold_log == 0)) return;
    int32_t first = block->first_of[row], end = block->first_of[row + 1];
    vint keys = {0};
    for (int i = 0; i < VL; i++)
        keys[i] = vector->lanes->keys[i];
    const int32_t row_end = step->row_begin[row] + step->row_count[row];
    real *at = row_scores(tile, score, row);
    for (int32_t slow = step->slow; slow < step->slow_end; slow++)
        for (int32_t middle = step->row_begin[row]; middle < row_end; middle++) {
            if (all && middle >= step->place_begin[end - 1] && middle < step->place_end[first]) {
                at += step_slots(step) * VL;
                continue;
            }
            vint here = attending(block, step, row, middle);
            for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL) {
                vint used = (vint)(keys > (vint){0} + slot) & here;
                v_store(at, v_select(used, v_load(at), v_set(value)));
            }
        }
}

/* Multiplies the lanes' results so far by `factor`. */
static void rescale(real *out, int64_t width, vec factor) {
    for (int lane = 0; lane < VL; lane++)
        for (int64_t c = 0; c < width; c += VL)
            v_store(out + lane * width + c, v_load(out + lane * width + c) * factor[lane]);
}

/* Turns scores into weights e^(score - largest - shift), with largest, sum and results carried over from earlier steps; in the first
 * step there is nothing to rescale. The weights of a step are summed up separately, in four chains, because the error of a
 * sum grows with the length of its chain. */
static void soften(const struct tile *tile, const struct step *step, int32_t row) {
    const struct scratch *s = &tile->scratch;
    real *score = row_scores(tile, s->score, row);
    int64_t count = (int64_t)step_parts(step, row) * step_slots(step);
    const vec old = v_load(s->largest + row * VL);
    vec most[4] = {old, old, old, old};
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            most[j] = v_max(v_load(score + (i + j) * VL), most[j]);
    }
    for (; i < count; i++)
        most[0] = v_max(v_load(score + i * VL), most[0]);
    const vec largest = v_max(v_max(most[3], most[2]), v_max(most[1], most[0]));
    const vec base = largest + v_load(s->shift + row * VL);
    vec before = v_load(s->sum + row * VL), sum[4] = {{0}};
    if (v_any((vint)(largest > old) & (vint)(old > v_set(LOWEST)))) {
        vec factor = v_exp_limited(old - largest);
        const int64_t at = (int64_t)row * VL * s->width_v;
        before *= factor;
        rescale(s->out + at, s->width_v, factor);
        if (step->number > CHAIN_TERMS) {
            v_store(s->sum_total + row * VL, v_load(s->sum_total + row * VL) * factor);
            rescale(s->total + at, s->width_v, factor);
        }
    }
    for (i = 0; i + 4 <= count; i += 4) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vec weight = v_exp_limited(v_load(score + (i + j) * VL) - base);
            v_store(score + (i + j) * VL, weight);
            sum[j] += weight;
        }
    }
    for (; i < count; i++) {
        vec weight = v_exp_limited(v_load(score + i * VL) - base);
        v_store(score + i * VL, weight);
        sum[0] += weight;
    }
    v_store(s->largest + row * VL, largest);
    v_store(s->sum + row * VL, before + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
}

static void forward_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    step_dots(tile, block, step, s->score, s->q_columns, (int32_t)tile->problem->dim, s->k_columns,
              s->extra_k_columns);
    step_bias(tile, block, step, s->score);
    for (int32_t r = 0; r < block->rows; r++) {
        if (!step_parts(step, r)) continue;
        mask_unused(tile, block, step, r, s->score, -(real)INFINITY);
        soften(tile, step, r);
    }
    gather_rows(tile, block, step, s->score, s->v_rows, s->extra_v_rows, tile->geometry->vectors_v,
                s->out);
    end_chain(s->out, s->total, block->rows * VL * s->width_v, step->number);
    end_chain(s->sum, s->sum_total, block->rows * VL, step->number);
}

/* The rows of a query-side tensor at one place of the block. */
INLINE struct rows query_rows(const struct tile *tile, const struct block *block, int32_t place,
                              int32_t tensor, int64_t dim) {
    int32_t middle = block->middle[place];
    struct rows rows = tensor_rows(tile, tensor, tile->head, block->slow, middle, dim);
    rows.ahead = query_bytes_ahead(tile, tensor, block->slow, middle);
    return rows;
}

/* Finds the rows of a query-side tensor for the lanes of places [place, end). Lanes without a query repeat the last one. */
static void lane_rows(const struct tile *tile, const struct block *block, int32_t place,
                      int32_t end, int32_t tensor, int64_t dim, const char *lane[NH_LANES]) {
    const struct nh_vector *vector = place_vector(block, place);
    int32_t used = 0;
    for (; place < end; place++) {
        const struct rows rows = query_rows(tile, block, place, tensor, dim);
        for (int32_t i = 0; i < vector->count; i++)
            lane[used++] = row_at(&rows, vector->first + i);
    }
    for (; used < VL; used++)
        lane[used] = lane[used - 1];
}

/* Packs the block's rows of a query-side tensor by channel, as [channel][row][VL]. `ask`: prefetches what is packed next. */
static void pack_query_columns(const struct tile *tile, const struct block *block, int32_t tensor,
                               int64_t dim, real factor, bool ask, real *columns) {
    const int64_t pitch = block->rows * VL;
    for (int32_t r = 0; r < block->rows; r++, columns += VL) {
        int32_t place = block->first_of[r], end = block->first_of[r + 1];
        struct rows rows = query_rows(tile, block, place, tensor, dim);
        if (!ask) rows.ahead = 0;
        if (end - place == 1) {
            columns_from(&rows, block->vector[r]->first, block->vector[r]->count, factor, columns,
                         pitch);
        } else {
            const char *lane[NH_LANES];
            lane_rows(tile, block, place, end, tensor, dim, lane);
            columns_from_each(&rows, lane, factor, columns, pitch);
        }
    }
}

/* Rounds the results of a place to a query-side tensor. `factor` has a factor for each of the place's lanes, or is NULL; `out`
 * has the results of all lanes of the block. */
static void store_queries(const struct tile *tile, const struct block *block, int32_t place,
                          int32_t tensor, int64_t dim, const real *factor, const real *out,
                          int64_t width) {
    const struct nh_vector *vector = place_vector(block, place);
    struct rows rows = query_rows(tile, block, place, tensor, dim);
    rows_to(&rows, vector->first, vector->count, factor, out + block->lane[place] * width, width);
}

/* The rows of a tensor of LSE's shape at one place of the block. Its dtype is that of `real`. */
INLINE struct rows lane_numbers(const struct tile *tile, const struct block *block, int32_t place,
                                int32_t tensor) {
    struct rows rows = tensor_rows(tile, tensor, tile->head, block->slow, block->middle[place], 1);
    rows.dtype = NH_REAL == 64 ? NHOOD_DTYPE_F64 : NHOOD_DTYPE_F32;
    return rows;
}

/* Stores the results, divided by the sums of their weights. Queries without keys get 0. */
static void store_out(const struct tile *tile, const struct block *block, int32_t row) {
    const struct scratch *s = &tile->scratch;
    int32_t place = block->first_of[row], end = block->first_of[row + 1];
    const vec sum = v_load(s->sum + row * VL);
    real factor[NH_LANES];
    v_store(factor, 1 / sum);
    if (tile->geometry->none)
        v_store(factor, v_select((vint)(sum == (vec){0}), (vec){0}, v_load(factor)));
    for (const real *at = factor; place < end; place++, at += block->vector[row]->count)
        store_queries(tile, block, place, NHOOD_O, tile->problem->dim_v, at, s->out, s->width_v);
}

/* Stores one number per query of a place to a tensor of LSE's shape. It is not inlined, as its callers have no free registers. */
static __attribute__((noinline)) void store_numbers(const struct tile *tile,
                                                    const struct block *block, int32_t place,
                                                    int32_t tensor, const real *number) {
    const struct rows rows = lane_numbers(tile, block, place, tensor);
    const int32_t first = place_vector(block, place)->first,
                  count = place_vector(block, place)->count;
    for (int32_t lane = 0; lane < count; lane++)
        memcpy((void *)(uintptr_t)row_at(&rows, first + lane), &number[lane], sizeof(real));
}

/* Stores LSE = ln(sum(exp(score))). */
static void store_lse(const struct tile *tile, const struct block *block, int32_t row) {
    const struct scratch *s = &tile->scratch;
    int32_t place = block->first_of[row], end = block->first_of[row + 1];
    const vec sum = v_load(s->sum + row * VL);
    real lse[NH_LANES];
    const vec base = v_load(s->largest + row * VL) + v_load(s->shift + row * VL);
    v_store(lse, base + v_log2(sum) * (real)ln_2);
    if (tile->geometry->none)
        v_store(lse, v_select((vint)(sum == (vec){0}), v_set(-(real)INFINITY), v_load(lse)));
    for (const real *at = lse; place < end; place++, at += block->vector[row]->count)
        store_numbers(tile, block, place, NHOOD_LSE, at);
}

static void clear_softmax(const struct scratch *s, const struct block *block) {
    for (int i = 0; i < block->rows * VL; i++) {
        s->largest[i] = LOWEST;
        s->sum[i] = 0;
    }
}

/* Zeroes the results of lanes that may attend nothing, as no product initializes them. */
static void clear_results(const struct tile *tile, const struct block *block, real *out,
                          int64_t width) {
    if (tile->geometry->none) memset(out, 0, (size_t)(block->rows * VL * width) * sizeof(real));
}

/* The block's results and the sums of their weights. */
static void forward_sums(struct tile *tile, const struct block *block) {
    const struct scratch *s = &tile->scratch;
    clear_softmax(s, block);
    clear_results(tile, block, s->out, s->width_v);
    const int32_t steps = each_step(tile, block, forward_step);
    add_chains(s->out, s->total, block->rows * VL * s->width_v, steps);
    add_chains(s->sum, s->sum_total, block->rows * VL, steps);
}

/* Whether `count` numbers, whole vectors, are all finite. */
static bool are_finite(const real *number, int64_t count) {
    vec bad[4] = {{0}}; /* 0, or NaN from the first one on that is not */
    int64_t i = 0;
    for (; i + 4 * VL <= count; i += 4 * VL) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            bad[j] += v_load(number + i + j * VL) * 0;
    }
    for (; i < count; i += VL)
        bad[0] += v_load(number + i) * 0;
    const vec any = (bad[0] + bad[1]) + (bad[2] + bad[3]);
    return !v_any((vint)(any != any));
}

/* Weights are relative to the row's largest, so results that are not divided by their sum yet may overflow although those that
 * are stored would not: 49 equal keys with values of 1e38. The weights of such lanes are then computed again so small that they add
 * up to a quarter at most; those of the others are what they were. */
static void forward_block(struct tile *tile, const struct block *block) {
    const struct scratch *s = &tile->scratch;
    const struct nh_problem *problem = tile->problem;
    const int lanes = block->rows * VL;
    pack_query_columns(tile, block, NHOOD_Q, problem->dim, (real)problem->scale, true,
                       s->q_columns);
    memset(s->shift, 0, (size_t)lanes * sizeof(real));
    forward_sums(tile, block);
    if (!are_finite(s->out, lanes * s->width_v)) {
        const double keys = (double)problem->window_count + (double)problem->extra_tokens;
        for (int lane = 0; lane < lanes; lane++)
            if (!are_finite(s->out + lane * s->width_v, s->width_v))
                s->shift[lane] = (real)log(4 * keys);
        forward_sums(tile, block);
    }
    for (int32_t r = 0; r < block->rows; r++) {
        store_out(tile, block, r);
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
