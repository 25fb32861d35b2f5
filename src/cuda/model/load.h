/* What tiled launches ask of the parts of a GPU, and how long each part alone would take: what all estimates of tiled
 * solvers are made of. */
#ifndef NH_LOAD_H
#define NH_LOAD_H

#include "cuda.h"

/* Of a multiprocessor, in every architecture there is. */
enum { NH_CUDA_REGISTERS = 65536 };

/* Blocks with so much shared memory that a multiprocessor holds; 0: it does not hold one. */
int64_t nh_cuda_residents_by_shared(const struct nh_cuda_device *device, int64_t shared_bytes);

/* Multiply-adds that a multiprocessor's tensor cores make in a clock at most. `warpgroups`: by sm_90's products. */
double nh_cuda_products_per_clock(const struct nh_problem *problem,
                                  const struct nh_cuda_device *device, bool warpgroups);

/* Over all blocks of a launch. */
struct nh_cuda_load {
    double tiles, masked_tiles;
    /* logits of a tile, each with an exponential; multiply-adds of a tile */
    double scores, products;
    /* that a tile brings to a multiprocessor; and that blocks bring besides */
    double tile_bytes, bytes;
    double products_per_clock;
};

/* Adds a launch to what an operation's launches ask for; returns that launch's own share. */
struct nh_count nh_cuda_count_load(const struct nh_cuda_device *device,
                                   const struct nh_cuda_load *load, struct nh_count *count);

/* What blocks take that go from item to item: `busy` of a full device, and the end, when ever fewer have one. longest: of
 * one item. */
double nh_cuda_ending(double busy, double longest);

/* Clocks until the first tiles of a launch by products of 16 rows have their code, in which a warp's products stand one by
 * one. */
double nh_cuda_first_clocks(const struct nh_problem *problem, const struct nh_cuda_load *load,
                            double warps);

/* Every tensor of the problem moved once. */
double nh_cuda_memory_ns(const struct nh_problem *problem, const struct nh_cuda_device *device);

/* The device's time for so many clocks of each of its multiprocessors. */
double nh_cuda_clocks_ns(const struct nh_cuda_device *device, double clocks);

#endif
