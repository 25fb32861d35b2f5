/* Setting up steps: their kernels' arguments as far as the problem gives them, workspace, and macros of several
 * families. */
#include "launch.h"

#include "dtype.h"

#include <stddef.h>
#include <string.h>

enum { WORKSPACE_ALIGNMENT = 256 };
NH_OWN_ARGS_FIT(nh_tiled_args, nh_cuda_tiling);
NH_OWN_ARGS_FIT(nh_clear_keys_args, nh_cuda_attended);

static const uint32_t DIM_TENSORS =
    NH_BIT(Q) | NH_BIT(K) | NH_BIT(EXTRA_K) | NH_BIT(D_Q) | NH_BIT(D_K) | NH_BIT(D_EXTRA_K);
static const uint32_t DIM_V_TENSORS =
    NH_BIT(V) | NH_BIT(O) | NH_BIT(EXTRA_V) | NH_BIT(D_O) | NH_BIT(D_V) | NH_BIT(D_EXTRA_V);

size_t nh_cuda_reserve(struct nh_cuda_operation *operation, size_t bytes) {
    size_t offset = operation->base.workspace_bytes;
    operation->base.workspace_bytes +=
        (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    return offset;
}

struct nh_cuda_tensor nh_cuda_strided(const nhood_strides *s) {
    return (struct nh_cuda_tensor){NULL, s->batch, {s->axis[0], s->axis[1], s->axis[2]}, s->head};
}

/* LSE and delta have the type of arithmetic, all other tensors that of the problem. */
static int64_t slot_bytes(const struct nh_problem *problem, int slot) {
    int32_t as = slot == NH_DELTA ? NHOOD_LSE : slot < NHOOD_TENSOR_COUNT ? slot : NHOOD_A;
    return (int64_t)nh_dtype_bytes(nh_tensor_dtype(problem, as));
}

/* Bytes from the first token of the tensor's box to the first of the grid, modulo 2^64. */
static size_t to_grid(const struct nh_problem *problem, const struct nh_cuda_tensor *tensor,
                      bool keys, int64_t element_bytes) {
    int64_t offset = 0;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        offset -= (keys ? axis->key_tensor.offset : axis->query.offset) * tensor->axis[a];
    }
    return (size_t)(offset * element_bytes);
}

void nh_cuda_step_init(struct nh_cuda_step *step, const struct nh_problem *problem) {
    memset(step, 0, offsetof(struct nh_cuda_step, map)); /* maps are set by whoever adds some */
    step->grid[0] = step->grid[1] = step->grid[2] = 1;
    step->threads = 128;
    struct nh_cuda_args *args = &step->args;
    const uint32_t tensors = nh_problem_tensors(problem);
    step->regions = nh_problem_cut(problem);
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++) {
        const bool used = tensors >> slot & 1; /* other slots are none of the caller's */
        step->binding[slot].from = used ? slot : NH_BIND_NONE;
        if (used) args->tensor[slot] = nh_cuda_strided(&problem->strides[slot]);
        if (used && step->regions && nh_tensor_of_grid(slot)) /* else they begin where it does */
            step->binding[slot].offset_bytes = to_grid(
                problem, &args->tensor[slot], nh_tensor_of_keys(slot), slot_bytes(problem, slot));
    }
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        args->axis[a] = (struct nh_cuda_axis){axis->length,   axis->window, axis->stride,
                                              axis->dilation, axis->causal, 0};
        step->periodic |= axis->periodic << a;
        step->tables |= (axis->windows.kind != 0) << a;
        step->region[a] = (struct nh_cuda_region){{axis->query.offset, axis->query.length},
                                                  {axis->key.offset, axis->key.length}};
    }
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
    step->binding[slot] = (struct nh_cuda_binding){NH_BIND_WORKSPACE, offset_bytes};
}

void nh_cuda_bind_offset(struct nh_cuda_step *step, int slot, size_t offset_bytes) {
    step->binding[slot] = (struct nh_cuda_binding){NH_BIND_WORKSPACE, offset_bytes};
}

/* Gives the step workspace for the notes of kernels/common/tile_note.cuh. */
static void note_tiles(struct nh_cuda_operation *operation, struct nh_cuda_step *step,
                       struct nh_kernel_spec *spec) {
    int64_t words = step->work_tiles * operation->device->noted_tiles;
    nh_kernel_define(spec, "NH_NOTED", operation->device->noted_tiles);
    step->binding[NH_NOTES] = (struct nh_cuda_binding){
        .from = NH_BIND_WORKSPACE, .offset_bytes = nh_cuda_reserve(operation, (size_t)words * 4)};
}

/* Its memory has no room for maps that the step does not have, which would be most of it. */
nhood_status nh_cuda_step_copy(struct nh_cuda_operation *operation, const struct nh_cuda_step *step,
                               const struct nh_kernel_spec *spec) {
    const size_t bytes =
        offsetof(struct nh_cuda_step, map) + (size_t)step->maps * sizeof *step->map;
    if (operation->count == NH_CUDA_STEPS)
        return nh_error(NHOOD_ERR_INTERNAL, "a plan has more than %d launches", NH_CUDA_STEPS);
    char *memory =
        nh_cuda_operation_memory(operation->host, operation->arena, sizeof *spec + bytes);
    if (!memory) return NHOOD_ERR_MEMORY;
    const int32_t index = operation->count++;
    operation->spec[index] = (struct nh_kernel_spec *)(void *)memory;
    operation->step[index] = (struct nh_cuda_step *)(void *)(memory + sizeof *spec);
    nh_kernel_copy(operation->spec[index], spec);
    memcpy(operation->step[index], step, bytes);
    return NHOOD_OK;
}

nhood_status nh_cuda_step_add(struct nh_cuda_operation *operation, const struct nh_cuda_step *step,
                              const struct nh_kernel_spec *spec) {
    static const int64_t limit[3] = {INT32_MAX, 65535, 65535};
    for (int i = 0; i < 3; i++)
        if (step->grid[i] < 1 || step->grid[i] > limit[i])
            return nh_error(NHOOD_ERR_UNSUPPORTED, "%s: grid axis %d has %lld blocks, of [1, %lld]",
                            spec->source, i, (long long)step->grid[i], (long long)limit[i]);
    const nhood_status status = nh_cuda_step_copy(operation, step, spec);
    if (status) return status;
    struct nh_cuda_step *added = operation->step[operation->count - 1];
    struct nh_kernel_spec *defined = operation->spec[operation->count - 1];
    if (!step->work_tiles) added->work_tiles = step->grid[0];
    if (step->regions) nh_kernel_define(defined, "NH_REGIONS", 1);
    if (step->periodic) nh_kernel_define(defined, "NH_PERIODIC", step->periodic);
    if (step->tables) nh_kernel_define(defined, "NH_TABLES", step->tables);
    if (operation->device->noted_tiles) note_tiles(operation, added, defined);
    /* nh_kernel_define drops a macro that does not fit, and most macros have a default: the kernel would still
     * compile. */
    if (defined->count == NH_KERNEL_DEFINES)
        return nh_error(NHOOD_ERR_INTERNAL, "%s: more than %d macros", spec->source,
                        NH_KERNEL_DEFINES - 1);
    if (spec->field && spec->values > NH_KERNEL_CONFIG_INTS)
        return nh_error(NHOOD_ERR_INTERNAL, "%s: a configuration of %d values, of at most %d",
                        spec->source, (int)spec->values, NH_KERNEL_CONFIG_INTS);
    return NHOOD_OK;
}

/* The most queries of a key along an axis, or a bound: window + window/2, as windows that stop at the ends of the axis are
 * attended by up to half as many queries more; with a table it may be all. */
static int64_t most_queries(const struct nh_axis *axis) {
    const int64_t bound = axis->windows.kind ? axis->length : axis->window + axis->window / 2;
    return nh_min(bound, nh_longest_group(axis));
}

/* The most terms of a sum of these kinds. */
static int64_t most_terms(const struct nh_problem *problem, int rows) {
    int64_t share = problem->heads / problem->kv_heads, queries = share, terms = 0;
    for (int a = 0; a < NH_AXES; a++)
        queries *= most_queries(&problem->axis[a]);
    if (rows & NH_SUMS_OF_QUERY) terms = problem->window_count + problem->extra_tokens;
    if (rows & NH_SUMS_OF_KEY) terms = nh_max(terms, queries);
    if (rows & NH_SUMS_OVER_ALL) terms = nh_max(terms, problem->query_tokens * share);
    return terms;
}

bool nh_cuda_sums_are_long(const struct nh_problem *problem, int rows) {
    /* On an H200, outputs of 256 keys in one chain on tensor cores are off by 1.0e-6 of the largest, PyTorch's by
     * 0.8e-6; with more keys the error grows in proportion, to 1.7e-4 for 16,384. */
    const int64_t chain = 256;
    bool tf32 = problem->flags & NHOOD_FLAG_ALLOW_TF32;
    return problem->dtype == NHOOD_DTYPE_F32 && !tf32 && most_terms(problem, rows) > chain;
}

void nh_cuda_define_long_sums(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                              int rows) {
    if (nh_cuda_sums_are_long(problem, rows)) nh_kernel_define(spec, "NH_LONG_SUMS", 1);
}

/* The OR of all strides by which an index of these tensors may be multiplied: its lowest set bit bounds the alignment. */
static int64_t stride_bits(const struct nh_problem *problem, uint32_t tensors) {
    int64_t bits = 0, axis[NH_AXES];
    for (int a = 0; a < NH_AXES; a++) /* all bits, or none */
        axis[a] = -(nh_max(problem->axis[a].length, nh_axis_keys(&problem->axis[a])) > 1);
    for (uint32_t left = tensors; left; left &= left - 1) {
        const int32_t t = __builtin_ctz(left);
        const nhood_strides *s = &problem->strides[t];
        bits |= (problem->batch > 1 ? s->batch : 0) | (problem->heads > 1 ? s->head : 0);
        if (nh_tensor_of_grid(t))
            bits |= (s->axis[0] & axis[0]) | (s->axis[1] & axis[1]) | (s->axis[2] & axis[2]);
        else
            bits |= s->axis[0] | s->axis[1] | s->axis[2];
    }
    return bits;
}

uint32_t nh_cuda_aligned_tensors(const struct nh_problem *problem) {
    return problem->flags & NHOOD_FLAG_UNALIGNED
               ? 0
               : (DIM_TENSORS | DIM_V_TENSORS) & nh_problem_tensors(problem);
}

int nh_cuda_vector(const struct nh_problem *problem, uint32_t slots) {
    if (problem->flags & NHOOD_FLAG_UNALIGNED) return 1;
    int64_t bits = 16 / (int64_t)nh_dtype_bytes(problem->dtype);
    if (slots & DIM_TENSORS) bits |= problem->dim;
    if (slots & DIM_V_TENSORS) bits |= problem->dim_v;
    const uint32_t tensors = slots & nh_cuda_aligned_tensors(problem);
    bits |= stride_bits(problem, tensors);
    return (int)(bits & -bits);
}

/* ---- launches of several families ---- */

void nh_cuda_configure_rows(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                            const struct row_config *rows) {
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(ROW_CONFIG);
    nh_kernel_define(spec, "NH_DTYPE", problem->dtype);
    nh_kernel_configure(spec, fields, rows);
}

void nh_cuda_take_runs(const struct nh_cuda_device *device, struct nh_kernel_spec *spec,
                       struct nh_cuda_step *step, int64_t rows, int64_t lanes) {
    /* Four rows of two tensors are enough bytes in flight: 98 KB a multiprocessor, of which 25 hide the memory's latency. */
    enum { RUN = 4, BLOCKS_PER_MULTIPROCESSOR = 4 };
    nh_kernel_define(spec, "NH_RUN", RUN);
    const int64_t of_block = ROW_THREADS / lanes * RUN;
    step->threads = ROW_THREADS;
    step->blocks = (struct nh_cuda_blocks){.heads = step->args.heads, .rows = (int)of_block};
    step->grid[0] = nh_min(nh_ceil_div(rows, of_block), (int64_t)1 << 30);
    step->loop_blocks = (int64_t)BLOCKS_PER_MULTIPROCESSOR * device->multiprocessors;
}

void nh_cuda_bind_stats(struct nh_cuda_step *step, const struct nh_problem *problem,
                        size_t offset_bytes) {
    struct nh_cuda_tensor *tensor = &step->args.tensor[NH_DELTA];
    int64_t stride = 4;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        tensor->axis[a] = stride;
        stride *= problem->axis[a].query.length;
    }
    tensor->head = stride;
    tensor->batch = stride * problem->heads;
    offset_bytes += to_grid(problem, tensor, false, sizeof(float));
    step->binding[NH_DELTA] = (struct nh_cuda_binding){NH_BIND_WORKSPACE, offset_bytes};
}

nhood_status nh_cuda_add_stats(struct nh_cuda_operation *operation, struct nh_cuda_step *step,
                               const struct nh_problem *problem, int64_t sum_columns) {
    enum { LANES = 32 };
    const int64_t rows = problem->batch * problem->query_tokens * problem->heads;
    const int vector = nh_cuda_vector(problem, NH_BIT(O) | NH_BIT(D_O));
    struct nh_kernel_spec spec = {.source = "backward_stats.cu"};
    int lanes = 1; /* a power of two, which hold a row of dO in registers */
    while (lanes < LANES && lanes * vector < problem->dim_v)
        lanes *= 2;
    nh_cuda_configure_rows(
        &spec, problem,
        &(struct row_config){.threads = ROW_THREADS,
                             .group = lanes,
                             .vector = vector,
                             .vectors = (int)nh_ceil_div(problem->dim_v, lanes * vector),
                             .resident = 1});
    nh_cuda_take_runs(operation->device, &spec, step, rows, lanes);
    nh_kernel_define(&spec, "NH_SUM_COLUMNS", sum_columns);
    return nh_cuda_step_add(operation, step, &spec);
}

void nh_cuda_add_bias_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             int64_t shares, struct nh_cuda_step *step) {
    int64_t head = shares * problem->bias_count;
    size_t bytes = (size_t)(problem->heads * head) * sizeof(float);
    step->args.tensor[NH_D_S].head = head;
    nh_cuda_bind_offset(step, NH_D_S, nh_cuda_reserve(operation, bytes));
    step->outputs |= NH_BIT(D_BIAS);
}

nhood_status nh_cuda_add_bias_sum(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, struct nh_cuda_step step) {
    struct nh_kernel_spec spec = {.source = "bias_sum.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_BIAS_COUNT", problem->bias_count);
    step.outputs = NH_BIT(D_BIAS);
    step.overlaps = true;
    step.regions = false;
    step.periodic = 0;
    step.tables = 0;
    step.threads = 32 * NH_BIAS_SUM_WARPS;
    step.shared_bytes = 0;
    step.maps = 0;
    step.grid[0] = nh_ceil_div(problem->bias_count, 32);
    step.grid[1] = problem->heads;
    return nh_cuda_step_add(operation, &step, &spec);
}

nhood_status nh_cuda_add_clear_keys(struct nh_cuda_operation *operation,
                                    const struct nh_problem *problem) {
    enum { THREADS = 128, KEYS = 4, MOST_BLOCKS = 1 << 20 };
    struct nh_kernel_spec spec = {.source = "clear_keys.cu"};
    struct nh_cuda_step step;
    struct nh_cuda_attended attended;
    int64_t vector = nh_cuda_vector(problem, NH_BIT(D_K) | NH_BIT(D_V));
    int64_t threads =
        problem->batch * problem->kv_heads * (nh_max(problem->dim, problem->dim_v) / vector);
    nh_cuda_step_init(&step, problem);
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_box *keys = &problem->axis[a].key_tensor;
        attended.box[a] = step.region[a].key;
        step.region[a].key = (struct nh_cuda_box){keys->offset, keys->length};
        threads *= a + 1 < NH_AXES ? keys->length : nh_ceil_div(keys->length, KEYS);
    }
    nh_cuda_step_set_own(&step, &attended, sizeof attended);
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_VECTOR", vector);
    nh_kernel_define(&spec, "NH_KEYS", KEYS);
    step.outputs = NH_BIT(D_K) | NH_BIT(D_V);
    step.overlaps = true;
    step.periodic = 0; /* rows are stored where they lie: nothing goes around */
    step.tables = 0;
    step.threads = THREADS;
    step.grid[0] = nh_min(nh_ceil_div(threads, THREADS), MOST_BLOCKS);
    step.grid[1] = 2; /* dK, dV */
    return nh_cuda_step_add(operation, &step, &spec);
}
