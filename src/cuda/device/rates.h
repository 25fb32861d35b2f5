/* Published rates of a GPU's parts (arch.def), and how many blocks a multiprocessor has room for. */
#ifndef NH_RATES_H
#define NH_RATES_H

#include "cuda.h"

/* Registers of 32 bits per multiprocessor, the same in every supported architecture. */
enum { NH_CUDA_REGISTERS = 65536 };

/* The most blocks with that much shared memory resident on a multiprocessor; 0: one needs more than there is. */
int64_t nh_cuda_residents_by_shared(const struct nh_cuda_device *device, int64_t shared_bytes);

/* The peak multiply-adds per clock of a multiprocessor's tensor cores, by wgmma (`warpgroups`) or mma.sync. TF32 has
 * half the rate of 16 bits; full f32 is three products of TF32 parts, so a sixth. */
double nh_cuda_products_per_clock(const struct nh_problem *problem,
                                  const struct nh_cuda_device *device, bool warpgroups);

/* Clocks that a multiprocessor takes, at the published rates, for bytes from the L2, for exponentials (16 a clock by
 * the throughput table of the CUDA programming guide), and for instructions, counted per lane (128 lanes a clock). */
double nh_cuda_l2_clocks(const struct nh_cuda_device *device, double bytes);
static inline double nh_cuda_exp_clocks(double exponentials) {
    return exponentials / 16;
}
static inline double nh_cuda_lane_clocks(double instructions) {
    return instructions / 128;
}

static inline double nh_cuda_clocks_ns(const struct nh_cuda_device *device, double clocks) {
    return 1e9 * clocks / device->clock_hz;
}

#endif
