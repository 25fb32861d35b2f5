/* What an operation asks of a device: all that a family says about the time of a config, and all that predict.c sees.
 * Quantities are counted, not fitted, and none is a time. */
#ifndef NH_WORK_H
#define NH_WORK_H

#include "cuda.h"

/* Kinds of work of a thread block. Each is measured in clocks that it takes a multiprocessor at the published rates of
 * device/rates.h, unless something else is said. */
enum nh_work_unit {
    NH_WORK_TENSOR, /* products on tensor cores */
    NH_WORK_EXP,    /* exponentials, one per logit */
    NH_WORK_SHARED, /* operands read from shared memory, 128 bytes a clock */
    NH_WORK_L2,     /* bytes from the L2 */
    NH_WORK_COPY,   /* copies of 16 bytes by threads, one instruction each */
    NH_WORK_MASK,   /* logits that are masked, one instruction each */
    NH_WORK_LINE,   /* logits of lines that are masked as a whole */
    NH_WORK_IDLE,   /* logits of tiles that some warps skip while others multiply */
    NH_WORK_VECTOR, /* other instructions per element */
    NH_WORK_STEP,   /* steps of the pipeline, that is, of the loop from one key tile to the next */
    NH_WORK_TILE,   /* warp tiles of 16 rows, counted */
    NH_WORK_BLOCK,  /* 1, or a count of what a block sets up */
    NH_WORK_INDEX,  /* a count of index computations: of axes, groups or rows */
    NH_WORK_REDUCE, /* elements that blocks of a cluster, or warps that share rows, add up: a count */
    NH_WORK_SPILL, /* products at the highest rate, times the share of registers that is missing */
    NH_WORK_WAIT, /* bytes from the L2 during which the block has nothing else to do, divided by its residents */
    NH_WORK_UNITS
};

/* The kinds of kernels and operations that the table of coefficients has. */
enum nh_kernel_kind {
#define NH_KERNEL(name, ...) NH_KERNEL_##name,
#define NH_PIPELINE(name, ...)
#define NH_OPERATION(name, ...)
#include "h200.def"
    NH_KERNEL_KINDS
};
enum nh_operation_kind {
#define NH_KERNEL(name, ...)
#define NH_PIPELINE(name, ...)
#define NH_OPERATION(name, ...) NH_OPERATION_##name,
#include "h200.def"
    NH_OPERATION_KINDS
};

/* One launch. Quantities of a block are means over all blocks; a persistent block counts as one block per work tile. */
struct nh_launch_work {
    enum nh_kernel_kind kernel;
    double blocks;    /* work tiles */
    double residents; /* blocks that are resident on a multiprocessor */
    double warps;     /* warps of a block that compute */
    double in_flight; /* work tiles that a multiprocessor works on at a time */
    double steps;     /* steps of the pipeline of a work tile, one after the other */
    double longest;   /* steps of the longest work tile, relative to those of the mean one */
    double serial;    /* the share of a work tile that its busiest warp computes */
    double
        fetchers; /* producer warps of a multiprocessor; 0: threads copy instead of the copy engine */
    double boxes; /* boxes that a producer warp asks for per work tile */
    double code;  /* instructions of the first tile, which are fetched before they first run */
    double unit[NH_WORK_UNITS];
    /* Over all blocks: pairs of an owned tile and a loop tile, and of these those with a mask; then logits of a pair,
     * and floating-point operations of all products. All are 0 if the kernel has no loop over tiles. */
    double tiles, masked_tiles, scores, flops;
};

enum { NH_MOST_LAUNCHES = 12 };
struct nh_work {
    enum nh_operation_kind operation;
    bool overlaps;         /* launches run concurrently as far as there is room */
    int launches, helpers; /* helpers: short launches that prepare or finish, beside those below */
    double bytes, helper_bytes; /* compulsory memory traffic, and that of helpers */
    struct nh_launch_work launch[NH_MOST_LAUNCHES];
};

/* Starts the work of an operation without launches; its bytes are the problem's. */
void nh_work_start(struct nh_work *work, enum nh_operation_kind operation,
                   const struct nh_problem *problem);

/* Adds a launch, at most NH_MOST_LAUNCHES: all quantities are 0, but one resident block, one warp and one step. */
struct nh_launch_work *nh_work_add(struct nh_work *work, enum nh_kernel_kind kernel);

#endif
