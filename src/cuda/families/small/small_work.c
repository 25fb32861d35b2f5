/* What a launch of cuda.small asks of a device: shared memory, registers, and the work of the model. */
#include "small_launch.h"

#include "dtype.h"
#include "kernel_abi.h"
#include "launch.h"
#include "rates.h"
#include "tile_count.h"

#include <math.h>

/* Steps of tensor core products over a row of `width` elements. */
static int64_t steps_of(const struct small_config *config, int width) {
    return small_units(width, config->element_bytes) / 2;
}

static bool is_planes(const struct nh_small_launch *launch) {
    return launch->config.pipeline == SMALL_PLANES;
}

/* ---- registers ---- */

/* Registers of the high and low parts of a row in f32, if a thread keeps the row (nh_row_operand in
 * small_products.cuh), or else of one step of it. */
static int64_t split_row(int64_t steps) {
    enum { STEPS_KEPT = 4, PARTS = 8 };
    return PARTS * (steps > STEPS_KEPT ? 1 : steps);
}

/* An estimate of a thread's registers: operands, scores and sums, and a constant for addresses and masks. */
static int64_t registers_of(const struct nh_small_launch *launch) {
    const struct small_config *config = &launch->config;
    int64_t keys = steps_of(config, config->dim), values = steps_of(config, config->dim_v);
    int64_t rows = split_row(keys), rows2 = split_row(values), blocks = small_box_blocks(config);
    bool f32 = launch->problem->dtype == NHOOD_DTYPE_F32, bits = config->mask == SMALL_BITS;
    /* Here scores of all columns stay in registers; with more of them the compiler keeps fewer other values. */
    if (config->pipeline == SMALL_TURNS)
        return config->pass == SMALL_FORWARD ? 3 * blocks + 80 : 2 * blocks + 96;
    switch (config->pass) {
    case SMALL_FORWARD: return f32 ? rows + 4 * values + 80 : 4 * keys + 8 * values + 48;
    case SMALL_BY_QUERY:
        return (f32 ? rows + rows2 + 4 * keys + 16 : 12 * keys + 4 * values) + (config->bias_count
                                                                                    ? 80
                                                                                : !bits ? 64
                                                                                : f32   ? 72
                                                                                        : 100);
    default:
        if (config->plane_chunks && !f32) return 12 * (keys + values) + 104;
        return f32 ? rows + rows2 + 4 * (keys + values) + 72 : 12 * (keys + values) + 80;
    }
}

static int64_t block_warps(const struct nh_small_launch *launch) {
    return nh_ceil_div(launch->config.warps + launch->config.fetchers, 4) * 4;
}

/* Blocks that are resident on a multiprocessor; 0: not even one fits, with the arguments of a member if it serves several. Blocks of
 * the copy engine have many warps: such a block is taken only if the compiler need not spill. */
static int64_t residents_of(const struct nh_small_launch *launch) {
    enum { MOST_RESIDENTS = 16, MOST_WARPS = 48 };
    const int64_t shared_bytes = small_shared_bytes(&launch->config) +
                                 (nh_small_is_grouped(launch) ? NH_MEMBER_SHARED_BYTES : 0);
    const int64_t by_shared = nh_cuda_residents_by_shared(launch->cuda, shared_bytes);
    if (!by_shared || shared_bytes > launch->cuda->shared_bytes_per_block) return 0;
    int64_t wanted = registers_of(launch), warps = block_warps(launch);
    int64_t by_registers =
        NH_CUDA_REGISTERS / (32 * warps * nh_min(nh_ceil_div(wanted, 8) * 8, 256));
    /* in f32, split operands double the registers, and hundreds of bytes would be spilled */
    if ((nh_small_fetches(launch) || launch->problem->dtype == NHOOD_DTYPE_F32) && !by_registers)
        return 0;
    /* Spilling a few registers costs little; spilling a third of them costs as much as everything else. */
    if (!by_registers && 3 * wanted > 4 * NH_CUDA_REGISTERS / (32 * warps)) return 0;
    int64_t residents = nh_min(nh_min(by_shared, by_registers), MOST_WARPS / warps);
    return nh_max(1, nh_min(residents, MOST_RESIDENTS));
}

/* Where planes of the backward roll, more than two producer warps, as far as they take neither registers nor shared
 * memory that others need. Timed (docs/log/small.md, 2026-11-27): with four in place of two, 2 to 12 % less at head dim
 * 32; but at head dim 64, where registers are left for one warp less per scheduler, a fifth more. */
static void set_fetchers(struct nh_small_launch *launch) {
    enum { LEAST = 2, MOST = 4 };
    struct small_config *config = &launch->config;
    config->fetchers = LEAST;
    config->min_blocks = (int)residents_of(launch);
    int32_t most =
        (int32_t)nh_min(config->stages + 1, nh_min(MOST, block_warps(launch) - config->warps));
    for (config->fetchers = most; config->fetchers > LEAST; config->fetchers--)
        if (residents_of(launch) >= config->min_blocks) break;
}

struct nh_small_launch nh_small_with_warps(const struct nh_small_launch *staged, int32_t warps) {
    struct nh_small_launch launch = *staged;
    launch.config.warps = warps;
    if (is_planes(&launch) && launch.config.pass != SMALL_FORWARD) set_fetchers(&launch);
    launch.config.min_blocks = (int)residents_of(&launch);
    return launch;
}

/* The share of registers that a block's threads lack and the compiler therefore spills. */
static double spilled(const struct nh_small_launch *launch) {
    enum { BESIDE = 16 };
    int64_t left = NH_CUDA_REGISTERS / (32 * block_warps(launch)) / 8 * 8;
    return (double)nh_max(0, registers_of(launch) + BESIDE - left) / (double)left;
}

/* ---- work ---- */

/* The bytes that a work tile copies to shared memory. */
static double work_tile_bytes(const struct nh_small_launch *launch, double share) {
    const struct nh_problem *problem = launch->problem;
    double dim = (double)problem->dim, dims = dim + (double)problem->dim_v;
    double halo = (double)small_fetched_rows(&launch->config),
           rows = (double)small_work_tile_rows(&launch->config);
    double size = (double)nh_dtype_bytes(problem->dtype);
    switch (launch->config.pass) {
    case SMALL_FORWARD: return size * (halo * dims + rows * dim);
    case SMALL_BY_QUERY: return size * (halo * dims + rows * (dims + (double)problem->dim_v));
    default: /* if keys and values share one place, queries are copied twice */
        return share * halo *
                   (size * (dims + (launch->config.pipeline == SMALL_TURNS ? dim : 0)) +
                    SMALL_STATISTICS_BYTES) +
               size * rows * dims;
    }
}

static enum nh_kernel_kind kernel_of(const struct nh_small_launch *launch) {
    /* by kernel: in 16 bits and in f32 where threads copy, the same for the copy engine, and where keys and values share
     * one place */
    enum { COPIES = 0, BOXES = 2, TURNS = 4 };
    static const enum nh_kernel_kind kind[][5] = {
        {NH_KERNEL_SMALL_FORWARD, NH_KERNEL_SMALL_FORWARD_F32, NH_KERNEL_SMALL_FORWARD_BOXES,
         NH_KERNEL_SMALL_FORWARD_BOXES_F32, NH_KERNEL_SMALL_FORWARD_TURNS},
        {NH_KERNEL_SMALL_QUERY, NH_KERNEL_SMALL_QUERY_F32, NH_KERNEL_SMALL_QUERY_BOXES,
         NH_KERNEL_SMALL_QUERY_BOXES_F32, NH_KERNEL_SMALL_QUERY_TURNS},
        {NH_KERNEL_SMALL_KEY, NH_KERNEL_SMALL_KEY_F32, NH_KERNEL_SMALL_KEY_BOXES,
         NH_KERNEL_SMALL_KEY_BOXES_F32, NH_KERNEL_SMALL_KEY_TURNS}};
    bool f32 = launch->problem->dtype == NHOOD_DTYPE_F32;
    if (launch->config.pass == SMALL_FORWARD && is_planes(launch))
        return f32 ? NH_KERNEL_SMALL_PLANES_F32 : NH_KERNEL_SMALL_PLANES;
    if (launch->config.pass == SMALL_FORWARD && launch->config.pipeline == SMALL_LINES && !f32)
        return NH_KERNEL_SMALL_LINES;
    return kind[launch->config.pass][launch->config.pipeline == SMALL_TURNS
                                         ? TURNS
                                         : (nh_small_fetches(launch) ? BOXES : COPIES) + f32];
}

/* The inner dimensions of all products of a pair of rows, added up. */
static double product_dims(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    double depth = problem->dtype == NHOOD_DTYPE_F32 ? 8 : 16;
    const struct small_config *config = &launch->config;
    double keys = depth * (double)steps_of(config, config->dim),
           values = depth * (double)steps_of(config, config->dim_v);
    return config->pass == SMALL_FORWARD    ? keys + values
           : config->pass == SMALL_BY_QUERY ? 2 * keys + values
                                            : 2 * (keys + values);
}

/* Instructions that mask a logit, relative to those of a masking product. */
static double mask_share(const struct nh_small_launch *launch) {
    if (launch->config.pass != SMALL_FORWARD) return launch->config.mask == SMALL_KINDS ? 0 : 1;
    return launch->config.mask == SMALL_NO_MASK ? 0 : launch->config.mask == SMALL_BITS ? 2 : 1;
}

/* Blocks of columns that a warp tile multiplies: those of its box, or of the planes that its rows see on average. Boxes that serve any
 * length have more lines than most warp tiles see, which stop at the last one that they do. */
static double blocks_of(const struct nh_small_launch *launch) {
    const struct nh_axis *axis = &launch->problem->axis[0];
    const struct small_config *config = &launch->config;
    const int first = NH_AXES - launch->problem->rank;
    const int64_t lines = nh_min(config->columns[first], config->warp_tile[first] - 1 +
                                                             launch->problem->axis[first].window);
    if (launch->serves == NH_SMALL_ANY_LENGTH && launch->problem->axis[first].stride == 1)
        return (double)nh_ceil_div(small_box_columns(config) / config->columns[first] * lines, 8);
    if (!config->plane_chunks) return (double)small_box_blocks(config);
    double rows = (double)(nh_small_by_keys(launch) ? axis->key.length : axis->query.length);
    return config->chunk_blocks * nh_tile_count(axis, 1, 1, nh_small_by_keys(launch)).visits / rows;
}

double nh_small_counted_tiles(const struct nh_small_launch *launch) {
    /* Warp tiles beyond the dilation group's end count 0.7 (fitted in 33f0cc2): the warp that would compute one waits
     * for others. All planes of a sweep lack the same ones, so that fewer warp tiles are in flight all along it: 1.5 is
     * what boxes of more and of less padding take (docs/log/small.md, 2026-11-27). */
    const double absent = launch->config.pass != SMALL_FORWARD && is_planes(launch) ? 1.5 : 0.7;
    double there = launch->warp_tiles / launch->work_tiles,
           all = (double)(small_work_tile_rows(&launch->config) / 16);
    return there + absent * (all - there);
}

/* Sets the units of work of a work tile; share: query heads that a key head goes over. */
static void set_units(const struct nh_small_launch *of, double share,
                      struct nh_launch_work *launch) {
    enum { WIDEST_KEPT = 32, READ_BIAS = 8, PRODUCER_INSTRUCTIONS = 1440 / 2 };
    const struct nh_problem *problem = of->problem;
    double tiles = share * nh_small_counted_tiles(of);
    double scores = 16 * tiles * (8 * blocks_of(of)), bytes = work_tile_bytes(of, share);
    double dims = product_dims(of), lanes = nh_cuda_lane_clocks(scores);
    /* In f32, rows that threads do not keep are read and split again for each pair of blocks. */
    double splits = of->config.pipeline == SMALL_TURNS || problem->dim <= WIDEST_KEPT
                        ? 1
                        : (double)small_box_blocks(&of->config) / 2;
    launch->unit[NH_WORK_TENSOR] =
        scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    launch->unit[NH_WORK_SPILL] = launch->unit[NH_WORK_TENSOR] * spilled(of);
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(scores);
    launch->unit[NH_WORK_MASK] = lanes * mask_share(of);
    /* Issue slots that a bias takes, most of them for waiting. By queries, its gradient's table is gathered over 16 rows,
     * too: 1.2 is fitted (b7d5f9f). */
    if (problem->has_bias)
        launch->unit[NH_WORK_VECTOR] =
            lanes * (READ_BIAS + (of->config.pass == SMALL_BY_QUERY
                                      ? 1.2 * (double)problem->bias_count /
                                            (double)small_box_blocks(&of->config)
                                      : 0));
    /* Issue slots, on four schedulers, of the warp that prepares a plane: some 1440 instructions, a quarter of all that
     * the launch by queries executes for work tiles of three warp tiles (Nsight Compute). Half of them count, as more
     * than half of the slots are free; with all of them, boxes were chosen that take a fifth longer than planes
     * (docs/log/small.md, 2026-11-27). */
    if (of->config.pass != SMALL_FORWARD && is_planes(of))
        launch->unit[NH_WORK_VECTOR] += share * PRODUCER_INSTRUCTIONS / 4;
    launch->unit[NH_WORK_TILE] = tiles;
    launch->unit[NH_WORK_L2] = nh_cuda_l2_clocks(of->cuda, bytes);
    if (problem->dtype == NHOOD_DTYPE_F32 && !of->config.stages)
        launch->unit[NH_WORK_SHARED] = nh_cuda_lane_clocks(16 * tiles * dims * splits);
    if (of->config.pass == SMALL_FORWARD && of->config.stages == 1)
        launch->unit[NH_WORK_WAIT] = launch->unit[NH_WORK_L2] / launch->residents;
    if (!of->config.stages) launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(bytes / 16);
    /* results with gaps between rows are stored by threads */
    if (of->config.stages && nh_problem_dilated(problem))
        launch->unit[NH_WORK_INDEX] =
            tiles * (double)small_row_bytes(of->config.dim, of->config.element_bytes) / 64;
}

/* Where the one block of a multiprocessor waits for each work tile's halo, warps on fuller schedulers hold up the others. The fit of the
 * model has few such launches; those for any length mostly are such, as their halos are larger. 12 x 12 keys by 9 warps took 500 us,
 * 8 x 20 by 10 468, 4 x 28 by 7 455, 8 x 16 by 8 416, in this order of idle places (32 images of 14x14 to 64x64, windows of 7x7, H200). */
static void scale_uneven(const struct nh_small_launch *of, struct nh_launch_work *launch) {
    enum { SCHEDULERS = 4 };
    const int32_t warps = of->config.warps;
    if (of->serves != NH_SMALL_ANY_LENGTH || of->config.min_blocks > 1) return;
    for (int unit = 0; unit < NH_WORK_UNITS; unit++)
        launch->unit[unit] *= (double)nh_ceil_div(warps, SCHEDULERS) * SCHEDULERS / warps;
}

bool nh_small_add_work(const struct nh_small_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    double share = nh_small_by_keys(of) ? (double)(problem->heads / problem->kv_heads) : 1;
    double heads = (double)(problem->batch * problem->heads);
    double residents = of->config.min_blocks;
    int64_t warp_tiles = small_work_tile_rows(&of->config) / 16;
    if (residents <= 0) return false;
    struct nh_launch_work *launch = nh_work_add(work, kernel_of(of));
    launch->blocks = heads * of->work_tiles / share;
    launch->residents = residents;
    launch->in_flight = residents * fmax(1, of->config.held);
    launch->warps = of->config.warps;
    launch->serial = (double)nh_ceil_div(warp_tiles, of->config.warps) / (double)warp_tiles;
    launch->fetchers = of->config.fetchers * residents;
    launch->boxes = share;
    launch->tiles = heads * of->warp_tiles;
    launch->masked_tiles = of->config.mask == SMALL_NO_MASK ? 0 : launch->tiles;
    launch->scores = 16 * 8 * blocks_of(of);
    set_units(of, share, launch);
    scale_uneven(of, launch);
    launch->flops = 2 * launch->tiles * 128 * blocks_of(of) * product_dims(of);
    return true;
}
