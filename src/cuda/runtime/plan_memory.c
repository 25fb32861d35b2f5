/* Memory on the device that belongs to a plan: what its kernels read besides the tensors of an execute. */
#include "launch.h"

#include "window_table.h"

#include <string.h>

static_assert(sizeof(nhood_range) == 2 * sizeof(int), "kernels read them as nh_cuda_seen");

nhood_status nh_cuda_keep_room(struct nh_cuda_operation *operation, size_t room) {
    if (room <= operation->kept_room) return NHOOD_OK;
    unsigned char *kept = nh_allocate_unset(operation->host, room);
    if (!kept) return NHOOD_ERR_MEMORY;
    if (operation->kept) memcpy(kept, operation->kept, operation->kept_bytes);
    nh_release(operation->host, operation->kept);
    operation->kept = kept;
    operation->kept_room = room;
    return NHOOD_OK;
}

void *nh_cuda_keep(struct nh_cuda_operation *operation, size_t bytes, size_t *offset) {
    const size_t begin = nh_cuda_kept_bytes(operation->kept_bytes);
    if (nh_cuda_keep_room(operation, begin + bytes)) return NULL;
    memset(operation->kept + operation->kept_bytes, 0, begin - operation->kept_bytes);
    operation->kept_bytes = begin + bytes;
    *offset = begin;
    return operation->kept + begin;
}

nhood_status nh_cuda_keep_tables(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem) {
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        const int64_t queries = axis->length, keys = nh_axis_keys(axis);
        size_t offset;
        if (!axis->windows.kind) continue;
        nhood_range *kept =
            nh_cuda_keep(operation, (size_t)(queries + keys) * sizeof *kept, &offset);
        if (!kept) return NHOOD_ERR_MEMORY;
        nh_windows_ranges(&axis->windows, queries, kept);
        nh_windows_inverse(kept, queries, keys, kept + queries);
        operation->has_table[a] = true;
        operation->table_offset[a][0] = offset;
        operation->table_offset[a][1] = offset + (size_t)queries * sizeof *kept;
    }
    return NHOOD_OK;
}

static nhood_status allocate(const struct nh_driver *driver, size_t bytes, nh_cu_pointer *memory) {
    if (driver->memory_allocate(memory, bytes) == NH_CU_SUCCESS) return NHOOD_OK;
    *memory = 0;
    return nh_error(NHOOD_ERR_MEMORY, "the device has no %zu bytes free for a plan", bytes);
}

/* The driver takes small allocations from a block of 2 MiB, which it gets for the first and gives back after the last of them. Where a
 * program has one plan at a time, that is for each of its plans: 30 to 40 us to allocate memory and as much to free it on an H200, 2
 * where a byte is held besides. Only in the primary context, which is the device's own until it closes. */
static nhood_status hold_block(struct nh_cuda_device *device, const struct nh_cuda_scope *scope) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_pointer held, none = 0;
    if (!scope->pushed || atomic_load(&device->held)) return NHOOD_OK;
    const nhood_status status = allocate(driver, 1, &held);
    if (!status && !atomic_compare_exchange_strong(&device->held, &none, held))
        driver->memory_free(held);
    return status;
}

/* The stream by which memory is written: the default one may wait for one that a graph is captured from, which fails. All plans in
 * the primary context share it, several threads at once; others have one of their own, which close_stream destroys. */
static nhood_status open_stream(struct nh_cuda_device *device, const struct nh_cuda_scope *scope,
                                nh_cu_stream *stream) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_stream shared = scope->pushed ? atomic_load(&device->uploads) : NULL;
    if (!shared) {
        const nhood_status status = nh_driver_check(
            driver, driver->stream_create(stream, NH_CU_STREAM_NON_BLOCKING), "stream");
        if (status || !scope->pushed ||
            atomic_compare_exchange_strong(&device->uploads, &shared, *stream))
            return status;
        driver->stream_destroy(*stream); /* another thread was faster */
    }
    *stream = shared;
    return NHOOD_OK;
}

static void close_stream(const struct nh_cuda_device *device, const struct nh_cuda_scope *scope,
                         nh_cu_stream stream) {
    if (!scope->pushed) device->cuda->driver.stream_destroy(stream);
}

static nhood_status copy(struct nh_cuda_device *device, const struct nh_cuda_scope *scope,
                         nh_cu_pointer to, const void *from, size_t bytes) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_stream stream = NULL;
    nhood_status status = open_stream(device, scope, &stream);
    if (status) return status;
    status = nh_driver_check(driver, driver->memory_send(to, from, bytes, stream), "copying in");
    if (!status) status = nh_driver_check(driver, driver->stream_synchronize(stream), "copying in");
    close_stream(device, scope, stream);
    return status;
}

nhood_status nh_cuda_write_kept(struct nh_cuda_operation *operation) {
    const struct nh_cuda *cuda = operation->device->cuda;
    const struct nh_driver *driver = &cuda->driver;
    struct nh_cuda_scope scope;
    int mode = NH_CU_CAPTURE_RELAXED;
    if (!operation->kept_bytes || nh_kernel_cache_collects(cuda->kernels)) return NHOOD_OK;
    operation->captured = nh_allocate(operation->host, sizeof *operation->captured);
    if (!operation->captured) return NHOOD_ERR_MEMORY;
    atomic_init(operation->captured, false);
    nhood_status status = nh_cuda_enter(operation->device, true, &scope);
    if (status) return status;
    /* As for loading kernels: in the default mode, a thread of a process that captures a graph could not allocate. */
    driver->capture_mode(&mode);
    status = hold_block(operation->device, &scope);
    if (!status) status = allocate(driver, operation->kept_bytes, &operation->memory);
    if (!status)
        status = copy(operation->device, &scope, operation->memory, operation->kept,
                      operation->kept_bytes);
    driver->capture_mode(&mode);
    nh_cuda_leave(operation->device, &scope);
    nh_release(operation->host, operation->kept);
    operation->kept = NULL;
    return status;
}

void nh_cuda_note_capture(const struct nh_cuda_operation *operation, nh_cu_stream stream) {
    int status = 0;
    if (!operation->memory || atomic_load(operation->captured)) return;
    if (operation->device->cuda->driver.stream_captures(stream, &status) == NH_CU_SUCCESS && status)
        atomic_store(operation->captured, true);
}

void nh_cuda_share_capture(const struct nh_cuda_operation *from,
                           const struct nh_cuda_operation *to) {
    if (from->captured && to->captured && atomic_load(from->captured))
        atomic_store(to->captured, true);
}

void nh_cuda_release_kept(struct nh_cuda_operation *operation) {
    const struct nh_driver *driver = &operation->device->cuda->driver;
    struct nh_cuda_scope scope;
    int mode = NH_CU_CAPTURE_RELAXED;
    const bool captured = operation->captured && atomic_load(operation->captured);
    if (operation->kept) nh_release(operation->host, operation->kept);
    if (operation->captured) nh_release(operation->host, operation->captured);
    if (captured || !operation->memory || nh_cuda_enter(operation->device, true, &scope)) return;
    driver->capture_mode(&mode);
    driver->memory_free(operation->memory);
    driver->capture_mode(&mode);
    nh_cuda_leave(operation->device, &scope);
}
