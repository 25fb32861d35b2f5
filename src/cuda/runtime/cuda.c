/* The CUDA devices of a context: opened, described, and made current on the calling thread. */
#include "cuda.h"

#include "kernel_cache.h"
#include "memo.h"

#include <stdio.h>
#include <string.h>

enum { OLDEST_ARCH = 80, OLDEST_OVERLAPPING_DRIVER = 12030 };

/* Results of members, which many share: in half a megabyte, which stays in a cache. */
enum { REMEMBERED = 512 };

static int attribute(const struct nh_driver *driver, int name, nh_cu_device device) {
    int value = 0;
    return driver->device_attribute(&value, name, device) == NH_CU_SUCCESS ? value : 0;
}

nhood_device_info nh_cuda_device_info(const struct nh_cuda_device *device, int32_t ordinal,
                                      const char *name, const char *model) {
    nhood_device_info info = {.struct_size = sizeof info,
                              .kind = NHOOD_DEVICE_CUDA,
                              .ordinal = ordinal,
                              .workers = device->multiprocessors};
    snprintf(info.name, sizeof info.name, "%s", name);
    snprintf(info.description, sizeof info.description,
             "%.60s, compute capability %d.%d, %d multiprocessors", model, (int)device->arch / 10,
             (int)device->arch % 10, (int)info.workers);
    return info;
}

static void release_primary(struct nh_cuda_device *device) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_context primary = atomic_load(&device->primary), popped;
    const nh_cu_pointer held = atomic_load(&device->held);
    nh_cu_stream uploads = atomic_load(&device->uploads);
    int mode = NH_CU_CAPTURE_RELAXED; /* else memory is not freed while another thread captures */
    if (!primary) return;
    if ((held || uploads) && driver->context_push(primary) == NH_CU_SUCCESS) {
        driver->capture_mode(&mode);
        if (uploads) driver->stream_destroy(uploads);
        if (held) driver->memory_free(held);
        driver->capture_mode(&mode);
        driver->context_pop(&popped);
    }
    driver->primary_release(device->handle);
}

static void close_device(struct nh_device *device) {
    struct nh_cuda_device *opened = device->backend;
    if (!opened) return;
    release_primary(opened);
    nh_memo_destroy(opened->memo);
    nh_release(device->host, opened);
    device->backend = NULL;
}

/* Devices older than sm_80 lack cp.async and bf16, which all kernels use; open_devices leaves them out. */
static nhood_status open_device(struct nh_cuda *cuda, int ordinal, struct nh_device *device) {
    const struct nh_driver *driver = &cuda->driver;
    nh_cu_device handle;
    char name[32], model[64] = "";
    int version = 0;
    nhood_status status = nh_driver_check(driver, driver->device_get(&handle, ordinal), "device");
    if (status) return status;
    struct nh_cuda_device *opened = nh_allocate(cuda->host, sizeof *opened);
    if (!opened) return NHOOD_ERR_MEMORY;
    driver->driver_version(&version);
    opened->cuda = cuda;
    opened->handle = handle;
    opened->arch = 10 * attribute(driver, NH_CU_ATTRIBUTE_MAJOR, handle) +
                   attribute(driver, NH_CU_ATTRIBUTE_MINOR, handle);
    opened->overlaps = opened->arch >= NH_OVERLAPPING_ARCH && version >= OLDEST_OVERLAPPING_DRIVER;
    opened->multiprocessors = attribute(driver, NH_CU_ATTRIBUTE_MULTIPROCESSORS, handle);
    opened->shared_bytes_per_block =
        attribute(driver, NH_CU_ATTRIBUTE_SHARED_BYTES_PER_BLOCK, handle);
    opened->shared_bytes_per_multiprocessor =
        attribute(driver, NH_CU_ATTRIBUTE_SHARED_BYTES_PER_MULTIPROCESSOR, handle);
    opened->l2_bytes = attribute(driver, NH_CU_ATTRIBUTE_L2_BYTES, handle);
    opened->clock_hz = 1e3 * attribute(driver, NH_CU_ATTRIBUTE_CLOCK_RATE, handle);
    /* two transfers per clock, 8 bits per byte */
    opened->memory_bytes_per_s = 2e3 / 8 *
                                 attribute(driver, NH_CU_ATTRIBUTE_MEMORY_CLOCK_RATE, handle) *
                                 attribute(driver, NH_CU_ATTRIBUTE_MEMORY_BUS_BITS, handle);
    driver->device_name(model, sizeof model, handle);
    *device = (struct nh_device){.host = cuda->host, .timing = &nh_cuda_timing, .backend = opened};
    status = nh_memo_create(cuda->host, REMEMBERED, &opened->memo);
    if (status) {
        close_device(device);
        return status;
    }
    snprintf(name, sizeof name, "cuda:%u", (unsigned)ordinal);
    device->info = nh_cuda_device_info(opened, ordinal, name, model);
    return NHOOD_OK;
}

static nhood_status create(const nhood_context_options *options, const struct nh_host *host,
                           struct nh_cuda **cuda) {
    *cuda = nh_allocate(host, sizeof **cuda);
    if (!*cuda) return NHOOD_ERR_MEMORY;
    (*cuda)->host = host;
    nhood_status status = nh_kernel_cache_create(host, options, &(*cuda)->kernels);
    if (status) {
        nh_cuda_close(*cuda, NULL, 0);
        *cuda = NULL;
    }
    return status;
}

static nhood_status open_devices(struct nh_cuda *cuda, struct nh_device *device, int32_t capacity,
                                 int32_t *count) {
    int present = 0;
    nh_cu_result result = cuda->driver.device_count(&present);
    if (result == NH_CU_ERROR_NO_DEVICE) return NHOOD_OK;
    nhood_status status = nh_driver_check(&cuda->driver, result, "counting devices");
    for (int i = 0; !status && i < present && *count < capacity; i++) {
        status = open_device(cuda, i, &device[*count]);
        if (status) break;
        struct nh_cuda_device *found = device[*count].backend;
        if (found->arch < OLDEST_ARCH) {
            close_device(&device[*count]);
        } else {
            (*count)++;
        }
    }
    return status;
}

nhood_status nh_cuda_open(const struct nh_driver *driver, const nhood_context_options *options,
                          const struct nh_host *host, struct nh_device *device, int32_t capacity,
                          int32_t *count, struct nh_cuda **cuda) {
    *count = 0;
    nhood_status status = create(options, host, cuda);
    if (status) return status;
    char *note = (*cuda)->driver_note;
    size_t note_bytes = sizeof(*cuda)->driver_note;
    if (driver) {
        (*cuda)->driver = *driver;
    } else if (!nh_driver_open(&(*cuda)->driver, note, note_bytes)) {
        return NHOOD_OK;
    }
    status = open_devices(*cuda, device, capacity, count);
    size_t used = strlen(note);
    if (!status && !*count)
        snprintf(note + used, note_bytes - used, ", no device of compute capability 8.0 or later");
    if (status) {
        nh_cuda_close(*cuda, device, *count);
        *cuda = NULL;
        *count = 0;
    }
    return status;
}

const char *nh_cuda_note(struct nh_cuda *cuda) {
    char before[sizeof cuda->driver_note + 2];
    snprintf(before, sizeof before, "%s, ", cuda->driver_note);
    return nh_kernel_cache_note(cuda->kernels, before);
}

nhood_status nh_cuda_collect_open(const nhood_context_options *options, const struct nh_host *host,
                                  struct nh_cuda **cuda) {
    nhood_status status = create(options, host, cuda);
    if (!status) status = nh_kernel_cache_collect((*cuda)->kernels);
    if (!status) return NHOOD_OK;
    nh_cuda_close(*cuda, NULL, 0);
    *cuda = NULL;
    return status;
}

nhood_status nh_cuda_collect_twin(struct nh_cuda *cuda, const struct nh_device *device,
                                  struct nh_device *twin) {
    struct nh_cuda_device *backend = nh_allocate(cuda->host, sizeof *backend);
    if (!backend) return NHOOD_ERR_MEMORY;
    *backend = *(const struct nh_cuda_device *)device->backend;
    backend->cuda = cuda;
    atomic_init(&backend->primary, NULL);
    *twin = *device;
    twin->backend = backend;
    return NHOOD_OK;
}

void nh_cuda_close(struct nh_cuda *cuda, struct nh_device *device, int32_t count) {
    if (!cuda) return;
    const struct nh_host *host = cuda->host;
    nh_kernel_cache_destroy(cuda->kernels, &cuda->driver);
    for (int32_t i = 0; i < count; i++)
        close_device(&device[i]);
    nh_release(host, cuda);
}

static nhood_status retain_primary(struct nh_cuda_device *device, nh_cu_context *primary) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_context expected = NULL;
    const nhood_status status =
        nh_driver_check(driver, driver->primary_retain(primary, device->handle), "primary context");
    /* The driver counts how often the context is retained: a thread that comes second gives its count back. */
    if (!status && !atomic_compare_exchange_strong(&device->primary, &expected, *primary))
        driver->primary_release(device->handle);
    return status;
}

/* Whether a context of the device is its primary one, as that of the CUDA runtime's callers is. A primary context that nobody uses is
 * not made for this. */
static bool is_primary(struct nh_cuda_device *device, nh_cu_context context) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_context primary = atomic_load(&device->primary);
    unsigned flags;
    int active = 0;
    if (!primary && (driver->primary_state(device->handle, &flags, &active) != NH_CU_SUCCESS ||
                     !active || retain_primary(device, &primary)))
        return false;
    return context == primary;
}

nhood_status nh_cuda_enter(struct nh_cuda_device *device, bool planning,
                           struct nh_cuda_scope *scope) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_context current = NULL, primary = atomic_load(&device->primary);
    nh_cu_device current_device = -1;
    *scope = (struct nh_cuda_scope){.pushed = false};
    if (driver->context_current(&current) == NH_CU_SUCCESS && current &&
        driver->context_device(&current_device) == NH_CU_SUCCESS &&
        current_device == device->handle) {
        scope->primary = planning && is_primary(device, current);
        return NHOOD_OK;
    }
    if (!primary && planning) {
        const nhood_status status = retain_primary(device, &primary);
        if (status) return status;
    }
    if (!primary)
        return nh_error(NHOOD_ERR_DEVICE,
                        "execute: no CUDA context of the plan's device is current on this thread");
    nhood_status status = nh_driver_check(driver, driver->context_push(primary), "context push");
    scope->pushed = scope->primary = !status;
    return status;
}

void nh_cuda_leave(const struct nh_cuda_device *device, const struct nh_cuda_scope *scope) {
    nh_cu_context popped;
    if (scope->pushed) device->cuda->driver.context_pop(&popped);
}

nhood_status nh_cuda_clear(struct nh_cuda_device *device, void *memory, size_t bytes,
                           void *stream) {
    const struct nh_driver *driver = &device->cuda->driver;
    struct nh_cuda_scope scope;
    nhood_status status = nh_cuda_enter(device, false, &scope);
    if (status) return status;
    const nh_cu_pointer address = (nh_cu_pointer)(uintptr_t)memory;
    status = nh_driver_check(driver, driver->memory_set(address, 0, bytes, stream), "clear");
    nh_cuda_leave(device, &scope);
    return status;
}
