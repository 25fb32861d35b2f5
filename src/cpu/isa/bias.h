/* Relative bias: added to the scores of a step, its gradient taken from them. */
#ifndef NH_BIAS_H
#define NH_BIAS_H

#include "block.h"

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

/* Adds dS to the head's bias gradient, kept by lane so that whole vectors can be added. */
static void bias_gradient(const struct tile *tile, const struct block *block,
                          const struct step *step, int32_t row) {
    const struct nh_vector *vector = block->vector[row];
    int64_t slot_step = tile->geometry->bias_step[2];
    real *lanes = tile->scratch.bias_lanes;
    const real *at = row_scores(tile, tile->scratch.d_score, row);
    bool whole = vector->mode == NH_LANES_SHIFT && vector->count == VL;
    for (int32_t part = 0; part < step_parts(step, row); part++) {
        int32_t slow = step->slow + part / step->row_count[row];
        int32_t middle = step->row_begin[row] + part % step->row_count[row];
        int64_t index[NH_MOST_LANES];
        for (int32_t lane = 0; lane < vector->count; lane++)
            index[lane] = bias_index(tile, block, row, slow, middle, lane);
        for (int32_t slot = step->slot; slot < step->slot_end; slot++, at += VL) {
            if (whole) {
                real *sum = lanes + (index[0] + slot * slot_step) * VL;
                v_store(sum, v_load(sum) + v_load(at));
                continue;
            }
            for (int32_t lane = 0; lane < vector->count; lane++)
                lanes[(index[lane] + slot * slot_step) * VL + lane] += at[lane];
        }
    }
}

#endif
