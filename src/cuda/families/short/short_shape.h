/* How cuda.short cuts a problem into work tiles of whole dilation groups (short.cuh). */
#ifndef NH_SHORT_SHAPE_H
#define NH_SHORT_SHAPE_H

#include "short_args.h"
#include "kernel_cache.h"
#include "problem.h"

/* What the kernels can count. */
enum { NH_SHORT_MOST_ROWS = 1024 };

/* The knobs of cuda.short. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "short_knobs.def"
#undef KNOB
};
extern const struct nh_knob nh_short_knobs[];

/* How groups are numbered, NH_GROUPS of the kernels: key heads, residues and batch entries, if they are equally long or not; or
 * key heads and batch entries of one residue after those of another, in as many rows as there are tokens or as the
 * longest group has. */
enum nh_short_order { NH_SHORT_UNEVEN, NH_SHORT_EVEN, NH_SHORT_BY_RESIDUE, NH_SHORT_BOXES };

struct nh_short_shape {
    enum nh_short_order order;
    /* tokens of the longest dilation group per axis, and in all */
    int32_t extent[NH_AXES];
    int64_t group_tokens;
    /* what a query sees are consecutive rows */
    bool contiguous;
    /* of a work tile; rows are multiples of 16 */
    int64_t groups, rows;
    /* groups that are numbered together, and work tiles that they make; work tiles of the problem, by key heads */
    int64_t total, chunks, work_tiles;
    /* rows that 16 queries meet, on average; and what share of a work tile's rows is there, and has tokens */
    double columns, rows_share, tokens_share;
};

/* A config, and the work tiles that it makes of a problem. */
struct nh_short_launch {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    const struct nh_short_shape *shape;
    const int32_t *value;
};

/* The longest dilation group's tokens. */
int64_t nh_short_group_tokens(const struct nh_problem *problem);

/* As many groups per work tile as `rows` hold, but no more than there are. False where one takes more than
 * NH_SHORT_MOST_ROWS, or where work tiles are too many to count. */
bool nh_short_shape_of(const struct nh_problem *problem, int64_t rows,
                       struct nh_short_shape *shape);

/* Offsets of tokens inside a batch entry are 32 bits. */
bool nh_short_offsets_fit(const struct nh_problem *problem);

/* parts: blocks that share a work tile. */
void nh_short_tiling(const struct nh_problem *problem, const struct nh_short_shape *shape,
                     int64_t parts, struct nh_short_tiling *tiling);

/* The forward pass: of each query head its own work tile, and of each part. UNSUPPORTED: they are too many to count. */
int64_t nh_short_forward_work_tiles(const struct nh_problem *problem,
                                    const struct nh_short_shape *shape, int64_t parts);
nhood_status nh_short_forward_tiling(const struct nh_problem *problem,
                                     const struct nh_short_shape *shape, int64_t parts,
                                     struct nh_short_tiling *tiling);

/* Bytes of a row of `width` elements in shared memory, and accumulators of its sums, of 8 elements each. */
int64_t nh_short_row_bytes(const struct nh_problem *problem, int64_t width);
int64_t nh_short_sums(const struct nh_problem *problem, int64_t width);

/* The groups of a work tile, which know where `origins` tensors begin. */
int64_t nh_short_group_bytes(const struct nh_short_shape *shape, int64_t origins);

/* The macros of short.cuh but NH_WARPS and NH_MIN_BLOCKS. */
void nh_short_define(const struct nh_problem *problem, const struct nh_short_shape *shape,
                     struct nh_kernel_spec *spec);

#endif
