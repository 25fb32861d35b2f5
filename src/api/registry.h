/* The table of solvers and the backends. Only registry.c names them. */
#ifndef NH_REGISTRY_H
#define NH_REGISTRY_H

#include "solver.h"

/* NULL-terminated. If estimates are equal, the earlier row wins. The reference is the last one of the CPU. */
extern const struct nh_solver *const nh_registry_solvers[];

/* Devices are the CPU, then CUDA devices, then those that are only described. */
enum { NH_MOST_CUDA_DEVICES = 16, NH_MOST_DESCRIBED_DEVICES = 4 };
enum { NH_MOST_DEVICES = 1 + NH_MOST_CUDA_DEVICES + NH_MOST_DESCRIBED_DEVICES };

/* The devices of one context. */
struct nh_devices {
    struct nh_device device[NH_MOST_DEVICES];
    int32_t count, cuda_count;
    /* the backend of the CUDA devices; it exists even if there is no device */
    struct nh_cuda *cuda;
};

nhood_status nh_registry_open(const nhood_context_options *options, const struct nh_host *host,
                              struct nh_devices *devices);
void nh_registry_close(struct nh_devices *devices);
/* How many threads of the CPU take part in a call at most; 0: all. */
void nh_registry_limit_threads(const struct nh_device *cpu, int32_t threads);
/* The text of nhood_context_notes. It is valid as long as the devices. */
const char *nh_registry_notes(const struct nh_devices *devices);
/* For bundles: collect_open opens a backend that keeps compiled kernels instead of loading them, and collect_twin makes a
 * copy of a device that uses this backend, to be released with nh_release(host, twin->backend). UNSUPPORTED (nothing is
 * compiled for the device), COMPILE, MEMORY. */
nhood_status nh_registry_collect_open(const nhood_context_options *options,
                                      const struct nh_host *host, struct nh_cuda **cuda);
nhood_status nh_registry_collect_twin(struct nh_cuda *cuda, const struct nh_device *device,
                                      struct nh_device *twin);
nhood_status nh_registry_collect_write(struct nh_cuda *cuda, const char *path);
/* Reports the launches of an operation that was built on a twin. */
void nh_registry_collect_launches(const struct nh_operation *operation, nhood_launch_fn report,
                                  void *user);
void nh_registry_collect_close(struct nh_cuda *cuda);
/* Builds RMS norm and rotary positions on a device that is present, or on such a twin. */
struct nh_norm_rope;
struct nh_norm_rope_operation;
nhood_status nh_registry_norm_rope(const struct nh_norm_rope *problem,
                                   const struct nh_device *device,
                                   struct nh_norm_rope_operation **operation);
/* Makes one operation of the operations of a group's members. MEMORY. */
struct nh_group;
struct nh_group_operation;
nhood_status nh_registry_group(const struct nh_device *device, const struct nh_group *group,
                               struct nh_group_operation **operation);
/* Those of CUDA whose launches follow from lengths as cuda_bounded.h needs it, NULL-terminated; and the operation of any members
 * within a bound by a config of one of them. UNSUPPORTED for configs whose launches do not, COMPILE, DEVICE, MEMORY. */
struct nh_bound;
extern const struct nh_solver *const nh_registry_bounded_solvers[];
nhood_status nh_registry_bounded(const struct nh_solver *solver, const struct nh_config *config,
                                 const struct nh_device *device, const struct nh_bound *bound,
                                 struct nh_group_operation **operation);
/* Makes sure that executes on a CUDA device find a context of it, as building a plan does otherwise. DEVICE. */
nhood_status nh_registry_prepare(const struct nh_device *device);
/* Zeroes memory of a device, on a CUDA device in the order of the stream. DEVICE. */
nhood_status nh_registry_clear(const struct nh_device *device, void *memory, size_t bytes,
                               void *stream);
/* Fills in all fields but struct_size, for the backend of a context or of a bundle. */
void nh_registry_count_kernels(const struct nh_cuda *cuda, nhood_kernel_counts *counts);
/* The text of nhood_device_estimates. */
const char *nh_registry_estimates(const struct nh_device *device);
nhood_status nh_registry_measure(const struct nh_device *device, int32_t dtype,
                                 nhood_ceilings *ceilings);

#endif
