/* The blocks of a tile and their steps: the walk that every pass shares.
 *
 * A block is up to MOST_ROWS query vectors that share keys: consecutive places of the middle axis at the
 * same vector of the lane axis, or, where the middle axis is short, consecutive vectors. A step is a box of
 * the block's window whose scores fit the score buffer; each row keeps its scores as [key row][slot][lane],
 * key rows being those of the step that lie in its own window. */
#ifndef NH_BLOCK_H
#define NH_BLOCK_H

#include "band.h"
#include "dot.h"
#include "tile_rows.h"

struct block {
    int32_t rows, slow; /* query vectors; place on the slowest axis */
    int32_t middle[MOST_ROWS];
    const struct nh_vector *vector[MOST_ROWS];
};

struct step {
    int32_t slow, slow_end, middle, middle_end; /* key rows */
    int32_t slot, slot_end;                     /* slots of the lane axis */
    bool extra; /* the "window" is the extra tokens [slot, slot_end) */
    int32_t row_begin[MOST_ROWS], row_count[MOST_ROWS]; /* of the middle axis, by query vector */
};

static int32_t step_slots(const struct step *step) {
    return step->slot_end - step->slot;
}

/* Key rows of one query vector in the step. */
static int32_t step_parts(const struct step *step, int32_t row) {
    return step->extra ? 1 : (step->slow_end - step->slow) * step->row_count[row];
}

/* Index of the scores of key row (slow, middle) among the row's key rows. */
static int32_t step_part(const struct step *step, int32_t row, int32_t slow, int32_t middle) {
    return (slow - step->slow) * step->row_count[row] + middle - step->row_begin[row];
}

static real *row_scores(const struct tile *tile, real *score, int32_t row) {
    return score + (int64_t)row * tile->geometry->slots * VL;
}

static int64_t halo_row(const struct tile *tile, int32_t slow, int32_t middle) {
    return (int64_t)(slow - tile->box.key[0]) * tile->box.keys[1] + (middle - tile->box.key[1]);
}

/* Where the packed forms of a key row are: rolling tiles keep the rows last packed. */
static int64_t packed_row(const struct tile *tile, int32_t slow, int32_t middle) {
    int32_t rows = tile->geometry->packed_rows;
    return (int64_t)(slow - tile->box.key[0]) * rows + (middle - tile->box.key[1]) % rows;
}

/* Fills the packed forms of K and V that the pass asked scratch for, of one key row. */
static void pack_key_row(const struct tile *tile, int32_t slow, int32_t middle) {
    const struct scratch *s = &tile->scratch;
    int64_t dim = tile->problem->dim, dim_v = tile->problem->dim_v,
            row = packed_row(tile, slow, middle);
    int32_t first = tile->box.key[2], count = tile->box.keys[2];
    struct rows k = {0}, v = {0};
    if (s->k_columns) k = tensor_rows(tile, NHOOD_K, tile->box.kv_head, slow, middle, dim);
    if (s->v_columns || s->v_rows)
        v = tensor_rows(tile, NHOOD_V, tile->box.kv_head, slow, middle, dim_v);
    k.ahead = key_bytes_ahead(tile, NHOOD_K, middle);
    v.ahead = key_bytes_ahead(tile, NHOOD_V, middle);
    if (s->k_columns)
        columns_from(k, first, count, 1, s->k_columns + row * dim * s->key_pitch, s->key_pitch);
    if (s->v_columns)
        columns_from(v, first, count, 1, s->v_columns + row * dim_v * s->key_pitch, s->key_pitch);
    if (s->k_rows)
        rows_from(k, first, count, tile->k_factor, s->k_rows + row * tile->box.keys[2] * s->width_k,
                  s->width_k);
    if (s->v_rows)
        rows_from(v, first, count, 1, s->v_rows + row * tile->box.keys[2] * s->width_v, s->width_v);
}

/* Packs the key rows before place `end` of the middle axis that are not packed yet, from `begin` on. */
static void pack_keys(struct tile *tile, int32_t begin, int32_t end) {
    if (begin < tile->packed_end) begin = tile->packed_end;
    for (int32_t slow = tile->box.key[0]; slow < tile->box.key[0] + tile->box.keys[0]; slow++)
        for (int32_t middle = begin; middle < end; middle++)
            pack_key_row(tile, slow, middle);
    if (end > tile->packed_end) tile->packed_end = end;
}

/* Extra tokens as one row of places 0 .. M-1; place and token are the same there. */
static struct rows extra_rows(const struct tile *tile, int32_t tensor, int32_t token, int64_t dim) {
    static const int32_t first[1] = {0};
    const nhood_strides *strides = &tile->problem->strides[tensor];
    const char *data = tile->run->io->data[tensor];
    int64_t element = tile->box.batch * strides->batch + tile->box.kv_head * strides->head +
                      token * strides->axis[0];
    int32_t dtype = tile->problem->dtype;
    return (struct rows){
        data + element * (int64_t)nh_dtype_bytes(dtype), 0, first, dtype, (int32_t)dim, 0};
}

/* Channel by channel, one token at a time: M is small next to the windows it is added to. */
static void extra_columns(const struct tile *tile, int32_t tensor, int64_t dim, real *columns) {
    int64_t pitch = tile->scratch.extra_pitch;
    int32_t dtype = tile->problem->dtype;
    for (int32_t token = 0; token < tile->problem->extra_tokens; token++) {
        struct rows rows = extra_rows(tile, tensor, token, dim);
        for (int64_t c = 0; c < dim; c++)
            columns[c * pitch + token] = (real)nh_load_f64(dtype, rows.base, c);
    }
}

static void pack_extra(const struct tile *tile) {
    const struct scratch *s = &tile->scratch;
    int64_t dim = tile->problem->dim, dim_v = tile->problem->dim_v;
    if (s->extra_k_columns) extra_columns(tile, NHOOD_EXTRA_K, dim, s->extra_k_columns);
    if (s->extra_v_columns) extra_columns(tile, NHOOD_EXTRA_V, dim_v, s->extra_v_columns);
    for (int32_t token = 0; token < tile->problem->extra_tokens; token++) {
        if (s->extra_k_rows)
            rows_from(extra_rows(tile, NHOOD_EXTRA_K, token, dim), 0, 1, tile->k_factor,
                      s->extra_k_rows + token * s->width_k, s->width_k);
        if (s->extra_v_rows)
            rows_from(extra_rows(tile, NHOOD_EXTRA_V, token, dim_v), 0, 1, 1,
                      s->extra_v_rows + token * s->width_v, s->width_v);
    }
}

/* Everything that a tile needs before its blocks; the keys too, unless the walk packs them as it goes. */
static void tile_pack(struct tile *tile, real k_factor) {
    tile->k_factor = k_factor;
    if (!tile->geometry->rolling)
        pack_keys(tile, tile->box.key[1], tile->box.key[1] + tile->box.keys[1]);
    pack_extra(tile);
}

/* ---- walking ---- */

typedef void block_fn(struct tile *tile, const struct block *block);
typedef void step_fn(struct tile *tile, const struct block *block, const struct step *step);

/* How many vectors from i on can form one block of consecutive vectors. */
static int32_t vectors_together(const struct nh_vector *vector, int32_t count) {
    int32_t n = 1;
    if (vector[0].mode == NH_LANES_PERMUTE) return 1;
    while (n < MOST_ROWS && n < count && vector[n].mode == vector[0].mode) {
        if (vector[0].mode == NH_LANES_SAME && vector[n].start != vector[0].start) break;
        if (vector[n].keys[0] != vector[0].keys[0] ||
            vector[n].keys[VL - 1] != vector[0].keys[VL - 1])
            break;
        n++;
    }
    return n;
}

static void each_block(struct tile *tile, block_fn *visit) {
    const struct nh_geometry *geometry = tile->geometry;
    const struct nh_vector *vector = geometry->vector + geometry->tile_vector[tile->box.index[2]];
    int32_t vectors =
        geometry->tile_vector[tile->box.index[2] + 1] - geometry->tile_vector[tile->box.index[2]];
    bool across = tile->box.query_end[1] - tile->box.query[1] == 1;
    for (int32_t slow = tile->box.query[0]; slow < tile->box.query_end[0]; slow++)
        for (int32_t middle = tile->box.query[1]; middle < tile->box.query_end[1];
             middle += MOST_ROWS) {
            int32_t middles = (int32_t)nh_min(MOST_ROWS, tile->box.query_end[1] - middle);
            if (geometry->rolling)
                pack_keys(tile, geometry->order[1].begin[middle],
                          geometry->order[1].end[middle + middles - 1]);
            for (int32_t v = 0; v < vectors;) {
                int32_t rows = across ? vectors_together(vector + v, vectors - v) : middles;
                struct block block = {.rows = rows, .slow = slow};
                for (int32_t r = 0; r < rows; r++) {
                    block.middle[r] = across ? middle : middle + r;
                    block.vector[r] = across ? vector + v + r : vector + v;
                }
                visit(tile, &block);
                v += across ? rows : 1;
            }
        }
}

static void visit_step(struct tile *tile, const struct block *block, struct step *step,
                       step_fn *visit) {
    const struct nh_order *order = &tile->geometry->order[1];
    for (int32_t r = 0; r < block->rows; r++) {
        int32_t begin = order->begin[block->middle[r]], end = order->end[block->middle[r]];
        if (begin < step->middle) begin = step->middle;
        if (end > step->middle_end) end = step->middle_end;
        step->row_begin[r] = begin;
        step->row_count[r] = end > begin ? end - begin : 0;
    }
    visit(tile, block, step);
}

/* The extra tokens first, then the window, in steps that fit the score buffer. */
static void each_step(struct tile *tile, const struct block *block, step_fn *visit) {
    const struct nh_geometry *geometry = tile->geometry;
    const struct nh_order *slow = &geometry->order[0], *middle = &geometry->order[1];
    int32_t extra = (int32_t)tile->problem->extra_tokens;
    for (int32_t slot = 0; slot < extra; slot += geometry->slots) {
        struct step step = {.extra = true, .slot = slot};
        step.slot_end = (int32_t)nh_min(slot + geometry->slots, extra);
        visit(tile, block, &step);
    }
    int32_t slots = 0, rows = middle->end[block->middle[block->rows - 1]];
    int32_t first = middle->begin[block->middle[0]];
    for (int32_t r = 0; r < block->rows; r++)
        if (block->vector[r]->most_keys > slots) slots = block->vector[r]->most_keys;
    int32_t most_rows = slots <= geometry->chunk ? geometry->slots / slots : 1;
    int32_t rows_at_once = (int32_t)nh_min(most_rows, rows - first);
    int32_t slow_at_once = (int32_t)nh_max(1, most_rows / (rows - first));
    struct step step = {0};
    for (step.slow = slow->begin[block->slow]; step.slow < slow->end[block->slow];
         step.slow = step.slow_end) {
        step.slow_end = (int32_t)nh_min(step.slow + slow_at_once, slow->end[block->slow]);
        for (step.middle = first; step.middle < rows; step.middle = step.middle_end) {
            step.middle_end = (int32_t)nh_min(step.middle + rows_at_once, rows);
            for (step.slot = 0; step.slot < slots; step.slot = step.slot_end) {
                step.slot_end = (int32_t)nh_min(step.slot + geometry->chunk, slots);
                visit_step(tile, block, &step, visit);
            }
        }
    }
}

/* ---- products ---- */

static vint lane_index(const struct nh_vector *vector) {
    vint index = {0};
    for (int i = 0; i < VL; i++)
        index[i] = vector->index[i];
    return index;
}

/* Rows [first, last) of the block against one packed key row; score[r] is the key row's first score. */
static void dot_row(const struct block *block, const struct step *step, int32_t first, int32_t last,
                    real *const *score, const real *query, int32_t dim, const real *columns,
                    int64_t pitch, int32_t key0) {
    const struct nh_vector *const *vector = block->vector;
    const vint index = lane_index(vector[first]);
    int32_t key = vector[first]->start + step->slot, end = vector[last - 1]->start + step->slot_end;
    int32_t low = first, high = first;
    while (key < end) { /* rows [low, high) want key; up to `next` no row joins or leaves */
        while (high < last && vector[high]->start + step->slot <= key)
            high++;
        while (low < high && vector[low]->start + step->slot_end <= key)
            low++;
        if (low == high) { /* a gap: short windows of vectors side by side */
            key = vector[high]->start + step->slot;
            continue;
        }
        int32_t next = vector[low]->start + step->slot_end;
        if (high < last && vector[high]->start + step->slot < next)
            next = vector[high]->start + step->slot;
        real *at[MOST_ROWS];
        const real *q[MOST_ROWS];
        for (int32_t r = low; r < high; r++) {
            at[r - low] = score[r] + (int64_t)(key - vector[r]->start - step->slot) * VL;
            q[r - low] = query + (int64_t)r * dim * VL;
        }
        dot_span(high - low, next - key, vector[first]->mode, at, q, columns + key - key0, pitch,
                 dim, index);
        key = next;
    }
}

/* score = query . key for every row, key row and slot of the step. */
static void step_dots(const struct tile *tile, const struct block *block, const struct step *step,
                      real *score, const real *query, int32_t dim, const real *columns,
                      const real *extra) {
    const struct scratch *s = &tile->scratch;
    real *at[MOST_ROWS];
    if (step->extra) {
        const real *q[MOST_ROWS];
        for (int32_t r = 0; r < block->rows; r++) {
            at[r] = row_scores(tile, score, r);
            q[r] = query + (int64_t)r * dim * VL;
        }
        dot_span(block->rows, step_slots(step), NH_LANES_SAME, at, q, extra + step->slot,
                 s->extra_pitch, dim, (vint){0});
        return;
    }
    for (int32_t slow = step->slow; slow < step->slow_end; slow++)
        for (int32_t middle = step->middle; middle < step->middle_end; middle++) {
            int32_t first = block->rows, last = 0;
            for (int32_t r = 0; r < block->rows; r++) {
                int32_t part = middle - step->row_begin[r];
                if (part < 0 || part >= step->row_count[r]) continue;
                if (r < first) first = r;
                last = r + 1;
                at[r] = row_scores(tile, score, r) +
                        (int64_t)step_part(step, r, slow, middle) * step_slots(step) * VL;
            }
            if (first < last)
                dot_row(block, step, first, last, at, query, dim,
                        columns + packed_row(tile, slow, middle) * dim * s->key_pitch, s->key_pitch,
                        tile->box.key[2]);
        }
}

enum { MOST_PARTS = 16 };

/* The band steps of a vector for the step's slots: made at plan time for whole windows, else in `room`. */
static struct nh_band_list step_bands(const struct tile *tile, const struct nh_vector *vector,
                                      const struct step *step, bool scatter, struct nh_band *room) {
    const struct nh_geometry *geometry = tile->geometry;
    struct nh_band_list list = {room, 0};
    struct nh_vector all = {.count = vector->count}; /* of extra tokens, every lane takes all */
    int32_t slot = step->slot, slot_end = step->slot_end;
    if (step->extra) {
        for (int i = 0; i < VL; i++)
            all.keys[i] = step_slots(step);
        slot_end -= slot;
        slot = 0;
        vector = &all;
    } else if (geometry->chunk >= geometry->order[2].window) {
        return scatter ? vector->scatter : vector->gather;
    }
    if (scatter) {
        nh_band_scatter(vector, VL, slot, slot_end, geometry->band_outputs, &list);
    } else {
        nh_band_gather(vector, VL, slot, slot_end, geometry->band_outputs, &list);
    }
    return list;
}

/* Key rows whose sources stay in L1 while every query vector of the block takes its share of them. */
static int32_t rows_in_l1(const struct tile *tile, int64_t width) {
    int64_t keys = tile->geometry->chunk + VL, bytes = keys * width * (int64_t)sizeof(real);
    return (int32_t)nh_max(1, nh_min(MOST_PARTS, 32768 / bytes));
}

/* The halo's first key of a key row as a row of reals: packed, or in V. */
static const real *source_row(const struct tile *tile, const real *packed, int32_t slow,
                              int32_t middle, int64_t width) {
    if (packed) return packed + packed_row(tile, slow, middle) * tile->box.keys[2] * width;
    struct rows v = tensor_rows(tile, NHOOD_V, tile->box.kv_head, slow, middle, width);
    return (const real *)(const void *)row_at(&v, tile->box.key[2]);
}

/* out[lane] += sum over key rows and slots of score * source row, for all rows of the block.
 * source: packed rows of the halo, [packed row][key][width], or NULL for V in place; extra: rows of
 * the extra tokens; out: [row][VL][width]. */
static void gather_rows(const struct tile *tile, const struct block *block, const struct step *step,
                        real *score, const real *source, const real *extra, int32_t vectors,
                        real *out) {
    const int64_t width = (int64_t)vectors * VL, part_scores = (int64_t)step_slots(step) * VL;
    const int32_t most = tile->geometry->band_vectors, at_once = rows_in_l1(tile, width);
    const real *weight[MOST_PARTS], *sources[MOST_PARTS];
    struct band_product product = {weight, sources, 0, width, NULL, width};
    struct nh_band_list list[MOST_ROWS];
    for (int32_t r = 0; r < block->rows; r++) {
        list[r] = step_bands(tile, block->vector[r], step, false, tile->scratch.gather + r * VL);
        if (!step->extra) continue;
        weight[0] = row_scores(tile, score, r);
        sources[0] = extra + step->slot * width;
        product.parts = 1;
        product.out = out + (int64_t)r * VL * width;
        band_run(&product, &list[r], vectors, most);
    }
    for (int32_t slow = step->slow; slow < step->slow_end; slow++)
        for (int32_t middle = step->middle; middle < step->middle_end; middle += at_once)
            for (int32_t r = 0; r < block->rows; r++) {
                int32_t begin = (int32_t)nh_max(middle, step->row_begin[r]);
                int32_t end =
                    (int32_t)nh_min(middle + at_once, step->row_begin[r] + step->row_count[r]);
                const real *weights = row_scores(tile, score, r);
                const int64_t key = block->vector[r]->start - tile->box.key[2];
                product.parts = 0;
                for (; begin < end; begin++, product.parts++) {
                    weight[product.parts] = weights + step_part(step, r, slow, begin) * part_scores;
                    sources[product.parts] =
                        source_row(tile, source, slow, begin, width) + key * width;
                }
                product.out = out + (int64_t)r * VL * width;
                if (product.parts) band_run(&product, &list[r], vectors, most);
            }
}

/* out[key] += sum over lanes of score * source[lane], for all rows of the block. out: [halo row][key] rows. */
static void scatter_rows(const struct tile *tile, const struct block *block,
                         const struct step *step, real *score, const real *source, int32_t vectors,
                         real *out, real *extra_out) {
    int64_t width = (int64_t)vectors * VL;
    const real *weights[MOST_ROWS], *sources[MOST_ROWS];
    int32_t slow_end = step->extra ? step->slow + 1 : step->slow_end;
    int32_t middle_end = step->extra ? step->middle + 1 : step->middle_end;
    for (int32_t r = 0; r < block->rows;) {
        const struct nh_vector *vector = block->vector[r];
        int32_t next = r + 1; /* rows of the same vector meet the same keys: sum them at once */
        while (next < block->rows && block->vector[next] == vector)
            next++;
        struct nh_band_list list = step_bands(tile, vector, step, true, tile->scratch.scatter);
        for (int32_t slow = step->slow; slow < slow_end; slow++)
            for (int32_t middle = step->middle; middle < middle_end; middle++) {
                int32_t parts = 0;
                for (int32_t i = r; i < next; i++) {
                    int32_t part = step->extra ? 0 : middle - step->row_begin[i];
                    if (part < 0 || (!step->extra && part >= step->row_count[i])) continue;
                    if (!step->extra) part = step_part(step, i, slow, middle);
                    weights[parts] =
                        row_scores(tile, score, i) + (int64_t)part * step_slots(step) * VL;
                    sources[parts++] = source + (int64_t)i * VL * width;
                }
                real *row = extra_out + step->slot * width;
                if (!step->extra)
                    row = out + (halo_row(tile, slow, middle) * tile->box.keys[2] + vector->start -
                                 tile->box.key[2]) *
                                    width;
                struct band_product product = {weights, sources, parts, width, row, width};
                if (parts) band_run(&product, &list, vectors, tile->geometry->band_vectors);
            }
        r = next;
    }
}

/* ---- relative bias ---- */

/* Index into a head's table of slot 0 of lane 0.., at key row (slow, middle), and by lane. */
static int64_t bias_index(const struct tile *tile, const struct block *block, int32_t row,
                          int32_t slow, int32_t middle, int32_t lane) {
    const struct nh_geometry *geometry = tile->geometry;
    const struct nh_vector *vector = block->vector[row];
    int64_t x = vector->start + vector->index[lane] - (vector->first + lane);
    return (slow - block->slow + geometry->order[0].window - 1) * geometry->bias_step[0] +
           (middle - block->middle[row] + geometry->order[1].window - 1) * geometry->bias_step[1] +
           (x + geometry->order[2].window - 1) * geometry->bias_step[2];
}

static void step_bias(const struct tile *tile, const struct block *block, const struct step *step,
                      real *score) {
    if (!tile->problem->has_bias || step->extra) return;
    const real *table = (const real *)tile->run->bias + tile->head * tile->problem->bias_count;
    int64_t slot_step = tile->geometry->bias_step[2];
    for (int32_t r = 0; r < block->rows; r++) {
        const struct nh_vector *vector = block->vector[r];
        real *at = row_scores(tile, score, r);
        for (int32_t part = 0; part < step_parts(step, r); part++) {
            int32_t slow = step->slow + part / step->row_count[r];
            int32_t middle = step->row_begin[r] + part % step->row_count[r];
            const real *lane_table[NH_MOST_LANES];
            for (int32_t lane = 0; lane < VL; lane++) {
                int32_t used = lane < vector->count ? lane : vector->count - 1;
                lane_table[lane] = table + bias_index(tile, block, r, slow, middle, used);
            }
            for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL) {
                vec bias = v_set(lane_table[0][slot * slot_step]);
                if (vector->mode != NH_LANES_SHIFT)
                    for (int32_t lane = 0; lane < VL; lane++)
                        bias[lane] = lane_table[lane][slot * slot_step];
                v_store(at, v_load(at) + bias);
            }
        }
    }
}

#endif
