/* cuda.small: fused attention for windows whose halo fits shared memory, sm_80 and later, forward and backward.
 *
 * With windows of a few dozen keys, a block of 64 or more queries would multiply mostly masked scores. Here a warp tile
 * of 16 queries is multiplied with just the box of its keys, which matrix loads gather out of the halo of a larger box
 * of queries: see small.cuh. Backward has one launch for dQ, by queries, and one for dK and dV, by keys; without
 * atomics, results are bit-equal in every run. The search chooses boxes per problem, and in f32 whether keys and values
 * lie in shared memory side by side or one after the other. No extra tokens, head dims up to 128. */
#include "cuda_family.h"
#include "dtype.h"
#include "small_config.h"
#include "small_launch.h"
#include "tensor_maps.h"
#include "tile_count.h"
#include "tiling.h"

#include <math.h>
#include <string.h>

enum { MOST_DIM = 128, MOST_LENGTH = 1 << 30, MOST_BIAS = 4096 };

static const struct nh_knob knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "small_knobs.def"
#undef KNOB
    {NULL, NULL}};

/* The launch of a kernel in a config; false if its halo exceeds any shared memory. */
static bool launch_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                      enum nh_small_kernel kernel, const int32_t *value,
                      struct nh_small_launch *launch) {
    bool keys = kernel == NH_SMALL_BACKWARD_KEY;
    int32_t s0 = value[NH_SMALL_S0], s1 = value[NH_SMALL_S1];
    const int32_t warp_tile[NH_AXES] = {s0, s1, 16 / (s0 * s1)};
    int32_t stages = value[keys ? NH_SMALL_KEY_STAGES : NH_SMALL_STAGES];
    *launch = (struct nh_small_launch){.problem = problem,
                                       .cuda = cuda,
                                       .kernel = kernel,
                                       .keys = keys,
                                       .warps = value[keys ? NH_SMALL_KEY_WARPS : NH_SMALL_WARPS],
                                       .turns = stages == NH_SMALL_IN_TURNS,
                                       .stages = (int32_t)nh_max(stages, 0)};
    if (!nh_small_set_shape(launch, value + (keys ? NH_SMALL_K0 : NH_SMALL_Q0), warp_tile))
        return false;
    if (launch->stages) nh_small_roll(launch);
    nh_small_set_fetchers(launch);
    return true;
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
        if (!launch_of(problem, device->backend, kernel, config->value, &launch) ||
            !nh_small_add_work(&launch, work))
            return false;
    }
    return true;
}

/* ---- refusal ---- */

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    const bool backward = problem->op == NHOOD_OP_BWD, f32 = problem->dtype == NHOOD_DTYPE_F32;
    const int64_t multiple = f32 ? 32 : 8;
    struct nh_config config;
    if (!backward && problem->op != NHOOD_OP_FWD) return "only the forward and the backward pass";
    if (problem->dtype == NHOOD_DTYPE_F64)
        return "no f64: tensor cores are used for f32, f16 and bf16";
    if (problem->dim % multiple || problem->dim_v % multiple || problem->dim > MOST_DIM ||
        problem->dim_v > MOST_DIM)
        return f32 ? "head dims must be multiples of 32 up to 128 in f32"
                   : "head dims must be multiples of 8 up to 128";
    if (!backward && !(problem->scale > 0)) return "the scale is not positive";
    if (backward && fabs(problem->scale) < NH_SMALL_LEAST_SCALE)
        return "the scale is less than 1e-30, which LSE is divided by";
    if (problem->extra_tokens) return "no extra tokens";
    if (problem->has_bias && problem->bias_count > MOST_BIAS)
        return "a head's bias table has more than 4096 entries";
    if (nh_cuda_vector(problem, UINT32_MAX) * (int64_t)nh_dtype_bytes(problem->dtype) < 16)
        return "a stride is no multiple of 16 bytes";
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (axis->length > (axis->periodic ? MOST_LENGTH / 2 : MOST_LENGTH))
            return "an axis is longer than 2^30 tokens, or 2^29 where it is periodic";
        const char *reason = nh_refuse_pieces(axis, backward);
        if (reason) return reason;
    }
    if (!nh_small_candidates(problem, device, INFINITY, &config, 1))
        return "16 queries have more than 1024 keys, or a halo exceeds shared memory";
    return NULL;
}

/* ---- plan ---- */

/* Whether the work tiles of every dilation group are full. */
static bool whole(const struct nh_small_launch *launch) {
    bool all = true;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &launch->problem->axis[a];
        int64_t length = launch->keys ? axis->key.length : axis->query.length;
        all = all && length % (axis->dilation * launch->rows[a]) == 0 && !launch->shift[a];
    }
    return all;
}

/* Whether the copy engine goes around periodic axes by fetching halos line by line (small_seam.cuh);
 * otherwise warps copy what is beyond a seam. */
static bool fetches_lines(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { LINE_ALIGNMENT = 128 };
    int64_t line_bytes = launch->halo[2] * nh_small_row_bytes(problem, problem->dim);
    return launch->stages && nh_problem_periodic(problem) && line_bytes % LINE_ALIGNMENT == 0 &&
           nh_sm90_lines_fit(problem, launch->keys ? NHOOD_Q : NHOOD_K) &&
           nh_sm90_lines_fit(problem, launch->keys ? NHOOD_D_O : NHOOD_V);
}

/* The number of adjacent heads that adjacent blocks compute at the same time where halos roll, but not by planes. */
static int32_t near_heads(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    if (!launch->slots || nh_small_is_plane(problem, launch->rows)) return 1;
    return problem->heads % 4 == 0 ? 4 : problem->heads % 2 == 0 ? 2 : 1;
}

/* Sets the layouts of the tensor maps that the kernel may have. */
static void set_map_layouts(const struct nh_problem *problem, struct small_config *config) {
    config->q_map = nh_map_layout_of(problem, NHOOD_Q);
    config->k_map = nh_map_layout_of(problem, NHOOD_K);
    config->v_map = nh_map_layout_of(problem, NHOOD_V);
    config->o_map = nh_map_layout_of(problem, NHOOD_O);
    if (problem->op == NHOOD_OP_FWD) return;
    config->d_o_map = nh_map_layout_of(problem, NHOOD_D_O);
    config->d_q_map = nh_map_layout_of(problem, NHOOD_D_Q);
    config->d_k_map = nh_map_layout_of(problem, NHOOD_D_K);
    config->d_v_map = nh_map_layout_of(problem, NHOOD_D_V);
}

static enum small_pipeline pipeline_of(const struct nh_small_launch *launch) {
    if (launch->turns) return SMALL_TURNS;
    if (!launch->stages) return SMALL_COPIES;
    if (!launch->slots) return SMALL_BOXES;
    return nh_small_is_plane(launch->problem, launch->rows) ? SMALL_PLANES : SMALL_LINES;
}

static struct small_config config_of(const struct nh_small_launch *launch) {
    static const int masks[] = {SMALL_NO_MASK, SMALL_STARTS, SMALL_COORDINATES, SMALL_KINDS};
    const struct nh_problem *problem = launch->problem;
    struct small_config config = {
        .pass = (int)launch->kernel,
        .pipeline = (int)pipeline_of(launch),
        .mask = launch->bits ? SMALL_BITS : masks[launch->additive_mask],
        .rank = problem->rank,
        .element_bytes = (int)nh_dtype_bytes(problem->dtype),
        .dim = (int)problem->dim,
        .dim_v = (int)problem->dim_v,
        .bias_count = problem->has_bias ? (int)problem->bias_count : 0,
        .strided = nh_problem_strided(problem),
        .dilated = nh_problem_dilated(problem),
        .whole = whole(launch),
        .warps = launch->warps,
        .fetchers = launch->fetchers,
        .min_blocks = (int)nh_small_residents(launch),
        .stages = launch->stages,
        .slots = launch->slots,
        .held = launch->held,
        .lines_before = launch->lines_before,
        .slots_around = launch->slots_around,
        .near_heads = near_heads(launch),
        .seam_lines = fetches_lines(launch),
        .plane_chunks = launch->plane_chunks,
        .chunk_blocks = launch->chunk_blocks,
        .least_pairs = (int)launch->least_pairs,
        .shared_bytes = (int)nh_small_shared_bytes(launch),
    };
    for (int a = 0; a < NH_AXES; a++) {
        config.window[a] = (int)problem->axis[a].window;
        config.rows[a] = launch->rows[a];
        config.warp_tile[a] = launch->warp_tile[a];
        config.columns[a] = launch->columns[a];
        config.halo[a] = launch->halo[a];
        config.shift[a] = launch->shift[a];
    }
    if (launch->stages) set_map_layouts(problem, &config);
    return config;
}

static struct nh_kernel_spec spec_of(const struct nh_small_launch *launch) {
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(SMALL_CONFIG);
    enum { COPIES, BOXES, TURNS };
    static const char *const sources[][3] = {
        {"small_forward_copies.cu", "small_forward_boxes.cu", "small_forward_turns.cu"},
        {"small_backward_query_copies.cu", "small_backward_query_boxes.cu",
         "small_backward_query_turns.cu"},
        {"small_backward_key_copies.cu", "small_backward_key_boxes.cu",
         "small_backward_key_turns.cu"}};
    const struct nh_problem *problem = launch->problem;
    const struct small_config config = config_of(launch);
    struct nh_kernel_spec spec = {.source = sources[launch->kernel][launch->turns    ? TURNS
                                                                    : launch->stages ? BOXES
                                                                                     : COPIES]};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_cuda_define_long_sums(&spec, problem,
                             problem->op == NHOOD_OP_BWD ? NH_SUMS_OF_QUERY | NH_SUMS_OF_KEY
                                                         : NH_SUMS_OF_QUERY);
    nh_kernel_configure(&spec, fields, &config);
    return spec;
}

/* Sets the kernel's maps (nh_maps). Those of lines, for the halo, come last. */
static void set_maps(const struct nh_small_launch *launch, struct nh_cuda_step *step) {
    enum { MOST = 7, END = -1 };
    static const int32_t mapped[][MOST + 1] = {
        {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_O, END},
        {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_O, NHOOD_D_O, NHOOD_D_Q, END},
        {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_D_O, NHOOD_D_K, NHOOD_D_V, NH_DELTA, END}};
    const struct nh_problem *problem = launch->problem;
    /* the tensors that are fetched as a halo, and as the rows of a work tile; warp tiles are stored */
    const uint32_t by_queries = NH_BIT(Q) | NH_BIT(D_O), by_keys = NH_BIT(K) | NH_BIT(V);
    uint32_t halo = launch->keys ? by_queries : by_keys, rows = launch->keys ? by_keys : by_queries;
    if (launch->kernel == NH_SMALL_BACKWARD_QUERY) rows |= NH_BIT(O);
    int32_t statistics[NH_AXES];
    nh_small_statistics_box(launch, statistics);
    step->maps = 0;
    for (const int32_t *t = mapped[launch->kernel]; launch->stages && *t != END; t++) {
        const int32_t *box = halo >> *t & 1   ? launch->halo
                             : rows >> *t & 1 ? launch->rows
                                              : launch->warp_tile;
        step->map[step->maps++] = *t == NH_DELTA ? nh_sm90_stats_map(problem, statistics)
                                                 : nh_sm90_map(problem, *t, box, 1);
    }
    for (const int32_t *t = mapped[launch->kernel]; fetches_lines(launch) && *t != END; t++)
        if (halo >> *t & 1)
            step->map[step->maps++] = nh_sm90_lines_map(problem, *t, launch->halo[2]);
    /* A larger promotion would fetch other heads' rows for nothing where heads lie apart. */
    for (int32_t i = 0; i < step->maps; i++)
        step->map[i].promotion = NH_CU_TENSOR_PROMOTE_128B;
}

/* Binds the partial sums of the bias's gradient, a table for each warp. */
static void bind_bias_sums(struct nh_cuda_operation *operation,
                           const struct nh_small_launch *launch, struct nh_cuda_step *step) {
    const struct nh_problem *problem = launch->problem;
    int64_t sums = step->grid[0] * launch->warps * problem->bias_count;
    size_t bytes = (size_t)(problem->heads * sums) * sizeof(float);
    step->args.tensor[NH_D_S].head = sums;
    step->binding[NH_D_S] = (struct nh_cuda_binding){
        .from = NH_BIND_WORKSPACE, .offset_bytes = nh_cuda_reserve(operation, bytes)};
}

/* Counts the work tiles that there are more because they begin before the first row. False if there are too many. */
static bool add_shifted_tiles(const struct nh_small_launch *launch, struct nh_cuda_tiling *tiling) {
    int64_t work_tiles = tiling->work_tiles;
    for (int a = 0; a < NH_AXES; a++) {
        int64_t longest = nh_longest_rows(&launch->problem->axis[a], launch->keys);
        int64_t tiles = nh_ceil_div(longest + launch->shift[a], launch->rows[a]);
        work_tiles = work_tiles / tiling->tiles[a] * tiles;
        tiling->tiles[a] = (int)tiles;
    }
    if (work_tiles > MOST_LENGTH) return false;
    tiling->work_tiles = (int)work_tiles;
    return true;
}

static nhood_status add_launch(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, enum nh_small_kernel kernel,
                               const int32_t *value, struct nh_cuda_step *step) {
    const struct nh_cuda_device *device = operation->device;
    const bool keys = kernel == NH_SMALL_BACKWARD_KEY;
    struct nh_cuda_tiling *tiling = &step->own.tiling;
    struct nh_small_launch launch;
    if (!launch_of(problem, device, kernel, value, &launch) || !nh_small_residents(&launch))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the boxes do not fit shared memory");
    int32_t shared_by = keys ? (int32_t)(problem->heads / problem->kv_heads) : 1;
    if (nh_tiling_set(problem, launch.rows, shared_by, keys, 0, tiling) ||
        !add_shifted_tiles(&launch, tiling) || tiling->work_tiles > MOST_LENGTH)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^30 boxes of rows");
    memset(tiling->order, 0, sizeof tiling->order); /* the order is the kernels' own */
    step->work_tiles = tiling->work_tiles;
    set_maps(&launch, step);
    step->threads = 32 * (launch.warps + launch.fetchers);
    step->shared_bytes = nh_small_shared_bytes(&launch);
    int64_t blocks =
        nh_min(step->work_tiles, device->multiprocessors * nh_small_residents(&launch));
    step->grid[0] = nh_max(blocks / near_heads(&launch), 1) * near_heads(&launch);
    bool bias_gradient = kernel == NH_SMALL_BACKWARD_QUERY && problem->has_bias;
    if (bias_gradient) bind_bias_sums(operation, &launch, step);
    const struct nh_kernel_spec spec = spec_of(&launch);
    nhood_status status = nh_cuda_step_add(operation, step, &spec);
    return status || !bias_gradient ? status : nh_cuda_add_bias_sum(operation, problem, *step);
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const int32_t *value = config->value;
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    if (problem->op == NHOOD_OP_FWD)
        return add_launch(operation, problem, NH_SMALL_FORWARD, value, &step);
    size_t rows = (size_t)(problem->batch * problem->heads * problem->query_tokens);
    nh_cuda_bind_stats(&step, problem,
                       nh_cuda_reserve(operation, rows * NH_SMALL_STATISTICS_BYTES));
    nhood_status status = add_launch(operation, problem, NH_SMALL_BACKWARD_QUERY, value, &step);
    step.outputs = NH_BIT(D_K) | NH_BIT(D_V);
    step.overlaps = true;
    return status ? status : add_launch(operation, problem, NH_SMALL_BACKWARD_KEY, value, &step);
}

const struct nh_solver nh_solver_cuda_small = {
    NH_CUDA_SOLVER,
    .name = "cuda.small",
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC,
    .knob = knobs,
    .refuse = refuse,
    .candidates = nh_small_candidates,
    .work = work,
    .add_steps = add_steps,
};
