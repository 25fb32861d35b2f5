/* How cuda.short and cuda.short90 cut a problem into work tiles of whole dilation groups (short.cuh). */
#ifndef NH_SHORT_SHAPE_H
#define NH_SHORT_SHAPE_H

#include "kernel_cache.h"
#include "problem.h"
#include "short_config.h"

/* The most rows of a work tile: fields of nh_visibility and nh_ratio in short.cuh have no room for more. */
enum { NH_SHORT_MOST_ROWS = 1024 };

struct nh_short_shape {
    enum short_order order;
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

/* A config on a problem: the kernel, and its work tiles. */
struct nh_short_launch {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    const struct nh_short_shape *shape;
    struct short_config config;
    struct nh_short_tiling tiling;
    int64_t tiles; /* warp tiles of 16 rows that a block computes per work tile */
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

/* The forward pass has a work tile for each query head and each part; the backward pass has blocks for the parts. Their
 * number in a launch's tiling is exact if nh_short_check succeeds. */
int64_t nh_short_work_tiles(const struct nh_short_launch *of);

/* What the problem and its shape say of a kernel, and of a launch in which so many blocks share a work tile. */
struct short_config nh_short_config(const struct nh_problem *problem,
                                    const struct nh_short_shape *shape, enum short_pass pass);
struct nh_short_tiling nh_short_tiling_of(const struct nh_problem *problem,
                                          const struct nh_short_shape *shape, int32_t parts);

/* Fails with UNSUPPORTED if there are more than 2^30 work tiles. */
nhood_status nh_short_check(const struct nh_short_launch *of);

/* The launch's kernel and what it is compiled with. */
struct nh_kernel_spec nh_short_spec(const struct nh_short_launch *of);

#endif
