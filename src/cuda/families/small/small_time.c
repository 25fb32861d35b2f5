#include "small_launch.h"
#include "dtype.h"
#include "load.h"

#include <math.h>

/* All constants are fitted to some 4,400 timings on an H200, what f32 has of its own to 900. */

/* Subtiles that lie beyond their dilation group cost most of what others do: the warps whose turn they are wait. */
static double subtiles_of_item(const struct nh_small_launch *launch, double absent) {
    double there = launch->shape.subtiles / launch->shape.items;
    return there + absent * ((double)(launch->shape.item_rows / 16) - there);
}

/* The share of what can be filled of the issue slots that warps fill, which have something to run while others wait. */
static double filled_by(double warps, double half) {
    return warps / (warps + half);
}

/* How many more of a block's warps its fullest scheduler has than the mean, in shares of these. */
static double unevenness(const struct nh_small_launch *launch) {
    return (double)(nh_ceil_div(launch->warps, 4) * 4) / launch->warps - 1;
}

/* Of a kernel where threads copy: instructions of a warp for each step of a block's products with their loads, for
 * each of its rows' where those are split anew, for a block's masks and exponentials, for a subtile, and for 32 copies;
 * the share of the issue slots that warps fill at most. */
struct threads_cost {
    double step, row_step, block, subtile, copy, filled_most;
};

static const struct threads_cost threads_costs16[] = {
    [NH_SMALL_FORWARD] = {2.05, 0, 7.43, 85.5, 4.29, 0.223},
    [NH_SMALL_BACKWARD_QUERY] = {1.67, 0, 0, 116, 14.9, 0.136},
    [NH_SMALL_BACKWARD_KEY] = {1.3, 0, 16.8, 333, 7.19, 0.494},
};
static const struct threads_cost threads_costs32[] = {
    [NH_SMALL_FORWARD] = {5.31, 3.79, 2.8, 20.9, 9.46, 0.217},
    [NH_SMALL_BACKWARD_QUERY] = {6.12, 8.52, 0, 189, 5.68, 0.765},
    [NH_SMALL_BACKWARD_KEY] = {2.54, 2.31, 5.09, 194, 23.1, 0.241},
};
static const struct threads_cost turns_costs[] = {
    [NH_SMALL_FORWARD] = {8.98, 2.98, 21.1, 122, 0.732, 0.478},
    [NH_SMALL_BACKWARD_QUERY] = {8.55, 4.75, 27.6, 117, 3.34, 0.37},
    [NH_SMALL_BACKWARD_KEY] = {8.8, 4.81, 119, 157, 1.93, 0.372},
};

static const struct threads_cost *threads_cost_of(const struct nh_problem *problem,
                                                  const struct nh_small_launch *launch) {
    const struct threads_cost *of_type =
        problem->dtype == NHOOD_DTYPE_F32 ? threads_costs32 : threads_costs16;
    return (launch->turns ? turns_costs : of_type) + launch->kernel;
}

/* Warps that fill half of what can be filled; the share of what is not scarce that blocks do not hide, at least and as far
 * as a block is alone; clocks of an item that has the multiprocessor to itself, by kernel, and of an instruction then;
 * what of their unevenness schedulers with fewer of a block's warps than others wait for these. */
struct threads_model {
    double filled_half, exposed_least, exposed_alone, alone_item[3], alone_instruction, waits;
};

static const struct threads_model *threads_model_of(const struct nh_problem *problem,
                                                    const struct nh_small_launch *launch) {
    static const struct threads_model model16 = {0.794, 0.0886, 0.529, {2400, 2080, 2390},
                                                 4.36,  0.483};
    static const struct threads_model forward32 = {0.4, 0.105, 0.0837, {326, 0, 0}, 6.87, 0.361};
    static const struct threads_model backward32 = {0.887, 0.0525, 0.588, {0, 8940, 22900},
                                                    3.64,  3.39};
    static const struct threads_model in_turns = {0.467, 0.0365, 0.623, {2100, 2160, 2170},
                                                  3.79,  0.851};
    if (launch->turns) return &in_turns;
    if (problem->dtype != NHOOD_DTYPE_F32) return &model16;
    return launch->kernel == NH_SMALL_FORWARD ? &forward32 : &backward32;
}

static double subtile_instructions(const struct nh_problem *problem,
                                   const struct nh_small_launch *launch) {
    enum { WIDEST_KEPT = 32 };
    const struct threads_cost *cost = threads_cost_of(problem, launch);
    double keys = (double)nh_small_steps(problem, problem->dim),
           values = (double)nh_small_steps(problem, problem->dim_v);
    bool forward = launch->kernel == NH_SMALL_FORWARD;
    double steps = forward                                     ? keys + values
                   : launch->kernel == NH_SMALL_BACKWARD_QUERY ? 2 * keys + values
                                                               : 2 * (keys + values);
    double bias = problem->has_bias ? 8 : 0;
    /* entries of the table, gathered over 16 rows */
    if (launch->kernel == NH_SMALL_BACKWARD_QUERY && problem->has_bias)
        bias += 1.3 * (double)problem->bias_count / (double)launch->shape.blocks;
    double block = forward && launch->shape.dense ? 2 : cost->block;
    /* rows that a thread does not keep are read and split anew for each pair of blocks */
    double splits =
        launch->turns || problem->dim <= WIDEST_KEPT ? 1 : (double)launch->shape.blocks / 2;
    return (double)launch->shape.blocks * (cost->step * steps + block + bias) +
           cost->row_step * steps * splits + cost->subtile;
}

/* What an item copies to shared memory. */
static double item_bytes(const struct nh_problem *problem, const struct nh_small_launch *launch) {
    double dims = (double)(problem->dim + problem->dim_v),
           halo = (double)launch->shape.fetched_rows;
    double share = (double)(problem->heads / problem->kv_heads);
    double rows = (double)launch->shape.item_rows, size = (double)nh_dtype_bytes(problem->dtype);
    switch (launch->kernel) {
    case NH_SMALL_FORWARD: return size * (halo * dims + rows * (double)problem->dim);
    case NH_SMALL_BACKWARD_QUERY:
        return size * (halo * dims + rows * (dims + (double)problem->dim_v));
    default:
        /* in turns, queries come twice */
        return share * halo * (size * (dims + (launch->turns ? (double)problem->dim : 0)) + 16) +
               size * rows * dims;
    }
}

double nh_small_launch_bytes(const struct nh_problem *problem,
                             const struct nh_small_launch *launch) {
    bool by_keys = launch->kernel == NH_SMALL_BACKWARD_KEY;
    double heads = (double)(by_keys ? problem->kv_heads : problem->heads);
    return (double)problem->batch * heads * launch->shape.items * item_bytes(problem, launch);
}

/* Of a kernel where the copy engine fetches: issue slots of a warp, with those it leaves empty, for a block of columns, for
 * each step of its products, for its biases, for a subtile, and for each 64 bytes of a row more that it stores itself since its rows
 * have gaps. Bytes that reach a multiprocessor in a clock, and the share of an item's way that few items do not
 * hide. */
struct boxes_cost {
    double block, step, bias, subtile, gaps, bytes_per_clock, started;
};

static const struct boxes_cost boxes_costs16[] = {
    [NH_SMALL_FORWARD] = {22.6, 11.1, 45, 362, 74.1, 60.8, 0.356},
    [NH_SMALL_BACKWARD_QUERY] = {12.6, 35.2, 8.3, 889, 71.2, 122, 1.27},
    [NH_SMALL_BACKWARD_KEY] = {31.2, 15.7, 27, 210, 136, 35.6, 0.356},
};
static const struct boxes_cost boxes_costs32[] = {
    [NH_SMALL_FORWARD] = {28.5, 45.9, 45, 191, 50.8, 64, 0.297},
    [NH_SMALL_BACKWARD_QUERY] = {6.39, 27.4, 27, 2450, 318, 64, 1.8},
    [NH_SMALL_BACKWARD_KEY] = {43.2, 125, 27, 579, 204, 64, 0.0908},
};

static const struct boxes_cost *boxes_cost_of(const struct nh_problem *problem,
                                              const struct nh_small_launch *launch) {
    return (problem->dtype == NHOOD_DTYPE_F32 ? boxes_costs32 : boxes_costs16) + launch->kernel;
}

static double boxes_instructions(const struct nh_problem *problem,
                                 const struct nh_small_launch *launch) {
    const double bits = 9.62, dense = 6.43, kinds = 8.54, bias_gradient = 2;
    const struct boxes_cost *cost = boxes_cost_of(problem, launch);
    double block = cost->block + cost->step * (double)nh_small_steps(problem, problem->dim);
    if (launch->kernel == NH_SMALL_FORWARD)
        block += nh_small_masks_by_bits(problem, launch) ? bits : launch->shape.dense ? -dense : 0;
    if (nh_small_penalty(problem, launch) == NH_SMALL_BY_KINDS) block -= kinds;
    if (problem->has_bias) block += cost->bias;
    double subtile = cost->subtile + (double)launch->shape.blocks * block;
    if (nh_problem_dilated(problem))
        subtile += cost->gaps * (double)nh_small_row_bytes(problem, problem->dim) / 64;
    if (launch->kernel == NH_SMALL_BACKWARD_QUERY && problem->has_bias)
        subtile += bias_gradient * (double)problem->bias_count;
    return subtile;
}

/* Clocks of so many items on the fullest multiprocessor where the copy engine fetches. Of an item: what is scarcest of
 * issue slots, which copies contend with and a few warps, those of an uneven number, or of one block alone fill badly;
 * bytes from the L2; warps that fetch, which have one item under way each; and stages, which are taken from when an item
 * is asked for until it has landed and its last subtile is done; and a share of the first one's way through them.
 * share: of the heads that an item is fetched for. */
static double boxes_clocks(const struct nh_problem *problem, const struct nh_small_launch *launch,
                           double items, double residents, double share) {
    const double contention = 0.131, absent = 0.867, waits = 0.428, landing = 1430, fetching = 3840;
    const double alike = 0.0654, filled_half[] = {3.39, 1.11};
    bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    const struct boxes_cost *cost = boxes_cost_of(problem, launch);
    double warps = residents * launch->warps;
    double slots = boxes_instructions(problem, launch) / 4 / filled_by(warps, filled_half[f32]) *
                   (1 + waits * unevenness(launch)) * (1 + alike / residents);
    double copy = item_bytes(problem, launch) / share / cost->bytes_per_clock;
    double rounds = ceil((double)(launch->shape.item_rows / 16) / launch->warps);
    double held = landing + copy + rounds * slots * warps;
    double busy = subtiles_of_item(launch, absent) * slots + contention * copy;
    double fetch = (fetching + copy) / nh_small_fetchers(launch) / residents;
    double item = fmax(fmax(busy, copy), fmax(held / launch->held / residents, fetch));
    return share * (items * item + cost->started * held);
}

/* The same where threads copy: of issue slots and bytes from the L2 what is scarcer, and what few blocks do not hide
 * of the other; beside the way of items that have the multiprocessor to themselves. */
static double threads_clocks(const struct nh_problem *problem, const struct nh_small_launch *launch,
                             double items, double residents, double share) {
    const double l2_bytes_per_clock = 51.9, absent = 0.532, alone_bytes_per_clock = 40;
    const struct threads_cost *cost = threads_cost_of(problem, launch);
    const struct threads_model *model = threads_model_of(problem, launch);
    double subtile = subtile_instructions(problem, launch);
    double bytes = items * item_bytes(problem, launch);
    double subtiles = share * items * subtiles_of_item(launch, absent);
    double instructions = subtiles * subtile + bytes / (16 * 32) * cost->copy;
    double filled = cost->filled_most * filled_by(residents * launch->warps, model->filled_half);
    double issue = instructions / 4 / filled * (1 + model->waits * unevenness(launch));
    double copy = bytes / l2_bytes_per_clock;
    double exposed = model->exposed_least + model->exposed_alone / residents;
    double clocks = fmax(issue, copy) + exposed * fmin(issue, copy);
    double turns = share * (double)nh_ceil_div(launch->shape.item_rows / 16, launch->warps);
    double alone = ceil(items / residents) * (model->alone_item[launch->kernel] +
                                              item_bytes(problem, launch) / alone_bytes_per_clock +
                                              turns * subtile * model->alone_instruction);
    return sqrt(clocks * clocks + alone * alone);
}

/* Work hides most of the time for memory, but not while the first items are on their way, as many as all blocks ask for
 * at once. Both launches of the backward pass read their inputs. */
double nh_small_launch_ns(const struct nh_problem *problem, const struct nh_cuda_device *device,
                          const struct nh_small_launch *launch) {
    static const double threads_copy_ns[] = {8270, 9840, 5900}, boxes_ns[] = {9720, 4170, 5710};
    const double bandwidth[] = {0.93, 0.521}, apart[] = {0.297, 0.139},
                 apart_at_first[] = {0.861, 0.326};
    bool by_keys = launch->kernel == NH_SMALL_BACKWARD_KEY;
    bool backward = launch->kernel != NH_SMALL_FORWARD;
    double copies = (double)(problem->batch * problem->heads) / device->multiprocessors;
    double share = by_keys ? (double)(problem->heads / problem->kv_heads) : 1;
    double items = ceil(copies * launch->shape.items / share);
    double residents = (double)nh_small_residents(problem, device, launch);
    if (residents <= 0) return INFINITY;
    double busy = nh_cuda_clocks_ns(device, (launch->stages ? boxes_clocks : threads_clocks)(
                                                problem, launch, items, residents, share));
    double memory = nh_cuda_memory_ns(problem, device) / bandwidth[backward] / (backward ? 2 : 1);
    double first = fmin(1, residents * fmax(launch->held, 1) / items);
    return (launch->stages ? boxes_ns : threads_copy_ns)[launch->kernel] + fmax(busy, memory) +
           (apart[backward] + apart_at_first[backward] * first) * fmin(busy, memory);
}
