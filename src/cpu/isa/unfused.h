/* pn, nn and in: the same blocks and products, with the weights in the caller's tensor A. */
#ifndef NH_UNFUSED_H
#define NH_UNFUSED_H

#include "backward.h"

/* Calls for every weight of one row of the block: its scratch score and its index in A. */
struct weight_walk {
    char *row[NH_MOST_LANES]; /* A's first slot of each lane's query */
    int32_t dtype;
};

static struct weight_walk weight_rows(const struct tile *tile, const struct block *block,
                                      int32_t row) {
    struct weight_walk walk = {{NULL}, tile->problem->dtype};
    struct rows rows = tensor_rows(tile, NHOOD_A, tile->head, block->slow, block->middle[row], 1);
    for (int32_t lane = 0; lane < block->vector[row]->count; lane++)
        walk.row[lane] = (char *)(uintptr_t)row_at(&rows, block->vector[row]->first + lane);
    return walk;
}

/* Index in A of slot 0 of the lane axis, at a key row of the step. */
static int64_t weight_index(const struct tile *tile, const struct block *block,
                            const struct step *step, int32_t row, int32_t part) {
    const struct nh_geometry *geometry = tile->geometry;
    int32_t slow = step->slow + part / step->row_count[row];
    int32_t middle = step->row_begin[row] + part % step->row_count[row];
    return (slow - geometry->order[0].begin[block->slow]) * geometry->slot_step[0] +
           (middle - geometry->order[1].begin[block->middle[row]]) * geometry->slot_step[1];
}

static void store_weights(const struct tile *tile, const struct block *block,
                          const struct step *step, int32_t row) {
    const struct nh_vector *vector = block->vector[row];
    struct weight_walk walk = weight_rows(tile, block, row);
    int64_t slot_step = tile->geometry->slot_step[2];
    const real *at = row_scores(tile, tile->scratch.score, row);
    for (int32_t part = 0; part < step_parts(step, row); part++) {
        int64_t index = weight_index(tile, block, step, row, part);
        for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL)
            for (int32_t lane = 0; lane < vector->count; lane++)
                if (slot < vector->keys[lane])
                    nh_store_f64(walk.dtype, walk.row[lane], index + slot * slot_step,
                                 (double)at[lane]);
    }
}

static void load_weights(const struct tile *tile, const struct block *block,
                         const struct step *step, int32_t row) {
    const struct nh_vector *vector = block->vector[row];
    struct weight_walk walk = weight_rows(tile, block, row);
    int64_t slot_step = tile->geometry->slot_step[2];
    real *at = row_scores(tile, tile->scratch.score, row);
    for (int32_t part = 0; part < step_parts(step, row); part++) {
        int64_t index = weight_index(tile, block, step, row, part);
        for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL)
            for (int32_t lane = 0; lane < vector->count; lane++)
                if (slot < vector->keys[lane])
                    at[lane] =
                        (real)nh_load_f64(walk.dtype, walk.row[lane], index + slot * slot_step);
    }
}

/* The slots that causal windows leave unused. */
static void fill_unused(const struct tile *tile, const struct block *block, int32_t row) {
    const struct nh_problem *problem = tile->problem;
    const struct nh_order *order = tile->geometry->order;
    double fill = problem->flags & NHOOD_FLAG_ZERO_FILL ? 0.0 : -INFINITY;
    struct weight_walk walk = weight_rows(tile, block, row);
    const int32_t place[2] = {block->slow, block->middle[row]};
    for (int32_t lane = 0; lane < block->vector[row]->count; lane++) {
        int32_t keys[NH_AXES] = {0, 0, block->vector[row]->keys[lane]};
        for (int a = 0; a < 2; a++)
            keys[a] = order[a].end[place[a]] - order[a].begin[place[a]];
        for (int64_t n = 0; n < problem->window_count; n++) {
            bool used = true;
            for (int a = 0; a < NH_AXES; a++)
                used &= n / tile->geometry->slot_step[a] % order[a].window < keys[a];
            if (!used) nh_store_f64(walk.dtype, walk.row[lane], n, fill);
        }
    }
}

static void pn_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    step_dots(tile, block, step, s->score, s->q_columns, (int32_t)tile->problem->dim, s->k_columns,
              NULL);
    step_bias(tile, block, step, s->score);
    for (int32_t r = 0; r < block->rows; r++)
        if (step_parts(step, r)) store_weights(tile, block, step, r);
}

static void nn_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    for (int32_t r = 0; r < block->rows; r++)
        if (step_parts(step, r)) load_weights(tile, block, step, r);
    gather_rows(tile, block, step, s->score, s->v_rows, NULL, tile->geometry->vectors_v, s->out);
}

static void in_step(struct tile *tile, const struct block *block, const struct step *step) {
    const struct scratch *s = &tile->scratch;
    for (int32_t r = 0; r < block->rows; r++)
        if (step_parts(step, r)) load_weights(tile, block, step, r);
    scatter_rows(tile, block, step, s->score, s->d_o_rows, tile->geometry->vectors_v,
                 tile->partial + partial_layout(tile->geometry).d_v, NULL);
}

static void unfused_block(struct tile *tile, const struct block *block) {
    const struct scratch *s = &tile->scratch;
    const struct nh_problem *problem = tile->problem;
    bool causal = false;
    for (int a = 0; a < NH_AXES; a++)
        causal |= problem->axis[a].causal != 0;
    switch (problem->op) {
    case NHOOD_OP_PN:
        pack_query_columns(tile, block, NHOOD_Q, problem->dim, (real)problem->scale, true,
                           s->q_columns);
        each_step(tile, block, pn_step);
        for (int32_t r = 0; causal && r < block->rows; r++)
            fill_unused(tile, block, r);
        break;
    case NHOOD_OP_NN:
        each_step(tile, block, nn_step);
        for (int32_t r = 0; r < block->rows; r++)
            store_queries(tile, block, r, NHOOD_O, problem->dim_v, NULL, s->out, s->width_v);
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
    if (tile->partial && holds_all_keys(tile->geometry)) store_key_rows(tile, tile->box.keys[1]);
}

#endif
