/* Finds libcuda, and turns its results into statuses. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const sonames[] = {"libcuda.so.1", "libcuda.so"};

/* dlsym gives an object pointer where POSIX means a function's; copying avoids the cast ISO C forbids. */
static const char *find_all(struct nh_driver *driver) {
    void *address;
#define X(member, symbol, parameters)                                                              \
    address = dlsym(driver->library, #symbol);                                                     \
    if (!address) return #symbol;                                                                  \
    memcpy(&driver->member, &address, sizeof address);
#include "driver.def"
#undef X
    return NULL;
}

static const char *loaded_from(const struct nh_driver *driver) {
    Dl_info info;
    void *address;
    memcpy(&address, &driver->init, sizeof address);
    return dladdr(address, &info) && info.dli_fname ? info.dli_fname : sonames[0];
}

bool nh_driver_open(struct nh_driver *driver, char *note, size_t capacity) {
    memset(driver, 0, sizeof *driver);
    for (size_t i = 0; !driver->library && i < sizeof sonames / sizeof *sonames; i++)
        driver->library = dlopen(sonames[i], RTLD_NOW | RTLD_LOCAL);
    if (!driver->library) {
        snprintf(note, capacity,
                 "no CUDA driver: libcuda.so.1 was not found; it comes with NVIDIA's driver");
        return false;
    }
    int version = 0;
    const char *missing = find_all(driver);
    if (driver->driver_version) driver->driver_version(&version);
    if (missing || version < NH_DRIVER_OLDEST) {
        snprintf(note, capacity, "CUDA driver %d.%d is too old: 12.0 is needed%s%s", version / 1000,
                 version % 1000 / 10, missing ? ", it lacks " : "", missing ? missing : "");
    } else {
        nh_cu_result result = driver->init(0);
        if (result == NH_CU_SUCCESS) {
            snprintf(note, capacity, "CUDA driver %d.%d (%s)", version / 1000, version % 1000 / 10,
                     loaded_from(driver));
            return true;
        }
        const char *text = NULL;
        driver->error_text(result, &text);
        snprintf(note, capacity, "CUDA driver %d.%d does not start: %s", version / 1000,
                 version % 1000 / 10, text ? text : "unknown error");
    }
    /* The library stays loaded: unloading a driver whose threads may still run is not safe. */
    memset(driver, 0, sizeof *driver);
    return false;
}

nhood_status nh_driver_check(const struct nh_driver *driver, nh_cu_result result,
                             const char *what) {
    if (result == NH_CU_SUCCESS) return NHOOD_OK;
    const char *name = NULL, *text = NULL;
    driver->error_name(result, &name);
    driver->error_text(result, &text);
    return nh_error(NHOOD_ERR_DEVICE, "%s: %s (%s)", what, name ? name : "CUDA error",
                    text ? text : "unknown");
}
