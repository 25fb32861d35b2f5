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
    if (!scope->primary || atomic_load(&device->held)) return NHOOD_OK;
    const nhood_status status = allocate(driver, 1, &held);
    if (!status && !atomic_compare_exchange_strong(&device->held, &none, held))
        driver->memory_free(held);
    return status;
}

/* Makes a stream by which memory is written: the default one may wait for one that a graph is captured from, which fails. */
static nhood_status make_stream(const struct nh_driver *driver, nh_cu_stream *stream) {
    return nh_driver_check(driver, driver->stream_create(stream, NH_CU_STREAM_NON_BLOCKING),
                           "stream");
}

static nhood_status await_stream(const struct nh_driver *driver, nh_cu_stream stream) {
    return nh_driver_check(driver, driver->stream_synchronize(stream), "copying in");
}

/* The stream that all plans in the primary context share, several threads at once. */
static nhood_status shared_stream(struct nh_cuda_device *device, nh_cu_stream *stream) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_stream shared = atomic_load(&device->uploads);
    if (!shared) {
        const nhood_status status = make_stream(driver, stream);
        if (status || atomic_compare_exchange_strong(&device->uploads, &shared, *stream))
            return status;
        driver->stream_destroy(*stream); /* another thread was faster */
    }
    *stream = shared;
    return NHOOD_OK;
}

/* Begins to copy what the operation keeps. In the primary context what was begun is waited for when the operation is first executed,
 * so that planning does not take the 8 us or so that it needs; others have a stream of their own, which is not kept. */
static nhood_status copy(struct nh_cuda_operation *operation, bool primary) {
    struct nh_cuda_device *device = operation->device;
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_stream stream = NULL;
    nhood_status status = primary ? shared_stream(device, &stream) : make_stream(driver, &stream);
    if (status) return status;
    status = nh_driver_check(
        driver,
        driver->memory_send(operation->memory, operation->kept, operation->kept_bytes, stream),
        "copying in");
    if (primary && !status) {
        atomic_store(&operation->use->source, operation->kept);
        operation->kept = NULL;
    }
    if (primary) return status;
    if (!status) status = await_stream(driver, stream);
    driver->stream_destroy(stream);
    return status;
}

nhood_status nh_cuda_write_kept(struct nh_cuda_operation *operation) {
    const struct nh_cuda *cuda = operation->device->cuda;
    const struct nh_driver *driver = &cuda->driver;
    struct nh_cuda_scope scope;
    int mode = NH_CU_CAPTURE_RELAXED;
    if (!operation->kept_bytes || nh_kernel_cache_collects(cuda->kernels)) return NHOOD_OK;
    operation->use = nh_allocate(operation->host, sizeof *operation->use);
    if (!operation->use) return NHOOD_ERR_MEMORY;
    atomic_init(&operation->use->captured, false);
    atomic_init(&operation->use->source, NULL);
    nhood_status status = nh_cuda_enter(operation->device, true, &scope);
    if (status) return status;
    /* As for loading kernels: in the default mode, a thread of a process that captures a graph could not allocate. */
    driver->capture_mode(&mode);
    status = hold_block(operation->device, &scope);
    if (!status) status = allocate(driver, operation->kept_bytes, &operation->memory);
    if (!status) status = copy(operation, scope.primary);
    driver->capture_mode(&mode);
    nh_cuda_leave(operation->device, &scope);
    if (operation->kept) nh_release(operation->host, operation->kept);
    operation->kept = NULL;
    return status;
}

nhood_status nh_cuda_await_kept(const struct nh_cuda_operation *operation) {
    struct nh_cuda_device *device = operation->device;
    const struct nh_driver *driver = &device->cuda->driver;
    struct nh_cuda_memory_use *use = operation->use;
    nh_cu_context popped;
    int mode = NH_CU_CAPTURE_RELAXED;
    if (!use || !atomic_load(&use->source)) return NHOOD_OK;
    /* the caller's context may be another one by now */
    nhood_status status = nh_driver_check(
        driver, driver->context_push(atomic_load(&device->primary)), "context push");
    if (status) return status;
    driver->capture_mode(&mode);
    status = await_stream(driver, atomic_load(&device->uploads));
    driver->capture_mode(&mode);
    driver->context_pop(&popped);
    if (status) return status;
    unsigned char *source =
        atomic_exchange(&use->source, NULL); /* NULL: another thread was faster */
    if (source) nh_release(operation->host, source);
    return NHOOD_OK;
}

void nh_cuda_note_capture(const struct nh_cuda_operation *operation, nh_cu_stream stream) {
    int status = 0;
    if (!operation->memory || atomic_load(&operation->use->captured)) return;
    if (operation->device->cuda->driver.stream_captures(stream, &status) == NH_CU_SUCCESS && status)
        atomic_store(&operation->use->captured, true);
}

void nh_cuda_share_capture(const struct nh_cuda_operation *from,
                           const struct nh_cuda_operation *to) {
    if (from->use && to->use && atomic_load(&from->use->captured))
        atomic_store(&to->use->captured, true);
}

void nh_cuda_release_kept(struct nh_cuda_operation *operation) {
    const struct nh_driver *driver = &operation->device->cuda->driver;
    struct nh_cuda_memory_use *use = operation->use;
    struct nh_cuda_scope scope;
    int mode = NH_CU_CAPTURE_RELAXED;
    if (operation->kept) nh_release(operation->host, operation->kept);
    if (!use) return;
    nh_cuda_await_kept(operation); /* if it fails, its context is gone */
    const bool captured = atomic_load(&use->captured);
    unsigned char *source = atomic_load(&use->source);
    if (source) nh_release(operation->host, source);
    nh_release(operation->host, use);
    if (captured || !operation->memory || nh_cuda_enter(operation->device, true, &scope)) return;
    driver->capture_mode(&mode);
    driver->memory_free(operation->memory);
    driver->capture_mode(&mode);
    nh_cuda_leave(operation->device, &scope);
}
