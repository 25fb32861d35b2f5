/* The boxes of the small-window kernels (small.cuh) on a problem, and what they take of shared memory. */
#ifndef NH_SMALL_SHAPE_H
#define NH_SMALL_SHAPE_H

#include "cuda.h"
#include "problem.h"

/* Blocks of 8 columns in a chunk: if masks are bits, a thread's 32 bits cover 16 blocks. */
enum { NH_SMALL_CHUNK_BLOCKS = 16 };

/* keys: rows are keys and columns queries, else the other way round. */
struct nh_small_shape {
    /* Extents of a work tile and of a warp tile in rows; the most columns that a warp tile, and a work tile, sees. */
    int32_t rows[NH_AXES], warp_tile[NH_AXES], columns[NH_AXES], halo[NH_AXES];
    /* every row sees all columns of its warp tile */
    bool dense;
    /* The number of slots of a halo that rolls along the first axis (small_roll.cuh); 0: each halo is fetched as a
     * whole. A slot has as many positions there as a work tile has rows, and `halo` then counts those of one slot. */
    int32_t slots;
    /* With NH_REGIONS, of a chain: positions of its slots before its first row, and how many more slots it has than
     * work tiles. Either may be negative. */
    int32_t lines_before, slots_around;
    /* rows in shared memory: of all slots or of the halo, of what is fetched at a time, and of a work tile */
    int64_t halo_rows, fetched_rows, work_tile_rows;
    /* blocks of 8 columns that a warp tile multiplies */
    int64_t blocks;
    /* the most of these blocks per chunk, whose pairs the compiler unrolls: NH_CHUNK_BLOCKS of the kernels */
    int32_t chunk_blocks;
    /* pairs of blocks that every warp tile multiplies, however few its rows see: as many as away from borders */
    int64_t least_pairs;
    /* tiles of the whole problem, per batch entry and head */
    double work_tiles, warp_tiles;
};

/* Sets a shape; false if its halo exceeds any shared memory. boxes: the copy engine fetches halos, which then can have
 * no gaps: instead, columns are added to lines, and lines to planes, until consecutive columns of a warp tile's box are
 * consecutive rows modulo 8. */
bool nh_small_shape_of(const struct nh_problem *problem, bool keys, const int32_t *work_tile,
                       const int32_t *warp_tile, bool boxes, struct nh_small_shape *shape);

/* Whether tensors do not cover the grid, or an axis is periodic: NH_REGIONS of the kernels. */
static inline bool nh_small_has_region(const struct nh_problem *problem) {
    return nh_problem_partial(problem) || nh_problem_periodic(problem);
}

/* Whether every query sees a full window of keys along the axis, all of which are in the tensors. */
bool nh_small_sees_windows(const struct nh_axis *axis);

/* The columns that the row at a position of a dilation group sees in the whole grid. */
struct nh_range nh_small_columns_of(const struct nh_axis *axis, bool keys, int64_t length,
                                    int64_t position);

/* A shorter length that has the same patterns: away from borders, what rows see repeats, so that a group as long as
 * both borders and two periods is enough. */
int64_t nh_small_representative_length(const struct nh_axis *axis, int64_t length, int64_t tile);

/* Steps of tensor core products over a row of `width` elements, and the row's bytes in shared memory. */
int64_t nh_small_steps(const struct nh_problem *problem, int64_t width);
int64_t nh_small_row_bytes(const struct nh_problem *problem, int64_t width);

/* Columns of a warp tile's box, rounded up to whole matrix loads in every chunk. */
int64_t nh_small_columns(const struct nh_small_shape *shape);

/* An upper bound of the shared memory for tables and `infos` tile infos, which say where a work tile is, what its rows
 * see (with `bits`, as masks) and its bias. */
int64_t nh_small_table_bytes(const struct nh_problem *problem, const struct nh_small_shape *shape,
                             bool keys, bool bits, int64_t infos);

#endif
