/* A launch of cuda.small: one kernel with its boxes on a problem, and what it asks of a device. */
#ifndef NH_SMALL_LAUNCH_H
#define NH_SMALL_LAUNCH_H

#include "solver.h"
#include "work.h"

#include <string.h>

enum {
#define KNOB NH_KNOB_AS_INDEX
#include "small_knobs.def"
#undef KNOB
};

/* A value of the knob `stages`: threads copy keys and values to the same place, one after the other. */
enum { NH_SMALL_IN_TURNS = -1 };

/* The smallest scale that the kernels take: the backward pass divides LSE by it, and a smaller one would also shrink
 * the additive mask until it hides nothing. */
#define NH_SMALL_LEAST_SCALE 1e-30

/* Blocks of 8 columns in a chunk: if masks are bits, a thread's 32 bits cover 16 blocks. */
enum { NH_SMALL_CHUNK_BLOCKS = 16 };

/* The statistics of a head and query: -LSE in base 2 and delta, see small_statistics.cuh. */
enum { NH_SMALL_STATISTICS_BYTES = 16 };

enum nh_small_kernel { NH_SMALL_FORWARD, NH_SMALL_BACKWARD_QUERY, NH_SMALL_BACKWARD_KEY };

struct nh_small_launch {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    enum nh_small_kernel kernel;
    bool keys; /* rows are keys and columns queries, else the other way round; blocks own rows */
    int32_t warps;  /* that compute; with stages there are producer warps besides */
    int32_t stages; /* of the pipeline that the copy engine fills; 0: threads copy */
    bool turns;     /* threads copy keys and values to the same place, one after the other */

    /* Set by nh_small_set_shape: extents of a work tile and of a warp tile in rows; the most columns that a warp tile,
     * and a work tile, sees. */
    int32_t rows[NH_AXES], warp_tile[NH_AXES], columns[NH_AXES], halo[NH_AXES];
    /* rows by which work tiles begin before the first row, where that lets their warp tiles see fewer columns */
    int32_t shift[NH_AXES];
    bool dense; /* every row sees all columns of its warp tile */
    /* rows in shared memory: of all slots or of the halo, of what is fetched at a time, and of a work tile */
    int64_t halo_rows, fetched_rows, work_tile_rows;
    /* blocks of 8 columns that a warp tile multiplies, and the most of them per chunk, whose pairs the compiler unrolls */
    int64_t blocks;
    int32_t chunk_blocks;
    /* pairs of blocks that every warp tile multiplies, however few its rows see: as many as away from borders */
    int64_t least_pairs;
    double work_tiles, warp_tiles; /* of the whole problem, per batch entry and head */
    int additive_mask; /* the product that masks scores: NO_ADDITIVE_MASK .. in small_work.c */
    bool bits;         /* scores are masked by bits */

    /* Set by nh_small_roll: the number of slots of a halo that rolls along the first axis (small_roll.cuh); 0: each halo
     * is fetched as a whole. A slot has as many positions there as a work tile has rows, and `halo` then counts those of
     * one slot. */
    int32_t slots;
    bool plane_chunks; /* each chunk is a plane of the box */
    /* With NH_REGIONS, of a chain: positions of its slots before its first row, and how many more slots it has than
     * work tiles. Either may be negative. */
    int32_t lines_before, slots_around;
    /* work tiles whose part of a rolling halo may be in use , one less at the ends of chains; without a
     * rolling halo, the number of stages */
    int32_t held;
    /* producer warps, which ask the copy engine: enough to prepare a work tile in less time than the others compute one */
    int32_t fetchers;
};

/* Whether tensors do not cover the grid, or an axis is periodic: NH_REGIONS of the kernels. */
static inline bool nh_small_has_region(const struct nh_problem *problem) {
    return nh_problem_partial(problem) || nh_problem_periodic(problem);
}

/* Whether a work tile is one plane of a volume; these are for halos that roll only, whose slots are then planes of one
 * position each (small_roll.cuh). */
static inline bool nh_small_is_plane(const struct nh_problem *problem, const int32_t *work_tile) {
    return problem->rank == 3 && work_tile[0] == 1;
}

/* The extents of the work tile of two planes, a pair, and whether a work tile is that one; it is for halos that roll,
 * too. */
#define NH_SMALL_PAIR 2, 8, 4
static inline bool nh_small_is_pair(const int32_t *work_tile) {
    const int32_t pair[NH_AXES] = {NH_SMALL_PAIR};
    return !memcmp(work_tile, pair, sizeof pair);
}

/* Whether work tiles of this shape are considered only if their halos roll. */
static inline bool nh_small_must_roll(const struct nh_problem *problem, const int32_t *work_tile) {
    return nh_small_is_plane(problem, work_tile) || nh_small_is_pair(work_tile);
}

/* ---- small_shape.c ---- */

/* Sets the boxes; false if the halo exceeds any shared memory. With stages the copy engine fetches halos, which then
 * can have no gaps: instead, columns are added to lines, and lines to planes, until consecutive columns of a warp
 * tile's box are consecutive rows modulo 8. */
bool nh_small_set_shape(struct nh_small_launch *launch, const int32_t *work_tile,
                        const int32_t *warp_tile);

/* Whether every query sees a full window of keys along the axis, all of which are in the tensors. */
bool nh_small_sees_windows(const struct nh_axis *axis);

/* Makes the halo of a launch with stages roll, if it can, and sets the producer warps. */
void nh_small_roll(struct nh_small_launch *launch);

/* ---- small_work.c ---- */

/* Bytes of a row of `width` elements in shared memory. */
int64_t nh_small_row_bytes(const struct nh_problem *problem, int64_t width);

/* Sets how scores are masked: `additive_mask` and `bits`. The functions of small_shape.c call it. */
void nh_small_set_masks(struct nh_small_launch *launch);

/* Sets the box of columns whose statistics are fetched at a time, and returns their places in shared memory. A slot's
 * lines are even in length, as boxes have to start at multiples of 128 bytes. */
int64_t nh_small_statistics_box(const struct nh_small_launch *launch, int32_t *box);

int64_t nh_small_shared_bytes(const struct nh_small_launch *launch);

/* Blocks that are resident on a multiprocessor; 0: not even one fits. */
int64_t nh_small_residents(const struct nh_small_launch *launch);

/* Sets the producer warps if planes of the backward roll; the number of other warps is known. */
void nh_small_set_fetchers(struct nh_small_launch *launch);

/* Adds the work of the launch; false: not even one block fits. */
bool nh_small_add_work(const struct nh_small_launch *launch, struct nh_work *work);

/* ---- small_choice.c ---- */

/* `candidates` of the solver: the launches that are worth trying, as configs. Returns 0 if nothing fits. */
int nh_small_candidates(const struct nh_problem *problem, const struct nh_device *device,
                        double below_ns, struct nh_config *config, int capacity);

#endif
