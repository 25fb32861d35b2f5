/* The products of a step: scores of its key rows, and the band products of weights with key or query rows. */
#ifndef NH_PRODUCTS_H
#define NH_PRODUCTS_H

#include "band.h"
#include "block.h"
#include "dot.h"
#include "whole_row.h"

/* Sets how a vector's lanes load keys. *key becomes the address of lane 0's first key, or of what it would be if lane 0 moved. */
static void set_lanes(const struct nh_vector *vector, int32_t window, struct dot_shape *shape,
                      const real **key) {
    const bool split = HAS_SPLIT_LANES && vector->lanes->mode == NH_LANES_SPLIT;
    vint index = {0};
    for (int i = 0; i < VL; i++)
        index[i] = !split ? vector->lanes->index[i]
                   : (i < vector->lanes->turn) != vector->lanes->still_first ? -1
                                                                             : 0;
    shape->index = index;
    shape->still = vector->lanes->turn;
    if (split && vector->lanes->still_first) *key -= vector->lanes->turn;
    shape->border = find_border(vector->lanes->gather.row, window);
}

/* Computes the scores of rows [first, last) of the block with one packed key row. score[r] is where they begin in row r. */
static void dot_row(const struct block *block, const struct step *step, int32_t first, int32_t last,
                    real *const *score, const real *query, const real *columns, int32_t key0,
                    const struct dot_shape *shape) {
    const struct nh_vector *const *vector = block->vector;
    int32_t key = vector[first]->start + step->slot, end = vector[last - 1]->start + step->slot_end;
    if (vector[first] == vector[last - 1]) { /* and all between them */
        dot_span(last - first, end - key, vector[first]->lanes->mode, score + first,
                 query + first * VL, columns + key - key0, shape);
        return;
    }
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
        for (int32_t r = low; r < high; r++)
            at[r - low] = score[r] + (int64_t)(key - vector[r]->start - step->slot) * VL;
        dot_span(high - low, next - key, vector[first]->lanes->mode, at, query + low * VL,
                 columns + key - key0, shape);
        key = next;
    }
}

/* Computes score = query . key for every row, key row and slot of the step. */
static void step_dots(const struct tile *tile, const struct block *block, const struct step *step,
                      real *score, const real *query, int32_t dim, const real *columns,
                      const real *extra) {
    const struct scratch *s = &tile->scratch;
    struct dot_shape shape = {.query_pitch = block->rows * VL, .dim = dim};
    real *at[MOST_ROWS];
    if (step->extra) {
        shape.key_pitch = s->extra_pitch;
        for (int32_t r = 0; r < block->rows; r++)
            at[r] = row_scores(tile, score, r);
        dot_span(block->rows, step_slots(step), NH_LANES_SAME, at, query, extra + step->slot,
                 &shape);
        return;
    }
    shape.key_pitch = s->key_pitch;
    /* a vector that is permuted or split has no others beside it */
    set_lanes(block->vector[0], tile->geometry->order[2].window, &shape, &columns);
    const int64_t part_scores = (int64_t)step_slots(step) * VL, row_reals = key_row_reals(s, dim);
    for (int32_t slow = step->slow; slow < step->slow_end; slow++) {
        int64_t packed = packed_row(tile, slow, step->middle);
        int32_t first = 0, last = 0; /* rows [first, last) attend the key row; neither decreases */
        for (int32_t middle = step->middle; middle < step->middle_end;
             middle++, packed = next_packed_row(tile, packed, slow)) {
            for (; last < block->rows && step->row_begin[last] <= middle; last++)
                at[last] = row_scores(tile, score, last) +
                           step_part(step, last, slow, step->row_begin[last]) * part_scores;
            while (first < last && step->row_begin[first] + step->row_count[first] <= middle)
                first++;
            if (first == last) continue;
            dot_row(block, step, first, last, at, query, columns + packed * row_reals,
                    tile->box.key[2], &shape);
            for (int32_t r = first; r < last; r++)
                at[r] += part_scores;
        }
    }
}

enum { MOST_PARTS = 16 };

/* The band steps of a vector for the step's slots. For whole windows they were made at plan time, else they go to `room`. */
static struct nh_band_list step_bands(const struct tile *tile, const struct nh_vector *vector,
                                      const struct step *step, bool scatter, struct nh_band *room) {
    const struct nh_geometry *geometry = tile->geometry;
    struct nh_band_list list = {room, 0, NH_ROW_NONE};
    const struct nh_lanes *lanes = vector->lanes;
    struct nh_lanes all = {.count = vector->count}; /* of extra tokens, every lane takes all */
    int32_t slot = step->slot, slot_end = step->slot_end;
    if (step->extra) {
        for (int i = 0; i < VL; i++)
            all.keys[i] = step_slots(step);
        slot_end -= slot;
        slot = 0;
        lanes = &all;
    } else if (geometry->chunk >= geometry->order[2].window) {
        return scatter ? lanes->scatter : lanes->gather;
    }
    if (scatter) {
        nh_band_scatter(lanes, VL, slot, slot_end, geometry->band_outputs, &list);
    } else {
        nh_band_gather(lanes, VL, slot, slot_end, geometry->band_outputs, &list);
    }
    return list;
}

/* Runs the bands of a list. scatter: their outputs are keys. */
static void run_bands(const struct tile *tile, const struct band_product *product,
                      const struct nh_band_list *list, bool scatter, int32_t vectors) {
    row_fn *row = find_row(list, tile->geometry->order[2].window, scatter, vectors);
    if (row) {
        row(product, vectors);
    } else {
        band_run(product, list, vectors, tile->geometry->band_vectors);
    }
}

/* The number of key rows whose sources stay in L1 while every query vector of the block uses them. */
static int32_t rows_in_l1(const struct tile *tile, int64_t width) {
    int64_t keys = tile->geometry->chunk + VL, bytes = keys * width * (int64_t)sizeof(real);
    return (int32_t)nh_max(1, nh_min(MOST_PARTS, 32768 / bytes));
}

/* Finds the first key of `count` key rows from (slow, middle) on, as rows of reals, in packed rows or in V itself. */
static void source_rows(const struct tile *tile, const real *packed, int32_t slow, int32_t middle,
                        int32_t count, int64_t width, const real **source) {
    if (packed) {
        int64_t row = packed_row(tile, slow, middle);
        for (int32_t i = 0; i < count; i++, row = next_packed_row(tile, row, slow))
            source[i] = packed + row * tile->box.keys[2] * width;
        return;
    }
    for (int32_t i = 0; i < count; i++) {
        struct rows v = tensor_rows(tile, NHOOD_V, tile->box.kv_head, slow, middle + i, width);
        source[i] = (const real *)(const void *)row_at(&v, tile->box.key[2]);
    }
}

/* out[lane] += sum over key rows and slots of score * source row, for all rows of the block; a row's first step overwrites
 * `out`. `source` are packed rows of the halo, [packed row][key][width], or NULL for V itself, `extra` are rows of the extra
 * tokens, and `out` is [row][VL][width]. */
static void gather_rows(const struct tile *tile, const struct block *block, const struct step *step,
                        real *score, const real *source, const real *extra, int32_t vectors,
                        real *out) {
    const int64_t width = (int64_t)vectors * VL, part_scores = (int64_t)step_slots(step) * VL;
    const int32_t at_once = rows_in_l1(tile, width);
    const int64_t pitch = source ? width : tile->problem->strides[NHOOD_V].axis[2];
    const real *weight[MOST_PARTS], *sources[MOST_PARTS], *row[MOST_PARTS];
    struct band_product product = {weight, sources, 0, false, width, NULL, width};
    struct nh_band_list list[MOST_ROWS];
    for (int32_t r = 0; r < block->rows; r++)
        list[r] = step_bands(tile, block->vector[r], step, false, tile->scratch.gather + r * VL);
    for (int32_t p = 0; step->extra && p < block->places; p++) {
        weight[0] = place_scores(tile, block, score, p);
        sources[0] = extra + step->slot * width;
        product.parts = 1;
        product.fresh = step->slot == 0;
        product.out = out + block->lane[p] * width;
        run_bands(tile, &product, &list[place_row(block, p)], false, vectors);
    }
    for (int32_t slow = step->slow; slow < step->slow_end; slow++)
        for (int32_t middle = step->middle; middle < step->middle_end; middle += at_once) {
            const int32_t stop = (int32_t)nh_min(middle + at_once, step->middle_end);
            source_rows(tile, source, slow, middle, stop - middle, width, row);
            for (int32_t p = 0; p < block->places; p++) {
                const int32_t begin = (int32_t)nh_max(middle, step->place_begin[p]);
                const int32_t end = (int32_t)nh_min(stop, step->place_end[p]);
                if (begin >= end) continue;
                const int64_t key = place_vector(block, p)->start - tile->box.key[2];
                const real *scores = place_scores_at(tile, block, step, score, p, slow, begin);
                product.parts = end - begin;
                product.source_pitch = pitch;
                product.fresh = is_first(tile, block, step, p, slow, begin);
                for (int32_t part = 0; part < product.parts; part++) {
                    weight[part] = scores + part * part_scores;
                    sources[part] = row[begin - middle + part] + key * pitch;
                }
                product.out = out + block->lane[p] * width;
                run_bands(tile, &product, &list[place_row(block, p)], false, vectors);
            }
        }
}

/* The consecutive bands [first, end) of a list whose sources are all lanes of a vector, without lead or trail. */
struct whole_bands {
    int32_t first, end;
    int32_t key, key_end; /* their outputs */
};

static struct whole_bands find_whole_bands(const struct nh_band_list *list) {
    struct whole_bands whole = {0};
    for (int32_t i = 0; i < list->count; i++) {
        const struct nh_band *band = &list->band[i];
        if (band->full != VL || band->lead || band->trail) continue;
        if (whole.end == 0) {
            whole.first = i;
            whole.key = band->out;
        }
        whole.end = i + 1;
        whole.key_end = band->out + band->outputs;
    }
    return whole;
}

/* Whether the block's vectors lie side by side and their lanes start at consecutive keys. Their bands are then the same, VL keys
 * apart. */
static bool side_by_side(const struct block *block) {
    for (int32_t r = 0; r < block->rows; r++)
        if (block->vector[r]->lanes->mode != NH_LANES_SHIFT ||
            block->vector[r]->start != block->vector[0]->start + r * VL)
            return false;
    return block->rows > 1;
}

/* out[key] += sum over all lanes of score * source[lane], for vectors side by side, which are the parts of the product and all
 * have these bands. Keys that all lanes of several vectors attend are read and written once for these vectors together.
 * product->out is at the first vector's first key. */
static void scatter_side_by_side(const struct band_product *product,
                                 const struct nh_band_list *list, int32_t slot, int32_t vectors,
                                 int32_t most, int32_t outputs) {
    const struct whole_bands whole = find_whole_bands(list);
    const struct nh_band_list rising = {list->band, whole.first, NH_ROW_NONE},
                              falling = {list->band + whole.end, list->count - whole.end,
                                         NH_ROW_NONE};
    const int32_t rows = product->parts;
    struct band_product part = *product;
    part.parts = 1;
    for (int32_t r = 0; r < rows; r++) {
        part.weight = product->weight + r;
        part.source = product->source + r;
        part.out = product->out + r * VL * product->out_pitch;
        band_run(&part, &rising, vectors, most);
        band_run(&part, &falling, vectors, most);
    }
    int32_t low = 0, high = 0;
    for (int32_t key = whole.key, next; key < whole.key_end + (rows - 1) * VL; key = next) {
        while (high < rows && whole.key + high * VL <= key)
            high++;
        while (low < high && whole.key_end + low * VL <= key)
            low++;
        next = whole.key + high * VL; /* so far, vectors [low, high) attend with all lanes */
        if (low == high) continue;
        if (high == rows || next > whole.key_end + low * VL) next = whole.key_end + low * VL;
        if (next - key > outputs) next = key + outputs;
        const real *weight[MOST_ROWS];
        for (int32_t r = low; r < high; r++)
            weight[r - low] = product->weight[r] + (int64_t)(key - r * VL - slot) * VL;
        struct nh_band band = {
            .outputs = next - key, .full = VL, .out_step = VL, .source_step = 1 - VL};
        part.weight = weight;
        part.source = product->source + low;
        part.parts = high - low;
        part.out = product->out + key * product->out_pitch;
        band_run(&part, &(struct nh_band_list){&band, 1, NH_ROW_NONE}, vectors, most);
    }
}

/* The arguments of a product out[key] += sum over lanes of score * source[lane]. */
struct scatter {
    real *score;
    const real *source; /* [row][VL] rows of so many vectors */
    int32_t vectors;
    struct key_sums out;
    real *extra_out; /* rows of the extra tokens */
};

/* Whether the vector's bands have each key from the first lane's first to the last lane's last for an output, once. */
static bool meets_each_once(const struct tile *tile, const struct nh_vector *vector,
                            const struct step *step, const struct nh_band_list *list,
                            int32_t vectors) {
    const bool even = vector->lanes->mode == NH_LANES_SHIFT || vector->lanes->mode == NH_LANES_SAME;
    return (even && vector->lanes->fewest_keys >= step->slot_end) ||
           find_row(list, tile->geometry->order[2].window, true, vectors);
}

/* Adds a product to one row of outputs. `together`: the parts are vectors side by side. */
static void scatter_bands(const struct tile *tile, const struct band_product *product,
                          const struct nh_band_list *list, int32_t slot, int32_t vectors,
                          bool together) {
    const struct nh_geometry *geometry = tile->geometry;
    if (together) {
        scatter_side_by_side(product, list, slot, vectors, geometry->band_vectors,
                             geometry->band_outputs);
    } else {
        run_bands(tile, product, list, true, vectors);
    }
}

/* Adds the products of places [first, last) of the block, which all have these bands. */
static void scatter_places(const struct tile *tile, const struct block *block,
                           const struct step *step, const struct scatter *scatter,
                           const struct nh_band_list *list, int32_t first, int32_t last,
                           bool together) {
    const int64_t width = (int64_t)scatter->vectors * VL;
    const int64_t part_scores = (int64_t)step_slots(step) * VL;
    const struct nh_vector *vector = place_vector(block, first);
    const struct nh_vector *last_vector = place_vector(block, last - 1);
    const int32_t key = vector->start - tile->box.key[2];
    const int32_t key_end = last_vector->start + last_vector->lanes->index[last_vector->count - 1] +
                            step->slot_end - tile->box.key[2];
    const bool each_once = !together && meets_each_once(tile, vector, step, list, scatter->vectors);
    const real *weights[MOST_PLACES], *sources[MOST_PLACES];
    struct band_product product = {.source_pitch = width, .out_pitch = width};
    for (int32_t p = first; p < last; p++) {
        sources[p] = scatter->source + block->lane[p] * width;
        if (step->extra) weights[p] = place_scores(tile, block, scatter->score, p);
    }
    if (step->extra) {
        product.weight = weights + first;
        product.source = sources + first;
        product.parts = last - first;
        product.out = scatter->extra_out + step->slot * width;
        band_run(&product, list, scatter->vectors, tile->geometry->band_vectors);
        return;
    }
    for (int32_t slow = step->slow; slow < step->slow_end; slow++) {
        int32_t low = first,
                high = first; /* places [low, high) attend the key row; neither decreases */
        for (int32_t middle = step->middle; middle < step->middle_end; middle++) {
            for (; high < last && step->place_begin[high] <= middle; high++)
                weights[high] = place_scores_at(tile, block, step, scatter->score, high, slow,
                                                step->place_begin[high]);
            while (low < high && step->place_end[low] <= middle)
                low++;
            if (low == high) continue;
            product.weight = weights + low;
            product.source = sources + low;
            product.parts = high - low;
            const int64_t row = partial_row(tile, slow, middle);
            product.fresh =
                fill_for(tile, &scatter->out, row, key + step->slot, key_end, each_once);
            product.out = scatter->out.sum + (row * tile->box.keys[2] + key) * width;
            scatter_bands(tile, &product, list, step->slot, scatter->vectors, together);
            for (int32_t p = low; p < high; p++)
                weights[p] += part_scores;
        }
    }
}

/* Adds `count` products, which share the bands, for all rows of the block. */
static void scatter_rows(const struct tile *tile, const struct block *block,
                         const struct step *step, const struct scatter *scatter, int count) {
    const bool together = !step->extra && side_by_side(block);
    for (int32_t first = 0, next; first < block->places; first = next) {
        const struct nh_vector *vector = place_vector(block, first);
        next = first + 1; /* places of the same vector attend the same keys: sum them together */
        while (next < block->places && (together || place_vector(block, next) == vector))
            next++;
        const struct nh_band_list list =
            step_bands(tile, vector, step, true, tile->scratch.scatter);
        for (int i = 0; i < count; i++)
            scatter_places(tile, block, step, &scatter[i], &list, first, next, together);
    }
}

#endif
