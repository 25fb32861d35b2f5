#include "load.h"

#include <math.h>

/* Per clock of a multiprocessor. Tensor cores: NVIDIA's white papers of GA100, GA102, AD102 and GH100; mma.sync on sm_90
 * reaches 63 % of wgmma's rate (measured on an H200). Exponentials: the throughput table of the CUDA programming guide.
 * A mask is at least one instruction per logit and lane. L2: 5,120 bytes for 108 multiprocessors by GA100's white
 * paper; on an H200 no kernel of ours got more than 32. */
enum { EXPONENTIALS = 16, LANES = 128 };

double nh_cuda_products_per_clock(const struct nh_problem *problem,
                                  const struct nh_cuda_device *device, bool warpgroups) {
    double products = device->arch == 80  ? 1024
                      : device->arch < 90 ? 512
                      : warpgroups        ? 2048
                                          : 1300;
    if (problem->dtype == NHOOD_DTYPE_F32)
        products /= problem->flags & NHOOD_FLAG_ALLOW_TF32 ? 2 : 6;
    return products;
}

static double l2_bytes_per_clock(const struct nh_cuda_device *device) {
    return device->arch == 80 ? 5120 / 108.0 : 32;
}

/* Fitted on an H200 to cuda.joint90 and cuda.split90 alike. */
double nh_cuda_ending(double busy, double longest) {
    return fmax(busy + longest / 2, longest);
}

/* Fitted on an H200 to cuda.fused80 and cuda.split80 alike. */
double nh_cuda_first_clocks(const struct nh_problem *problem, const struct nh_cuda_load *load,
                            double warps) {
    const double product_clocks = 28;
    double depth = problem->dtype == NHOOD_DTYPE_F32 ? 8 / 3.0 : 16; /* of a product */
    return product_clocks * load->products / (16 * 8 * depth * warps);
}

double nh_cuda_clocks_ns(const struct nh_cuda_device *device, double clocks) {
    return 1e9 * clocks / device->clock_hz;
}

int64_t nh_cuda_residents_by_shared(const struct nh_cuda_device *device, int64_t shared_bytes) {
    enum { RESERVED_BYTES = 1024 }; /* per block, by the driver */
    if (shared_bytes > device->shared_bytes_per_block) return 0;
    return device->shared_bytes_per_multiprocessor / (shared_bytes + RESERVED_BYTES);
}

double nh_cuda_memory_ns(const struct nh_problem *problem, const struct nh_cuda_device *device) {
    return 1e9 * problem->bytes / device->memory_bytes_per_s;
}

struct nh_count nh_cuda_count_load(const struct nh_cuda_device *device,
                                   const struct nh_cuda_load *load, struct nh_count *count) {
    const double clocks[NHOOD_LIMIT_COUNT] = {
        [NHOOD_LIMIT_TENSOR] = load->tiles * load->products / load->products_per_clock,
        [NHOOD_LIMIT_EXPONENTIAL] = load->tiles * load->scores / EXPONENTIALS,
        [NHOOD_LIMIT_MASK] = load->masked_tiles * load->scores / LANES,
        [NHOOD_LIMIT_L2] =
            (load->tiles * load->tile_bytes + load->bytes) / l2_bytes_per_clock(device),
    };
    struct nh_count own = {.tiles = load->tiles,
                           .masked_tiles = load->masked_tiles,
                           .flops = 2 * load->tiles * load->products};
    count->tiles += own.tiles;
    count->masked_tiles += own.masked_tiles;
    count->flops += own.flops;
    for (int limit = 0; limit < NHOOD_LIMIT_COUNT; limit++) {
        own.limit_ns[limit] = nh_cuda_clocks_ns(device, clocks[limit] / device->multiprocessors);
        count->limit_ns[limit] += own.limit_ns[limit];
    }
    return own;
}
