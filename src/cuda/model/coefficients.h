/* The table of coefficients by which predict.c turns work into time: the generated one, or a copy of it that a calibration has
 * multiplied. */
#ifndef NH_COEFFICIENTS_H
#define NH_COEFFICIENTS_H

#include "work.h"

/* Coefficients: of a pipeline, which kernels of a kind share; of a kernel; of an operation. Clocks where nothing else is said. */
struct nh_pipeline {
    /* warps that leave half of the issue slots empty; what uneven schedulers wait; what of its own work a block alone
     * does not hide, and of its busiest warp's; how much of a block's way the end of a launch shows; how far a last wave
     * counts as a whole one; per instruction of code; per work tile and box of the copy engine */
    double half, uneven, alone, serial, ending, whole_waves, code, fetch, box;
};
struct nh_kernel_coefficients {
    const struct nh_pipeline *pipeline;
    /* of a block before its first step, and of each step */
    double start, step, unit[NH_WORK_UNITS];
};
struct nh_operation_coefficients {
    /* launches, helpers; times that compulsory and helpers' bytes take of the memory's bandwidth; what the shorter of work
     * and memory adds to the longer */
    double launch, helper, helper_bytes, memory, beside;
};

struct nh_coefficients {
    const char *origin; /* of a calibration, in words; NULL: built in */
    struct nh_kernel_coefficients kernel[NH_KERNEL_KINDS];
    struct nh_operation_coefficients operation[NH_OPERATION_KINDS];
};

/* Fitted on an H200. */
extern const struct nh_coefficients nh_built_in;

/* Those that serve a device. */
static inline const struct nh_coefficients *
nh_coefficients_of(const struct nh_cuda_device *device) {
    return device->coefficients ? device->coefficients : &nh_built_in;
}

/* By what a GPU's times differ from those that the table predicts for it: of all kernels on the GPU, and of each kernel. */
enum nh_factor {
    NH_FACTOR_LAUNCH, /* what it takes to launch kernels and helpers */
    NH_FACTOR_MEMORY, /* what compulsory traffic takes */
    NH_FACTOR_CLOCKS, /* what kernels take */
    NH_FACTOR_TENSOR, /* of that, products on tensor cores */
    NH_FACTOR_KERNEL, /* .. and each kernel */
    NH_FACTORS = NH_FACTOR_KERNEL + NH_KERNEL_KINDS
};

/* The built-in table times the factors. */
void nh_coefficients_scale(const double factor[NH_FACTORS], struct nh_coefficients *scaled);

/* A number that differs where the built-in table or a device's rates do: factors multiply both. */
uint64_t nh_coefficients_version(const struct nh_cuda_device *device);

#endif
