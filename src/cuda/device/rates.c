#include "rates.h"

struct arch {
    int32_t capability;
    double warp_products, warpgroup_products, l2_bytes;
};
static const struct arch archs[] = {
#define NH_ARCH(...) {__VA_ARGS__},
#include "arch.def"
};

static const struct arch *arch_of(const struct nh_cuda_device *device) {
    const struct arch *arch = archs;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (archs[i].capability <= device->arch) arch = &archs[i];
    return arch;
}

double nh_cuda_products_per_clock(const struct nh_problem *problem,
                                  const struct nh_cuda_device *device, bool warpgroups) {
    const struct arch *arch = arch_of(device);
    double products = warpgroups ? arch->warpgroup_products : arch->warp_products;
    if (problem->dtype == NHOOD_DTYPE_F32)
        products /= problem->flags & NHOOD_FLAG_ALLOW_TF32 ? 2 : 6;
    return products;
}

double nh_cuda_l2_clocks(const struct nh_cuda_device *device, double bytes) {
    return bytes / arch_of(device)->l2_bytes;
}

int64_t nh_cuda_residents_by_shared(const struct nh_cuda_device *device, int64_t shared_bytes) {
    enum { RESERVED_BYTES = 1024 }; /* per block, by the driver */
    if (shared_bytes > device->shared_bytes_per_block) return 0;
    return device->shared_bytes_per_multiprocessor / (shared_bytes + RESERVED_BYTES);
}
