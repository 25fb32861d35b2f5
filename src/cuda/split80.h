/* cuda.split80 in two files: split80.c says how fast which tiles are, split80_steps.c launches them. */
#ifndef NH_SPLIT80_H
#define NH_SPLIT80_H

#include "launch.h"

/* A config's values are two of these: rows that are queries, then rows that are keys. */
enum { SPLIT80_ROW, SPLIT80_COLUMN = 3, SPLIT80_WARPS = 6, SPLIT80_SIDE = 7 };

enum { SPLIT80_STAGES = 2 };

/* Head dims as they lie in shared memory: multiples of one tensor core step, 32 bytes. */
struct nh_split80_widths {
    int64_t element_bytes, dim, dim_v;
};
struct nh_split80_widths nh_split80_widths(const struct nh_problem *problem);

static inline int64_t nh_split80_volume(const int32_t box[NH_AXES]) {
    return (int64_t)box[0] * box[1] * box[2];
}

/* Whether dK and dV are made by launches of their own, since registers do not hold both. */
bool nh_split80_apart(const struct nh_problem *problem);

int64_t nh_split80_shared_bytes(const struct nh_problem *problem, const int32_t *side,
                                bool inverse);

/* Blocks that share a multiprocessor; 0: not even one fits. */
int64_t nh_split80_residents(const struct nh_problem *problem, const struct nh_cuda_device *device,
                             const int32_t *side, bool inverse);

/* Tiles of queries of one head, over the whole batch. */
int64_t nh_split80_head_tiles(const struct nh_problem *problem, const int32_t *side);

/* Blocks that a head's query tiles are dealt out to where each keeps a table of the bias's gradient. */
int64_t nh_split80_bias_shares(const struct nh_problem *problem,
                               const struct nh_cuda_device *device, const int32_t *side);

/* The side of keys turned to extra tokens: rows along one axis, no more than needed. */
void nh_split80_extra_side(const struct nh_problem *problem, const int32_t *keys,
                           int32_t side[SPLIT80_SIDE]);

nhood_status nh_split80_add_steps(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, const struct nh_config *config);

#endif
