/* Finds libcuda, and turns its results into statuses. */
#include "driver.h"

#include "library_names.h"
#include "os.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {NH_DRIVER_NAMES, NULL};

static const char *find_all(struct nh_driver *driver) {
    void *address;
#define X(member, symbol, parameters)                                                              \
    address = nh_os_library_symbol(driver->library, #symbol);                                      \
    if (!address) return #symbol;                                                                  \
    memcpy(&driver->member, &address, sizeof address);
#include "driver.def"
#undef X
    return NULL;
}

bool nh_driver_open(struct nh_driver *driver, char *note, size_t capacity) {
    memset(driver, 0, sizeof *driver);
    for (const char *const *name = names; !driver->library && *name; name++)
        driver->library = nh_os_library_open(*name);
    if (!driver->library) {
        snprintf(note, capacity, "no CUDA driver: %s was not found; it comes with NVIDIA's driver",
                 *names);
        return false;
    }
    int version = 0;
    const char *missing = find_all(driver);
    if (driver->driver_version) driver->driver_version(&version);
    int used = snprintf(note, capacity, "CUDA driver %d.%d", version / 1000, version % 1000 / 10);
    note += used;
    capacity -= (size_t)used;
    if (missing || version < NH_DRIVER_OLDEST) {
        snprintf(note, capacity, " is too old: 12.0 is needed%s%s", missing ? ", it lacks " : "",
                 missing ? missing : "");
    } else {
        nh_cu_result result = driver->init(0);
        if (result == NH_CU_SUCCESS) {
            char path[512];
            void *address;
            memcpy(&address, &driver->init, sizeof address);
            bool known = nh_os_library_path(address, path, sizeof path);
            snprintf(note, capacity, " (%s)", known ? path : *names);
            return true;
        }
        const char *text = NULL;
        driver->error_text(result, &text);
        snprintf(note, capacity, " does not start: %s", text ? text : "unknown error");
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
