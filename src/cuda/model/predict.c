#include "predict.h"

#include "cuda_bounded.h"
#include "cuda_group.h"
#include "dtype.h"
#include "hash.h"
#include "rates.h"

#include <limits.h>
#include <math.h>
#include <string.h>

/* ---- work ---- */

/* The launch that stores zeros as gradients of keys that are left out. */
static void add_clear_keys(struct nh_work *work, const struct nh_problem *problem) {
    double keys = 1;
    for (int a = 0; a < NH_AXES; a++)
        keys *= (double)problem->axis[a].key_tensor.length;
    double elements =
        (double)(problem->batch * problem->kv_heads * (problem->dim + problem->dim_v));
    work->helpers++;
    work->helper_bytes +=
        (keys - (double)problem->key_tokens) * elements * (double)nh_dtype_bytes(problem->dtype);
}

void nh_work_start(struct nh_work *work, enum nh_operation_kind operation,
                   const struct nh_problem *problem) {
    /* The launches are cleared when they are added, as searches start thousands of works. */
    work->operation = operation;
    work->overlaps = false;
    work->launches = work->helpers = 0;
    work->bytes = problem->bytes;
    work->helper_bytes = 0;
    if (problem->op == NHOOD_OP_BWD && nh_leaves_out_keys(problem)) add_clear_keys(work, problem);
}

struct nh_launch_work *nh_work_add(struct nh_work *work, enum nh_kernel_kind kernel) {
    struct nh_launch_work *launch = &work->launch[work->launches++];
    memset(launch, 0, sizeof *launch);
    launch->kernel = kernel;
    launch->residents = launch->in_flight = launch->warps = launch->steps = launch->longest = 1;
    launch->serial = launch->unit[NH_WORK_BLOCK] = 1;
    return launch;
}

/* ---- coefficients ---- */

#define NH_KERNEL(...)
#define NH_OPERATION(...)
#define NH_PIPELINE(name, ...) static const struct nh_pipeline pipeline_##name = {__VA_ARGS__};
#include "h200.def"

const struct nh_coefficients nh_built_in = {
    .kernel =
        {
#define NH_KERNEL(name, pipeline, start, step, ...)                                                \
    [NH_KERNEL_##name] = {&pipeline_##pipeline, start, step, {__VA_ARGS__}},
#define NH_OPERATION(...)
#define NH_PIPELINE(...)
#include "h200.def"
        },
    .operation =
        {
#define NH_KERNEL(...)
#define NH_OPERATION(name, ...) [NH_OPERATION_##name] = {__VA_ARGS__},
#define NH_PIPELINE(...)
#include "h200.def"
        },
};

void nh_coefficients_scale(const double factor[NH_FACTORS], struct nh_coefficients *scaled) {
    *scaled = nh_built_in;
    for (int i = 0; i < NH_KERNEL_KINDS; i++) {
        struct nh_kernel_coefficients *kernel = &scaled->kernel[i];
        const double all = factor[NH_FACTOR_CLOCKS] * factor[NH_FACTOR_KERNEL + i];
        kernel->start *= all;
        kernel->step *= all;
        for (int unit = 0; unit < NH_WORK_UNITS; unit++)
            kernel->unit[unit] *= all;
        kernel->unit[NH_WORK_TENSOR] *= factor[NH_FACTOR_TENSOR];
        kernel->unit[NH_WORK_SPILL] *= factor[NH_FACTOR_TENSOR];
    }
    for (int i = 0; i < NH_OPERATION_KINDS; i++) {
        struct nh_operation_coefficients *operation = &scaled->operation[i];
        operation->launch *= factor[NH_FACTOR_LAUNCH];
        operation->helper *= factor[NH_FACTOR_LAUNCH];
        operation->helper_bytes *= factor[NH_FACTOR_MEMORY];
        operation->memory *= factor[NH_FACTOR_MEMORY];
    }
}

uint64_t nh_coefficients_version(const struct nh_cuda_device *device) {
    const struct nh_problem f16 = {.dtype = NHOOD_DTYPE_F16};
    const double rates[] = {nh_cuda_products_per_clock(&f16, device, false),
                            nh_cuda_products_per_clock(&f16, device, true),
                            nh_cuda_l2_clocks(device, 1)};
    uint64_t hash = nh_hash(NH_HASH_START, rates, sizeof rates);
    for (int i = 0; i < NH_KERNEL_KINDS; i++) {
        const struct nh_kernel_coefficients *kernel = &nh_built_in.kernel[i];
        hash = nh_hash(hash, kernel->pipeline, sizeof *kernel->pipeline);
        hash = nh_hash(hash, &kernel->start, sizeof kernel->start);
        hash = nh_hash(hash, &kernel->step, sizeof kernel->step);
        hash = nh_hash(hash, kernel->unit, sizeof kernel->unit);
    }
    return nh_hash(hash, nh_built_in.operation, sizeof nh_built_in.operation);
}

/* ---- predictions ---- */

/* A launch's clocks: on the full device, latency that nothing hides, the tail, and fetching code at its beginning. */
struct span {
    double busy, latency, end, begin;
};

static double block_clocks(const struct nh_coefficients *coefficients,
                           const struct nh_launch_work *launch) {
    const struct nh_kernel_coefficients *kernel = &coefficients->kernel[launch->kernel];
    double clocks = 0;
    for (int unit = 0; unit < NH_WORK_UNITS; unit++)
        clocks += kernel->unit[unit] * launch->unit[unit];
    return clocks;
}

double nh_predict_block_clocks(const struct nh_cuda_device *device,
                               const struct nh_launch_work *launch) {
    return block_clocks(nh_coefficients_of(device), launch);
}

double nh_predict_clocks_per_ns(const struct nh_cuda_device *device) {
    return device->multiprocessors * device->clock_hz / 1e9;
}

/* A smooth maximum, by fourth powers: the larger of two values, and up to 19 % more where they are nearly equal. */
static double larger(double a, double b) {
    double squares = a * a * a * a + b * b * b * b;
    return sqrt(sqrt(squares));
}

static struct span span_of(const struct nh_coefficients *coefficients,
                           const struct nh_cuda_device *device,
                           const struct nh_launch_work *launch) {
    enum { SCHEDULERS = 4 };
    const struct nh_kernel_coefficients *kernel = &coefficients->kernel[launch->kernel];
    const struct nh_pipeline *of = kernel->pipeline;
    double waves = launch->blocks / device->multiprocessors;
    double warps = launch->warps * fmin(launch->residents, fmax(1, waves));
    double block = block_clocks(coefficients, launch);
    double filled = block * (1 + of->half / warps) *
                    (1 + of->uneven * (ceil(warps / SCHEDULERS) * SCHEDULERS / warps - 1));
    double loop = kernel->step * launch->steps + block * (of->alone + of->serial * launch->serial);
    double alone = kernel->start + loop;
    double rounds = fmax(1, ceil(waves / launch->in_flight));
    if (launch->fetchers > 0)
        filled = larger(filled, (of->fetch + of->box * launch->boxes) / launch->fetchers);
    return (struct span){
        .busy = (waves + of->whole_waves * (ceil(waves) - waves)) * filled,
        .latency = fmax(rounds * alone, kernel->start + loop * launch->longest),
        .end = of->ending * alone,
        .begin = of->code * launch->code,
    };
}

static double clocks_of(const struct span *span) {
    return larger(span->busy + span->end, span->latency) + span->begin;
}

static double clocks_by(const struct nh_coefficients *coefficients,
                        const struct nh_cuda_device *device, const struct nh_work *work) {
    struct span all = {0, 0, 0, 0};
    double clocks = 0;
    for (int i = 0; i < work->launches; i++) {
        const struct span span = span_of(coefficients, device, &work->launch[i]);
        clocks += clocks_of(&span);
        all = (struct span){all.busy + span.busy, fmax(all.latency, span.latency),
                            fmax(all.end, span.end), all.begin + span.begin};
    }
    return work->overlaps && device->overlaps ? clocks_of(&all) : clocks;
}

double nh_predict_clocks(const struct nh_cuda_device *device, const struct nh_work *work) {
    return clocks_by(nh_coefficients_of(device), device, work);
}

/* Adds the time that each part of the device would take alone at its highest rate. */
static void add_limits(const struct nh_cuda_device *device, const struct nh_work *work,
                       struct nh_count *count) {
    for (int i = 0; i < work->launches; i++) {
        const struct nh_launch_work *launch = &work->launch[i];
        const double clocks[NHOOD_LIMIT_COUNT] = {
            [NHOOD_LIMIT_TENSOR] = launch->blocks * launch->unit[NH_WORK_TENSOR],
            [NHOOD_LIMIT_EXPONENTIAL] = nh_cuda_exp_clocks(launch->tiles * launch->scores),
            [NHOOD_LIMIT_MASK] = nh_cuda_lane_clocks(launch->masked_tiles * launch->scores),
            [NHOOD_LIMIT_L2] = launch->blocks * launch->unit[NH_WORK_L2]};
        count->tiles += launch->tiles;
        count->masked_tiles += launch->masked_tiles;
        count->flops += launch->flops;
        for (int limit = 0; limit < NHOOD_LIMIT_COUNT; limit++)
            count->limit_ns[limit] +=
                nh_cuda_clocks_ns(device, clocks[limit] / device->multiprocessors);
    }
    count->limit_ns[NHOOD_LIMIT_MEMORY] +=
        1e9 * (work->bytes + work->helper_bytes) / device->memory_bytes_per_s;
}

double nh_predict_by(const struct nh_coefficients *coefficients,
                     const struct nh_cuda_device *device, const struct nh_work *work) {
    const struct nh_operation_coefficients *of = &coefficients->operation[work->operation];
    double byte_clocks = device->clock_hz / device->memory_bytes_per_s;
    double busy = clocks_by(coefficients, device, work),
           memory = of->memory * byte_clocks * work->bytes;
    int launches = work->overlaps && device->overlaps ? 1 : work->launches;
    return nh_cuda_clocks_ns(device, of->launch * launches + of->helper * work->helpers +
                                         of->helper_bytes * byte_clocks * work->helper_bytes +
                                         fmax(busy, memory) + of->beside * fmin(busy, memory));
}

double nh_predict(const struct nh_cuda_device *device, const struct nh_work *work,
                  struct nh_count *count) {
    if (count) add_limits(device, work, count);
    return nh_predict_by(nh_coefficients_of(device), device, work);
}

/* Whether each member of a group has blocks of its own that loop over work tiles (loop_blocks of launch.h). cuda.small deals work
 * tiles of all members out to one wave instead, and other kernels have a block for each work tile. */
static bool members_have_waves(enum nh_kernel_kind kernel) {
    return kernel == NH_KERNEL_FUSED90 || kernel == NH_KERNEL_SPLIT90_QUERY ||
           kernel == NH_KERNEL_SPLIT90_KEY || kernel == NH_KERNEL_JOINT90 ||
           kernel == NH_KERNEL_SHORT90 || kernel == NH_KERNEL_SHORT_FORWARD ||
           kernel == NH_KERNEL_SHORT_FORWARD_F32;
}

/* How many blocks that loop over work tiles a multiprocessor takes, one after the other, in a launch of so long: the integral of one
 * over what each takes (blocks_of_member in cuda_group.c). */
static double rounds_of(double ns) {
    const double last = fmin(ns, 2 * NH_LEAST_BLOCK_NS), middle = fmin(ns, 2 * NH_MOST_BLOCK_NS);
    return last / NH_LEAST_BLOCK_NS + 2 * log(middle / last) + (ns - middle) / NH_MOST_BLOCK_NS;
}

/* How many work tiles there are for each block that is resident at a time. */
static double waves_of(const struct nh_cuda_device *cuda, const struct nh_launch_work *launch) {
    return launch->blocks / (launch->residents * (double)cuda->multiprocessors);
}

/* What blocks take to find their member and copy its arguments where lengths are data. Those that loop over work tiles are a few waves
 *, others have one each. 32 images of 14x14 to 64x64 and half as large, windows of 7x7, on an H200:
 * cuda.fused80 took 365 us where estimates were 315, cuda.split80 1,084 and 306 where they were 905 and 232. */
static double any_length_ns(const struct nh_device *device, const struct nh_work *work) {
    const double member_ns = 3e3;
    const bool loops = work->operation == NH_OPERATION_SMALL_FORWARD ||
                       work->operation == NH_OPERATION_SMALL_BACKWARD;
    double waves = 0;
    for (int i = 0; i < work->launches && device->any_length; i++) {
        const double all = waves_of(device->backend, &work->launch[i]);
        waves += loops ? fmin(all, NH_BOUNDED_WAVES) : all;
    }
    return waves * member_ns;
}

/* What a group takes longer than one problem of as much work, of which each multiprocessor has a single block at most. */
static double members_ns(const struct nh_device *device, const struct nh_work *work, double alone) {
    double ns = 0;
    for (int i = 0; i < work->launches && device->members > 1; i++) {
        const struct nh_launch_work *launch = &work->launch[i];
        const double waves = waves_of(device->backend, launch) / device->members;
        const double rounds = fmin(device->members * fmin(1, waves), rounds_of(alone));
        if (members_have_waves(launch->kernel)) ns += fmax(0, rounds - 1) * NH_BLOCK_NS;
    }
    return ns;
}

double nh_estimate(const struct nh_solver *solver, const struct nh_problem *problem,
                   const struct nh_device *device, const struct nh_config *config,
                   struct nh_count *count) {
    struct nh_work asked;
    if (!solver->work(problem, device, config, &asked)) return INFINITY;
    struct nh_count counted = {.tiles = 0};
    const double ns = nh_predict(device->backend, &asked, count ? &counted : NULL);
    if (count && counted.tiles > 0) *count = counted;
    return ns + members_ns(device, &asked, ns) + any_length_ns(device, &asked);
}

/* ---- preferences ---- */

/* Matches any value of a knob: it makes no difference to the compiled kernel, or it is not chosen by speed. */
enum { ANY = INT16_MIN };

/* The solvers of the table, in the order of its rows. */
static const struct {
    const char *solver;
    int rows;
} sections[] = {
#define NH_SOLVER(name, rows) {name, rows},
#define NH_PREFERRED(...)
#include "h200_preferred.def"
};
static const int16_t preferred[][NH_CONFIG_KNOBS] = {
#define NH_SOLVER(name, rows)
#define NH_PREFERRED(...) {__VA_ARGS__},
#include "h200_preferred.def"
};

static bool matches(const int16_t row[NH_CONFIG_KNOBS], const struct nh_config *config) {
    for (int k = 0; k < NH_CONFIG_KNOBS; k++)
        if (row[k] != config->value[k] && row[k] != ANY) return false;
    return true;
}

int nh_preference(const struct nh_solver *solver, const struct nh_config *config) {
    const int16_t(*row)[NH_CONFIG_KNOBS] = preferred;
    for (size_t s = 0; s < sizeof sections / sizeof *sections; row += sections[s++].rows) {
        if (strcmp(sections[s].solver, solver->name) != 0) continue;
        for (int i = 0; i < sections[s].rows; i++)
            if (matches(row[i], config)) return i;
    }
    return INT_MAX;
}
