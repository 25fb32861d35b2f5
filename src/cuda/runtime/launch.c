/* Plans on CUDA: building them, which gets their kernels ready, and executing them, which launches these. */
#include "launch.h"

#include "arena.h"
#include "bundle.h"
#include "os.h"
#include "thread.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static_assert(sizeof(struct nh_cuda_table_arguments) + 2 * sizeof(unsigned) <=
                  NH_MEMBER_SHARED_BYTES,
              "shared memory of a member");

nhood_status nh_cuda_check_alignment(const struct nh_cuda_operation *operation,
                                     const nhood_io *io) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if ((operation->aligned >> t & 1) && (uintptr_t)io->data[t] % NH_CUDA_ALIGNMENT)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "io.data[%s] = %p is not a multiple of %d bytes, which CUDA plans need "
                            "without NHOOD_FLAG_UNALIGNED",
                            nh_tensor_name(t), io->data[t], NH_CUDA_ALIGNMENT);
    return NHOOD_OK;
}

static void bind(const struct nh_cuda_operation *operation, const struct nh_cuda_step *step,
                 const nhood_io *io, struct nh_cuda_args *args) {
    *args = step->args;
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++) {
        const struct nh_cuda_binding *binding = &step->binding[slot];
        void *data = NULL;
        if (binding->from >= 0) data = io->data[binding->from];
        if (binding->from == NH_BIND_WORKSPACE) data = io->workspace;
        if (binding->from == NH_BIND_KEPT) data = (void *)(uintptr_t)operation->memory;
        if (data) data = (void *)((uintptr_t)data + binding->offset_bytes);
        args->tensor[slot].data = data;
    }
}

nh_cu_result nh_cuda_encode(const struct nh_driver *driver, const struct nh_cuda_map *m,
                            void *address, struct nh_cu_tensor_map *map) {
    static const int no_margin[3] = {0, 0, 0};
    uint32_t rank = (uint32_t)m->rank;
    if (m->pixels)
        return driver->tensor_map_im2col(map, m->type, rank, address, m->extent, m->stride_bytes,
                                         no_margin, no_margin, m->box[0], m->pixels,
                                         m->element_stride, 0, m->swizzle, m->promotion, 0);
    return driver->tensor_map(map, m->type, rank, address, m->extent, m->stride_bytes, m->box,
                              m->element_stride, 0, m->swizzle, m->promotion, 0);
}

static nhood_status encode(const struct nh_driver *driver, const struct nh_cuda_step *step,
                           const struct nh_cuda_args *args, struct nh_cu_tensor_map *map) {
    for (int32_t i = 0; i < step->maps; i++) {
        const struct nh_cuda_map *m = &step->map[i];
        /* The caller may leave an output out; the kernel then does not use its map. */
        if (!args->tensor[m->slot].data) continue;
        char *address = (char *)args->tensor[m->slot].data + m->offset_bytes;
        nh_cu_result result = nh_cuda_encode(driver, m, address, &map[i]);
        if (result) return nh_driver_check(driver, result, "tensor map");
    }
    return NHOOD_OK;
}

nhood_status nh_cuda_launch(const struct nh_cuda_operation *operation,
                            const struct nh_cuda_step *step, int64_t blocks, bool overlaps,
                            void *stream, void **parameters) {
    const struct nh_driver *driver = &operation->device->cuda->driver;
    struct nh_cu_launch_attribute attribute[2];
    unsigned attributes = 0;
    if (overlaps)
        attribute[attributes++] =
            (struct nh_cu_launch_attribute){.id = NH_CU_LAUNCH_OVERLAPS, .value = {1}};
    if (step->cluster > 1)
        attribute[attributes++] = (struct nh_cu_launch_attribute){.id = NH_CU_LAUNCH_CLUSTER,
                                                                  .value = {step->cluster, 1, 1}};
    const struct nh_cu_launch config = {
        .grid = {(unsigned)blocks, (unsigned)step->grid[1], (unsigned)step->grid[2]},
        .block = {(unsigned)step->threads, 1, 1},
        .shared_bytes = (unsigned)step->shared_bytes,
        .stream = (nh_cu_stream)stream,
        .attribute = attribute,
        .attributes = attributes,
    };
    const nhood_status status = nh_cuda_await_kept(operation);
    if (status) return status;
    nh_cuda_note_capture(operation, config.stream);
    /* cuLaunchKernelEx takes a CUkernel for a CUfunction, too: the driver loads it into the current context. */
    return nh_driver_check(
        driver, driver->launch(&config, (nh_cu_function)(void *)step->kernel, parameters, NULL),
        "launch");
}

void nh_cuda_step_arguments(const struct nh_cuda_step *step, struct nh_cuda_arguments *arguments) {
    const size_t region_bytes = step->regions ? sizeof step->region : 0;
    memcpy(arguments->rest, step->region, region_bytes);
    memcpy(arguments->rest + region_bytes, step->own.words, sizeof step->own.words);
    memset(arguments->rest + region_bytes + sizeof step->own.words, 0,
           sizeof arguments->rest - region_bytes - sizeof step->own.words);
}

static char *put(char *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return to + bytes;
}

void nh_cuda_add_tables(const struct nh_cuda_operation *operation,
                        const struct nh_cuda_arguments *arguments,
                        struct nh_cuda_table_arguments *to) {
    const struct nh_cuda_axis *const axes = arguments->shared.axis;
    const char *const from = (const char *)arguments, *const end = from + sizeof *arguments;
    char *next = put(to->bytes, from, (size_t)((const char *)axes - from));
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_cuda_table_axis axis = {.axis = axes[a]};
        for (int i = 0; operation->has_table[a] && i < 2; i++)
            axis.seen[i] = operation->memory + operation->table_offset[a][i];
        next = put(next, &axis, sizeof axis);
    }
    put(next, axes + NH_AXES, (size_t)(end - (const char *)(axes + NH_AXES)));
}

static nhood_status launch_step(const void *user, int32_t s, const nhood_io *io, bool overlaps) {
    const struct nh_cuda_operation *operation = user;
    const struct nh_cuda_step *step = operation->step[s];
    struct nh_cuda_arguments arguments;
    struct nh_cuda_table_arguments with_tables;
    struct nh_cu_tensor_map map[NH_CUDA_MAPS] = {{{0}}};
    void *parameters[2] = {step->tables ? (void *)&with_tables : &arguments, map};
    bind(operation, step, io, &arguments.shared);
    nh_cuda_step_arguments(step, &arguments);
    if (step->tables) nh_cuda_add_tables(operation, &arguments, &with_tables);
    nhood_status status = encode(&operation->device->cuda->driver, step, &arguments.shared, map);
    return status
               ? status
               : nh_cuda_launch(operation, step, step->grid[0], overlaps, io->stream, parameters);
}

bool nh_cuda_wanted(const struct nh_cuda_step *step, const nhood_io *io) {
    if (!step->outputs) return true;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if ((step->outputs >> t & 1) && io->data[t]) return true;
    return false;
}

bool nh_cuda_serves_members(const struct nh_cuda_operation *operation,
                            const struct nh_cuda_step *step) {
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++)
        if (step->binding[slot].from == NH_BIND_KEPT) return false;
    return step->shared_bytes <= nh_cuda_block_room(operation->device, true);
}

void nh_cuda_set_bases(const struct nh_cuda_step *step, uint32_t used, const nhood_io *io,
                       unsigned long long *base) {
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++) {
        const int32_t from = step->binding[slot].from;
        if (used >> slot & 1)
            *base++ = (uintptr_t)(from == NH_BIND_WORKSPACE ? io->workspace : io->data[from]);
    }
}

nhood_status nh_cuda_run_steps(const struct nh_cuda_operation *operation, int32_t count,
                               const nhood_io *io, nh_cuda_launch_fn *launch, const void *user,
                               bool *follows) {
    nhood_status status = NHOOD_OK;
    for (int32_t s = 0; !status && s < count; s++) {
        const struct nh_cuda_step *step = operation->step[s];
        const bool launched = nh_cuda_wanted(step, io);
        const bool overlaps = nh_cuda_may_overlap(operation, s, *follows);
        if (launched) status = launch(user, s, io, overlaps);
        *follows = launched;
    }
    return status;
}

nhood_status nh_cuda_run(const struct nh_cuda_operation *operation, const nhood_io *io,
                         bool *follows) {
    struct nh_cuda_scope scope;
    nhood_status status = nh_cuda_check_alignment(operation, io);
    if (status || (status = nh_cuda_enter(operation->device, false, &scope))) return status;
    status = nh_cuda_run_steps(operation, operation->count, io, launch_step, operation, follows);
    nh_cuda_leave(operation->device, &scope);
    return status;
}

static nhood_status run(const struct nh_operation *base, const nhood_io *io) {
    bool follows = false;
    return nh_cuda_run((const struct nh_cuda_operation *)base, io, &follows);
}

static void destroy(struct nh_operation *base) {
    struct nh_cuda_operation *operation = (struct nh_cuda_operation *)base;
    if (!operation) return;
    nh_cuda_release_kept(operation);
    if (operation->arena) return;
    for (int32_t i = 0; i < operation->count; i++)
        nh_release(operation->host, operation->spec[i]); /* with its step */
    nh_release(operation->host, operation);
}

/* The loading of an operation's kernels by several threads. Error texts are kept per thread, so they are copied. */
struct loading {
    struct nh_cuda_operation *operation;
    atomic_int next;
    nhood_status status[NH_CUDA_STEPS];
    char error[NH_CUDA_STEPS][1024];
};

static void *load_more(void *argument) {
    struct loading *loading = argument;
    struct nh_cuda_operation *operation = loading->operation;
    for (int i; (i = atomic_fetch_add(&loading->next, 1)) < operation->count;) {
        struct nh_cuda_step *step = operation->step[i];
        loading->status[i] =
            nh_kernel_get(operation->device, operation->spec[i], step->shared_bytes, &step->kernel);
        if (loading->status[i])
            snprintf(loading->error[i], sizeof loading->error[i], "%s", nhood_last_error());
    }
    return NULL;
}

/* Takes up to `wanted` of the threads that are started to compile for all plans together. Each NVRTC at work takes some
 * hundred megabytes. */
static atomic_int threads_in_use;
static int take_threads(int wanted) {
    const int most = (int)nh_min(nh_os_cpus(), NH_MOST_TEAM) - 1;
    int taken = 0;
    for (; taken < wanted; taken++)
        if (atomic_fetch_add(&threads_in_use, 1) >= most) {
            atomic_fetch_sub(&threads_in_use, 1);
            break;
        }
    return taken;
}

nhood_status nh_cuda_load(struct nh_cuda_operation *operation) {
    struct loading loading; /* its texts are large, so they are not cleared */
    int missing = 0;
    loading.operation = operation;
    atomic_init(&loading.next, 0);
    for (int i = 0; i < operation->count; i++)
        missing += !nh_kernel_in_memory(operation->device, operation->spec[i]);
    const int threads = missing > 1 ? take_threads(missing - 1) : 0; /* counting CPUs takes 10 us */
    nh_thread_team(1 + threads, load_more, &loading);
    atomic_fetch_sub(&threads_in_use, threads);
    for (int i = 0; i < operation->count; i++)
        if (loading.status[i]) return nh_error(loading.status[i], "%s", loading.error[i]);
    return NHOOD_OK;
}

void *nh_cuda_operation_memory(const struct nh_host *host, struct nh_arena *arena, size_t bytes) {
    return arena ? nh_arena_allocate_unset(arena, bytes) : nh_allocate_unset(host, bytes);
}

nhood_status nh_cuda_build(const struct nh_solver *solver, const struct nh_problem *problem,
                           const struct nh_device *device, const struct nh_config *config,
                           struct nh_operation **operation) {
    struct nh_cuda_operation *created =
        nh_cuda_operation_memory(device->host, device->arena, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    *created = (struct nh_cuda_operation){.base = {.run = run, .destroy = destroy},
                                          .device = device->backend,
                                          .host = device->host,
                                          .arena = device->arena};
    created->aligned = nh_cuda_aligned_tensors(problem);
    created->for_group = device->for_group;
    created->any_length = device->any_length;
    nhood_status status = nh_cuda_keep_tables(created, problem);
    if (!status) status = solver->add_steps(created, problem, config);
    if (!status && problem->op == NHOOD_OP_BWD && nh_leaves_out_keys(problem))
        status = nh_cuda_add_clear_keys(created, problem);
    if (!status && !device->kernels_later) status = nh_cuda_load(created);
    if (!status) status = nh_cuda_write_kept(created);
    if (status) {
        destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}

void nh_cuda_launches(const struct nh_operation *built, nhood_launch_fn report, void *user) {
    const struct nh_cuda_operation *operation =
        (const struct nh_cuda_operation *)(const void *)built;
    for (int32_t i = 0; i < operation->count; i++) {
        const struct nh_cuda_step *step = operation->step[i];
        const struct nh_bundle_item *item = nh_kernel_code(operation->device, operation->spec[i]);
        const nhood_launch launch = {.struct_size = sizeof launch,
                                     .kernel = item->key,
                                     .code = item->payload,
                                     .code_bytes = item->bytes,
                                     .grid = {step->grid[0], step->grid[1], step->grid[2]},
                                     .cluster = (int32_t)nh_max(step->cluster, 1),
                                     .threads = step->threads,
                                     .shared_bytes = step->shared_bytes,
                                     .multiprocessor_shared_bytes =
                                         operation->device->shared_bytes_per_multiprocessor};
        report(user, &launch);
    }
}
