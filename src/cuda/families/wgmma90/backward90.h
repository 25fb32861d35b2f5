/* What the backward solvers of sm_90 share: pairs of tiles, the launch for the stats of the queries, and the launch of
 * a kernel whose blocks own tiles of keys or of queries. */
#ifndef NH_BACKWARD90_H
#define NH_BACKWARD90_H

#include "box.h"
#include "tensor_maps.h"
#include "solver.h"
#include "tiling.h"

enum { NH_BACKWARD90_WARPGROUPS = 2, NH_BACKWARD90_MOST_STAGES = 4, NH_BACKWARD90_KEPT = 3 };

/* Nanoseconds of launches: of their work, spread over the device, and of the block that has most of it. */
struct nh_backward90_spans {
    double busy, longest;
};

/* A tile that blocks own and one that they walk, and what they cost. */
struct nh_backward90_pair {
    int32_t own[3];
    const int32_t *walk;
    struct nh_backward90_spans spans;
    double ns;
};

/* The blocks of a launch, per batch entry and query head. */
struct nh_backward90_walks {
    double items, tiles, masked;
    /* tiles of the longest walk; rows of a walked tile */
    double longest, columns;
};

/* Extra tokens are walked by blocks that own queries, at the end. */
struct nh_backward90_walks nh_backward90_walks_of(const struct nh_problem *problem,
                                                  const int32_t own[3], const int32_t walk[3],
                                                  bool keys);

/* What a launch asks for, and how it was seen to run on an H200. */
struct nh_backward90_load {
    /* multiply-adds of a pair of rows; bytes that move for a row walked */
    double products, column_bytes;
    /* of the least times of these parts; clocks from tile to tile and, for each axis, from item to item */
    double tensor, exponential, masks, turn, item;
};

/* Nanoseconds of the device for a pair of tiles, for its masks, for an item, and for a block's part in adding up what a
 * cluster has, 0 where blocks share no items. */
struct nh_backward90_prices {
    double tile, masks, item, meeting;
};

/* Adds those of a launch that walks so many rows at a time. */
void nh_backward90_add_prices(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                              const struct nh_backward90_load *load, double columns,
                              struct nh_backward90_prices *prices);

/* Blocks that share an item: as many as leave multiprocessors to the other side's, which run at the same time. */
int32_t nh_backward90_cluster(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                              const struct nh_backward90_walks *walks,
                              const struct nh_backward90_prices *prices);

struct nh_backward90_spans nh_backward90_spans_of(const struct nh_problem *problem,
                                                  const struct nh_cuda_device *cuda,
                                                  const struct nh_backward90_walks *walks,
                                                  const struct nh_backward90_prices *prices);

/* Adds launches that overlap with those before. */
void nh_backward90_overlap(const struct nh_backward90_spans *next,
                           struct nh_backward90_spans *spans);

double nh_backward90_ns(const struct nh_backward90_spans *spans);

/* Adds what a launch asks for to `work`. */
void nh_backward90_count(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                         const struct nh_backward90_walks *walks,
                         const struct nh_backward90_load *load, struct nh_count *work);

/* Prices of a kernel with these tiles; false if it cannot run with them. Only with a bias does it matter what tile blocks
 * own. */
typedef bool nh_backward90_offer(const struct nh_problem *problem, const struct nh_device *device,
                                 const int32_t own[3], const int32_t walk[3],
                                 struct nh_backward90_prices *prices);

struct nh_backward90_search {
    const struct nh_problem *problem;
    const struct nh_device *device;
    nh_backward90_offer *offer;
    bool keys;          /* blocks own keys, or queries */
    int64_t least_rows; /* of the tiles that they own */
    int most;           /* pairs, up to NH_BACKWARD90_KEPT */
    double below;       /* pairs of which it is clear that they take as long may be left out */
};

/* The cheapest pairs, cheapest first; how many. */
int nh_backward90_best(const struct nh_backward90_search *search,
                       struct nh_backward90_pair best[NH_BACKWARD90_KEPT]);

/* Shared memory of a kernel that owns keys, or queries, beside what it may have of its own. */
int64_t nh_backward90_shared_bytes(const struct nh_problem *problem, const int32_t walk[3],
                                   bool keys, int64_t stages);

/* Stages that fit beside `own_bytes` more of shared memory. */
int32_t nh_backward90_stages(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                             const int32_t walk[3], bool keys, int64_t own_bytes);

/* Reserves the stats' memory in the workspace; returns its offset. */
size_t nh_backward90_reserve_stats(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem);

void nh_backward90_bind_stats(struct nh_cuda_step *step, const struct nh_problem *problem,
                              size_t stats);

/* Sets up the launch of a kernel that owns keys, or queries; its source, its outputs and what it has of its own are
 * left to the caller. UNSUPPORTED if there are too many tiles. */
nhood_status nh_backward90_step(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                                size_t stats, const int32_t own[3], const int32_t walk[3],
                                bool keys, int32_t stages, struct nh_cuda_step *step,
                                struct nh_kernel_spec *spec);

#endif
