/* cuda.fused90's launches: what a config needs of the hardware, and adding its steps. */
#ifndef NH_FUSED90_LAUNCH_H
#define NH_FUSED90_LAUNCH_H

#include "tensor_maps.h"
#include "warpgroup_tile.h"
#include "tiling.h"

enum { NH_FUSED90_MOST_DIM = 256 };

/* Indices of a config's values. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "fused90_knobs.def"
#undef KNOB
};
extern const struct nh_knob nh_fused90_knobs[];

/* The number of keys of a key tile, in all its boxes. */
int32_t nh_fused90_keys(const int32_t *value);

int64_t nh_fused90_shared_bytes(const struct nh_problem *problem, const int32_t *value);

/* Whether registers suffice: a thread's sums, scores, weights and, if they are kept in registers, queries have to fit
 * what setmaxnreg gives it, less those for addresses and masks. */
bool nh_fused90_registers_fit(const struct nh_problem *problem, const int32_t *value);

/* Whether key tiles, and the 16 rows of each warp, are planes across the stacking axis, and warps skip the weights of
 * planes of which their rows see nothing. Blocks of a cluster do not. */
bool nh_fused90_skips_planes(const struct nh_problem *problem, const int32_t *value);

/* The number of KV loops per query tile: pairs of a batch entry and a head, or a group of heads that share a tile. */
double nh_fused90_copies(const struct nh_problem *problem, const int32_t *value);

double nh_fused90_extra_tiles(const struct nh_problem *problem, const int32_t *value);

/* The number of blocks that share a work tile. It is 1 if there is a bias, as its boxes are fetched for whole loops, or
 * if key tiles have several boxes. */
int32_t nh_fused90_cluster_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                              const int32_t *value, const struct nh_tiling_count *fetched);

nhood_status nh_fused90_add_steps(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, const struct nh_config *config);

#endif
