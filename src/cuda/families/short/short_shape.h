/* How cuda.short and cuda.short90 cut a problem into work tiles of whole dilation groups (short.cuh). */
#ifndef NH_SHORT_SHAPE_H
#define NH_SHORT_SHAPE_H

#include "kernel_cache.h"
#include "problem.h"
#include "short_args.h"

/* The most rows of a work tile: fields of nh_visibility and nh_ratio in short.cuh have no room for more. */
enum { NH_SHORT_MOST_ROWS = 1024 };

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

/* A config on a problem, with its work tiles: warps that compute, blocks that share a work tile, warps that share 16
 * rows, and work tiles that a block holds at a time. */
struct nh_short_launch {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    const struct nh_short_shape *shape;
    int32_t warps, parts, split, stages;
    int64_t tiles;              /* warp tiles of 16 rows that a block computes per work tile */
    int64_t key_row, value_row; /* bytes of a row of dim and dim_v elements in shared memory */
    int64_t shared_bytes;
};

/* Tokens of the longest dilation group; more than NH_SHORT_MOST_ROWS if an axis alone has as many. */
int64_t nh_short_group_tokens(const struct nh_problem *problem);

/* Puts as many groups into a work tile as `rows` have room for, but at least one, and no more than there are. False if
 * a group has more than NH_SHORT_MOST_ROWS tokens, or there are more than 2^30 groups. */
bool nh_short_shape_of(const struct nh_problem *problem, int64_t rows,
                       struct nh_short_shape *shape);

/* Whether offsets of tokens inside a batch entry fit 32 bits. */
bool nh_short_offsets_fit(const struct nh_problem *problem);

/* The forward pass has a work tile for each query head and each part; the backward pass has blocks for the parts. */
int64_t nh_short_work_tiles(const struct nh_short_launch *of);

/* Sets the members that are not for cuda.short90 only. Fails with UNSUPPORTED if there are more than 2^30 work tiles. */
nhood_status nh_short_tiling(const struct nh_short_launch *of, struct nh_short_tiling *tiling);

/* Defines the macros of short.cuh but NH_WARPS and NH_MIN_BLOCKS. */
void nh_short_define(const struct nh_short_launch *of, struct nh_kernel_spec *spec);

#endif
