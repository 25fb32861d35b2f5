/* Names every backend and solver of the library, and nothing else does. */
#include "registry.h"

#include "cpu.h"
#include "cpu_solvers.h"
#include "cuda.h"
#include "cuda_solvers.h"
#include "device_spec.h"
#include "peaks.h"
#include "reference.h"

const struct nh_solver *const nh_registry_solvers[] = {
    &nh_solver_cpu_fused,    &nh_solver_cpu_unfused,
    &nh_solver_reference,    &nh_solver_cuda_fused90,
    &nh_solver_cuda_joint90, &nh_solver_cuda_split90,
    &nh_solver_cuda_short,   &nh_solver_cuda_short90,
    &nh_solver_cuda_small,   &nh_solver_cuda_fused80,
    &nh_solver_cuda_split80, &nh_solver_cuda_gemm,
    &nh_solver_cuda_naive,   NULL,
};

nhood_status nh_registry_open(const nhood_context_options *options, const struct nh_host *host,
                              struct nh_devices *devices) {
    nhood_status status = nh_cpu_open(options, host, &devices->device[0]);
    if (status) return status;
    devices->count = 1;
    status =
        nh_cuda_open(options, host, &devices->device[1], NH_MOST_CUDA_DEVICES, &devices->cuda_count,
                     &devices->cuda, devices->notes, sizeof devices->notes);
    devices->count += devices->cuda_count;
    if (!status && options->describe)
        status = nh_cuda_describe(options->describe, host, &devices->device[devices->count++]);
    if (status) nh_registry_close(devices);
    return status;
}

void nh_registry_close(struct nh_devices *devices) {
    if (devices->count == 0) return;
    nh_cuda_close(devices->cuda, &devices->device[1], devices->cuda_count);
    nh_cpu_close(&devices->device[0]);
    devices->count = 0;
}

void nh_registry_count_kernels(const struct nh_devices *devices, nhood_kernel_counts *counts) {
    nh_cuda_count_kernels(devices->cuda, counts);
}

nhood_status nh_registry_measure(const struct nh_device *device, int32_t dtype,
                                 nhood_ceilings *ceilings) {
    return (device->info.kind == NHOOD_DEVICE_CPU ? nh_cpu_measure : nh_cuda_measure)(device, dtype,
                                                                                      ceilings);
}
