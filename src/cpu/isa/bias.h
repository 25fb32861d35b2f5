/* Relative bias: added to the scores of a step, its gradient taken from them. */
#ifndef NH_BIAS_H
#define NH_BIAS_H

#include "block.h"

/* Index into a head's table of slot 0 of a lane of a place, at key row (slow, middle). */
static int64_t bias_index(const struct tile *tile, const struct block *block, int32_t place,
                          int32_t slow, int32_t middle, int32_t lane) {
    const struct nh_geometry *geometry = tile->geometry;
    const struct nh_vector *vector = place_vector(block, place);
    int64_t x = vector->start + vector->index[lane] - (vector->first + lane);
    return (slow - block->slow + geometry->order[0].window - 1) * geometry->bias_step[0] +
           (middle - block->middle[place] + geometry->order[1].window - 1) *
               geometry->bias_step[1] +
           (x + geometry->order[2].window - 1) * geometry->bias_step[2];
}

/* Adds the table to the scores of a place at one key row. */
static void add_bias(const struct tile *tile, const struct block *block, const struct step *step,
                     int32_t place, int32_t slow, int32_t middle, real *at) {
    const real *table = (const real *)tile->run->bias + tile->head * tile->problem->bias_count;
    const struct nh_vector *vector = place_vector(block, place);
    int64_t slot_step = tile->geometry->bias_step[2];
    const real *lane_table[NH_MOST_LANES];
    for (int32_t lane = 0; lane < vector->count; lane++)
        lane_table[lane] = table + bias_index(tile, block, place, slow, middle, lane);
    for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL) {
        if (vector->mode == NH_LANES_SHIFT) {
            v_store(at, v_load(at) + v_set(lane_table[0][slot * slot_step]));
            continue;
        }
        for (int32_t lane = 0; lane < vector->count; lane++)
            at[lane] += lane_table[lane][slot * slot_step];
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

/* Adds dS of a place at one key row to the head's bias gradient, kept by lane so that whole vectors can be added. */
static void add_bias_gradient(const struct tile *tile, const struct block *block,
                              const struct step *step, int32_t place, int32_t slow, int32_t middle,
                              const real *at) {
    const struct nh_vector *vector = place_vector(block, place);
    int64_t slot_step = tile->geometry->bias_step[2];
    real *lanes = tile->scratch.bias_lanes;
    int64_t index[NH_MOST_LANES];
    for (int32_t lane = 0; lane < vector->count; lane++)
        index[lane] = bias_index(tile, block, place, slow, middle, lane);
    for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL) {
        if (vector->mode == NH_LANES_SHIFT) {
            real *sum = lanes + (index[0] + slot * slot_step) * VL;
            v_store(sum, v_load(sum) + v_load(at));
            continue;
        }
        for (int32_t lane = 0; lane < vector->count; lane++)
            lanes[(index[lane] + slot * slot_step) * VL + lane] += at[lane];
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
