/* The boxes of the small-window kernels (small.cuh) on a problem, and what they need of a device. */
#ifndef NH_SMALL_SHAPE_H
#define NH_SMALL_SHAPE_H

#include "cuda.h"
#include "problem.h"

/* Where masks are bits, 32 of a thread are 16 blocks. */
enum { NH_SMALL_CHUNK_BLOCKS = 16 };

/* keys: rows are keys and columns queries, else the other way round. */
struct nh_small_shape {
    /* rows of a work tile and of a warp tile; columns that a warp tile and a work tile see, at most */
    int32_t rows[NH_AXES], warp_tile[NH_AXES], columns[NH_AXES], halo[NH_AXES];
    /* every row sees all columns of its warp tile */
    bool dense;
    /* of a halo that rolls along the first axis (small_roll.cuh), each with as many positions as a work tile has rows
     * there, which `halo` then counts; 0: a work tile's halo is fetched as a whole */
    int32_t slots;
    /* with NH_REGIONS, of a chain: positions of its slots before its first row, and how many slots it has more of than
     * work tiles; either may be less than 0 */
    int32_t lines_before, slots_around;
    /* in shared memory; of the halo: all slots, what is fetched at a time */
    int64_t halo_rows, fetched_rows, work_tile_rows;
    /* blocks of 8 columns that a warp tile multiplies */
    int64_t blocks;
    /* of which a chunk, whose pairs the compiler unrolls, has so many at most: NH_CHUNK_BLOCKS of the kernels */
    int32_t chunk_blocks;
    /* pairs of such blocks that every warp tile multiplies, however few its rows see: no less than away from borders */
    int64_t least_pairs;
    /* of the whole problem, per batch entry and head */
    double work_tiles, warp_tiles;
};

/* boxes: the copy engine fetches halos, which then have no gaps: columns are added to lines, and lines to planes, until
 * consecutive columns of a warp tile are consecutive rows modulo 8. False if a halo is larger than any shared memory. */
bool nh_small_shape_of(const struct nh_problem *problem, bool keys, const int32_t *work_tile,
                       const int32_t *warp_tile, bool boxes, struct nh_small_shape *shape);

/* Whether tensors do not cover the grid, or an axis is periodic: NH_REGIONS of the kernels. */
static inline bool nh_small_has_region(const struct nh_problem *problem) {
    return nh_problem_partial(problem) || nh_problem_periodic(problem);
}

/* Whether every query sees as many keys as its window has, all of them in the tensors. */
bool nh_small_sees_windows(const struct nh_axis *axis);

/* Columns of the row at a position of a dilation group in the grid. */
struct nh_range nh_small_columns_of(const struct nh_axis *axis, bool keys, int64_t length,
                                    int64_t position);

/* Between the borders ranges repeat: a group as long as both borders and two periods has every pattern. */
int64_t nh_small_representative_length(const struct nh_axis *axis, int64_t length, int64_t tile);

/* Steps of tensor cores over a row of `width` elements, and its bytes in shared memory. */
int64_t nh_small_steps(const struct nh_problem *problem, int64_t width);
int64_t nh_small_row_bytes(const struct nh_problem *problem, int64_t width);

/* Columns of a warp tile with those that fill up its last matrix loads. */
int64_t nh_small_columns(const struct nh_small_shape *shape);

/* Tables and `tile infos` work tiles, with what their rows see, as bits if they mask, and a bias, beside the rows; no
 * less than what the kernels take. */
int64_t nh_small_table_bytes(const struct nh_problem *problem, const struct nh_small_shape *shape,
                             bool keys, bool bits, int64_t infos);

#endif
