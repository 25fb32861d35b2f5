/* Names every backend and solver of the library, and nothing else does. */
#include "registry.h"

#include "cpu.h"
#include "cpu_solvers.h"
#include "reference.h"

const struct nh_solver *const nh_registry_solvers[] = {
    &nh_solver_cpu_fused,
    &nh_solver_cpu_unfused,
    &nh_solver_reference,
    NULL,
};

nhood_status nh_registry_open(const nhood_context_options *options, const struct nh_host *host,
                              struct nh_devices *devices) {
    nhood_status status = nh_cpu_open(options, host, &devices->device[0]);
    if (status) return status;
    devices->count = 1;
    return NHOOD_OK;
}

void nh_registry_close(struct nh_devices *devices) {
    if (devices->count > 0) nh_cpu_close(&devices->device[0]);
}

nhood_status nh_registry_measure(const struct nh_device *device, int32_t dtype,
                                 nhood_ceilings *ceilings) {
    return nh_cpu_measure(device, dtype, ceilings);
}
