/* What one launch of cuda.small asks of a device. */
#include "small_launch.h"

#include "dtype.h"
#include "rates.h"
#include "small_roll.h"
#include "predict.h"

#include <math.h>

/* Warp tiles of a work tile, where those beyond the dilation group's end count 0.7: the warp that would compute one
 * waits for others. */
static double tiles_of_work_tile(const struct nh_small_launch *launch) {
    const double absent = 0.7;
    double there = launch->shape.warp_tiles / launch->shape.work_tiles;
    return there + absent * ((double)(launch->shape.work_tile_rows / 16) - there);
}

/* The bytes that a work tile copies to shared memory. */
static double work_tile_bytes(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    double dims = (double)(problem->dim + problem->dim_v),
           halo = (double)launch->shape.fetched_rows;
    double share = (double)(problem->heads / problem->kv_heads);
    double rows = (double)launch->shape.work_tile_rows,
           size = (double)nh_dtype_bytes(problem->dtype);
    switch (launch->kernel) {
    case NH_SMALL_FORWARD: return size * (halo * dims + rows * (double)problem->dim);
    case NH_SMALL_BACKWARD_QUERY:
        return size * (halo * dims + rows * (dims + (double)problem->dim_v));
    default:
        /* if keys and values share one place, queries are copied twice */
        return share * halo * (size * (dims + (launch->turns ? (double)problem->dim : 0)) + 16) +
               size * rows * dims;
    }
}

static enum nh_kernel_kind kernel_of(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    static const enum nh_kernel_kind
        kernel[][2] = {[NH_SMALL_FORWARD] = {NH_KERNEL_SMALL_FORWARD, NH_KERNEL_SMALL_FORWARD_F32},
                       [NH_SMALL_BACKWARD_QUERY] = {NH_KERNEL_SMALL_QUERY,
                                                    NH_KERNEL_SMALL_QUERY_F32},
                       [NH_SMALL_BACKWARD_KEY] = {NH_KERNEL_SMALL_KEY, NH_KERNEL_SMALL_KEY_F32}},
        boxes[][2] = {[NH_SMALL_FORWARD] = {NH_KERNEL_SMALL_FORWARD_BOXES,
                                            NH_KERNEL_SMALL_FORWARD_BOXES_F32},
                      [NH_SMALL_BACKWARD_QUERY] = {NH_KERNEL_SMALL_QUERY_BOXES,
                                                   NH_KERNEL_SMALL_QUERY_BOXES_F32},
                      [NH_SMALL_BACKWARD_KEY] = {NH_KERNEL_SMALL_KEY_BOXES,
                                                 NH_KERNEL_SMALL_KEY_BOXES_F32}},
        turns[] = {[NH_SMALL_FORWARD] = NH_KERNEL_SMALL_FORWARD_TURNS,
                   [NH_SMALL_BACKWARD_QUERY] = NH_KERNEL_SMALL_QUERY_TURNS,
                   [NH_SMALL_BACKWARD_KEY] = NH_KERNEL_SMALL_KEY_TURNS};
    bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    if (nh_small_rolls_planes(problem, &launch->shape) && launch->shape.slots)
        return f32 ? NH_KERNEL_SMALL_PLANES_F32 : NH_KERNEL_SMALL_PLANES;
    if (launch->turns) return turns[launch->kernel];
    return (launch->stages ? boxes : kernel)[launch->kernel][f32];
}

/* The inner dimensions of all products of a pair of rows, added up. */
static double product_dims(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    double depth = problem->dtype == NHOOD_DTYPE_F32 ? 8 : 16;
    double keys = depth * (double)nh_small_steps(problem, problem->dim),
           values = depth * (double)nh_small_steps(problem, problem->dim_v);
    return launch->kernel == NH_SMALL_FORWARD          ? keys + values
           : launch->kernel == NH_SMALL_BACKWARD_QUERY ? 2 * keys + values
                                                       : 2 * (keys + values);
}

/* Instructions that mask a logit, relative to those of a masking product. */
static double mask_share(const struct nh_small_launch *launch) {
    if (launch->kernel == NH_SMALL_FORWARD && launch->shape.dense) return 0;
    if (launch->kernel != NH_SMALL_FORWARD)
        return nh_small_additive_mask(launch) == NH_SMALL_BY_KINDS ? 0 : 1;
    return nh_small_masks_by_bits(launch) ? 2 : 1;
}

/* Issue slots that a bias takes per logit, most of them for waiting. By queries, its gradient's table is gathered over
 * 16 rows, too. */
static double bias_instructions(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { READ = 8 };
    if (!problem->has_bias) return 0;
    bool sums = launch->kernel == NH_SMALL_BACKWARD_QUERY;
    return READ + (sums ? 1.2 * (double)problem->bias_count / (double)launch->shape.blocks : 0);
}

/* Sets the units of work of a work tile. In f32, rows that threads do not keep are read and split again for each pair
 * of blocks. */
static void set_units(const struct nh_small_launch *of, double share,
                      struct nh_launch_work *launch) {
    const struct nh_problem *problem = of->problem;
    enum { WIDEST_KEPT = 32 };
    double tiles = share * tiles_of_work_tile(of), columns = 8 * (double)of->shape.blocks;
    double scores = 16 * tiles * columns, bytes = work_tile_bytes(of);
    double dims = product_dims(of), lanes = nh_cuda_lane_clocks(scores);
    double splits = of->turns || problem->dim <= WIDEST_KEPT ? 1 : (double)of->shape.blocks / 2;
    launch->unit[NH_WORK_TENSOR] =
        scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    launch->unit[NH_WORK_SPILL] = launch->unit[NH_WORK_TENSOR] * nh_small_spilled(of);
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(scores);
    launch->unit[NH_WORK_MASK] = lanes * mask_share(of);
    launch->unit[NH_WORK_VECTOR] = lanes * bias_instructions(of);
    launch->unit[NH_WORK_TILE] = tiles;
    launch->unit[NH_WORK_L2] = nh_cuda_l2_clocks(of->cuda, bytes);
    if (problem->dtype == NHOOD_DTYPE_F32 && !of->stages)
        launch->unit[NH_WORK_SHARED] = nh_cuda_lane_clocks(16 * tiles * dims * splits);
    if (of->kernel == NH_SMALL_FORWARD && of->stages == 1)
        launch->unit[NH_WORK_WAIT] = launch->unit[NH_WORK_L2] / launch->residents;
    if (!of->stages) launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(bytes / 16);
    /* results with gaps between rows are stored by threads */
    if (of->stages && nh_problem_dilated(problem))
        launch->unit[NH_WORK_INDEX] =
            tiles * (double)nh_small_row_bytes(problem, problem->dim) / 64;
}

bool nh_small_add_work(const struct nh_small_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    double share = of->keys ? (double)(problem->heads / problem->kv_heads) : 1;
    double residents = (double)nh_small_residents(of);
    double rounds = (double)nh_ceil_div(of->shape.work_tile_rows / 16, of->warps);
    if (residents <= 0) return false;
    struct nh_launch_work *launch = nh_work_add(work, kernel_of(of));
    launch->blocks = (double)(problem->batch * problem->heads) * of->shape.work_tiles / share;
    launch->residents = residents;
    launch->in_flight = residents * fmax(1, of->held);
    launch->warps = of->warps;
    launch->serial = rounds / (double)(of->shape.work_tile_rows / 16);
    launch->fetchers = of->stages ? nh_small_fetchers(of) * residents : 0;
    launch->boxes = share;
    launch->tiles = (double)(problem->batch * problem->heads) * of->shape.warp_tiles;
    launch->masked_tiles = of->shape.dense ? 0 : launch->tiles;
    launch->scores = 16 * 8 * (double)of->shape.blocks;
    set_units(of, share, launch);
    launch->flops = 2 * launch->tiles * 128 * (double)of->shape.blocks * product_dims(of);
    return true;
}

double nh_small_launch_ns(const struct nh_small_launch *launch) {
    struct nh_work work;
    nh_work_start(&work,
                  launch->kernel == NH_SMALL_FORWARD ? NH_OPERATION_SMALL_FORWARD
                                                     : NH_OPERATION_SMALL_BACKWARD,
                  launch->problem);
    return nh_small_add_work(launch, &work) ? nh_predict(launch->cuda, &work, NULL) : INFINITY;
}
