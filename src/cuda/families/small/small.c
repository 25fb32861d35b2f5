/* cuda.small: fused attention for windows whose halo fits shared memory, sm_80 and later, forward and backward.
 *
 * With windows of a few dozen keys, a block of 64 or more queries would multiply mostly masked scores. Here a warp tile
 * of 16 queries is multiplied with just the box of its keys, which matrix loads gather out of the halo of a larger box
 * of queries: see small.cuh. Backward has one launch for dQ, by queries, and one for dK and dV, by keys; without
 * atomics, results are bit-equal in every run. The search chooses boxes per problem, and in f32 whether keys and values
 * lie in shared memory side by side or one after the other. No extra tokens, head dims up to 128. */
#include "cuda_family.h"
#include "dtype.h"
#include "tensor_maps.h"
#include "tile_count.h"
#include "small_choice.h"
#include "small_roll.h"

#include <math.h>
#include <string.h>

enum { MOST_DIM = 128, MOST_LENGTH = 1 << 30, MOST_BIAS = 4096, END = -1 };

static const char *source_of(const struct nh_small_launch *launch) {
    static const char *const sources[] = {"small_forward.cu", "small_backward_query.cu",
                                          "small_backward_key.cu"};
    static const char *const turns[] = {"small_forward_rolled.cu", "small_backward_query_rolled.cu",
                                        "small_backward_key_rolled.cu"};
    return (launch->turns ? turns : sources)[launch->kernel];
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    bool forward = problem->op == NHOOD_OP_FWD;
    enum nh_small_kernel kernel = forward ? NH_SMALL_FORWARD : NH_SMALL_BACKWARD_QUERY,
                         last = forward ? NH_SMALL_FORWARD : NH_SMALL_BACKWARD_KEY;
    nh_work_start(work, forward ? NH_OPERATION_SMALL_FORWARD : NH_OPERATION_SMALL_BACKWARD,
                  problem);
    for (; kernel <= last; kernel++) {
        struct nh_small_launch launch;
        if (!nh_small_launch_of(problem, device->backend, kernel, config->value, &launch) ||
            !nh_small_add_work(&launch, work))
            return false;
    }
    return true;
}

/* ---- refusal ---- */

static bool dim_fits(const struct nh_problem *problem, int64_t dim) {
    return problem->dtype == NHOOD_DTYPE_F32 ? dim % 32 == 0 && dim <= MOST_DIM
                                             : dim % 8 == 0 && dim <= MOST_DIM;
}

static const char *refuse_axis(const struct nh_problem *problem, const struct nh_axis *axis) {
    if (axis->length > (axis->periodic ? MOST_LENGTH / 2 : MOST_LENGTH))
        return "an axis is longer than 2^30 tokens, or 2^29 where it is periodic";
    return nh_refuse_pieces(axis, problem->op == NHOOD_OP_BWD);
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    struct nh_config config;
    if (problem->op != NHOOD_OP_FWD && problem->op != NHOOD_OP_BWD)
        return "only the forward and the backward pass";
    if (problem->dtype == NHOOD_DTYPE_F64)
        return "no f64: tensor cores are used for f32, f16 and bf16";
    if (!dim_fits(problem, problem->dim) || !dim_fits(problem, problem->dim_v))
        return problem->dtype == NHOOD_DTYPE_F32
                   ? "head dims must be multiples of 32 up to 128 in f32"
                   : "head dims must be multiples of 8 up to 128";
    if (problem->op == NHOOD_OP_FWD && !(problem->scale > 0)) return "the scale is not positive";
    if (problem->op == NHOOD_OP_BWD && fabs(problem->scale) < NH_SMALL_LEAST_SCALE)
        return "the scale is less than 1e-30, which LSE is divided by";
    if (problem->extra_tokens) return "no extra tokens";
    if (problem->has_bias && problem->bias_count > MOST_BIAS)
        return "a head's bias table has more than 4096 entries";
    if (nh_cuda_vector(problem, UINT32_MAX) * (int64_t)nh_dtype_bytes(problem->dtype) < 16)
        return "a stride is no multiple of 16 bytes";
    for (int a = 0; a < NH_AXES; a++) {
        const char *reason = refuse_axis(problem, &problem->axis[a]);
        if (reason) return reason;
    }
    if (!nh_small_candidates(problem, device, INFINITY, &config, 1))
        return "16 queries have more than 1024 keys, or a halo exceeds shared memory";
    return NULL;
}

/* ---- plan ---- */

static void define_boxes(const struct nh_problem *problem, struct nh_kernel_spec *spec) {
    nh_kernel_define(spec, "NH_Q_MAP", nh_map_layout_of(problem, NHOOD_Q));
    nh_kernel_define(spec, "NH_K_MAP", nh_map_layout_of(problem, NHOOD_K));
    nh_kernel_define(spec, "NH_V_MAP", nh_map_layout_of(problem, NHOOD_V));
    nh_kernel_define(spec, "NH_O_MAP", nh_map_layout_of(problem, NHOOD_O));
    if (problem->op == NHOOD_OP_FWD) return;
    nh_kernel_define(spec, "NH_D_O_MAP", nh_map_layout_of(problem, NHOOD_D_O));
    nh_kernel_define(spec, "NH_D_Q_MAP", nh_map_layout_of(problem, NHOOD_D_Q));
    nh_kernel_define(spec, "NH_D_K_MAP", nh_map_layout_of(problem, NHOOD_D_K));
    nh_kernel_define(spec, "NH_D_V_MAP", nh_map_layout_of(problem, NHOOD_D_V));
}

/* Whether the work tiles of every dilation group are full: NH_WHOLE. */
static bool whole(const struct nh_small_launch *launch) {
    bool all = true;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &launch->problem->axis[a];
        int64_t length = launch->keys ? axis->key.length : axis->query.length;
        all = all && length % (axis->dilation * launch->shape.rows[a]) == 0;
    }
    return all;
}

static struct nh_kernel_spec spec_of(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    static const char *const names[][NH_AXES] = {{"NH_Q0", "NH_Q1", "NH_Q2"},
                                                 {"NH_S0", "NH_S1", "NH_S2"},
                                                 {"NH_K0", "NH_K1", "NH_K2"},
                                                 {"NH_H0", "NH_H1", "NH_H2"},
                                                 {"NH_W0", "NH_W1", "NH_W2"}};
    const struct nh_small_shape *shape = &launch->shape;
    int additive_mask = nh_small_additive_mask(launch);
    struct nh_kernel_spec spec = {.source = source_of(launch)};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_cuda_define_long_sums(&spec, problem,
                             problem->op == NHOOD_OP_BWD ? NH_SUMS_OF_QUERY | NH_SUMS_OF_KEY
                                                         : NH_SUMS_OF_QUERY);
    nh_kernel_define(&spec, "NH_RANK", problem->rank);
    nh_kernel_define(&spec, "NH_DIM", problem->dim);
    nh_kernel_define(&spec, "NH_DIM_V", problem->dim_v);
    nh_kernel_define(&spec, "NH_WARPS", launch->warps);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS", nh_small_residents(launch));
    nh_kernel_define(&spec, "NH_STRIDED", nh_problem_strided(problem));
    nh_kernel_define(&spec, "NH_DILATED", nh_problem_dilated(problem));
    nh_kernel_define(&spec, "NH_DENSE", shape->dense);
    nh_kernel_define(&spec, "NH_ADDITIVE_MASK", additive_mask);
    nh_kernel_define(&spec, "NH_BIAS_COUNT", problem->has_bias ? problem->bias_count : 0);
    nh_kernel_define(&spec, "NH_WHOLE", whole(launch));
    nh_kernel_define(&spec, "NH_SHARED_BYTES", nh_small_shared_bytes(launch));
    nh_kernel_define(&spec, "NH_STAGES", launch->stages);
    nh_kernel_define(&spec, "NH_FETCHERS", nh_small_fetchers(launch));
    nh_kernel_define(&spec, "NH_SLOTS", shape->slots);
    nh_kernel_define(&spec, "NH_HELD", launch->held);
    if (nh_small_has_region(problem)) {
        nh_kernel_define(&spec, "NH_LINES_BEFORE", shape->lines_before);
        nh_kernel_define(&spec, "NH_SLOTS_AROUND", shape->slots_around);
    }
    if (nh_small_fetches_lines(launch)) nh_kernel_define(&spec, "NH_SEAM_LINES", 1);
    if (shape->chunk_blocks != NH_SMALL_CHUNK_BLOCKS)
        nh_kernel_define(&spec, "NH_CHUNK_BLOCKS", shape->chunk_blocks);
    nh_kernel_define(&spec, "NH_LEAST_PAIRS", shape->least_pairs);
    nh_kernel_define(&spec, "NH_NEAR_HEADS", nh_small_near_heads(problem, shape));
    if (launch->stages) define_boxes(problem, &spec);
    for (int a = 0; a < NH_AXES; a++) {
        nh_kernel_define(&spec, names[0][a], shape->rows[a]);
        nh_kernel_define(&spec, names[1][a], shape->warp_tile[a]);
        nh_kernel_define(&spec, names[2][a], shape->columns[a]);
        nh_kernel_define(&spec, names[3][a], shape->halo[a]);
        nh_kernel_define(&spec, names[4][a], problem->axis[a].window);
    }
    return spec;
}

static nhood_status set_work_tiles(const struct nh_small_launch *launch,
                                   struct nh_cuda_tiling *tiling) {
    const struct nh_problem *problem = launch->problem;
    int64_t work_tiles = problem->batch, heads = launch->keys ? problem->kv_heads : problem->heads;
    bool fits = nh_multiply(work_tiles, heads, &work_tiles);
    *tiling = (struct nh_cuda_tiling){.work_tiles = 0};
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        tiling->tiles[a] =
            (int)nh_ceil_div(nh_longest_rows(axis, launch->keys), launch->shape.rows[a]);
        fits = fits && nh_multiply(work_tiles, tiling->tiles[a], &work_tiles) &&
               nh_multiply(work_tiles, axis->dilation, &work_tiles);
    }
    if (!fits || work_tiles > MOST_LENGTH)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^30 boxes of rows");
    tiling->work_tiles = (int)work_tiles;
    return NHOOD_OK;
}

/* The tensors of the kernels' maps (nh_maps), in their order. */
static const int32_t mapped[][NH_CUDA_MAPS] = {
    {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_O, END},
    {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_O, NHOOD_D_O, NHOOD_D_Q, END},
    {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_D_O, NHOOD_D_K, NHOOD_D_V, NH_DELTA, END}};

/* Extents of the box in which a tensor is fetched or stored. */
static const int32_t *box_of(const struct nh_small_launch *launch, int32_t tensor) {
    const struct nh_small_shape *shape = &launch->shape;
    switch (tensor) {
    case NHOOD_Q:
    case NHOOD_D_O: return launch->keys ? shape->halo : shape->rows;
    case NHOOD_K:
    case NHOOD_V: return launch->keys ? shape->rows : shape->halo;
    case NHOOD_O: return launch->kernel == NH_SMALL_FORWARD ? shape->warp_tile : shape->rows;
    default: return shape->warp_tile;
    }
}

static void set_maps(const struct nh_small_launch *launch, struct nh_cuda_step *step) {
    const struct nh_problem *problem = launch->problem;
    /* the tensors of the halo, by queries and by keys; their maps of lines come last */
    static const int32_t halo_tensors[][2] = {{NHOOD_K, NHOOD_V}, {NHOOD_Q, NHOOD_D_O}};
    int32_t statistics[NH_AXES];
    nh_small_statistics_box(&launch->shape, statistics);
    step->maps = 0;
    if (!launch->stages) return;
    for (const int32_t *tensor = mapped[launch->kernel]; *tensor != END; tensor++) {
        struct nh_cuda_map *map = &step->map[step->maps++];
        *map = *tensor == NH_DELTA ? nh_sm90_stats_map(problem, statistics)
                                   : nh_sm90_map(problem, *tensor, box_of(launch, *tensor), 1);
        /* A larger promotion would fetch other heads' rows for nothing where heads lie apart. */
        map->promotion = NH_CU_TENSOR_PROMOTE_128B;
    }
    if (!nh_small_fetches_lines(launch)) return;
    for (int i = 0; i < 2; i++) {
        int32_t tensor = halo_tensors[launch->keys][i];
        struct nh_cuda_map *map = &step->map[step->maps++];
        *map = nh_sm90_lines_map(problem, tensor, launch->shape.halo[2]);
        map->promotion = NH_CU_TENSOR_PROMOTE_128B;
    }
}

static nhood_status prepare(const struct nh_cuda_operation *operation,
                            const struct nh_problem *problem, enum nh_small_kernel kernel,
                            const int32_t *value, struct nh_cuda_step *step,
                            struct nh_kernel_spec *spec) {
    const struct nh_cuda_device *device = operation->device;
    struct nh_small_launch launch;
    if (!nh_small_launch_of(problem, device, kernel, value, &launch) ||
        !nh_small_residents(&launch))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the boxes do not fit shared memory");
    nhood_status status = set_work_tiles(&launch, &step->own.tiling);
    if (status) return status;
    step->work_tiles = step->own.tiling.work_tiles;
    *spec = spec_of(&launch);
    set_maps(&launch, step);
    step->threads = 32 * (launch.warps + nh_small_fetchers(&launch));
    step->shared_bytes = nh_small_shared_bytes(&launch);
    int64_t blocks =
        nh_min(step->work_tiles, device->multiprocessors * nh_small_residents(&launch));
    int64_t near_heads = nh_small_near_heads(problem, &launch.shape);
    step->grid[0] = nh_max(blocks / near_heads, 1) * near_heads;
    return NHOOD_OK;
}

/* Binds the statistics of each head and query, 16 bytes: -LSE in base 2 and delta, see small_statistics.cuh. */
static void bind_statistics(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                            struct nh_cuda_step *step) {
    enum { STATISTICS_BYTES = 16 };
    size_t rows = (size_t)(problem->batch * problem->heads * problem->query_tokens);
    nh_cuda_bind_stats(step, problem, nh_cuda_reserve(operation, rows * STATISTICS_BYTES));
}

static nhood_status add_backward(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, const int32_t *value,
                                 struct nh_cuda_step *step) {
    struct nh_kernel_spec spec;
    bind_statistics(operation, problem, step);
    nhood_status status = prepare(operation, problem, NH_SMALL_BACKWARD_QUERY, value, step, &spec);
    if (!status && problem->has_bias) {
        int64_t sums = step->grid[0] * value[NH_SMALL_WARPS] * problem->bias_count;
        step->args.tensor[NH_D_S].head = sums;
        step->binding[NH_D_S] = (struct nh_cuda_binding){
            NH_BIND_WORKSPACE,
            nh_cuda_reserve(operation, (size_t)(problem->heads * sums) * sizeof(float)),
            {0, 0}};
    }
    if (!status) status = nh_cuda_step_add(operation, step, &spec);
    if (!status && problem->has_bias) status = nh_cuda_add_bias_sum(operation, problem, *step);
    if (!status) status = prepare(operation, problem, NH_SMALL_BACKWARD_KEY, value, step, &spec);
    step->outputs = 1u << NHOOD_D_K | 1u << NHOOD_D_V;
    step->overlaps = true;
    return status ? status : nh_cuda_step_add(operation, step, &spec);
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const int32_t *value = config->value;
    struct nh_cuda_step step;
    struct nh_kernel_spec spec;
    nh_cuda_step_init(&step, problem);
    if (problem->op == NHOOD_OP_BWD) return add_backward(operation, problem, value, &step);
    nhood_status status = prepare(operation, problem, NH_SMALL_FORWARD, value, &step, &spec);
    return status ? status : nh_cuda_step_add(operation, &step, &spec);
}

const struct nh_solver nh_solver_cuda_small = {
    NH_CUDA_SOLVER,
    .name = "cuda.small",
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC,
    .knob = nh_small_knobs,
    .refuse = refuse,
    .candidates = nh_small_candidates,
    .work = work,
    .add_steps = add_steps,
};
