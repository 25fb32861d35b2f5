/* The only file that names every backend and solver of the library. */
#include "registry.h"

#include "calibration.h"
#include "cpu.h"
#include "cpu_group.h"
#include "cpu_norm_rope.h"
#include "cpu_solvers.h"
#include "cuda.h"
#include "cuda_bounded.h"
#include "cuda_group.h"
#include "cuda_solvers.h"
#include "device_spec.h"
#include "kernel_cache.h"
#include "launch.h"
#include "peaks.h"
#include "reference.h"

#include <assert.h>
#include <string.h>

static_assert((int)NH_MOST_DESCRIBED_DEVICES >= (int)NH_MOST_DESCRIBED, "room for all of them");

const struct nh_solver *const nh_registry_solvers[] = {
    &nh_solver_cpu_fused,    &nh_solver_cpu_unfused,
    &nh_solver_reference,    &nh_solver_cuda_fused90,
    &nh_solver_cuda_joint90, &nh_solver_cuda_split90,
    &nh_solver_cuda_short,   &nh_solver_cuda_short90,
    &nh_solver_cuda_small,   &nh_solver_cuda_fused80,
    &nh_solver_cuda_split80, &nh_solver_cuda_gemm,
    &nh_solver_cuda_naive,   NULL,
};

const struct nh_solver *const nh_registry_bounded_solvers[] = {
    &nh_solver_cuda_small, &nh_solver_cuda_fused80, &nh_solver_cuda_split80, &nh_solver_cuda_naive,
    NULL};

nhood_status nh_registry_open(const nhood_context_options *options, const struct nh_host *host,
                              struct nh_devices *devices) {
    nhood_status status = nh_cpu_open(options, host, &devices->device[0]);
    if (status) return status;
    devices->count = 1;
    status = nh_cuda_open(NULL, options, host, &devices->device[1], NH_MOST_CUDA_DEVICES,
                          &devices->cuda_count, &devices->cuda);
    devices->count += devices->cuda_count;
    if (!status && options->describe) {
        int32_t described = 0;
        status =
            nh_cuda_describe(options->describe, host, &devices->device[devices->count], &described);
        devices->count += described;
    }
    for (int32_t i = 1; !status && i < devices->count; i++)
        status = nh_calibration_attach(&devices->device[i], options->cache);
    if (status) nh_registry_close(devices);
    return status;
}

void nh_registry_close(struct nh_devices *devices) {
    if (devices->count == 0) return;
    for (int32_t i = 1; i < devices->count; i++)
        nh_calibration_detach(&devices->device[i]);
    nh_cuda_close(devices->cuda, &devices->device[1], devices->cuda_count);
    nh_cpu_close(&devices->device[0]);
    devices->count = 0;
}

void nh_registry_limit_threads(const struct nh_device *cpu, int32_t threads) {
    nh_cpu_limit_threads(cpu, threads);
}

const char *nh_registry_notes(const struct nh_devices *devices) {
    return nh_cuda_note(devices->cuda);
}

nhood_status nh_registry_collect_open(const nhood_context_options *options,
                                      const struct nh_host *host, struct nh_cuda **cuda) {
    return nh_cuda_collect_open(options, host, cuda);
}

nhood_status nh_registry_collect_twin(struct nh_cuda *cuda, const struct nh_device *device,
                                      struct nh_device *twin) {
    if (device->info.kind == NHOOD_DEVICE_CUDA) return nh_cuda_collect_twin(cuda, device, twin);
    return nh_error(NHOOD_ERR_UNSUPPORTED, "%s: nothing is compiled for it", device->info.name);
}

nhood_status nh_registry_collect_write(struct nh_cuda *cuda, const char *path) {
    return nh_kernel_cache_write(cuda->kernels, path);
}

void nh_registry_collect_launches(const struct nh_operation *operation, nhood_launch_fn report,
                                  void *user) {
    nh_cuda_launches(operation, report, user);
}

const char *nhood_kernel_source(int32_t index, const char **name) {
    if (index < 0 || index >= nh_kernel_source_count) return NULL;
    if (name) *name = nh_kernel_sources[index].name;
    return nh_kernel_sources[index].text;
}

void nh_registry_collect_close(struct nh_cuda *cuda) {
    nh_cuda_close(cuda, NULL, 0);
}

nhood_status nh_registry_norm_rope(const struct nh_norm_rope *problem,
                                   const struct nh_device *device,
                                   struct nh_norm_rope_operation **operation) {
    bool cpu = device->info.kind == NHOOD_DEVICE_CPU;
    return (cpu ? nh_cpu_norm_rope_build : nh_cuda_norm_rope_build)(problem, device, operation);
}

nhood_status nh_registry_group(const struct nh_device *device, const struct nh_group *group,
                               struct nh_group_operation **operation) {
    const bool cpu = device->info.kind == NHOOD_DEVICE_CPU;
    return (cpu ? nh_cpu_group_build : nh_cuda_group_build)(device, group, operation);
}

nhood_status nh_registry_bounded(const struct nh_solver *solver, const struct nh_config *config,
                                 const struct nh_device *device, const struct nh_bound *bound,
                                 struct nh_group_operation **operation) {
    return nh_cuda_bounded_build(solver, config, device, bound, operation);
}

nhood_status nh_registry_prepare(const struct nh_device *device) {
    struct nh_cuda_scope scope;
    if (device->info.kind == NHOOD_DEVICE_CPU) return NHOOD_OK;
    const nhood_status status = nh_cuda_enter(device->backend, true, &scope);
    if (!status) nh_cuda_leave(device->backend, &scope);
    return status;
}

nhood_status nh_registry_clear(const struct nh_device *device, void *memory, size_t bytes,
                               void *stream) {
    if (device->info.kind == NHOOD_DEVICE_CUDA)
        return nh_cuda_clear(device->backend, memory, bytes, stream);
    memset(memory, 0, bytes);
    return NHOOD_OK;
}

void nh_registry_count_kernels(const struct nh_cuda *cuda, nhood_kernel_counts *counts) {
    nh_kernel_cache_count(cuda->kernels, counts);
}

const char *nh_registry_estimates(const struct nh_device *device) {
    return device->info.kind == NHOOD_DEVICE_CPU ? "built in" : nh_calibration_origin(device);
}

nhood_status nh_registry_measure(const struct nh_device *device, int32_t dtype,
                                 nhood_ceilings *ceilings) {
    return (device->info.kind == NHOOD_DEVICE_CPU ? nh_cpu_measure : nh_cuda_measure)(device, dtype,
                                                                                      ceilings);
}
