/* cuda.split80 in three files: split80.c chooses tiles, split80_time.c says how fast they are, split80_steps.c launches
 * them. */
#ifndef NH_SPLIT80_H
#define NH_SPLIT80_H

#include "box_search.h"
#include "launch.h"
#include "tiled80.h"

/* A config's values are two of these: rows that are queries, then rows that are keys. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "split80_knobs.def"
#undef KNOB
};
/* A side is the knobs of a launch by queries, or of one by keys. */
enum {
    SPLIT80_ROW = SPLIT80_ROW_0,
    SPLIT80_COLUMN = SPLIT80_COLUMN_0,
    SPLIT80_WARPS = SPLIT80_BLOCK_WARPS,
    SPLIT80_SIDE = SPLIT80_BY_KEY_ROW_0
};
extern const struct nh_knob nh_split80_knobs[];

enum { SPLIT80_STAGES = 2 };

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

/* Clocks that the launches of a side take: `first`, for their code; `rounds` of blocks that run at the same time, at
 * `round` each; no less than the longest block; and no less than `busy`, of a full device, and its end, when ever fewer
 * blocks run. A last round of few blocks counts for less than one. Those that own extra tokens come after them. */
struct nh_split80_span {
    double first, rounds, round, longest, busy, extra;
};

/* count: of the side's tiles. What the launches ask for is added to `work`, if there is one. `round` is INFINITY where
 * blocks do not fit. */
struct nh_split80_span nh_split80_span_of(const struct nh_problem *problem,
                                          const struct nh_cuda_device *device, const int32_t *side,
                                          bool inverse, const struct nh_tiling_count *count,
                                          struct nh_count *work);

/* Of a side without the other; and of both. */
double nh_split80_side_clocks(const struct nh_split80_span *span);
double nh_split80_clocks(const struct nh_cuda_device *device, const struct nh_split80_span *query,
                         const struct nh_split80_span *key);

/* What is added to the clocks of both: launches, and what waits for memory. */
double nh_split80_beside_ns(const struct nh_problem *problem, const struct nh_cuda_device *device);

/* What no tiles of such sizes stay below, on their side. */
struct nh_box_bound nh_split80_bound(const struct nh_problem *problem,
                                     const struct nh_cuda_device *device, const int32_t *side,
                                     bool inverse);

nh_estimate_fn nh_split80_estimate;

nhood_status nh_split80_add_steps(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, const struct nh_config *config);

#endif
