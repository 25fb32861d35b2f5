/* What a launch of cuda.small asks of a device: shared memory, registers, and the work of the model. */
#include "small_launch.h"

#include "dtype.h"
#include "kernel_abi.h"
#include "rates.h"
#include "tile_count.h"

#include <math.h>

/* Steps of tensor core products over a row of `width` elements. */
static int64_t steps_of(const struct nh_problem *problem, int64_t width) {
    enum { STEP_BYTES = 32 };
    return nh_ceil_div(width * (int64_t)nh_dtype_bytes(problem->dtype), STEP_BYTES);
}

int64_t nh_small_row_bytes(const struct nh_problem *problem, int64_t width) {
    int64_t units = 2 * steps_of(problem, width);
    return 16 * (units & (units - 1) ? units + 1 : units);
}

/* Whether planes roll. */
static bool is_planes(const struct nh_small_launch *launch) {
    return launch->slots && nh_small_is_plane(launch->problem, launch->rows);
}

static int64_t chunks_of(const struct nh_small_launch *launch) {
    if (launch->plane_chunks) return launch->columns[0];
    return nh_ceil_div(launch->blocks, launch->chunk_blocks);
}

/* The number of pairs of blocks, 16 columns each, in one chunk. */
static int64_t pairs_of(const struct nh_small_launch *launch) {
    if (launch->plane_chunks) return launch->chunk_blocks / 2;
    return nh_ceil_div(nh_ceil_div(launch->blocks, chunks_of(launch)), 2);
}

/* Columns of a warp tile's box, rounded up to whole matrix loads in every chunk. */
static int64_t columns_of(const struct nh_small_launch *launch) {
    return 16 * chunks_of(launch) * pairs_of(launch);
}

/* The columns of which there are tables of masks and of rows in the halo: all, or those of one plane. */
static int64_t table_columns_of(const struct nh_small_launch *launch) {
    return launch->plane_chunks ? 16 * pairs_of(launch) : columns_of(launch);
}

/* ---- masks ---- */

/* The first axis on which masks depend: NH_MASKED_AXIS of the kernels. */
static int masked_axis(const struct nh_small_launch *launch) {
    return launch->plane_chunks ? 1 : NH_AXES - launch->problem->rank;
}

/* The values of NH_ADDITIVE_MASK in small_additive_mask.cuh. */
enum { NO_ADDITIVE_MASK, BY_STARTS, BY_COORDINATES, BY_KINDS };

/* The size of struct nh_kinds in small_kinds.cuh. */
static int64_t kinds_bytes(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { BYTES_PER_PAIR = 128, SEEN_BYTES = 32 };
    int64_t kinds = 0;
    for (int a = masked_axis(launch); a < NH_AXES; a++)
        kinds +=
            2 * nh_ceil_div(problem->axis[a].window + launch->shift[a], launch->warp_tile[a]) + 2;
    return kinds * (BYTES_PER_PAIR * table_columns_of(launch) / 16 + SEEN_BYTES);
}

static struct nh_range queries_of(const struct nh_axis *axis, int64_t key) {
    return nh_seen_range(axis->length, axis->window, axis->stride, axis->causal, 0, true, key);
}

/* Whether all warp tiles between those that are nearer to the front or the back than a window see the same of their
 * boxes. The last of these boxes may not stick out, else it would begin earlier. */
static bool kinds_suffice(const struct nh_axis *axis, int64_t warp_tile, int64_t columns) {
    if (axis->query.length == axis->length && axis->key.length == axis->length)
        return axis->length % axis->dilation == 0;
    if (axis->dilation > 1 || axis->periodic) return false;
    int64_t front = nh_ceil_div(axis->window, warp_tile);
    int64_t back = nh_ceil_div(axis->key.length, warp_tile) - front - 1;
    if (back <= front) return true; /* each warp tile is of its own kind */
    int64_t queries_end = axis->query.offset + axis->query.length;
    int64_t first = axis->key.offset + front * warp_tile, end = axis->key.offset + back * warp_tile;
    return queries_of(axis, first).begin >= axis->query.offset &&
           queries_of(axis, end - 1).end <= queries_end &&
           queries_of(axis, end - warp_tile).begin + columns <= queries_end;
}

/* Whether the tables of small_kinds.cuh can mask. They need kinds that suffice, no strides, and, away from the borders,
 * boxes of warp tiles that begin with the first column that their rows see. */
static bool kinds_mask(const struct nh_small_launch *launch) {
    const int first = NH_AXES - launch->problem->rank;
    enum { PLACES = 8, MOST_BYTES = 16384 };
    int64_t places = 0;
    for (int a = masked_axis(launch); a < NH_AXES; a++) {
        const struct nh_axis *axis = &launch->problem->axis[a];
        int32_t warp_tile = launch->warp_tile[a], columns = launch->columns[a];
        bool rolls = launch->slots && a == first;
        places += warp_tile;
        if (axis->stride > 1 || !kinds_suffice(axis, warp_tile, columns) || warp_tile % 2 ||
            columns > warp_tile + axis->window ||
            (!rolls && launch->rows[a] - warp_tile + columns > launch->halo[a]))
            return false;
    }
    return launch->keys && places <= PLACES && kinds_bytes(launch) <= MOST_BYTES;
}

static int additive_mask_of(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { PLACES_OF_STARTS = 8, PLACES_OF_COORDINATES = 31 };
    int64_t starts = 0, coordinates = 0;
    bool runs = !launch->keys;
    if (launch->dense || !(problem->scale >= NH_SMALL_LEAST_SCALE)) return NO_ADDITIVE_MASK;
    for (int a = masked_axis(launch); a < NH_AXES; a++) {
        int64_t spread = launch->columns[a] - problem->axis[a].window;
        starts += spread > 0 ? spread + 1 : 0;
        coordinates += launch->columns[a];
        runs = runs && nh_small_sees_windows(&problem->axis[a]);
    }
    if (runs && starts <= PLACES_OF_STARTS) return BY_STARTS;
    if (kinds_mask(launch)) return BY_KINDS;
    /* Gradients of a bias are also gathered from scores of columns that rows do not see: only masks by bits make these
     * 0. */
    bool gathers = problem->has_bias && launch->kernel == NH_SMALL_BACKWARD_QUERY;
    if (coordinates > PLACES_OF_COORDINATES || (gathers && nh_small_has_region(problem)))
        return NO_ADDITIVE_MASK;
    return BY_COORDINATES;
}

void nh_small_set_masks(struct nh_small_launch *launch) {
    launch->additive_mask = additive_mask_of(launch);
    launch->bits = !launch->dense && !launch->additive_mask;
}

/* ---- shared memory ---- */

static int64_t additive_mask_bytes(const struct nh_small_launch *launch) {
    enum { OTHER_BYTES = 512 };
    const int32_t *columns = launch->columns;
    int32_t others = launch->plane_chunks ? 0 : columns[0];
    int64_t steps = (others + columns[1] + columns[2]) / 16 + 1;
    int64_t per_column = launch->additive_mask == BY_COORDINATES ? 32 * steps : 16;
    return (launch->additive_mask == BY_KINDS ? kinds_bytes(launch)
                                              : per_column * table_columns_of(launch)) +
           OTHER_BYTES;
}

int64_t nh_small_statistics_box(const struct nh_small_launch *launch, int32_t *box) {
    for (int a = 0; a < NH_AXES; a++)
        box[a] = launch->halo[a];
    if (!launch->slots || launch->halo[0] > 1) return launch->fetched_rows;
    if (nh_small_is_plane(launch->problem, launch->rows))
        return nh_ceil_div(launch->fetched_rows, 8) * 8;
    box[2] += box[2] % 2;
    return (int64_t)box[1] * box[2];
}

static int64_t aligned_bytes(const struct nh_small_launch *launch, int64_t bytes) {
    enum { BOX_ALIGNMENT = 1024 };
    return launch->stages ? nh_ceil_div(bytes, BOX_ALIGNMENT) * BOX_ALIGNMENT : bytes;
}

/* Bytes of the halos and rows of all work tiles that are under way or in use. */
static int64_t stages_bytes(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    int64_t columns = launch->halo_rows, rows = launch->work_tile_rows;
    int64_t key = nh_small_row_bytes(problem, problem->dim),
            value = nh_small_row_bytes(problem, problem->dim_v);
    int64_t stages = nh_max(1, launch->stages), halos = launch->slots ? 1 : stages;
    int64_t halo = aligned_bytes(launch, columns * key) + aligned_bytes(launch, columns * value);
    int32_t box[NH_AXES];
    int64_t statistics =
        aligned_bytes(launch, nh_max(1, launch->slots) * NH_SMALL_STATISTICS_BYTES *
                                  nh_small_statistics_box(launch, box));
    if (launch->turns) return columns * nh_max(key, value) + (launch->keys ? statistics : 0);
    if (launch->kernel == NH_SMALL_FORWARD)
        return halos * halo + stages * aligned_bytes(launch, rows * nh_max(key, value));
    int64_t work_tile = aligned_bytes(launch, rows * key) + aligned_bytes(launch, rows * value);
    if (launch->keys) return halos * (halo + statistics) + stages * work_tile;
    return halos * halo + stages * (work_tile + aligned_bytes(launch, rows * value));
}

/* An upper bound of the bytes of tables and `infos` tile infos, which say where a work tile is, what its rows see (as
 * masks where these are bits) and its bias. */
static int64_t table_bytes(const struct nh_small_launch *launch, int64_t infos) {
    enum { WORK_TILE_BYTES = 88 + 32 * NH_CUDA_TENSORS, REGION_BYTES = 88, OTHER_BYTES = 1664 };
    const struct nh_problem *problem = launch->problem;
    const int32_t *q = launch->rows, *k = launch->columns;
    bool bits = launch->bits;
    int first = NH_AXES - problem->rank;
    int64_t chunks = chunks_of(launch), columns = columns_of(launch);
    int64_t info = WORK_TILE_BYTES +
                   (q[0] + q[1] + q[2]) * ((launch->keys ? 12 : 24) + (bits ? 16 * chunks : 0)) +
                   16 * chunks + 8 * q[first];
    if (nh_small_has_region(problem)) info += REGION_BYTES + 4 * (q[0] + q[1] + q[2]);
    int64_t prefixes = (bits ? k[0] + k[1] + k[2] + 3 : 1) * 16 * chunks;
    int64_t wraps = launch->slots && !launch->plane_chunks ? k[first] : 1;
    int64_t gathers =
        (launch->plane_chunks ? 1 : chunks) * 16 * 16 * (nh_ceil_div(pairs_of(launch), 4) | 1);
    int64_t tables = wraps * (gathers + (launch->keys ? 4 * table_columns_of(launch) : 0));
    if (problem->has_bias) {
        info += 4 * problem->bias_count;
        int64_t step = 8;
        for (int a = NH_AXES - 1; a >= first; a--) {
            info += (k[a] + launch->warp_tile[a]) * step;
            step *= 2 * problem->axis[a].window - 1;
        }
        tables += 4 * columns;
    }
    return infos * info + prefixes + tables + OTHER_BYTES;
}

int64_t nh_small_shared_bytes(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    int64_t warps = launch->warps, stages = launch->stages;
    int64_t infos = stages ? launch->held + launch->fetchers : 2;
    int64_t bytes = stages_bytes(launch) + additive_mask_bytes(launch) + table_bytes(launch, infos);
    if (launch->kernel == NH_SMALL_BACKWARD_QUERY) {
        bytes += 8 * infos * launch->work_tile_rows; /* LSE */
        /* per warp: the score gradients of a warp tile, and sums for the bias's gradient */
        if (problem->has_bias)
            bytes +=
                warps * (16 * (int64_t)nh_dtype_bytes(problem->dtype) * (columns_of(launch) + 8) +
                         4 * problem->bias_count);
    }
    if (!stages) return bytes;
    /* struct nh_ring: barriers of stages, tile infos and held work tiles, and the place of each warp */
    bytes += 16 * stages + 8 * (infos + launch->held) + 16 * warps + 8;
    if (nh_problem_periodic(problem)) bytes += 8 * launch->fetchers;
    /* with planes: barriers for passed planes, and which work tiles are the block's */
    if (is_planes(launch)) bytes += 8 * launch->held + 16;
    /* each warp's results, by keys dK and dV */
    return bytes + 16 * warps * nh_small_row_bytes(problem, problem->dim) * (launch->keys ? 2 : 1);
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
    const struct nh_problem *problem = launch->problem;
    int64_t keys = steps_of(problem, problem->dim), values = steps_of(problem, problem->dim_v);
    int64_t rows = split_row(keys), rows2 = split_row(values);
    bool f32 = problem->dtype == NHOOD_DTYPE_F32, forward = launch->kernel == NH_SMALL_FORWARD;
    /* Here scores of all columns stay in registers; with more of them the compiler keeps fewer other values. */
    if (launch->turns) return forward ? 3 * launch->blocks + 80 : 2 * launch->blocks + 96;
    switch (launch->kernel) {
    case NH_SMALL_FORWARD: return f32 ? rows + 4 * values + 80 : 4 * keys + 8 * values + 48;
    case NH_SMALL_BACKWARD_QUERY:
        return (f32 ? rows + rows2 + 4 * keys + 16 : 12 * keys + 4 * values) + (problem->has_bias
                                                                                    ? 80
                                                                                : !launch->bits ? 64
                                                                                : f32           ? 72
                                                                                      : 100);
    default:
        if (launch->plane_chunks && !f32) return 12 * (keys + values) + 104;
        return f32 ? rows + rows2 + 4 * (keys + values) + 72 : 12 * (keys + values) + 80;
    }
}

static int64_t block_warps(const struct nh_small_launch *launch) {
    return nh_ceil_div(launch->warps + launch->fetchers, 4) * 4;
}

/* Blocks of the copy engine have many warps: such a block is taken only if the compiler need not spill. */
int64_t nh_small_residents(const struct nh_small_launch *launch) {
    enum { MOST_RESIDENTS = 16, MOST_WARPS = 48 };
    int64_t by_shared = nh_cuda_residents_by_shared(launch->cuda, nh_small_shared_bytes(launch));
    if (!by_shared) return 0;
    int64_t wanted = registers_of(launch), warps = block_warps(launch);
    int64_t by_registers =
        NH_CUDA_REGISTERS / (32 * warps * nh_min(nh_ceil_div(wanted, 8) * 8, 256));
    /* in f32, split operands double the registers, and hundreds of bytes would be spilled */
    if ((launch->stages || launch->problem->dtype == NHOOD_DTYPE_F32) && !by_registers) return 0;
    /* Spilling a few registers costs little; spilling a third of them costs as much as everything else. */
    if (!by_registers && 3 * wanted > 4 * NH_CUDA_REGISTERS / (32 * warps)) return 0;
    int64_t residents = nh_min(nh_min(by_shared, by_registers), MOST_WARPS / warps);
    return nh_max(1, nh_min(residents, MOST_RESIDENTS));
}

/* More than two producer warps, as far as they take neither registers nor shared memory that others need. Timed
 * (docs/log/small.md, 2026-11-27): with four in place of two, 2 to 12 % less at head dim 32; but at head dim 64, where
 * registers are left for one warp less per scheduler, a fifth more. */
void nh_small_set_fetchers(struct nh_small_launch *launch) {
    enum { LEAST = 2, MOST = 4 };
    if (launch->kernel == NH_SMALL_FORWARD || !is_planes(launch)) return;
    launch->fetchers = LEAST;
    int64_t residents = nh_small_residents(launch);
    int32_t most =
        (int32_t)nh_min(launch->stages + 1, nh_min(MOST, block_warps(launch) - launch->warps));
    for (launch->fetchers = most; launch->fetchers > LEAST; launch->fetchers--)
        if (nh_small_residents(launch) >= residents) return;
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
    double halo = (double)launch->fetched_rows, rows = (double)launch->work_tile_rows;
    double size = (double)nh_dtype_bytes(problem->dtype);
    switch (launch->kernel) {
    case NH_SMALL_FORWARD: return size * (halo * dims + rows * dim);
    case NH_SMALL_BACKWARD_QUERY:
        return size * (halo * dims + rows * (dims + (double)problem->dim_v));
    default: /* if keys and values share one place, queries are copied twice */
        return share * halo *
                   (size * (dims + (launch->turns ? dim : 0)) + NH_SMALL_STATISTICS_BYTES) +
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
    if (launch->kernel == NH_SMALL_FORWARD && is_planes(launch))
        return f32 ? NH_KERNEL_SMALL_PLANES_F32 : NH_KERNEL_SMALL_PLANES;
    return kind[launch->kernel][launch->turns ? TURNS : (launch->stages ? BOXES : COPIES) + f32];
}

/* The inner dimensions of all products of a pair of rows, added up. */
static double product_dims(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    double depth = problem->dtype == NHOOD_DTYPE_F32 ? 8 : 16;
    double keys = depth * (double)steps_of(problem, problem->dim),
           values = depth * (double)steps_of(problem, problem->dim_v);
    return launch->kernel == NH_SMALL_FORWARD          ? keys + values
           : launch->kernel == NH_SMALL_BACKWARD_QUERY ? 2 * keys + values
                                                       : 2 * (keys + values);
}

/* Instructions that mask a logit, relative to those of a masking product. */
static double mask_share(const struct nh_small_launch *launch) {
    if (launch->kernel != NH_SMALL_FORWARD) return launch->additive_mask == BY_KINDS ? 0 : 1;
    return launch->dense ? 0 : launch->bits ? 2 : 1;
}

/* Blocks of columns that a warp tile multiplies: those of its box, or of the planes that its rows see on average. */
static double blocks_of(const struct nh_small_launch *launch) {
    const struct nh_axis *axis = &launch->problem->axis[0];
    if (!launch->plane_chunks) return (double)launch->blocks;
    double rows = (double)(launch->keys ? axis->key.length : axis->query.length);
    return launch->chunk_blocks * nh_tile_count(axis, 1, 1, launch->keys).visits / rows;
}

/* Sets the units of work of a work tile; share: query heads that a key head goes over. */
static void set_units(const struct nh_small_launch *of, double share,
                      struct nh_launch_work *launch) {
    enum { WIDEST_KEPT = 32, READ_BIAS = 8, PRODUCER_INSTRUCTIONS = 1440 / 2 };
    const struct nh_problem *problem = of->problem;
    /* Warp tiles beyond the dilation group's end count 0.7 (fitted in 33f0cc2): the warp that would compute one waits
     * for others. All planes of a chain lack the same ones, so that fewer warp tiles are in flight all along it: 1.5 is
     * what boxes of more and of less padding take (docs/log/small.md, 2026-11-27). */
    const double absent = of->kernel != NH_SMALL_FORWARD && is_planes(of) ? 1.5 : 0.7;
    double there = of->warp_tiles / of->work_tiles, all = (double)(of->work_tile_rows / 16);
    double tiles = share * (there + absent * (all - there));
    double scores = 16 * tiles * (8 * blocks_of(of)), bytes = work_tile_bytes(of, share);
    double dims = product_dims(of), lanes = nh_cuda_lane_clocks(scores);
    /* In f32, rows that threads do not keep are read and split again for each pair of blocks. */
    double splits = of->turns || problem->dim <= WIDEST_KEPT ? 1 : (double)of->blocks / 2;
    launch->unit[NH_WORK_TENSOR] =
        scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    launch->unit[NH_WORK_SPILL] = launch->unit[NH_WORK_TENSOR] * spilled(of);
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(scores);
    launch->unit[NH_WORK_MASK] = lanes * mask_share(of);
    /* Issue slots that a bias takes, most of them for waiting. By queries, its gradient's table is gathered over 16 rows,
     * too: 1.2 is fitted (b7d5f9f). */
    if (problem->has_bias)
        launch->unit[NH_WORK_VECTOR] =
            lanes * (READ_BIAS + (of->kernel == NH_SMALL_BACKWARD_QUERY
                                      ? 1.2 * (double)problem->bias_count / (double)of->blocks
                                      : 0));
    /* Issue slots, on four schedulers, of the warp that prepares a plane: some 1440 instructions, a quarter of all that
     * the launch by queries executes for work tiles of three warp tiles (Nsight Compute). Half of them count, as more
     * than half of the slots are free; with all of them, boxes were chosen that take a fifth longer than planes
     * (docs/log/small.md, 2026-11-27). */
    if (of->kernel != NH_SMALL_FORWARD && is_planes(of))
        launch->unit[NH_WORK_VECTOR] += share * PRODUCER_INSTRUCTIONS / 4;
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
    double heads = (double)(problem->batch * problem->heads);
    double residents = (double)nh_small_residents(of);
    int64_t warp_tiles = of->work_tile_rows / 16;
    if (residents <= 0) return false;
    struct nh_launch_work *launch = nh_work_add(work, kernel_of(of));
    launch->blocks = heads * of->work_tiles / share;
    launch->residents = residents;
    launch->in_flight = residents * fmax(1, of->held);
    launch->warps = of->warps;
    launch->serial = (double)nh_ceil_div(warp_tiles, of->warps) / (double)warp_tiles;
    launch->fetchers = of->fetchers * residents;
    launch->boxes = share;
    launch->tiles = heads * of->warp_tiles;
    launch->masked_tiles = of->dense ? 0 : launch->tiles;
    launch->scores = 16 * 8 * blocks_of(of);
    set_units(of, share, launch);
    launch->flops = 2 * launch->tiles * 128 * blocks_of(of) * product_dims(of);
    return true;
}
