/* How long a device takes for work, from rates, residency, waves and their tail, overlap and launches: one formula for all
 * families (docs/model.md), and the table of coefficients that it uses: the generated one (h200.def), or a copy of it that
 * is scaled by the factors of a calibration. */
#ifndef NH_PREDICT_H
#define NH_PREDICT_H

#include "work.h"

/* A pipeline's coefficients serve several kinds of kernels. Times are in clocks unless something else is said;
 * docs/model.md has the formula. */
struct nh_pipeline {
    /* half: resident warps at which half of the issue slots are empty. uneven: weight of an uneven distribution of
     * warps over the four schedulers. alone, serial: the shares of a block's own work, and of its busiest warp's, that
     * are latency when it runs alone. ending: the share of a block's latency that shows at the end of a launch.
     * whole_waves: how far the last wave counts as a full one, 0 to 1. code: clocks per instruction that is fetched
     * before it first runs. fetch, box: clocks of a producer warp per work tile, and per box that it asks the copy
     * engine for. */
    double half, uneven, alone, serial, ending, whole_waves, code, fetch, box;
};
struct nh_kernel_coefficients {
    const struct nh_pipeline *pipeline;
    /* clocks of a block before its first step, clocks per step, and clocks per unit of work */
    double start, step, unit[NH_WORK_UNITS];
};
struct nh_operation_coefficients {
    /* launch, helper: clocks per launch and per helper launch. helper_bytes, memory: the time that bytes of helpers,
     * and all other bytes, take, relative to the memory's nominal bandwidth. beside: the share of the shorter of
     * compute time and memory time that adds to the longer. */
    double launch, helper, helper_bytes, memory, beside;
};

struct nh_coefficients {
    const char *origin; /* says where a calibration is from; NULL: built in */
    struct nh_kernel_coefficients kernel[NH_KERNEL_KINDS];
    struct nh_operation_coefficients operation[NH_OPERATION_KINDS];
};

/* The built-in table, fitted on an H200 (h200.def). */
extern const struct nh_coefficients nh_built_in;

/* The table that estimates of a device use. */
static inline const struct nh_coefficients *
nh_coefficients_of(const struct nh_cuda_device *device) {
    return device->coefficients ? device->coefficients : &nh_built_in;
}

/* The factors of a calibration: by how much a GPU's times differ from those that the built-in table predicts for it. */
enum nh_factor {
    NH_FACTOR_LAUNCH, /* time per launch and per helper */
    NH_FACTOR_MEMORY, /* time of memory traffic */
    NH_FACTOR_CLOCKS, /* clocks of all kernels */
    NH_FACTOR_TENSOR, /* of these, clocks of products on tensor cores */
    NH_FACTOR_KERNEL, /* clocks of each kernel, one factor after the other */
    NH_FACTORS = NH_FACTOR_KERNEL + NH_KERNEL_KINDS
};

/* Multiplies the built-in table by the factors. */
void nh_coefficients_scale(const double factor[NH_FACTORS], struct nh_coefficients *scaled);

/* A hash of the built-in table and the device's published rates, for which alone a calibration's factors are valid. */
uint64_t nh_coefficients_version(const struct nh_cuda_device *device);

/* ---- predictions ---- */

/* Returns nanoseconds. Adds the tiles, operations and limits of the work to *count, unless that is NULL. */
double nh_predict(const struct nh_cuda_device *device, const struct nh_work *work,
                  struct nh_count *count);

/* The same with these coefficients instead of those that the device uses. */
double nh_predict_by(const struct nh_coefficients *coefficients,
                     const struct nh_cuda_device *device, const struct nh_work *work);

/* Clocks that the kernels alone take, without memory traffic, helpers and launch latency. */
double nh_predict_clocks(const struct nh_cuda_device *device, const struct nh_work *work);

/* Clocks that a block adds to a multiprocessor with many others: searches rank tiles by this before they predict. */
double nh_predict_block_clocks(const struct nh_cuda_device *device,
                               const struct nh_launch_work *launch);

/* Clocks per nanosecond of all multiprocessors: no launch takes less time than its blocks' clocks over this. */
double nh_predict_clocks_per_ns(const struct nh_cuda_device *device);

/* `estimate` of every CUDA solver: the prediction for its work in nanoseconds, or INFINITY if it has none. */
nh_estimate_fn nh_estimate;

/* `preference` of every CUDA solver: the config's row in its section of h200_preferred.def, which lists the configs
 * that were fastest for most problems; INT_MAX if it is not there. Lower is preferred. */
int nh_preference(const struct nh_solver *solver, const struct nh_config *config);

#endif
