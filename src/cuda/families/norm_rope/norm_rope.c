/* RMS norm and rotary positions on CUDA: how lanes share rows, and the launches. norm_rope.cuh explains the layout. */
#include "norm_rope.h"

#include "cuda_solvers.h"
#include "dtype.h"
#include "launch.h"
#include "norm_rope_args.h"
#include "norm_rope_config.h"

enum { RESIDENT_THREADS = 2048 /* per multiprocessor, at most */ };

struct cuda_norm_rope {
    struct nh_norm_rope_operation base;
    struct nh_norm_rope problem;
    const struct nh_host *host;
    struct nh_cuda_device *device;
    nh_cu_kernel main, weight;     /* the second one is for the weight's gradient */
    struct nh_norm_rope_args args; /* all but addresses */
    int64_t threads, blocks;
};

static int64_t real_bytes(const struct nh_norm_rope *problem) {
    return problem->dtype == NHOOD_DTYPE_F64 ? 8 : 4;
}

/* The greatest power of two that divides all numbers of which `bits` is the OR. */
static int64_t common_power(int64_t bits) {
    return bits & -bits;
}

/* Sets the elements per load, which divide all strides by which an index of a tensor may be multiplied. */
static void choose_vector(const struct nh_norm_rope *problem, struct norm_rope_config *c) {
    const bool forward = problem->op == NHOOD_OP_FWD, halves = problem->pairs == NHOOD_PAIRS_HALVES;
    int64_t bits = NH_CUDA_ALIGNMENT / (int64_t)nh_dtype_bytes(problem->dtype) | problem->dim;
    for (int t = 0; t < NH_ROPE_TENSORS; t++) {
        const nhood_strides *strides = &problem->strides[t];
        if (forward ? t > NH_ROPE_Y : t == NH_ROPE_Y) continue;
        if (problem->batch > 1) bits |= strides->batch;
        if (problem->heads > 1) bits |= strides->head;
        for (int a = 0; a < NH_AXES; a++)
            if (problem->length[a] > 1) bits |= strides->axis[a];
    }
    if (halves) bits |= problem->dim / 2 | problem->first_pair[NH_AXES];
    c->vector = problem->unaligned ? 1 : (int)common_power(bits);
    c->pairs = halves ? c->vector : (int)nh_max(1, c->vector / 2);
    bits = nh_min(problem->dtype == NHOOD_DTYPE_F64 ? 1 : 4, c->pairs);
    for (int a = 1; a <= NH_AXES; a++)
        bits |= problem->first_pair[a];
    c->table = (int)common_power(bits);
}

/* The lanes, in whole warps, of a row that a block shares: the fewest that leave the fewest idle. A lane has at most 24
 * channels in f32, so that there is room for at least two blocks, which do not wait at each other's barriers. */
static int64_t block_lanes(int64_t units, int64_t unit_bytes) {
    enum { MOST_UNITS = 6, MOST_LANES = 1024, LANE_BYTES = 24 * sizeof(float) };
    const int64_t most_units = nh_max(1, nh_min(MOST_UNITS, LANE_BYTES / unit_bytes));
    int64_t group =
        nh_max(2, nh_ceil_div(nh_ceil_div(units, most_units), NORM_ROPE_WARP)) * NORM_ROPE_WARP;
    for (int64_t other = group; other <= MOST_LANES; other += NORM_ROPE_WARP)
        if (nh_ceil_div(units, other) * other < nh_ceil_div(units, group) * group) group = other;
    return nh_min(group, MOST_LANES);
}

/* Sets lanes per row, units per lane, rows in flight, threads and resident blocks. */
static void choose_group(const struct nh_norm_rope *problem, struct norm_rope_config *c) {
    /* THREADS: if a row is shared by at most a warp. Resident threads: if a thread has 85 registers, or 128; timed in
     * docs/log/performance.md (07fb253). */
    enum { THREADS = 256, MANY_THREADS = 768, FEW_THREADS = 512, MOST_ROWS = 4 };
    const bool backward = problem->op == NHOOD_OP_BWD, token = problem->norm == NHOOD_NORM_TOKEN;
    const int64_t units = nh_ceil_div(problem->channels / 2, c->pairs), bytes = real_bytes(problem);
    c->group = 1;
    while (c->group < NORM_ROPE_WARP && c->group < units)
        c->group *= 2;
    if (token && units > NORM_ROPE_WARP) c->group = (int)block_lanes(units, 2 * c->pairs * bytes);
    const bool shared = norm_rope_shared_row(c);
    c->units = (int)nh_ceil_div(units, c->group);
    c->threads = shared ? c->group : THREADS;
    /* A forward pass with few units per lane, and not in f64, needs few registers, so that more threads can be resident
     * without spilling. */
    const bool few = backward || bytes == 8 || c->units > (shared ? 3 : 1);
    const int64_t threads = few ? FEW_THREADS : MANY_THREADS;
    c->min_blocks = (int)nh_max(1, (threads + c->threads / 2) / c->threads);
    /* As many elements of a lane are in flight as registers allow. */
    const int64_t elements = backward ? 16 : 32, most_rows = nh_min(MOST_ROWS, problem->heads);
    c->rows = 1;
    while (!token && 2 * c->rows <= most_rows && 2 * c->rows * c->units * 2 * c->pairs <= elements)
        c->rows *= 2;
}

/* Work items: a token with all its heads or, if that leaves multiprocessors idle, with chunks of `each` of them. */
struct items {
    int64_t each, chunks, count;
};

static struct items items_of(const struct nh_norm_rope *problem, int64_t multiprocessors,
                             const struct norm_rope_config *c) {
    struct items items = {.each = problem->heads, .chunks = 1};
    while (problem->norm != NHOOD_NORM_TOKEN && items.each > c->rows &&
           problem->tokens * items.chunks < multiprocessors * RESIDENT_THREADS / c->group) {
        items.each = nh_ceil_div(nh_ceil_div(items.each, 2), c->rows) * c->rows;
        items.chunks = nh_ceil_div(problem->heads, items.each);
    }
    items.count = problem->tokens * items.chunks;
    return items;
}

static int weight_of(const struct nh_norm_rope *problem) {
    return !problem->weight_dtype                    ? NORM_ROPE_NO_WEIGHT
           : problem->weight_dtype == problem->dtype ? NORM_ROPE_STORED_WEIGHT
                                                     : NORM_ROPE_REAL_WEIGHT;
}

static struct norm_rope_config config_of(const struct nh_norm_rope *problem,
                                         int64_t multiprocessors) {
    struct norm_rope_config c = {.norm = problem->norm,
                                 .weight = weight_of(problem),
                                 .halves = problem->pairs == NHOOD_PAIRS_HALVES,
                                 .unaligned = problem->unaligned};
    choose_vector(problem, &c);
    choose_group(problem, &c);
    const struct items items = items_of(problem, multiprocessors, &c);
    c.whole = norm_rope_room(&c) == problem->channels;
    c.full = problem->heads % c.rows == 0 && items.each % c.rows == 0;
    c.index32 = items.count <= INT32_MAX;
    return c;
}

static struct nh_kernel_spec spec_of(const char *source, const struct nh_norm_rope *problem,
                                     const struct norm_rope_config *config) {
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(NORM_ROPE_CONFIG);
    struct nh_kernel_spec spec = {.source = source};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_configure(&spec, fields, config);
    return spec;
}

/* Sets work items and blocks, which loop over them. The number of blocks is that of resident ones if each loads its next
 * row ahead, or if the backward pass leaves a row of sums per block (then fewer, if those rows would be as large as an
 * eighth of the tensors). Otherwise there are more blocks, so that the last ones end together. */
static void choose_blocks(struct cuda_norm_rope *plan, const struct norm_rope_config *c) {
    enum { ROUNDS = 8, TOKENS_OF_SUMS = 8 };
    const struct nh_norm_rope *problem = &plan->problem;
    const int64_t multiprocessors = plan->device->multiprocessors;
    const struct items items = items_of(problem, multiprocessors, c);
    const bool sums = problem->op == NHOOD_OP_BWD && problem->weight_dtype;
    int64_t most = multiprocessors * c->min_blocks;
    if (sums && problem->norm == NHOOD_NORM_TOKEN)
        most = nh_min(most, nh_ceil_div(problem->tokens, TOKENS_OF_SUMS));
    if (!sums && !norm_rope_shared_row(c))
        most = ROUNDS * multiprocessors * (RESIDENT_THREADS / c->threads);
    plan->args.heads_each = (int)items.each;
    plan->args.chunks = (int)items.chunks;
    plan->args.items = items.count;
    plan->threads = c->threads;
    plan->blocks = nh_min(nh_ceil_div(items.count, c->threads / c->group), most);
    if (sums)
        plan->base.workspace_bytes =
            nh_align_up((size_t)(plan->blocks * problem->channels * real_bytes(problem)));
}

static void set_args(const struct nh_norm_rope *problem, int64_t blocks,
                     struct nh_norm_rope_args *args) {
    args->x = nh_cuda_strided(&problem->strides[NH_ROPE_X]);
    args->y = nh_cuda_strided(&problem->strides[NH_ROPE_Y]);
    args->d_y = nh_cuda_strided(&problem->strides[NH_ROPE_D_Y]);
    args->d_x = nh_cuda_strided(&problem->strides[NH_ROPE_D_X]);
    for (int a = 0; a < NH_AXES; a++)
        args->length[a] = problem->length[a];
    for (int a = 0; a <= NH_AXES; a++)
        args->first_pair[a] = (int)problem->first_pair[a];
    args->heads = (int)problem->heads;
    args->dim = (int)problem->dim;
    args->channels = (int)problem->channels;
    args->row_pairs = (int)problem->channels / 2;
    args->blocks = (int)blocks;
    args->eps = problem->eps;
    args->scale = problem->scale;
    args->inverse_channels = 1.0 / (double)problem->channels;
}

/* Sets the addresses. */
static nhood_status bind(const struct cuda_norm_rope *plan, const nhood_norm_rope_io *io,
                         struct nh_norm_rope_args *args) {
    const struct nh_norm_rope *problem = &plan->problem;
    const bool forward = problem->op == NHOOD_OP_FWD;
    const int first = NH_AXES - problem->rank;
    const struct {
        const char *name;
        const void *pointer;
    } given[] = {{"x", io->x},
                 {"table[0]", io->table[0]},
                 {"table[1]", problem->rank > 1 ? io->table[1] : NULL},
                 {"table[2]", problem->rank > 2 ? io->table[2] : NULL},
                 {"y", forward ? io->y : NULL},
                 {"d_y", forward ? NULL : io->d_y},
                 {"d_x", forward ? NULL : io->d_x}};
    for (size_t i = 0; !problem->unaligned && i < sizeof given / sizeof *given; i++)
        if ((uintptr_t)given[i].pointer % NH_CUDA_ALIGNMENT)
            return nh_error(
                NHOOD_ERR_ARGUMENT,
                "io.%s = %p is not a multiple of %d bytes, which CUDA plans need without "
                "NHOOD_FLAG_UNALIGNED",
                given[i].name, given[i].pointer, NH_CUDA_ALIGNMENT);
    *args = plan->args;
    args->x.data = (void *)(uintptr_t)io->x;
    args->y.data = forward ? io->y : NULL;
    args->d_y.data = forward ? NULL : (void *)(uintptr_t)io->d_y;
    args->d_x.data = forward ? NULL : io->d_x;
    args->weight = io->weight;
    for (int a = first; a < NH_AXES; a++) {
        const int64_t pairs = nh_norm_rope_pairs(problem, a);
        const int64_t before = 2 * pairs * problem->offset[a] * real_bytes(problem);
        if (pairs) args->table[a] = (const char *)io->table[a - first] + before;
    }
    if (!forward && problem->weight_dtype && io->d_weight) {
        args->d_weight = io->d_weight;
        args->sums = io->workspace;
    }
    return NHOOD_OK;
}

static nhood_status launch(const struct cuda_norm_rope *plan, nh_cu_kernel kernel, int64_t blocks,
                           int64_t threads, struct nh_norm_rope_args *args, void *stream) {
    const struct nh_driver *driver = &plan->device->cuda->driver;
    const struct nh_cu_launch config = {.grid = {(unsigned)blocks, 1, 1},
                                        .block = {(unsigned)threads, 1, 1},
                                        .stream = (nh_cu_stream)stream};
    void *parameters[1] = {args};
    return nh_driver_check(
        driver, driver->launch(&config, (nh_cu_function)(void *)kernel, parameters, NULL),
        "launch");
}

static nhood_status run(const struct nh_norm_rope_operation *operation,
                        const nhood_norm_rope_io *io) {
    const struct cuda_norm_rope *plan = (const struct cuda_norm_rope *)operation;
    struct nh_norm_rope_args args;
    struct nh_cuda_scope scope;
    nhood_status status = bind(plan, io, &args);
    if (status || (status = nh_cuda_enter(plan->device, false, &scope))) return status;
    if (args.y.data || args.d_x.data || args.sums)
        status = launch(plan, plan->main, plan->blocks, plan->threads, &args, io->stream);
    if (!status && args.sums)
        status =
            launch(plan, plan->weight, nh_ceil_div(plan->problem.channels, NH_ROPE_WEIGHT_CHANNELS),
                   NH_ROPE_WEIGHT_CHANNELS * NH_ROPE_WEIGHT_WARPS, &args, io->stream);
    nh_cuda_leave(plan->device, &scope);
    return status;
}

static void destroy(struct nh_norm_rope_operation *operation) {
    struct cuda_norm_rope *plan = (struct cuda_norm_rope *)operation;
    nh_release(plan->host, plan);
}

nhood_status nh_cuda_norm_rope_build(const struct nh_norm_rope *problem,
                                     const struct nh_device *device,
                                     struct nh_norm_rope_operation **operation) {
    const bool forward = problem->op == NHOOD_OP_FWD;
    struct cuda_norm_rope *plan = nh_allocate(device->host, sizeof *plan);
    if (!plan) return NHOOD_ERR_MEMORY;
    plan->base = (struct nh_norm_rope_operation){.run = run, .destroy = destroy};
    plan->problem = *problem;
    plan->host = device->host;
    plan->device = device->backend;
    const struct norm_rope_config config = config_of(problem, plan->device->multiprocessors),
                                  only_weight = {.weight = config.weight};
    const struct nh_kernel_spec main = spec_of(forward ? "norm_rope_forward.cu"
                                                       : "norm_rope_backward.cu",
                                               problem, &config),
                                weight = spec_of("norm_rope_weight.cu", problem, &only_weight);
    choose_blocks(plan, &config);
    set_args(problem, plan->blocks, &plan->args);
    nhood_status status = nh_kernel_get(plan->device, &main, 0, &plan->main);
    if (!status && !forward && problem->weight_dtype)
        status = nh_kernel_get(plan->device, &weight, 0, &plan->weight);
    if (status) {
        destroy(&plan->base);
        return status;
    }
    *operation = &plan->base;
    return NHOOD_OK;
}
