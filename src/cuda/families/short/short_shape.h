/* How cuda.short cuts a problem into work tiles of whole dilation groups (short.cuh). */
#ifndef NH_SHORT_SHAPE_H
#define NH_SHORT_SHAPE_H

#include "short_args.h"
#include "kernel_cache.h"
#include "problem.h"

/* The most rows of a work tile: fields of nh_visibility and nh_ratio in short.cuh have no room for more. */
enum { NH_SHORT_MOST_ROWS = 1024 };

/* The knobs of cuda.short. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "short_knobs.def"
#undef KNOB
};
extern const struct nh_knob nh_short_knobs[];

/* How groups are numbered: NH_GROUPS of the kernels, see short.cuh. */
enum nh_short_order { NH_SHORT_UNEVEN, NH_SHORT_EVEN, NH_SHORT_BY_RESIDUE, NH_SHORT_BOXES };

struct nh_short_shape {
    enum nh_short_order order;
    /* tokens of the longest dilation group per axis, and in all */
    int32_t extent[NH_AXES];
    int64_t group_tokens;
    /* the keys that a query sees are consecutive rows */
    bool contiguous;
    /* groups and rows of a work tile; rows are a multiple of 16 */
    int64_t groups, rows;
    /* groups that are numbered together, and work tiles that they make; work tiles of the problem per group of query
     * heads that share a key head */
    int64_t total, chunks, work_tiles;
    /* mean number of rows that 16 queries are multiplied with; mean share of a work tile's rows that exist, and of its
     * tokens */
    double columns, rows_share, tokens_share;
};

/* A config on a problem, with its work tiles. */
struct nh_short_launch {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    const struct nh_short_shape *shape;
    const int32_t *value;
};

/* Tokens of the longest dilation group; more than NH_SHORT_MOST_ROWS if an axis alone has as many. */
int64_t nh_short_group_tokens(const struct nh_problem *problem);

/* Puts as many groups into a work tile as `rows` have room for, but at least one, and no more than there are. False if
 * a group has more than NH_SHORT_MOST_ROWS tokens, or there are more than 2^30 groups. */
bool nh_short_shape_of(const struct nh_problem *problem, int64_t rows,
                       struct nh_short_shape *shape);

/* Whether offsets of tokens inside a batch entry fit 32 bits. */
bool nh_short_offsets_fit(const struct nh_problem *problem);

/* Sets the tiling of the backward pass. parts: blocks that share a work tile. */
void nh_short_tiling(const struct nh_problem *problem, const struct nh_short_shape *shape,
                     int64_t parts, struct nh_short_tiling *tiling);

/* The forward pass has a work tile for each query head and each part. Fails with UNSUPPORTED if there are more than
 * 2^30. */
int64_t nh_short_forward_work_tiles(const struct nh_problem *problem,
                                    const struct nh_short_shape *shape, int64_t parts);
nhood_status nh_short_forward_tiling(const struct nh_problem *problem,
                                     const struct nh_short_shape *shape, int64_t parts,
                                     struct nh_short_tiling *tiling);

/* Bytes of a row of `width` elements in shared memory, and the number of accumulators of 8 elements each for its
 * sums. */
int64_t nh_short_row_bytes(const struct nh_problem *problem, int64_t width);
int64_t nh_short_sums(const struct nh_problem *problem, int64_t width);

/* Bytes of a work tile's groups, which have offsets for `origins` tensors. */
int64_t nh_short_group_bytes(const struct nh_short_shape *shape, int64_t origins);

/* Defines the macros of short.cuh but NH_WARPS and NH_MIN_BLOCKS. */
void nh_short_define(const struct nh_problem *problem, const struct nh_short_shape *shape,
                     struct nh_kernel_spec *spec);

#endif
