/* What the fused solvers of sm_90 have in common: which tensors their copy engine can fetch, and how. */
#ifndef NH_TENSOR_MAPS_H
#define NH_TENSOR_MAPS_H

#include "launch.h"

/* How a tensor map's five axes are used; the numbers are those of place() in fused90.cuh. */
enum nh_map_layout {
    NH_MAP_SPLIT,
    NH_MAP_ONE_BATCH,
    NH_MAP_HEADS_IN_ROW,
    NH_MAP_HEADS_IN_BATCH,
    NH_MAP_ORIGIN,
    NH_MAP_NONE
};

/* Says how the map of a tensor of rows (NHOOD_Q, K, V, O or a gradient of theirs) is laid out. */
enum nh_map_layout nh_map_layout_of(const struct nh_problem *problem, int32_t tensor);

/* NULL, or why the copy engine cannot move boxes of these tensors (bits 1 << NHOOD_Q ..). */
const char *nh_sm90_refuse_boxes(const struct nh_problem *problem, const struct nh_device *device,
                                 uint32_t moved);

/* NULL, or why none of the kernels takes the problem: architecture, types, sizes, and the strides of the tensors
 * that are fetched and of those that are stored (bits 1 << NHOOD_Q ..). most_dim: the largest head dim. */
const char *nh_sm90_refuse(const struct nh_problem *problem, const struct nh_device *device,
                           uint32_t fetched, uint32_t stored, int64_t most_dim);

/* Whether positions and dilation groups are axes of their own in the maps: in one dimension an axis is to spare. */
bool nh_sm90_folds(const struct nh_problem *problem);

/* Whether some axis is dilated by more than steps of elements reach, in more than one dimension: its dilation groups are
 * then part of the origin of boxes. */
bool nh_sm90_any_far(const struct nh_problem *problem);

/* Once all maps of a step are there: if dilation groups have places of their own in them, those of the groups that have a
 * token fewer. */
void nh_sm90_add_twins(struct nh_cuda_step *step, const struct nh_problem *problem);

/* Whether the tile, with its dilation, is a box that the copy engine can fetch, and 1 along axes that the problem lacks. */
bool nh_sm90_boxes_fit(const struct nh_problem *problem, const int32_t tile[3]);

struct nh_cuda_map nh_sm90_map(const struct nh_problem *problem, int32_t tensor,
                               const int32_t tile[3], int32_t heads);

/* Maps lines of positions along the last axis, so many at a time, that go on with the axis' first ones at its end: along
 * the map's axes rows of all heads, the last axis, how often it has ended (four times at most), the second axis, and the
 * first axis of all batch entries. */
struct nh_cuda_map nh_sm90_lines_map(const struct nh_problem *problem, int32_t tensor,
                                     int32_t positions);

/* Whether a tensor can be mapped so: heads are parts of a row, batch entries follow each other along a first axis, no axis
 * is dilated, and the tensor has all of periodic ones. */
bool nh_sm90_lines_fit(const struct nh_problem *problem, int32_t tensor);

/* Maps the extra tokens' K or V, `rows` of them. */
struct nh_cuda_map nh_sm90_extra_map(const struct nh_problem *problem, int32_t tensor,
                                     int64_t rows);

/* Maps the rows of four numbers that kernels/common/backward_stats.cu leaves in the workspace. */
struct nh_cuda_map nh_sm90_stats_map(const struct nh_problem *problem, const int32_t tile[3]);

/* Maps the f32 sums of dQ that joint90.cu adds to, of so many positions per axis and columns. */
struct nh_cuda_map nh_sm90_sums_map(const struct nh_problem *problem, const int64_t extent[NH_AXES],
                                    int64_t columns, const int32_t tile[3]);

/* The macros that a problem and the rows of a loop tile give every kernel of the family. */
void nh_sm90_define(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                    int64_t loop_rows);

#endif
