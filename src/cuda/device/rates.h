/* What the parts of a GPU do in a clock, by published numbers (arch.def), and what a multiprocessor has room for. */
#ifndef NH_RATES_H
#define NH_RATES_H

#include "cuda.h"

/* Registers of a multiprocessor, the same in every architecture here. */
enum { NH_CUDA_REGISTERS = 65536 };

/* Blocks with so much shared memory that a multiprocessor holds; 0: it does not hold one. */
int64_t nh_cuda_residents_by_shared(const struct nh_cuda_device *device, int64_t shared_bytes);

/* Multiply-adds that a multiprocessor's tensor cores make in a clock at most. `warpgroups`: by sm_90's products. f32 is
 * multiplied in three products of parts at half the rate. */
double nh_cuda_products_per_clock(const struct nh_problem *problem,
                                  const struct nh_cuda_device *device, bool warpgroups);

/* Clocks of a multiprocessor for bytes from the L2; for exponentials, by the throughput table of the CUDA programming
 * guide; and for instructions of single lanes. */
double nh_cuda_l2_clocks(const struct nh_cuda_device *device, double bytes);
double nh_cuda_exp_clocks(double exponentials);
double nh_cuda_lane_clocks(double instructions);

/* The device's time for so many clocks of each of its multiprocessors. */
double nh_cuda_clocks_ns(const struct nh_cuda_device *device, double clocks);

#endif
