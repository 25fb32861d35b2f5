/* Which tensors the copy engine (TMA) of sm_90 can fetch for the fused solvers, and the tensor maps for it. */
#ifndef NH_TENSOR_MAPS_H
#define NH_TENSOR_MAPS_H

#include "launch.h"

/* How a map's four outer axes are used (the innermost is the row); place() in wgmma90.cuh has the same numbers. */
enum nh_map_layout {
    NH_MAP_SPLIT,
    NH_MAP_ONE_BATCH,
    NH_MAP_HEADS_IN_ROW,
    NH_MAP_HEADS_IN_BATCH,
    NH_MAP_ORIGIN
};

/* Returns the layout of the map of a tensor of rows (NHOOD_Q, K, V, O or a gradient of these). */
enum nh_map_layout nh_map_layout_of(const struct nh_problem *problem, int32_t tensor);

/* Those of these tensors (bits 1 << NHOOD_Q ..) that the problem has, less those with the extents and strides of another one that is
 * left: what holds of the latter holds of all. */
uint32_t nh_sm90_distinct(const struct nh_problem *problem, uint32_t tensors);

/* Whether the map of some of these tensors (bits 1 << NHOOD_Q ..) has one axis for batch entries, heads and dilation groups,
 * in steps of 16 bytes: a dilation is far, batch entries or heads repeat, or in 3-D they join neither each other nor a
 * row. */
bool nh_sm90_by_origin(const struct nh_problem *problem, uint32_t moved);

/* NULL, or why the copy engine cannot move boxes of these tensors (bits 1 << NHOOD_Q ..). */
const char *nh_sm90_refuse_boxes(const struct nh_problem *problem, const struct nh_device *device,
                                 uint32_t moved);

/* NULL, or why no kernel of sm_90 takes the problem: architecture, types, sizes, or strides of the tensors that are
 * fetched or stored (bits 1 << NHOOD_Q ..). most_dim: the largest head dim, 128 or 256. */
const char *nh_sm90_refuse(const struct nh_problem *problem, const struct nh_device *device,
                           uint32_t fetched, uint32_t stored, int64_t most_dim);

/* Whether positions and dilation groups are separate axes of the maps, which problems of one axis have room for. */
bool nh_sm90_folds(const struct nh_problem *problem);

/* The axes, as bits, that are "far" in more than one dimension: their dilation exceeds the largest element stride of a
 * map, 8. The dilation group is then part of the origin of a box. */
int32_t nh_sm90_far_axes(const struct nh_problem *problem);
bool nh_sm90_any_far(const struct nh_problem *problem);

/* The axes, as bits, along which maps count positions and some dilation groups are a token shorter than others. */
int32_t nh_sm90_uneven_axes(const struct nh_problem *problem);

/* Appends maps for dilation groups that are a token shorter than the longest, if maps are of positions and such groups
 * exist. To be called when all other maps of the step are set. */
void nh_sm90_add_twins(struct nh_cuda_step *step, const struct nh_problem *problem);

/* Whether a tile with its dilation is a box that the copy engine can fetch: at most 256 tokens along an axis, dilation
 * included, and 1 along axes that the problem lacks. */
bool nh_sm90_boxes_fit(const struct nh_problem *problem, const int32_t tile[3]);

/* Makes the map of a tensor, as below with one head a tile, out of that of another one with the same extents and strides, which
 * differs in its tile alone. layout: of both. Not for a problem that folds. */
void nh_sm90_map_as(int32_t tensor, enum nh_map_layout layout, const int32_t tile[3],
                    const struct nh_cuda_map *other, struct nh_cuda_map *map);

struct nh_cuda_map nh_sm90_map(const struct nh_problem *problem, int32_t tensor,
                               const int32_t tile[3], int32_t heads);

/* Maps lines of `positions` tokens along the last axis. A line that reaches the end of the axis goes on with its first
 * tokens. The map's axes: rows of all heads, the last axis, laps around it (at most four), the second axis, and the
 * first axis of all batch entries. */
struct nh_cuda_map nh_sm90_lines_map(const struct nh_problem *problem, int32_t tensor,
                                     int32_t positions);

/* Whether a tensor can be mapped as lines: its heads are parts of one row, its batch entries follow each other along
 * the first axis, no axis is dilated, and it has all tokens of periodic axes. */
bool nh_sm90_lines_fit(const struct nh_problem *problem, int32_t tensor);

/* Maps K or V of the extra tokens, `rows` tokens per box. */
struct nh_cuda_map nh_sm90_extra_map(const struct nh_problem *problem, int32_t tensor,
                                     int64_t rows);

/* Lets a launch's loop over keys, `rows` per tile, go on over the extra tokens, if there are any. */
void nh_sm90_loop_over_extra(struct nh_cuda_step *step, const struct nh_problem *problem,
                             int64_t rows);

/* Maps the four numbers per query that kernels/common/backward_stats.cu writes to the workspace. */
struct nh_cuda_map nh_sm90_stats_map(const struct nh_problem *problem, const int32_t tile[3]);

/* Maps the f32 sums of dQ to which joint90.cu adds, with these extents per axis and `columns` numbers per position. */
struct nh_cuda_map nh_sm90_sums_map(const struct nh_problem *problem, const int64_t extent[NH_AXES],
                                    int64_t columns, const int32_t tile[3]);

#endif
