/* What an operation asks of a device: the one thing that a family says about the time of a config, and all that
 * predict.c sees. Quantities are counted, not fitted; nothing here is a time. */
#ifndef NH_WORK_H
#define NH_WORK_H

#include "cuda.h"

/* Kinds of work of a thread block, each in clocks that it takes a multiprocessor at the rates of device/rates.h, or
 * in whatever else is said. */
enum nh_work_unit {
    NH_WORK_TENSOR, /* products on tensor cores, at their highest rate */
    NH_WORK_EXP,    /* exponentials, one per logit */
    NH_WORK_SHARED, /* operands read from shared memory, 128 bytes a clock */
    NH_WORK_L2,     /* bytes that the L2 brings */
    NH_WORK_COPY,   /* copies of 16 bytes by threads, an instruction each */
    NH_WORK_MASK,   /* logits that are masked, an instruction each */
    NH_WORK_LINE,   /* logits of lines that are masked as a whole */
    NH_WORK_IDLE,   /* logits of tiles that some warps pass over while others multiply */
    NH_WORK_VECTOR, /* other instructions per element */
    NH_WORK_STEP,   /* steps of the pipeline: turns from one key tile to the next */
    NH_WORK_TILE,   /* warp tiles of 16 rows, counted */
    NH_WORK_BLOCK,  /* 1, or what a block sets up, counted */
    NH_WORK_INDEX,  /* index arithmetic: axes, groups or rows, counted */
    NH_WORK_REDUCE, /* elements that blocks of a cluster, or warps that share rows, add up */
    NH_WORK_SPILL,  /* products at the highest rate, times the share of registers that is lacking */
    NH_WORK_WAIT, /* bytes that the L2 brings while nothing of the block's own goes on, per block of a multiprocessor */
    NH_WORK_UNITS
};

/* Kernels that the table of coefficients knows. */
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

/* One launch. Of a block and of what it does, means over all blocks. Blocks that stay and take one work tile after the other
 * (persistent ones) count as one per work tile. */
struct nh_launch_work {
    enum nh_kernel_kind kernel;
    double blocks;    /* work tiles */
    double residents; /* blocks that share a multiprocessor */
    double warps;     /* of a block, that compute */
    double in_flight; /* work tiles that a multiprocessor has begun and not finished, at most */
    double steps;     /* of the pipeline, one after the other */
    double longest;   /* steps of the longest work tile, in those of the mean one */
    double serial;    /* the share of a work tile that its busiest warp has */
    double fetchers;  /* warps of a multiprocessor that ask the copy engine; 0: threads copy */
    double boxes;     /* that such a warp asks for, per work tile */
    double code;      /* instructions of the first tile, each of which is fetched before it runs */
    double unit[NH_WORK_UNITS];
    /* pairs of a tile that a block owns with one of its loop, over all blocks; of these, masked ones; logits of a pair,
     * and operations of all products; 0 where there is no loop over tiles */
    double tiles, masked_tiles, scores, flops;
};

enum { NH_MOST_LAUNCHES = 6 };
struct nh_work {
    enum nh_operation_kind operation;
    bool overlaps;         /* launches run side by side as far as there is room */
    int launches, helpers; /* helpers: short launches that prepare or finish, beside those below */
    double bytes, helper_bytes; /* moved to or from memory at least; by helpers alone */
    struct nh_launch_work launch[NH_MOST_LAUNCHES];
};

/* Starts with no launches. */
void nh_work_start(struct nh_work *work, enum nh_operation_kind operation,
                   const struct nh_problem *problem);

/* The next launch, of one block at a time with one warp and one step. */
struct nh_launch_work *nh_work_add(struct nh_work *work, enum nh_kernel_kind kernel);

#endif
