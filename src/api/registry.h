/* The solver table and the backends: registry.c is the one place that names them. */
#ifndef NH_REGISTRY_H
#define NH_REGISTRY_H

#include "solver.h"

/* NULL-terminated, best first, reference last. */
extern const struct nh_solver *const nh_registry_solvers[];

/* of each kind: the CPU, those of CUDA, and those that are only described, in this order */
enum { NH_MOST_CUDA_DEVICES = 16, NH_MOST_DESCRIBED_DEVICES = 4 };
enum { NH_MOST_DEVICES = 1 + NH_MOST_CUDA_DEVICES + NH_MOST_DESCRIBED_DEVICES };

/* The devices of one context. */
struct nh_devices {
    struct nh_device device[NH_MOST_DEVICES];
    int32_t count, cuda_count;
    /* behind the CUDA devices, and there without any */
    struct nh_cuda *cuda;
};

nhood_status nh_registry_open(const nhood_context_options *options, const struct nh_host *host,
                              struct nh_devices *devices);
void nh_registry_close(struct nh_devices *devices);
/* What was found beyond the CPU; as long-lived as the devices. */
const char *nh_registry_notes(const struct nh_devices *devices);
/* For bundles: a backend that keeps kernels instead of loading them, opened like the context's own, and the devices as
 * that backend's, to be released with nh_release(host, twin->backend). UNSUPPORTED (nothing is compiled for the device),
 * COMPILE, MEMORY. */
nhood_status nh_registry_collect_open(const nhood_context_options *options,
                                      const struct nh_host *host, struct nh_cuda **cuda);
nhood_status nh_registry_collect_twin(struct nh_cuda *cuda, const struct nh_device *device,
                                      struct nh_device *twin);
nhood_status nh_registry_collect_write(struct nh_cuda *cuda, const char *path);
void nh_registry_collect_close(struct nh_cuda *cuda);
/* RMS norm and rotary positions, on any device that is there or is such a twin. */
struct nh_norm_rope;
struct nh_norm_rope_operation;
nhood_status nh_registry_norm_rope(const struct nh_norm_rope *problem,
                                   const struct nh_device *device,
                                   struct nh_norm_rope_operation **operation);
/* Fills in all but struct_size, for the devices of a context and for a bundle. */
void nh_registry_count_kernels(const struct nh_cuda *cuda, nhood_kernel_counts *counts);
/* Where the coefficients of the device's estimates come from, in words. */
const char *nh_registry_estimates(const struct nh_device *device);
nhood_status nh_registry_measure(const struct nh_device *device, int32_t dtype,
                                 nhood_ceilings *ceilings);

#endif
