#include "short_backward.h"

#include "dtype.h"
#include "rates.h"
#include "short_shape.h"

#include <math.h>

enum { ORIGINS = NH_D_V + 1 };

/* ---- what a config needs ---- */

/* Warp tiles, of 16 queries or of 16 keys, that a block computes: all of both kinds or, where blocks share a work tile,
 * some of one kind. */
static int64_t warp_tiles_of(const struct nh_short_launch *of) {
    int64_t parts = of->value[NH_SHORT_PARTS], warp_tiles = of->shape->rows / 16;
    return parts == 1 ? 2 * warp_tiles : nh_ceil_div(warp_tiles, parts / 2);
}

static int64_t steps_of(const struct nh_problem *problem) {
    return (nh_short_sums(problem, problem->dim) + nh_short_sums(problem, problem->dim_v)) / 2;
}

/* Bytes of Q, dO and O, and of K and V. Warp tiles of queries are multiplied with all keys, warp tiles of keys with all
 * queries. */
static int64_t tensor_bytes_of(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    int64_t key = nh_short_row_bytes(problem, problem->dim);
    int64_t v = nh_short_row_bytes(problem, problem->dim_v);
    int64_t of_query = key + 2 * v, of_key = key + v;
    if (of->value[NH_SHORT_PARTS] == 1) return shape->rows * (of_query + of_key);
    int64_t own = 16 * warp_tiles_of(of);
    return nh_max(shape->rows * of_key + own * of_query, shape->rows * of_query + own * of_key);
}

/* Shared memory of struct nh_tile of the kernel. */
static int64_t shared_bytes_of(const struct nh_short_launch *of) {
    const struct nh_short_shape *shape = of->shape;
    enum { WORD = 4, QUERY = 16, REACH = 8 };
    return tensor_bytes_of(of) + shape->rows * QUERY + shape->rows / 8 * REACH +
           shape->rows * WORD + nh_short_group_bytes(shape, ORIGINS);
}

/* Bytes for the sums that warps sharing a warp tile exchange. They reuse the memory of the tensors. */
static int64_t exchange_bytes_of(const struct nh_problem *problem, const int32_t *value) {
    enum { SUM_BYTES = 4 * 32 * 4 };
    int64_t warps = value[NH_SHORT_WARPS] - value[NH_SHORT_WARPS] / value[NH_SHORT_SPLIT];
    return warps * nh_short_sums(problem, nh_max(problem->dim, problem->dim_v)) * SUM_BYTES;
}

/* Whether a thread keeps the operands of its own rows in registers: NH_HELD in short_warp_tile.cuh. */
static bool held(const struct nh_problem *problem, int64_t warps) {
    int64_t sums = nh_short_sums(problem, problem->dim) + nh_short_sums(problem, problem->dim_v);
    return problem->dtype != NHOOD_DTYPE_F32 && sums <= (warps > 8 ? 8 : 16);
}

/* An estimate of a thread's registers: sums, operands of its own rows, and a constant for addresses, scores and masks,
 * which is larger in f32, where operands are split. */
static int64_t wanted_registers(const struct nh_problem *problem, int64_t warps) {
    enum { MOST = 248 };
    int64_t sums = nh_short_sums(problem, problem->dim) + nh_short_sums(problem, problem->dim_v);
    int64_t others = problem->dtype == NHOOD_DTYPE_F32 ? 104 : 80;
    return nh_min(4 * sums + (held(problem, warps) ? 2 * sums : 0) + others, MOST);
}

static int64_t registers_of(const struct nh_problem *problem, int64_t warps) {
    return nh_min(wanted_registers(problem, warps), NH_CUDA_REGISTERS / (32 * warps));
}

static int64_t residents_by_registers(const struct nh_problem *problem, int64_t warps) {
    return nh_max(1, NH_CUDA_REGISTERS / (32 * warps * registers_of(problem, warps)));
}

static int64_t residents_of(const struct nh_short_launch *of) {
    return nh_min(nh_cuda_residents_by_shared(of->cuda, shared_bytes_of(of)),
                  residents_by_registers(of->problem, of->value[NH_SHORT_WARPS]));
}

/* Whether a config is worth predicting. Warps that share a warp tile, or that sum over the query heads of a key, have
 * only one warp tile. Warps that lack more than a fifth of their registers would spill in every step. */
static bool useful(const struct nh_short_launch *of) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->value;
    int64_t warp_tiles = warp_tiles_of(of), split = value[NH_SHORT_SPLIT];
    bool shared_heads = problem->heads != problem->kv_heads;
    int64_t wanted = wanted_registers(problem, value[NH_SHORT_WARPS]);
    if (5 * registers_of(problem, value[NH_SHORT_WARPS]) < 4 * wanted) return false;
    if (8 * value[NH_SHORT_PARTS] > of->shape->rows) return false;
    if (value[NH_SHORT_WARPS] % split || value[NH_SHORT_WARPS] / split > warp_tiles) return false;
    if (split > 1 && (shared_heads || exchange_bytes_of(problem, value) > tensor_bytes_of(of)))
        return false;
    return (split == 1 && !shared_heads) || value[NH_SHORT_WARPS] / split >= warp_tiles;
}

/* Whether every query sees its whole group, and warp tiles only meet rows of one group: NH_DENSE. */
static bool dense(const struct nh_problem *problem, const struct nh_short_shape *shape) {
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].window != shape->extent[a] || problem->axis[a].causal) return false;
    return shape->groups == 1 || shape->group_tokens % 16 == 0;
}

/* ---- work ---- */

bool nh_short_backward_work(const struct nh_short_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_short_shape *shape = of->shape;
    const int32_t *value = of->value;
    if (!useful(of)) return false;
    double residents = (double)residents_of(of);
    if (residents <= 0) return false;
    int64_t warps = value[NH_SHORT_WARPS];
    double wanted = (double)wanted_registers(problem, warps);
    double members = (double)(problem->heads / problem->kv_heads), split = value[NH_SHORT_SPLIT];
    double tiles = (double)warp_tiles_of(of), rows = (double)shape->rows, own = 16 * tiles;
    double scores = members * 16 * tiles * shape->columns;
    double dims = (double)(problem->dim + problem->dim_v);
    double copied = value[NH_SHORT_PARTS] == 1 ? 5 * rows : 2.5 * (rows + own);
    double bytes = members * copied * dims * (double)nh_dtype_bytes(problem->dtype);
    double tensor = 2.5 * scores * dims / nh_cuda_products_per_clock(problem, of->cuda, false);
    bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    nh_work_start(work, NH_OPERATION_SHORT_BACKWARD, problem);
    struct nh_launch_work *launch =
        nh_work_add(work, f32 ? NH_KERNEL_SHORT_BACKWARD_F32 : NH_KERNEL_SHORT_BACKWARD);
    launch->blocks = (double)(shape->work_tiles * value[NH_SHORT_PARTS]);
    launch->residents = launch->in_flight = residents;
    launch->warps = (double)warps;
    launch->serial = ceil(tiles * split / launch->warps) / (tiles * split);
    launch->unit[NH_WORK_TENSOR] = tensor;
    launch->unit[NH_WORK_SPILL] = tensor * (1 - (double)registers_of(problem, warps) / wanted);
    launch->unit[NH_WORK_SHARED] = held(problem, warps) ? 0 : tensor;
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(scores);
    launch->unit[NH_WORK_MASK] = dense(problem, shape) ? 0 : nh_cuda_lane_clocks(scores);
    launch->unit[NH_WORK_REDUCE] = tiles * (split - 1) * (double)steps_of(problem);
    launch->unit[NH_WORK_INDEX] = rows / 16;
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(bytes / 16);
    return true;
}

/* ---- plan ---- */

nhood_status nh_short_backward_add(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem, const int32_t *value) {
    struct nh_short_shape shape;
    if (!nh_short_shape_of(problem, value[NH_SHORT_ROWS], &shape))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the dilation groups are too long or too many");
    const struct nh_short_launch of = {problem, operation->device, &shape, value};
    struct nh_kernel_spec spec = {.source = "short_backward.cu"};
    nh_short_define(problem, &shape, &spec);
    nh_kernel_define_knobs(&spec, nh_short_knobs, NH_CONFIG_KNOBS, value);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS",
                     residents_by_registers(problem, value[NH_SHORT_WARPS]));
    nh_kernel_define(&spec, "NH_DENSE", dense(problem, &shape));
    nh_kernel_define(&spec, "NH_SHARED_HEADS", problem->heads != problem->kv_heads);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    struct nh_short_tiling tiling;
    nh_short_tiling(problem, &shape, value[NH_SHORT_PARTS], &tiling);
    nh_cuda_step_set_own(&step, &tiling, sizeof tiling);
    step.work_tiles = tiling.work_tiles;
    step.threads = 32 * value[NH_SHORT_WARPS];
    step.shared_bytes = shared_bytes_of(&of);
    step.grid[0] = shape.work_tiles;
    step.grid[1] = value[NH_SHORT_PARTS];
    return nh_cuda_step_add(operation, &step, &spec);
}
