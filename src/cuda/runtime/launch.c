/* Plans on CUDA: filling in arguments, getting the kernels, and the launches of one execute. */
#include "launch.h"

#include "dtype.h"
#include "os.h"
#include "scale.h"
#include "thread.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { WORKSPACE_ALIGNMENT = 256 };
NH_OWN_ARGS_FIT(nh_tiled_args, nh_cuda_tiling);

static const uint32_t EXTRA_TENSORS =
    NH_BIT(EXTRA_K) | NH_BIT(EXTRA_V) | NH_BIT(D_EXTRA_K) | NH_BIT(D_EXTRA_V);
static const uint32_t KEY_TENSORS = NH_BIT(K) | NH_BIT(V) | NH_BIT(D_K) | NH_BIT(D_V);
static const uint32_t GRID_TENSORS = NH_BIT(Q) | NH_BIT(K) | NH_BIT(V) | NH_BIT(O) | NH_BIT(LSE) |
                                     NH_BIT(A) | NH_BIT(D_O) | NH_BIT(D_LSE) | NH_BIT(D_Q) |
                                     NH_BIT(D_K) | NH_BIT(D_V);
static const uint32_t DIM_TENSORS =
    NH_BIT(Q) | NH_BIT(K) | NH_BIT(EXTRA_K) | NH_BIT(D_Q) | NH_BIT(D_K) | NH_BIT(D_EXTRA_K);
static const uint32_t DIM_V_TENSORS =
    NH_BIT(V) | NH_BIT(O) | NH_BIT(EXTRA_V) | NH_BIT(D_O) | NH_BIT(D_V) | NH_BIT(D_EXTRA_V);

static nhood_status check_alignment(const struct nh_cuda_operation *operation, const nhood_io *io) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if ((operation->aligned >> t & 1) && (uintptr_t)io->data[t] % NH_CUDA_ALIGNMENT)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "io.data[%s] = %p is not a multiple of %d bytes, which CUDA plans need "
                            "without NHOOD_FLAG_UNALIGNED",
                            nh_tensor_name(t), io->data[t], NH_CUDA_ALIGNMENT);
    return NHOOD_OK;
}

static void bind(const struct nh_cuda_step *step, const nhood_io *io, const int64_t slab[2],
                 struct nh_cuda_args *args) {
    *args = step->args;
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++) {
        const struct nh_cuda_binding *binding = &step->binding[slot];
        void *data = NULL;
        if (binding->from >= 0) data = io->data[binding->from];
        if (binding->from == NH_BIND_WORKSPACE) data = io->workspace;
        int64_t slab_bytes = slab[0] * binding->slab_bytes[0] + slab[1] * binding->slab_bytes[1];
        if (data) data = (void *)((uintptr_t)data + binding->offset_bytes + (uintptr_t)slab_bytes);
        args->tensor[slot].data = data;
    }
}

static nh_cu_result encode_one(const struct nh_driver *driver, const struct nh_cuda_map *m,
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
        /* an output that the caller leaves out: the kernel leaves its map alone, too */
        if (!args->tensor[m->slot].data) continue;
        char *address = (char *)args->tensor[m->slot].data + m->offset_bytes;
        nh_cu_result result = encode_one(driver, m, address, &map[i]);
        if (result) return nh_driver_check(driver, result, "tensor map");
    }
    return NHOOD_OK;
}

/* The arguments of any family: kernels take as much of it as their struct is long. */
struct arguments {
    struct nh_cuda_args shared;
    char rest[NH_AXES * sizeof(struct nh_cuda_region) + NH_OWN_ARGS_WORDS * sizeof(long long)];
};

static void set_rest(const struct nh_cuda_step *step, struct arguments *arguments) {
    size_t region_bytes = step->regions ? sizeof step->region : 0;
    memcpy(arguments->rest, step->region, region_bytes);
    memcpy(arguments->rest + region_bytes, step->own.words, sizeof step->own.words);
}

static nhood_status launch(const struct nh_cuda_operation *operation,
                           const struct nh_cuda_step *step, const nhood_io *io,
                           const int64_t slab[2], bool overlaps) {
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
        .grid = {(unsigned)step->grid[0], (unsigned)step->grid[1], (unsigned)step->grid[2]},
        .block = {(unsigned)step->threads, 1, 1},
        .shared_bytes = (unsigned)step->shared_bytes,
        .stream = (nh_cu_stream)io->stream,
        .attribute = attribute,
        .attributes = attributes,
    };
    struct arguments arguments;
    struct nh_cu_tensor_map map[NH_CUDA_MAPS] = {{{0}}};
    void *parameters[2] = {&arguments, map};
    bind(step, io, slab, &arguments.shared);
    set_rest(step, &arguments);
    nhood_status status = encode(driver, step, &arguments.shared, map);
    if (status) return status;
    /* A CUkernel may stand where a CUfunction is asked for: the driver loads it into the current context. */
    return nh_driver_check(
        driver, driver->launch(&config, (nh_cu_function)(void *)step->kernel, parameters, NULL),
        "launch");
}

static bool wanted(const struct nh_cuda_step *step, const nhood_io *io) {
    if (!step->outputs) return true;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if ((step->outputs >> t & 1) && io->data[t]) return true;
    return false;
}

/* The steps of one slab, or those after the slabs. */
static nhood_status run_steps(const struct nh_cuda_operation *operation, const nhood_io *io,
                              const int64_t slab[2], bool after_slabs) {
    nhood_status status = NHOOD_OK;
    bool follows = false; /* the step before this one */
    for (int32_t i = 0; !status && i < operation->count; i++) {
        const struct nh_cuda_step *step = &operation->step[i];
        bool launched = step->after_slabs == after_slabs && wanted(step, io);
        bool overlaps = follows && step->overlaps && operation->device->overlaps;
        if (launched) status = launch(operation, step, io, slab, overlaps);
        follows = launched;
    }
    return status;
}

static nhood_status run(const struct nh_operation *base, const nhood_io *io) {
    const struct nh_cuda_operation *operation = (const struct nh_cuda_operation *)base;
    const int64_t first[2] = {0, 0};
    struct nh_cuda_scope scope;
    nhood_status status = check_alignment(operation, io);
    if (status || (status = nh_cuda_enter(operation->device, false, &scope))) return status;
    for (int64_t outer = 0; !status && outer < nh_max(1, operation->slabs[0]); outer++)
        for (int64_t inner = 0; !status && inner < nh_max(1, operation->slabs[1]); inner++) {
            const int64_t slab[2] = {outer, inner};
            status = run_steps(operation, io, slab, false);
        }
    if (!status) status = run_steps(operation, io, first, true);
    nh_cuda_leave(operation->device, &scope);
    return status;
}

static void destroy(struct nh_operation *base) {
    struct nh_cuda_operation *operation = (struct nh_cuda_operation *)base;
    if (operation) nh_release(operation->host, operation);
}

static nhood_status create(const struct nh_problem *problem, const struct nh_device *device,
                           struct nh_cuda_operation **operation) {
    struct nh_cuda_operation *created = nh_allocate(device->host, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    created->base = (struct nh_operation){.run = run, .destroy = destroy};
    created->device = device->backend;
    created->host = device->host;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (!(problem->flags & NHOOD_FLAG_UNALIGNED) && ((DIM_TENSORS | DIM_V_TENSORS) >> t & 1) &&
            nh_problem_role(problem, t) != NH_UNUSED)
            created->aligned |= 1u << t;
    *operation = created;
    return NHOOD_OK;
}

/* Threads that compile for all plans together, which may be built side by side themselves: a compiler at work takes some hundred megabytes. */
enum { MOST_LOADING_THREADS = 8 };
static atomic_int loading_threads;

struct loading {
    struct nh_cuda_operation *operation;
    int32_t index;
    bool own_thread;
    pthread_t thread;
    nhood_status status;
    char error[1024];
};

static void *load_one(void *argument) {
    struct loading *loading = argument;
    struct nh_cuda_step *step = &loading->operation->step[loading->index];
    loading->status =
        nh_kernel_get(loading->operation->device, &loading->operation->spec[loading->index],
                      step->shared_bytes, &step->kernel);
    /* The error text is the thread's own. */
    if (loading->status) snprintf(loading->error, sizeof loading->error, "%s", nhood_last_error());
    return NULL;
}

static bool start_loading(struct loading *loading) {
    int64_t most = nh_min(nh_os_cpus(), MOST_LOADING_THREADS);
    if (atomic_fetch_add(&loading_threads, 1) + 1 < most &&
        !nh_thread_create(&loading->thread, load_one, loading))
        return true;
    atomic_fetch_sub(&loading_threads, 1);
    return false;
}

static void end_loading(struct loading *loading) {
    pthread_join(loading->thread, NULL);
    atomic_fetch_sub(&loading_threads, 1);
}

/* The kernels of all steps are made side by side: NVRTC compiles on as many threads as call it, and a backward pass has two or
 * three large kernels. COMPILE, DEVICE, MEMORY. */
static nhood_status load_kernels(struct nh_cuda_operation *operation) {
    struct loading loading[NH_CUDA_STEPS];
    int32_t missing = 0;
    for (int32_t i = 0; i < operation->count; i++) {
        loading[i] = (struct loading){.operation = operation, .index = i};
        if (nh_kernel_in_memory(operation->device, &operation->spec[i])) continue;
        /* The first is left to this thread. */
        if (missing++) loading[i].own_thread = start_loading(&loading[i]);
    }
    for (int32_t i = 0; i < operation->count; i++)
        if (!loading[i].own_thread) load_one(&loading[i]);
    nhood_status status = NHOOD_OK;
    for (int32_t i = 0; i < operation->count; i++) {
        if (loading[i].own_thread) end_loading(&loading[i]);
        if (!status && loading[i].status)
            status = nh_error(loading[i].status, "%s", loading[i].error);
    }
    return status;
}

nhood_status nh_cuda_build(const struct nh_solver *solver, const struct nh_problem *problem,
                           const struct nh_device *device, const struct nh_config *config,
                           struct nh_operation **operation) {
    struct nh_cuda_operation *created = NULL;
    const char *refusal = nh_scale_refusal(problem);
    if (refusal) return nh_error(NHOOD_ERR_UNSUPPORTED, "scale = %g: %s", problem->scale, refusal);
    nhood_status status = create(problem, device, &created);
    if (status) return status;
    status = solver->add_steps(created, problem, config);
    if (!status) status = load_kernels(created);
    if (status) {
        destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}

size_t nh_cuda_reserve(struct nh_cuda_operation *operation, size_t bytes) {
    size_t offset = operation->base.workspace_bytes;
    operation->base.workspace_bytes +=
        (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return offset;
}

struct nh_cuda_tensor nh_cuda_strided(const nhood_strides *s) {
    return (struct nh_cuda_tensor){NULL, s->batch, {s->axis[0], s->axis[1], s->axis[2]}, s->head};
}

/* Tensors of LSE and delta hold what arithmetic is made in, all others what the problem stores. */
static int64_t slot_bytes(const struct nh_problem *problem, int slot) {
    int32_t as = slot == NH_DELTA ? NHOOD_LSE : slot < NHOOD_TENSOR_COUNT ? slot : NHOOD_A;
    return (int64_t)nh_dtype_bytes(nh_tensor_dtype(problem, as));
}

/* From the first token of the tensor's box to the first of the grid. */
static size_t to_grid(const struct nh_problem *problem, const struct nh_cuda_tensor *tensor,
                      bool keys, int64_t element_bytes) {
    int64_t offset = 0;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        offset -= (keys ? axis->key.offset : axis->query.offset) * tensor->axis[a];
    }
    return (size_t)(offset * element_bytes);
}

static void set_region(struct nh_cuda_step *step, const struct nh_problem *problem) {
    step->regions = nh_problem_partial(problem) || nh_problem_periodic(problem);
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        step->periodic |= axis->periodic << a;
        step->region[a] = (struct nh_cuda_region){{axis->query.offset, axis->query.length},
                                                  {axis->key.offset, axis->key.length}};
    }
}

void nh_cuda_step_init(struct nh_cuda_step *step, const struct nh_problem *problem) {
    *step = (struct nh_cuda_step){.grid = {1, 1, 1}, .threads = 128};
    struct nh_cuda_args *args = &step->args;
    set_region(step, problem);
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++) {
        bool used = slot < NHOOD_TENSOR_COUNT && nh_problem_role(problem, slot) != NH_UNUSED;
        step->binding[slot].from = used ? slot : NH_BIND_NONE;
        if (used) args->tensor[slot] = nh_cuda_strided(&problem->strides[slot]);
        if (used && (GRID_TENSORS >> slot & 1))
            step->binding[slot].offset_bytes = to_grid(
                problem, &args->tensor[slot], KEY_TENSORS >> slot & 1, slot_bytes(problem, slot));
    }
    for (int a = 0; a < NH_AXES; a++)
        args->axis[a] = (struct nh_cuda_axis){problem->axis[a].length, problem->axis[a].window,
                                              problem->axis[a].stride, problem->axis[a].dilation,
                                              problem->axis[a].causal, 0};
    args->batch = problem->batch;
    args->heads = problem->heads;
    args->kv_heads = problem->kv_heads;
    args->dim = problem->dim;
    args->dim_v = problem->dim_v;
    args->extra_tokens = problem->extra_tokens;
    args->window_count = problem->window_count;
    args->scale = problem->scale;
    args->flags = problem->flags;
    args->has_bias = problem->has_bias;
    args->rank = problem->rank;
    args->dtype = problem->dtype;
}

void nh_cuda_step_set_own(struct nh_cuda_step *step, const void *own, size_t bytes) {
    memcpy(step->own.words, own, bytes);
}

void nh_cuda_bind_workspace(struct nh_cuda_step *step, const struct nh_problem *problem, int slot,
                            size_t offset_bytes, int64_t width) {
    struct nh_cuda_tensor *tensor = &step->args.tensor[slot];
    tensor->head = width;
    int64_t size = width * problem->heads;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        tensor->axis[a] = size;
        size *= problem->axis[a].query.length;
    }
    tensor->batch = size;
    offset_bytes += to_grid(problem, tensor, false, slot_bytes(problem, slot));
    step->binding[slot] = (struct nh_cuda_binding){NH_BIND_WORKSPACE, offset_bytes, {0, 0}};
}

/* Gives the step a table for kernels/common/tile_note.cuh. */
static void note_tiles(struct nh_cuda_operation *operation, struct nh_cuda_step *step,
                       struct nh_kernel_spec *spec) {
    int64_t words = step->work_tiles * operation->device->noted_tiles;
    nh_kernel_define(spec, "NH_NOTED", operation->device->noted_tiles);
    step->binding[NH_NOTES] = (struct nh_cuda_binding){
        .from = NH_BIND_WORKSPACE, .offset_bytes = nh_cuda_reserve(operation, (size_t)words * 4)};
}

nhood_status nh_cuda_step_add(struct nh_cuda_operation *operation, const struct nh_cuda_step *step,
                              const struct nh_kernel_spec *spec) {
    static const int64_t limit[3] = {INT32_MAX, 65535, 65535};
    for (int i = 0; i < 3; i++)
        if (step->grid[i] < 1 || step->grid[i] > limit[i])
            return nh_error(NHOOD_ERR_UNSUPPORTED, "%s: grid axis %d has %lld blocks, of [1, %lld]",
                            spec->source, i, (long long)step->grid[i], (long long)limit[i]);
    if (operation->count == NH_CUDA_STEPS)
        return nh_error(NHOOD_ERR_INTERNAL, "a plan has more than %d launches", NH_CUDA_STEPS);
    int32_t index = operation->count++;
    operation->step[index] = *step;
    if (!step->work_tiles) operation->step[index].work_tiles = step->grid[0];
    operation->spec[index] = *spec;
    if (step->regions) nh_kernel_define(&operation->spec[index], "NH_REGIONS", 1);
    if (step->periodic) nh_kernel_define(&operation->spec[index], "NH_PERIODIC", step->periodic);
    if (operation->device->noted_tiles)
        note_tiles(operation, &operation->step[index], &operation->spec[index]);
    /* one that did not fit is missing, and most have a value that goes without saying */
    if (operation->spec[index].count == NH_KERNEL_DEFINES)
        return nh_error(NHOOD_ERR_INTERNAL, "%s: more than %d macros", spec->source,
                        NH_KERNEL_DEFINES - 1);
    return NHOOD_OK;
}

/* At most, in keys' rows: windows that stop at the ends of their axis are attended by half as many queries more. */
static int64_t most_terms(const struct nh_problem *problem, int rows) {
    int64_t share = problem->heads / problem->kv_heads, queries = share, terms = 0;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        queries *= nh_min(axis->window + axis->window / 2, nh_longest_group(axis));
    }
    if (rows & NH_SUMS_OF_QUERY) terms = problem->window_count + problem->extra_tokens;
    if (rows & NH_SUMS_OF_KEY) terms = nh_max(terms, queries);
    if (rows & NH_SUMS_OVER_ALL) terms = nh_max(terms, problem->query_tokens * share);
    return terms;
}

void nh_cuda_define_long_sums(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                              int rows) {
    /* On an H200, outputs of 256 keys in one chain on tensor cores are off by 1.0e-6 of the largest, PyTorch's by
     * 0.8e-6; with more keys the error grows in proportion, to 1.7e-4 for 16,384. */
    const int64_t chain = 256;
    bool tf32 = problem->flags & NHOOD_FLAG_ALLOW_TF32;
    if (problem->dtype == NHOOD_DTYPE_F32 && !tf32 && most_terms(problem, rows) > chain)
        nh_kernel_define(spec, "NH_LONG_SUMS", 1);
}

/* Bits of every stride that an index of the tensor may be multiplied with. */
static int64_t stride_bits(const struct nh_problem *problem, int32_t tensor) {
    const nhood_strides *s = &problem->strides[tensor];
    int64_t bits = problem->batch > 1 ? s->batch : 0;
    bool extra = EXTRA_TENSORS >> tensor & 1;
    for (int a = 0; a < NH_AXES; a++)
        if (extra || problem->axis[a].length > 1) bits |= s->axis[a];
    return bits | (problem->heads > 1 ? s->head : 0);
}

int nh_cuda_vector(const struct nh_problem *problem, uint32_t slots) {
    if (problem->flags & NHOOD_FLAG_UNALIGNED) return 1;
    int64_t bits = 16 / (int64_t)nh_dtype_bytes(problem->dtype);
    if (slots & DIM_TENSORS) bits |= problem->dim;
    if (slots & DIM_V_TENSORS) bits |= problem->dim_v;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if ((slots & (DIM_TENSORS | DIM_V_TENSORS)) >> t & 1 &&
            nh_problem_role(problem, t) != NH_UNUSED)
            bits |= stride_bits(problem, t);
    return (int)(bits & -bits);
}
