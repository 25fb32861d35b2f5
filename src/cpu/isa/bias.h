/* The relative bias, which is added to the scores of a step, and its gradient, which is summed from dS. */
#ifndef NH_BIAS_H
#define NH_BIAS_H

#include "block.h"

/* The index into a head's table of slot 0 of a place's lane at key row (slow, middle). */
static int64_t bias_index(const struct tile *tile, const struct block *block, int32_t place,
                          int32_t slow, int32_t middle, int32_t lane) {
    const struct nh_geometry *geometry = tile->geometry;
    const int32_t query[NH_AXES] = {block->slow, block->middle[place],
                                    place_vector(block, place)->first + lane};
    const int32_t key[NH_AXES] = {slow, middle, geometry->order[2].begin[query[2]]};
    int64_t index = 0;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_order *order = &geometry->order[a];
        const int64_t distance = order->distance[query[a]] + key[a] - order->begin[query[a]];
        index += (distance + order->window - 1) * geometry->bias_step[a];
    }
    return index;
}

/* Adds the table to the scores of a place at one key row. */
static void add_bias(const struct tile *tile, const struct block *block, const struct step *step,
                     int32_t place, int32_t slow, int32_t middle, real *at) {
    const real *table = (const real *)tile->run->bias + tile->head * tile->problem->bias_count;
    const struct nh_vector *vector = place_vector(block, place);
    int64_t slot_step = tile->geometry->bias_step[2];
    if (vector->lanes->mode ==
        NH_LANES_SHIFT) { /* in lanes with fewer keys some results are not used */
        table += bias_index(tile, block, place, slow, middle, 0);
        for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL)
            v_store(at, v_load(at) + v_set(table[slot * slot_step]));
        return;
    }
    for (int32_t lane = 0; lane < vector->count; lane++) {
        const real *lane_table = table + bias_index(tile, block, place, slow, middle, lane);
        const int32_t end = (int32_t)nh_min(step->slot_end, vector->lanes->keys[lane]);
        for (int32_t slot = step->slot; slot < end; slot++)
            at[(slot - step->slot) * VL + lane] += lane_table[slot * slot_step];
    }
}

static void step_bias(const struct tile *tile, const struct block *block, const struct step *step,
                      real *score) {
    if (!tile->problem->has_bias || step->extra) return;
    for (int32_t p = 0; p < block->places; p++)
        for (int32_t slow = step->slow; slow < step->slow_end; slow++)
            for (int32_t middle = step->place_begin[p]; middle < step->place_end[p]; middle++)
                add_bias(tile, block, step, p, slow, middle,
                         place_scores_at(tile, block, step, score, p, slow, middle));
}

/* Adds dS of a place at one key row to the head's bias gradient, which is kept by lane so that whole vectors can be added. */
static void add_bias_gradient(const struct tile *tile, const struct block *block,
                              const struct step *step, int32_t place, int32_t slow, int32_t middle,
                              const real *at) {
    const struct nh_vector *vector = place_vector(block, place);
    int64_t slot_step = tile->geometry->bias_step[2];
    real *lanes = tile->scratch.bias_lanes;
    if (vector->lanes->mode == NH_LANES_SHIFT && vector->lanes->fewest_keys >= step->slot_end) {
        lanes += bias_index(tile, block, place, slow, middle, 0) * VL;
        for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL) {
            real *sum = lanes + slot * slot_step * VL;
            v_store(sum, v_load(sum) + v_load(at));
        }
        return;
    }
    for (int32_t lane = 0; lane < vector->count; lane++) {
        real *sum = lanes + bias_index(tile, block, place, slow, middle, lane) * VL + lane;
        const int32_t end = (int32_t)nh_min(step->slot_end, vector->lanes->keys[lane]);
        for (int32_t slot = step->slot; slot < end; slot++)
            sum[slot * slot_step * VL] += at[(slot - step->slot) * VL + lane];
    }
}

static void step_bias_gradient(const struct tile *tile, const struct block *block,
                               const struct step *step, real *d_score) {
    if (!tile->problem->has_bias || step->extra) return;
    for (int32_t p = 0; p < block->places; p++)
        for (int32_t slow = step->slow; slow < step->slow_end; slow++)
            for (int32_t middle = step->place_begin[p]; middle < step->place_end[p]; middle++)
                add_bias_gradient(tile, block, step, p, slow, middle,
                                  place_scores_at(tile, block, step, d_score, p, slow, middle));
}

#endif
