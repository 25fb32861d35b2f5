/* cuda.split80 in three files: split80.c chooses tiles, split80_work.c computes what a launch needs and asks of a
 * device, and split80_steps.c adds the launches. */
#ifndef NH_SPLIT80_H
#define NH_SPLIT80_H

#include "box_search.h"
#include "launch.h"
#include "tiled80.h"

/* The values of a config: knobs of the launch by queries, then those of the launch by keys. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "split80_knobs.def"
#undef KNOB
};
/* A "side" is the knobs of one of these launches, with these indices. */
enum {
    SPLIT80_ROW = SPLIT80_ROW_0,
    SPLIT80_COLUMN = SPLIT80_COLUMN_0,
    SPLIT80_WARPS = SPLIT80_BLOCK_WARPS,
    SPLIT80_SIDE = SPLIT80_BY_KEY_ROW_0
};
extern const struct nh_knob nh_split80_knobs[];

enum { SPLIT80_STAGES = 2 };

/* Whether dK and dV have separate launches, because registers do not hold both. */
bool nh_split80_apart(const struct nh_problem *problem);

int64_t nh_split80_shared_bytes(const struct nh_problem *problem, const int32_t *side,
                                bool inverse);

/* Blocks that are resident on a multiprocessor; 0: not even one fits. */
int64_t nh_split80_residents(const struct nh_problem *problem, const struct nh_cuda_device *device,
                             const int32_t *side, bool inverse);

/* The number of row tiles of one head, over the whole batch. */
int64_t nh_split80_head_tiles(const struct nh_problem *problem, const int32_t *side, bool inverse);

/* The number of blocks among which a head's query tiles are divided if each block keeps a table of the bias's
 * gradient. */
int64_t nh_split80_bias_shares(const struct nh_problem *problem,
                               const struct nh_cuda_device *device, const int32_t *side);

/* Derives the knobs for extra tokens from those by keys: rows lie along one axis, no more than needed. */
void nh_split80_extra_side(const struct nh_problem *problem, const int32_t *keys,
                           int32_t side[SPLIT80_SIDE]);

/* nh_split80_start starts the work of both sides, without launches. nh_split80_add_side adds the launches of one side,
 * those for extra tokens included; count: of the side's tiles. False: blocks do not fit. */
void nh_split80_start(const struct nh_problem *problem, struct nh_work *work);
bool nh_split80_add_side(const struct nh_problem *problem, const struct nh_cuda_device *device,
                         const int32_t *side, bool inverse, const struct nh_tiling_count *count,
                         struct nh_work *work);

nh_work_fn nh_split80_work;

nhood_status nh_split80_add_steps(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, const struct nh_config *config);

#endif
