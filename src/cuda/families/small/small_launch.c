#include "small_launch.h"
#include "dtype.h"
#include "rates.h"
#include "small_roll.h"
#include "tensor_maps.h"

int32_t nh_small_fetchers(const struct nh_small_launch *launch) {
    bool forward = launch->kernel == NH_SMALL_FORWARD;
    if (forward && launch->shape.slots) return (int32_t)nh_min(launch->stages + 1, 4);
    return (int32_t)nh_min(launch->stages, forward ? 3 : 2);
}

/* The size of struct nh_kinds in small_kinds.cuh. */
static int64_t kinds_bytes(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { BYTES_PER_PAIR = 128, SEEN_BYTES = 32 };
    int64_t kinds = 0;
    for (int a = NH_AXES - problem->rank; a < NH_AXES; a++)
        kinds += 2 * nh_ceil_div(problem->axis[a].window, launch->shape.warp_tile[a]) + 2;
    return kinds * (BYTES_PER_PAIR * nh_small_columns(&launch->shape) / 16 + SEEN_BYTES);
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
    return nh_small_columns_of(axis, true, axis->length, first).begin >= axis->query.offset &&
           nh_small_columns_of(axis, true, axis->length, end - 1).end <= queries_end &&
           nh_small_columns_of(axis, true, axis->length, end - warp_tile).begin + columns <=
               queries_end;
}

/* Whether the tables of small_kinds.cuh can mask. They need kinds that suffice, no strides, and, away from the borders,
 * boxes of warp tiles that begin with the first column that their rows see. */
static bool kinds_mask(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { PLACES = 8, MOST_BYTES = 16384 };
    const struct nh_small_shape *shape = &launch->shape;
    int64_t places = 0;
    for (int a = NH_AXES - problem->rank; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        bool rolls = shape->slots && a == NH_AXES - problem->rank;
        places += shape->warp_tile[a];
        if (axis->stride > 1 || !kinds_suffice(axis, shape->warp_tile[a], shape->columns[a]) ||
            shape->warp_tile[a] % 2 || shape->columns[a] > shape->warp_tile[a] + axis->window ||
            (!rolls && shape->rows[a] - shape->warp_tile[a] + shape->columns[a] > shape->halo[a]))
            return false;
    }
    return launch->keys && places <= PLACES && kinds_bytes(launch) <= MOST_BYTES;
}

int nh_small_additive_mask(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { PLACES_OF_STARTS = 8, PLACES_OF_COORDINATES = 31 };
    int64_t starts = 0, coordinates = 0;
    bool runs = !launch->keys;
    for (int a = NH_AXES - problem->rank; a < NH_AXES; a++) {
        int64_t spread = launch->shape.columns[a] - problem->axis[a].window;
        starts += spread > 0 ? spread + 1 : 0;
        coordinates += launch->shape.columns[a];
        runs = runs && nh_small_sees_windows(&problem->axis[a]);
    }
    if (launch->shape.dense || !(problem->scale >= NH_SMALL_LEAST_SCALE))
        return NH_SMALL_NO_ADDITIVE_MASK;
    if (runs && starts <= PLACES_OF_STARTS) return NH_SMALL_BY_STARTS;
    if (kinds_mask(launch)) return NH_SMALL_BY_KINDS;
    /* Gradients of a bias are also gathered from scores of columns that rows do not see: only masks by bits make these
     * 0. */
    if (nh_small_has_region(problem) && problem->has_bias &&
        launch->kernel == NH_SMALL_BACKWARD_QUERY)
        return NH_SMALL_NO_ADDITIVE_MASK;
    return coordinates <= PLACES_OF_COORDINATES ? NH_SMALL_BY_COORDINATES
                                                : NH_SMALL_NO_ADDITIVE_MASK;
}

static int64_t additive_mask_bytes(const struct nh_small_launch *launch) {
    enum { OTHER_BYTES = 512 };
    const int32_t *columns = launch->shape.columns;
    int additive_mask = nh_small_additive_mask(launch);
    int64_t steps = (columns[0] + columns[1] + columns[2]) / 16 + 1;
    int64_t per_column = additive_mask == NH_SMALL_BY_COORDINATES ? 32 * steps : 16;
    return (additive_mask == NH_SMALL_BY_KINDS ? kinds_bytes(launch)
                                               : per_column * nh_small_columns(&launch->shape)) +
           OTHER_BYTES;
}

static int64_t aligned_bytes(const struct nh_small_launch *launch, int64_t bytes) {
    enum { BOX_ALIGNMENT = 1024 };
    return launch->stages ? nh_ceil_div(bytes, BOX_ALIGNMENT) * BOX_ALIGNMENT : bytes;
}

/* Bytes of the halos and rows of all work tiles that are under way or in use. */
static int64_t stages_bytes(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { STATISTICS_BYTES = 16 };
    int64_t columns = launch->shape.halo_rows, rows = launch->shape.work_tile_rows;
    int64_t key = nh_small_row_bytes(problem, problem->dim),
            value = nh_small_row_bytes(problem, problem->dim_v);
    int64_t stages = nh_max(1, launch->stages), halos = launch->shape.slots ? 1 : stages;
    int64_t halo = aligned_bytes(launch, columns * key) + aligned_bytes(launch, columns * value);
    int32_t box[NH_AXES];
    int64_t statistics = aligned_bytes(launch, nh_max(1, launch->shape.slots) * STATISTICS_BYTES *
                                                   nh_small_statistics_box(&launch->shape, box));
    if (launch->turns) return columns * nh_max(key, value) + (launch->keys ? statistics : 0);
    if (launch->kernel == NH_SMALL_FORWARD)
        return halos * halo + stages * aligned_bytes(launch, rows * nh_max(key, value));
    int64_t work_tile = aligned_bytes(launch, rows * key) + aligned_bytes(launch, rows * value);
    if (launch->kernel == NH_SMALL_BACKWARD_QUERY) work_tile += aligned_bytes(launch, rows * value);
    if (launch->keys) halo += statistics;
    return halos * halo + stages * work_tile;
}

bool nh_small_fetches_lines(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { LINE_ALIGNMENT = 128 };
    const struct nh_small_shape *shape = &launch->shape;
    int64_t line_bytes = shape->halo[2] * nh_small_row_bytes(problem, problem->dim);
    return launch->stages && nh_problem_periodic(problem) && line_bytes % LINE_ALIGNMENT == 0 &&
           nh_sm90_lines_fit(problem, launch->keys ? NHOOD_Q : NHOOD_K) &&
           nh_sm90_lines_fit(problem, launch->keys ? NHOOD_D_O : NHOOD_V);
}

int64_t nh_small_shared_bytes(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    const struct nh_small_shape *shape = &launch->shape;
    /* per warp: the score gradients of a warp tile, and sums for the bias's gradient */
    int64_t bias_gradient = 0;
    if (launch->kernel == NH_SMALL_BACKWARD_QUERY && problem->has_bias)
        bias_gradient = launch->warps * (16 * (int64_t)nh_dtype_bytes(problem->dtype) *
                                             (nh_small_columns(shape) + 8) +
                                         4 * problem->bias_count);
    int64_t infos = launch->stages ? launch->held + nh_small_fetchers(launch) : 2;
    /* struct nh_ring: barriers of stages, tile infos and held work tiles, and the position of each warp */
    int64_t ring = launch->stages
                       ? 16 * launch->stages + 8 * (infos + launch->held) + 4 * launch->warps + 8 +
                             (nh_problem_periodic(problem) ? 8 * nh_small_fetchers(launch) : 0)
                       : 0;
    /* with planes: barriers for passed planes, and which work tiles are the block's */
    if (shape->slots && nh_small_rolls_planes(problem, shape)) ring += 8 * launch->held + 16;
    int64_t results = launch->stages
                          ? 16 * launch->warps * nh_small_row_bytes(problem, problem->dim) *
                                (launch->keys ? 2 : 1)
                          : 0;
    int64_t lse = launch->kernel == NH_SMALL_BACKWARD_QUERY ? 8 * infos * shape->work_tile_rows : 0;
    return stages_bytes(launch) + additive_mask_bytes(launch) + bias_gradient + lse + results +
           ring +
           nh_small_table_bytes(problem, shape, launch->keys,
                                !shape->dense && !nh_small_additive_mask(launch), infos);
}

bool nh_small_masks_by_bits(const struct nh_small_launch *launch) {
    return !launch->shape.dense && !nh_small_additive_mask(launch);
}

/* Registers of the high and low parts of a row in f32, if a thread keeps the row (nh_row_operand in
 * small_products.cuh), or else of one step of it. */
static int64_t split_row(int64_t steps) {
    enum { STEPS_KEPT = 4, PARTS = 8 };
    return PARTS * (steps > STEPS_KEPT ? 1 : steps);
}

/* An estimate of a thread's registers: operands, scores and sums, and a constant for addresses and masks. */
static int64_t registers_of(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    int64_t keys = nh_small_steps(problem, problem->dim),
            values = nh_small_steps(problem, problem->dim_v);
    int64_t rows = split_row(keys), rows2 = split_row(values);
    bool f32 = problem->dtype == NHOOD_DTYPE_F32, forward = launch->kernel == NH_SMALL_FORWARD;
    /* Here scores of all columns stay in registers; with more of them the compiler keeps fewer other values. */
    if (launch->turns)
        return forward ? 3 * launch->shape.blocks + 80 : 2 * launch->shape.blocks + 96;
    switch (launch->kernel) {
    case NH_SMALL_FORWARD: return f32 ? rows + 4 * values + 80 : 4 * keys + 8 * values + 48;
    case NH_SMALL_BACKWARD_QUERY:
        return (f32 ? rows + rows2 + 4 * keys + 16 : 12 * keys + 4 * values) +
               (problem->has_bias                 ? 80
                : !nh_small_masks_by_bits(launch) ? 64
                : f32                             ? 72
                                                  : 100);
    default: return f32 ? rows + rows2 + 4 * (keys + values) + 72 : 12 * (keys + values) + 80;
    }
}

static int64_t block_warps(const struct nh_small_launch *launch) {
    return nh_ceil_div(launch->warps + nh_small_fetchers(launch), 4) * 4;
}

double nh_small_spilled(const struct nh_small_launch *launch) {
    enum { BESIDE = 16 };
    int64_t left = NH_CUDA_REGISTERS / (32 * block_warps(launch)) / 8 * 8;
    return (double)nh_max(0, registers_of(launch) + BESIDE - left) / (double)left;
}

/* Blocks of the copy engine have many warps: such a block is taken only if the compiler need not spill. */
int64_t nh_small_residents(const struct nh_small_launch *launch) {
    enum { MOST_RESIDENTS = 16, MOST_WARPS = 48 };
    int64_t by_shared = nh_cuda_residents_by_shared(launch->cuda, nh_small_shared_bytes(launch));
    if (!by_shared) return 0;
    int64_t registers = nh_min(nh_ceil_div(registers_of(launch), 8) * 8, 256);
    int64_t warps = block_warps(launch);
    int64_t by_registers = NH_CUDA_REGISTERS / (32 * warps * registers);
    /* in f32, split operands double the registers, and hundreds of bytes would be spilled */
    if ((launch->stages || launch->problem->dtype == NHOOD_DTYPE_F32) && !by_registers) return 0;
    /* Spilling a few registers costs little; spilling a third of them costs as much as everything else. */
    if (!by_registers && 3 * registers_of(launch) > 4 * NH_CUDA_REGISTERS / (32 * warps)) return 0;
    int64_t residents = nh_min(nh_min(by_shared, by_registers), MOST_WARPS / warps);
    return nh_max(1, nh_min(residents, MOST_RESIDENTS));
}
