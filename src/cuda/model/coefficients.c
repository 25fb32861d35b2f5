#include "coefficients.h"

#include "hash.h"
#include "rates.h"

#define NH_KERNEL(...)
#define NH_OPERATION(...)
#define NH_PIPELINE(name, ...) static const struct nh_pipeline pipeline_##name = {__VA_ARGS__};
#include "h200.def"

const struct nh_coefficients nh_built_in = {
    .kernel =
        {
#define NH_KERNEL(name, pipeline, start, step, ...)                                                \
    [NH_KERNEL_##name] = {&pipeline_##pipeline, start, step, {__VA_ARGS__}},
#define NH_OPERATION(...)
#define NH_PIPELINE(...)
#include "h200.def"
        },
    .operation =
        {
#define NH_KERNEL(...)
#define NH_OPERATION(name, ...) [NH_OPERATION_##name] = {__VA_ARGS__},
#define NH_PIPELINE(...)
#include "h200.def"
        },
};

void nh_coefficients_scale(const double factor[NH_FACTORS], struct nh_coefficients *scaled) {
    *scaled = nh_built_in;
    for (int i = 0; i < NH_KERNEL_KINDS; i++) {
        struct nh_kernel_coefficients *kernel = &scaled->kernel[i];
        const double all = factor[NH_FACTOR_CLOCKS] * factor[NH_FACTOR_KERNEL + i];
        kernel->start *= all;
        kernel->step *= all;
        for (int unit = 0; unit < NH_WORK_UNITS; unit++)
            kernel->unit[unit] *= all;
        kernel->unit[NH_WORK_TENSOR] *= factor[NH_FACTOR_TENSOR];
        kernel->unit[NH_WORK_SPILL] *= factor[NH_FACTOR_TENSOR];
    }
    for (int i = 0; i < NH_OPERATION_KINDS; i++) {
        struct nh_operation_coefficients *operation = &scaled->operation[i];
        operation->launch *= factor[NH_FACTOR_LAUNCH];
        operation->helper *= factor[NH_FACTOR_LAUNCH];
        operation->helper_bytes *= factor[NH_FACTOR_MEMORY];
        operation->memory *= factor[NH_FACTOR_MEMORY];
    }
}

uint64_t nh_coefficients_version(const struct nh_cuda_device *device) {
    const struct nh_problem f16 = {.dtype = NHOOD_DTYPE_F16};
    const double rates[] = {nh_cuda_products_per_clock(&f16, device, false),
                            nh_cuda_products_per_clock(&f16, device, true),
                            nh_cuda_l2_clocks(device, 1)};
    uint64_t hash = nh_hash(NH_HASH_START, rates, sizeof rates);
    for (int i = 0; i < NH_KERNEL_KINDS; i++) {
        const struct nh_kernel_coefficients *kernel = &nh_built_in.kernel[i];
        hash = nh_hash(hash, kernel->pipeline, sizeof *kernel->pipeline);
        hash = nh_hash(hash, &kernel->start, sizeof kernel->start);
        hash = nh_hash(hash, &kernel->step, sizeof kernel->step);
        hash = nh_hash(hash, kernel->unit, sizeof kernel->unit);
    }
    return nh_hash(hash, nh_built_in.operation, sizeof nh_built_in.operation);
}
