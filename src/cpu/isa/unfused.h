/* pn, nn and in: the blocks and products of the fused passes, with weights in the caller's tensor A. */
#ifndef NH_UNFUSED_H
#define NH_UNFUSED_H

#include "backward.h"

/* The rows of A at one place of the block. */
struct weight_walk {
    char *row[NH_MOST_LANES]; /* A's first slot of each lane's query */
    int64_t first
        [NH_MOST_LANES]; /* index of the lane's first key, where that is the first of the other axes */
    int32_t dtype;
};

static struct weight_walk weight_rows(const struct tile *tile, const struct block *block,
                                      int32_t place) {
    const struct nh_vector *vector = place_vector(block, place);
    const struct nh_geometry *geometry = tile->geometry;
    struct weight_walk walk = {{NULL}, {0}, tile->problem->dtype};
    struct rows rows = tensor_rows(tile, NHOOD_A, tile->head, block->slow, block->middle[place], 1);
    for (int32_t lane = 0; lane < vector->count; lane++) {
        walk.row[lane] = (char *)(uintptr_t)row_at(&rows, vector->first + lane);
        walk.first[lane] =
            nh_slot(&geometry->order[2], vector->first + lane) * geometry->slot_step[2];
    }
    return walk;
}

/* The index in A of slot 0 of the lane axis, at a key row. */
static int64_t weight_index(const struct tile *tile, const struct block *block, int32_t place,
                            int32_t slow, int32_t middle) {
    const struct nh_geometry *geometry = tile->geometry;
    const int32_t query[2] = {block->slow, block->middle[place]}, key[2] = {slow, middle};
    int64_t index = 0;
    for (int a = 0; a < 2; a++) {
        const struct nh_order *order = &geometry->order[a];
        index +=
            (nh_slot(order, query[a]) + key[a] - order->begin[query[a]]) * geometry->slot_step[a];
    }
    return index;
}

/* Moves weights between A and the scores of a place at a key row, to A if `store` is set, which is a constant in each call. */
INLINE void move_weights(const struct nh_vector *vector, const struct step *step,
                         const struct weight_walk *walk, int64_t index, int64_t slot_step, real *at,
                         const bool store) {
    for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL)
        for (int32_t lane = 0; lane < vector->count; lane++) {
            if (slot >= vector->lanes->keys[lane]) continue;
            const int64_t weight = index + walk->first[lane] + slot * slot_step;
            if (store) {
                nh_store_f64(walk->dtype, walk->row[lane], weight, (double)at[lane]);
            } else {
                at[lane] = (real)nh_load_f64(walk->dtype, walk->row[lane], weight);
            }
        }
}

INLINE void move_step_weights(const struct tile *tile, const struct block *block,
                              const struct step *step, const bool store) {
    for (int32_t p = 0; p < block->places; p++) {
        const struct weight_walk walk = weight_rows(tile, block, p);
        for (int32_t slow = step->slow; slow < step->slow_end; slow++)
            for (int32_t middle = step->place_begin[p]; middle < step->place_end[p]; middle++)
                move_weights(
                    place_vector(block, p), step, &walk, weight_index(tile, block, p, slow, middle),
                    tile->geometry->slot_step[2],
                    place_scores_at(tile, block, step, tile->scratch.score, p, slow, middle),
                    store);
    }
}

static void store_weights(const struct tile *tile, const struct block *block,
                          const struct step *step) {
    move_step_weights(tile, block, step, true);
}

static void load_weights(const struct tile *tile, const struct block *block,
                         const struct step *step) {
    move_step_weights(tile, block, step, false);
}

/* Fills the slots that causal windows and key boxes leave unused. */
static void fill_unused(const struct tile *tile, const struct block *block, int32_t place) {
    const struct nh_problem *problem = tile->problem;
    const struct nh_order *order = tile->geometry->order;
    double fill = problem->flags & NHOOD_FLAG_ZERO_FILL ? 0.0 : -INFINITY;
    const struct nh_vector *vector = place_vector(block, place);
    struct weight_walk walk = weight_rows(tile, block, place);
    for (int32_t lane = 0; lane < vector->count; lane++) {
        const int32_t query[NH_AXES] = {block->slow, block->middle[place], vector->first + lane};
        for (int64_t n = 0; n < problem->window_count; n++) {
            bool used = true;
            for (int a = 0; a < NH_AXES; a++) {
                const int64_t slot = n / tile->geometry->slot_step[a] % order[a].window -
                                     nh_slot(&order[a], query[a]);
                used &= slot >= 0 && slot < order[a].end[query[a]] - order[a].begin[query[a]];
            }
            if (!used) nh_store_f64(walk.dtype, walk.row[lane], n, fill);
        }
    }
}

static void pn_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    step_dots(tile, block, step, s->score, s->q_columns, (int32_t)tile->problem->dim, s->k_columns,
              NULL);
    step_bias(tile, block, step, s->score);
    store_weights(tile, block, step);
}

static void nn_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    load_weights(tile, block, step);
    gather_rows(tile, block, step, s->score, s->v_rows, NULL, tile->geometry->vectors_v, s->out);
    end_chain(s->out, s->total, block->rows * VL * s->width_v, step->number);
}

static void in_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    load_weights(tile, block, step);
    const struct scatter values = {s->score, s->d_o_rows, tile->geometry->vectors_v, v_sums(tile),
                                   NULL};
    scatter_rows(tile, block, step, &values, 1);
}

static void unfused_block(struct tile *tile, const struct block *block) {
    const struct scratch *s = &tile->scratch;
    const struct nh_problem *problem = tile->problem;
    switch (problem->op) {
    case NHOOD_OP_PN:
        pack_query_columns(tile, block, NHOOD_Q, problem->dim, (real)problem->scale, true,
                           s->q_columns);
        each_step(tile, block, pn_step);
        for (int32_t p = 0; tile->geometry->fewer && p < block->places; p++)
            fill_unused(tile, block, p);
        break;
    case NHOOD_OP_NN:
        clear_results(tile, block, s->out, s->width_v);
        add_chains(s->out, s->total, block->rows * VL * s->width_v,
                   each_step(tile, block, nn_step));
        for (int32_t p = 0; p < block->places; p++)
            store_queries(tile, block, p, NHOOD_O, problem->dim_v, NULL, s->out, s->width_v);
        break;
    default:
        pack_query_rows(tile, block, NHOOD_D_O, problem->dim_v, 1, s->d_o_rows, s->width_v);
        each_step(tile, block, in_step);
    }
}

static void unfused_tile(struct tile *tile) {
    tile_pack(tile, 1);
    for (int64_t i = 0; i < tile->group; i++) {
        tile->head = tile->box.kv_head * tile->group + i;
        each_block(tile, unfused_block);
    }
    store_last_key_rows(tile);
}

#endif
