/* The blocks of a tile and their steps: the loop that every pass shares.
 *
 * A block is up to MOST_ROWS query vectors that share keys. These are one vector of the lane axis at consecutive places of
 * the middle axis, with one place or, if the axes are folded, several places each; or, where the middle axis is short,
 * consecutive vectors. A step is a box of the block's window whose scores fit the score buffer. Each row keeps its scores as
 * [key row][slot][lane], only for those key rows of the step that lie in its own window, or in that of any of its places. */
#ifndef NH_BLOCK_H
#define NH_BLOCK_H

#include "tile_pack.h"

enum { MOST_PLACES = MOST_ROWS << NH_MOST_FOLD_LOG };

struct block {
    int32_t rows, slow; /* number of query vectors; place on the slowest axis */
    const struct nh_vector *vector[MOST_ROWS];
    int32_t places; /* of the middle axis; row r has [first_of[r], first_of[r + 1]) */
    int32_t first_of[MOST_ROWS + 1];
    int32_t middle[MOST_PLACES];
    uint32_t lane[MOST_PLACES]; /* the first lane of each place, counted through all rows */
};

struct step {
    int32_t slow, slow_end, middle, middle_end; /* key rows */
    int32_t slot, slot_end;                     /* slots of the lane axis */
    bool extra;                                 /* the keys are the extra tokens [slot, slot_end) */
    bool only;                                  /* it is the block's only step */
    int32_t number;                             /* of the block's steps, from 1 on */
    int32_t row_begin[MOST_ROWS], row_count[MOST_ROWS]; /* of the middle axis, by query vector */
    int32_t place_begin[MOST_PLACES], place_end[MOST_PLACES]; /* the same by place */
};

static int32_t step_slots(const struct step *step) {
    return step->slot_end - step->slot;
}

/* The number of key rows of one query vector in the step. */
static int32_t step_parts(const struct step *step, int32_t row) {
    return step->extra ? 1 : (step->slow_end - step->slow) * step->row_count[row];
}

/* Index of the scores of key row (slow, middle) among the row's key rows. */
static int32_t step_part(const struct step *step, int32_t row, int32_t slow, int32_t middle) {
    return (slow - step->slow) * step->row_count[row] + middle - step->row_begin[row];
}

/* Whether the step's slots of key row (slow, middle) are the first keys that a place's queries attend. */
static bool is_first(const struct tile *tile, const struct block *block, const struct step *step,
                     int32_t place, int32_t slow, int32_t middle) {
    const struct nh_order *order = tile->geometry->order;
    return step->slot == 0 && tile->problem->extra_tokens == 0 &&
           slow == order[0].begin[block->slow] && middle == order[1].begin[block->middle[place]];
}

static real *row_scores(const struct tile *tile, real *score, int32_t row) {
    return score + (int64_t)row * tile->geometry->slots * VL;
}

static uint32_t place_row(const struct block *block, int32_t place) {
    return block->lane[place] / (uint32_t)VL;
}

static const struct nh_vector *place_vector(const struct block *block, int32_t place) {
    return block->vector[place_row(block, place)];
}

/* The first score of a place, in its first lane. */
static real *place_scores(const struct tile *tile, const struct block *block, real *score,
                          int32_t place) {
    return row_scores(tile, score, (int32_t)place_row(block, place)) +
           block->lane[place] % (uint32_t)VL;
}

/* The first score of a place at a key row of the window. */
static real *place_scores_at(const struct tile *tile, const struct block *block,
                             const struct step *step, real *score, int32_t place, int32_t slow,
                             int32_t middle) {
    const int64_t part = step_part(step, (int32_t)place_row(block, place), slow, middle);
    return place_scores(tile, block, score, place) + part * step_slots(step) * VL;
}

/* ---- the loop ---- */

typedef void block_fn(struct tile *tile, const struct block *block);
typedef void step_fn(struct tile *tile, const struct block *block, const struct step *step);

/* How many of the consecutive vectors form the first block, at most `most`. */
static int32_t vectors_together(const struct nh_vector *vector, int32_t count, int32_t most) {
    int32_t n = 1;
    if (vector[0].lanes->mode >= NH_LANES_PERMUTE) return 1;
    while (n < 2 * most && n < count && vector[n].lanes->mode == vector[0].lanes->mode) {
        if (vector[0].lanes->mode == NH_LANES_SAME && vector[n].start != vector[0].start) break;
        if (vector[n].lanes->keys[0] != vector[0].lanes->keys[0] ||
            vector[n].lanes->keys[VL - 1] != vector[0].lanes->keys[VL - 1] ||
            vector[n].lanes->most_keys != vector[0].lanes->most_keys)
            break;
        n++;
    }
    return nh_even_share(n, most);
}

/* Sets the places of a block: consecutive vectors at one place, or one vector at consecutive places, 2^fold_log per row. */
static void set_places(struct block *block, int32_t fold_log, bool across, int32_t middle,
                       const struct nh_vector *vector) {
    block->rows = 0;
    for (int32_t p = 0, lane = 0; p < block->places; p++, lane += vector->count) {
        if (p == block->rows << fold_log) {
            lane = block->rows * VL;
            block->first_of[block->rows] = p;
            block->vector[block->rows++] = across ? vector + p : vector;
        }
        block->middle[p] = across ? middle : middle + p;
        block->lane[p] = (uint32_t)lane;
    }
    block->first_of[block->rows] = block->places;
}

/* Visits the blocks of `count` vectors of the lane axis at up to geometry->rows << fold_log places of the middle axis. */
static void visit_blocks(struct tile *tile, int32_t slow, int32_t middle, int32_t places,
                         const struct nh_vector *vector, int32_t count, block_fn *visit) {
    const bool across = tile->box.query_end[1] - tile->box.query[1] == 1;
    for (int32_t v = 0; v < count && !nh_interrupted(tile->run->call);) {
        const int32_t together =
            across ? vectors_together(vector + v, count - v, tile->geometry->rows) : 1;
        struct block block; /* blocks are made often, so unused fields are not zeroed */
        block.slow = slow;
        block.places = across ? together : places;
        set_places(&block, tile->geometry->fold_log, across, middle, vector + v);
        visit(tile, &block);
        v += together;
    }
}

static void each_block(struct tile *tile, block_fn *visit) {
    const struct nh_geometry *geometry = tile->geometry;
    const struct nh_order *order = &geometry->order[1];
    const int32_t *first = &geometry->tile_vector[tile->box.index[2]];
    const int32_t at_once = geometry->rolling ? first[1] - first[0] : 1;
    for (int32_t v = first[0]; v < first[1]; v += at_once)
        for (int32_t slow = tile->box.query[0]; slow < tile->box.query_end[0]; slow++) {
            if (geometry->rolling_planes)
                pack_planes(tile, geometry->order[0].begin[slow], geometry->order[0].end[slow]);
            for (int32_t middle = tile->box.query[1], places; middle < tile->box.query_end[1];
                 middle += places) {
                places = nh_block_places(geometry, tile->box.query_end[1] - middle);
                if (geometry->rolling)
                    pack_keys(tile, order->begin[middle], order->end[middle + places - 1]);
                visit_blocks(tile, slow, middle, places, geometry->vector + v, at_once, visit);
                if (tile->partial && partial_rolls(geometry) &&
                    middle + places < tile->box.query_end[1])
                    store_key_rows(tile, order->begin[middle + places]);
            }
        }
}

static void visit_step(struct tile *tile, const struct block *block, struct step *step,
                       step_fn *visit) {
    const struct nh_order *order = &tile->geometry->order[1];
    for (int32_t p = 0; p < block->places; p++) {
        int32_t begin = order->begin[block->middle[p]], end = order->end[block->middle[p]];
        step->place_begin[p] = begin < step->middle ? step->middle : begin;
        step->place_end[p] = end > step->middle_end ? step->middle_end : end;
    }
    for (int32_t r = 0; r < block->rows; r++) {
        step->row_begin[r] = step->place_begin[block->first_of[r]];
        int32_t count = step->place_end[block->first_of[r + 1] - 1] - step->row_begin[r];
        step->row_count[r] = count > 0 ? count : 0;
    }
    visit(tile, block, step);
}

/* Visits the extra tokens and then the window, in steps that fit the score buffer. Returns the number of steps. */
static int32_t each_step(struct tile *tile, const struct block *block, step_fn *visit) {
    const struct nh_geometry *geometry = tile->geometry;
    const struct nh_order *slow = &geometry->order[0], *middle = &geometry->order[1];
    int32_t extra = (int32_t)tile->problem->extra_tokens, number = 0;
    for (int32_t slot = 0; slot < extra; slot += geometry->slots) {
        struct step step = {.extra = true, .slot = slot, .number = ++number};
        step.slot_end = (int32_t)nh_min(slot + geometry->slots, extra);
        visit(tile, block, &step);
    }
    int32_t slots = 0, rows = middle->end[block->middle[block->places - 1]], own_rows = 0;
    int32_t first = middle->begin[block->middle[0]];
    for (int32_t r = 0; r < block->rows; r++) {
        const int32_t last_place = block->first_of[r + 1] - 1;
        const int32_t own = middle->end[block->middle[last_place]] -
                            middle->begin[block->middle[block->first_of[r]]];
        if (block->vector[r]->lanes->most_keys > slots) slots = block->vector[r]->lanes->most_keys;
        if (own > own_rows) own_rows = own;
    }
    if (slots == 0 || own_rows == 0) return number; /* all keys are outside the key box */
    /* Each query vector keeps scores only of its own key rows, not of all those of the block. */
    const int32_t most_rows = slots <= geometry->chunk ? geometry->slots / slots : 1;
    const bool planes = own_rows <= most_rows;
    const int32_t rows_at_once = planes ? rows - first : (int32_t)nh_min(most_rows, rows - first);
    const int32_t slow_at_once = planes ? most_rows / own_rows : 1;
    struct step step;
    step.extra = false;
    step.only = extra == 0 && slots <= geometry->chunk && rows_at_once == rows - first &&
                slow_at_once >= slow->end[block->slow] - slow->begin[block->slow];
    for (step.slow = slow->begin[block->slow]; step.slow < slow->end[block->slow];
         step.slow = step.slow_end) {
        step.slow_end = (int32_t)nh_min(step.slow + slow_at_once, slow->end[block->slow]);
        for (step.middle = first; step.middle < rows; step.middle = step.middle_end) {
            step.middle_end = (int32_t)nh_min(step.middle + rows_at_once, rows);
            for (step.slot = 0; step.slot < slots; step.slot = step.slot_end) {
                step.slot_end = (int32_t)nh_min(step.slot + geometry->chunk, slots);
                step.number = ++number;
                visit_step(tile, block, &step, visit);
            }
        }
    }
    return number;
}

#endif
