/* cuda.fused90 in two files: the solver, needs, work and launches (fused90.c), and the search (fused90_search.c). */
#ifndef NH_FUSED90_H
#define NH_FUSED90_H

#include "tile_count.h"
#include "launch.h"
#include "tiling.h"
#include "top_n.h"
#include "warpgroup_tile.h"
#include "work.h"

/* Indices of a config's values. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "fused90_knobs.def"
#undef KNOB
};

/* A config's values with what they are for: a problem, or one with a part of its values (value_parts.h). */
struct nh_fused90 {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    const int32_t *value;
    /* the launch is that of many members, whose work tiles fill the device without clusters */
    bool for_group;
};

/* Counts of the tiles that blocks fetch, and of those that warpgroups multiply. */
struct nh_fused90_loops {
    struct nh_tiling_count fetched, seen;
};

/* The number of keys of a key tile, in all its boxes. */
int64_t nh_fused90_keys(const int32_t *value);

/* The same as columns of a product, in whole groups of 8. */
int64_t nh_fused90_columns(const int32_t *value);

/* Key tiles of whole lines, which may have any length: in 3-D a plane, or half of one, of the halo of 4 x 4 queries, in 2-D
 * some lines of the halo of 8 x 8. A further step of the scores' product masks them (fused90_mask_step.cuh). Sets such a
 * tile; false: none suits the problem. */
bool nh_fused90_lines(const struct nh_problem *problem, int32_t tile[3]);

/* Whether a config's key tiles are such. */
bool nh_fused90_has_mask_step(const int32_t *value);

/* The number of KV loops per query tile: pairs of a batch entry and a head, or a group of heads that share a tile. */
double nh_fused90_copies(const struct nh_fused90 *of);

/* The number of stages, at most `most`, that fit shared memory; 0: not even two, or registers do not suffice. */
int32_t nh_fused90_stages(const struct nh_fused90 *of, int32_t most);

/* Whether key tiles, and the 16 rows of each warp, are planes across the stacking axis or, in 2-D, lines, and warps skip
 * the weights of key tiles of which their rows see nothing. Blocks of a cluster do not. */
bool nh_fused90_skips(const struct nh_fused90 *of);

/* The blocks that share a work tile: 1 in a group, with a bias, whose boxes are for whole loops, or with several boxes per tile. */
int32_t nh_fused90_cluster(const struct nh_fused90 *of, const struct nh_tiling_count *fetched);

/* Adds the launch's work with these counts. */
void nh_fused90_add_work(const struct nh_fused90 *of, const struct nh_fused90_loops *loops,
                         struct nh_work *work);

struct nh_fused90_loops nh_fused90_loops_of(const struct nh_fused90 *of);

/* ---- fused90_search.c ---- */

/* Whether the copy engine can go around the periodic axes: no query tile meets two seams, or key tiles divide them. */
bool nh_fused90_goes_around(const struct nh_problem *problem);

/* Adds configs with the tiles worth trying whose time is below the list's limit; their knob REPAIR_APART is 0. for_group: of launches
 * that may serve many members. */
void nh_fused90_search(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                       bool for_group, struct nh_top_n *best);

#endif
