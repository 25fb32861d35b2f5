/* One kernel of cuda.small with its boxes: what it needs of a device, and how long it takes. */
#ifndef NH_SMALL_LAUNCH_H
#define NH_SMALL_LAUNCH_H

#include "small_shape.h"
#include "work.h"

enum nh_small_kernel { NH_SMALL_FORWARD, NH_SMALL_BACKWARD_QUERY, NH_SMALL_BACKWARD_KEY };

struct nh_small_launch {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    enum nh_small_kernel kernel;
    bool keys; /* blocks own keys and loop over queries, else the other way round */
    /* that multiply; with stages, others fetch */
    int32_t warps;
    /* of the copy engine; 0: threads copy */
    int32_t stages;
    /* threads copy keys and values to the same place, one after the other */
    bool turns;
    /* work tiles whose part of a halo that rolls may be in use, at the ends of chains one less; else as many as
     * stages */
    int32_t held;
    struct nh_small_shape shape;
};

/* Warps that fetch by the copy engine: a work tile is prepared in less time than the others need for it. */
int32_t nh_small_fetchers(const struct nh_small_launch *launch);

/* The least size of a scale: the backward pass divides LSE by it, and with less an additive mask would be a small
 * number. */
#define NH_SMALL_LEAST_SCALE 1e-30

/* Which product can mask, as NH_ADDITIVE_MASK in small_additive_mask.cuh. */
enum { NH_SMALL_NO_ADDITIVE_MASK, NH_SMALL_BY_STARTS, NH_SMALL_BY_COORDINATES, NH_SMALL_BY_KINDS };
int nh_small_additive_mask(const struct nh_small_launch *launch);

/* Whether every block of columns is masked by bits. */
bool nh_small_masks_by_bits(const struct nh_small_launch *launch);

/* The share of registers that threads of a block lack: the compiler spills them. */
double nh_small_spilled(const struct nh_small_launch *launch);

/* Whether the copy engine goes around periodic axes, a line of a halo at a time (NH_SEAM_LINES, small_seam.cuh): else
 * warps copy what is beyond a seam. */
bool nh_small_fetches_lines(const struct nh_small_launch *launch);

int64_t nh_small_shared_bytes(const struct nh_small_launch *launch);

/* Blocks that share a multiprocessor; 0: not even one fits. */
int64_t nh_small_residents(const struct nh_small_launch *launch);

/* Adds the launch; false: not even one block fits. */
bool nh_small_add_work(const struct nh_small_launch *launch, struct nh_work *work);

/* Nanoseconds of a launch, when no other is under way. */
double nh_small_launch_ns(const struct nh_small_launch *launch);

#endif
