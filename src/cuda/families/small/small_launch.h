/* One kernel of cuda.small with its boxes: what it needs of a device, and its predicted time. */
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
    /* warps that compute; with stages there are producer warps besides */
    int32_t warps;
    /* stages of the pipeline that the copy engine fills; 0: threads copy */
    int32_t stages;
    /* threads copy keys and values to the same place, one after the other */
    bool turns;
    /* work tiles whose part of a rolling halo may be in use (NH_HELD), one less at the ends of chains; without a
     * rolling halo, the number of stages */
    int32_t held;
    struct nh_small_shape shape;
};

/* Producer warps, which ask the copy engine: enough to prepare a work tile in less time than the others compute one. */
int32_t nh_small_fetchers(const struct nh_small_launch *launch);

/* The smallest scale that the kernels take: the backward pass divides LSE by it, and a smaller one would also shrink
 * the additive mask until it hides nothing. */
#define NH_SMALL_LEAST_SCALE 1e-30

/* How scores are masked by an additional product: the values of NH_ADDITIVE_MASK in small_additive_mask.cuh. */
enum { NH_SMALL_NO_ADDITIVE_MASK, NH_SMALL_BY_STARTS, NH_SMALL_BY_COORDINATES, NH_SMALL_BY_KINDS };
int nh_small_additive_mask(const struct nh_small_launch *launch);

/* Whether scores are masked by bits. */
bool nh_small_masks_by_bits(const struct nh_small_launch *launch);

/* The share of registers that a block's threads lack and the compiler therefore spills. */
double nh_small_spilled(const struct nh_small_launch *launch);

/* Whether the copy engine goes around periodic axes by fetching halos line by line (NH_SEAM_LINES, small_seam.cuh);
 * otherwise warps copy what is beyond a seam. */
bool nh_small_fetches_lines(const struct nh_small_launch *launch);

int64_t nh_small_shared_bytes(const struct nh_small_launch *launch);

/* Blocks that are resident on a multiprocessor; 0: not even one fits. */
int64_t nh_small_residents(const struct nh_small_launch *launch);

/* Adds the work of the launch; false: not even one block fits. */
bool nh_small_add_work(const struct nh_small_launch *launch, struct nh_work *work);

/* Predicted nanoseconds of the launch alone, or INFINITY. */
double nh_small_launch_ns(const struct nh_small_launch *launch);

#endif
