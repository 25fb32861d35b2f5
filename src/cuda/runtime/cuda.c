/* A CUDA device in use: its description, and its context on the calling thread. */
#include "cuda.h"

#include <stdio.h>

void nh_cuda_device_text(nhood_device_info *info, const char *model, int32_t arch) {
    snprintf(info->description, sizeof info->description,
             "%.60s, compute capability %d.%d, %d multiprocessors", model, (int)arch / 10,
             (int)arch % 10, (int)info->workers);
}

nhood_status nh_cuda_enter(struct nh_cuda_device *device, bool planning,
                           struct nh_cuda_scope *scope) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_context current = NULL, primary = atomic_load(&device->primary);
    nh_cu_device current_device = -1;
    scope->pushed = false;
    if (driver->context_current(&current) == NH_CU_SUCCESS && current &&
        driver->context_device(&current_device) == NH_CU_SUCCESS &&
        current_device == device->handle)
        return NHOOD_OK;
    if (!primary && planning) {
        nh_cu_context expected = NULL;
        nhood_status status = nh_driver_check(
            driver, driver->primary_retain(&primary, device->handle), "primary context");
        if (status) return status;
        /* Retaining counts: a thread that comes second gives its count back. */
        if (!atomic_compare_exchange_strong(&device->primary, &expected, primary))
            driver->primary_release(device->handle);
    }
    if (!primary)
        return nh_error(NHOOD_ERR_DEVICE,
                        "execute: no CUDA context of the plan's device is current on this thread");
    nhood_status status = nh_driver_check(driver, driver->context_push(primary), "context push");
    scope->pushed = !status;
    return status;
}

void nh_cuda_leave(const struct nh_cuda_device *device, const struct nh_cuda_scope *scope) {
    nh_cu_context popped;
    if (scope->pushed) device->cuda->driver.context_pop(&popped);
}
