/* cuda.small: fused attention for windows whose halo fits shared memory, sm_80 and later, forward and backward. With
 * windows of a few dozen keys, a block of 64 or more queries would multiply mostly masked scores. Here a warp tile of
 * 16 queries is multiplied with just the box of its keys, which matrix loads gather out of the halo of a larger box of
 * queries: see small.cuh. Backward has one launch for dQ, by queries, and one for dK and dV, by keys; without atomics,
 * results are bit-equal in every run. The search chooses boxes per problem, and in f32 whether keys and values lie in
 * shared memory side by side or one after the other. No extra tokens, head dims up to 128. */
#include "cuda_family.h"
#include "dtype.h"
#include "members_abi.h"
#include "rates.h"
#include "small_launch.h"
#include "tensor_maps.h"
#include "tiling.h"

#include <math.h>
#include <string.h>

enum { MOST_DIM = 128, MOST_LENGTH = 1 << 30, MOST_BIAS = 4096 };

static const struct nh_knob knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "small_knobs.def"
#undef KNOB
    {NULL, NULL}};

static bool work(const struct nh_problem *given, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const enum nh_small_serves serves = nh_small_serves_of(device->for_group, device->any_length);
    struct nh_problem room;
    const struct nh_problem *problem = nh_small_turned(given, serves, config->value, &room);
    struct nh_small_launch launch[NH_SMALL_LAUNCHES];
    bool boxes = false; /* known to be possible */
    nh_work_start(work,
                  problem->op == NHOOD_OP_FWD ? NH_OPERATION_SMALL_FORWARD
                                              : NH_OPERATION_SMALL_BACKWARD,
                  problem);
    nh_small_launches_of(problem, device->backend, config->value, serves, launch);
    for (int i = 0; i < nh_small_launches(problem); i++) {
        if (!launch[i].config.min_blocks || (device->for_group && !nh_small_hosts(&launch[i])))
            return false;
        if (nh_small_fetches(&launch[i])) {
            boxes = boxes || nh_small_boxes_possible(problem, device);
            if (!boxes || !nh_small_can_run(&launch[i])) return false;
        }
        if (!nh_small_add_work(&launch[i], work)) return false;
    }
    return true;
}

/* ---- refusal ---- */

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    const bool backward = problem->op == NHOOD_OP_BWD, f32 = problem->dtype == NHOOD_DTYPE_F32;
    const int64_t multiple = f32 ? 32 : 8;
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
    if (device->any_length && (problem->flags & NHOOD_FLAG_CLAMP_WINDOW))
        return "windows that short axes clamp, of lengths that are data";
    if (device->any_length && nh_problem_periodic(problem))
        return "an axis is periodic, and its length is data";
    if (problem->has_bias && problem->bias_count > MOST_BIAS)
        return "a head's bias table has more than 4096 entries";
    if (nh_cuda_vector(problem, UINT32_MAX) * (int64_t)nh_dtype_bytes(problem->dtype) < 16)
        return "a stride is no multiple of 16 bytes";
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (nh_max(axis->length, nh_axis_keys(axis)) >
            (axis->periodic ? MOST_LENGTH / 2 : MOST_LENGTH))
            return "an axis is longer than 2^30 tokens, or 2^29 where it is periodic";
        if (axis->windows.kind && !nh_listed_exactly(axis) && !nh_small_slides(axis))
            return "a window table of more than 4096 queries or keys that is not by a cut window";
        const char *reason = nh_refuse_pieces(axis, backward);
        if (reason) return reason;
    }
    return NULL;
}

static const char *refuse_all(const struct nh_problem *problem, const struct nh_device *device) {
    if (nh_small_fits(problem, device)) return NULL;
    return "16 queries have more than 1024 keys, or a halo exceeds shared memory";
}

/* ---- plan ---- */

/* The spec is large, so it is not cleared. */
static void set_spec(const struct nh_small_launch *launch, struct nh_kernel_spec *spec) {
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(SMALL_CONFIG);
    static const char *const sources[][SMALL_BOXES + 1] = {
        {"small_forward_copies.cu", "small_forward_turns.cu", "small_forward_boxes.cu"},
        {"small_backward_query_copies.cu", "small_backward_query_turns.cu",
         "small_backward_query_boxes.cu"},
        {"small_backward_key_copies.cu", "small_backward_key_turns.cu",
         "small_backward_key_boxes.cu"}};
    static const char *const passes[] = {NH_NAMED(SMALL_FORWARD), NH_NAMED(SMALL_BY_QUERY),
                                         NH_NAMED(SMALL_BY_KEY)};
    static const char *const pipelines[] = {NH_NAMED(SMALL_COPIES), NH_NAMED(SMALL_TURNS),
                                            NH_NAMED(SMALL_BOXES), NH_NAMED(SMALL_LINES),
                                            NH_NAMED(SMALL_PLANES)};
    static const char *const masks[] = {NH_NAMED(SMALL_NO_MASK), NH_NAMED(SMALL_BITS),
                                        NH_NAMED(SMALL_STARTS), NH_NAMED(SMALL_COORDINATES),
                                        NH_NAMED(SMALL_KINDS)};
    const struct nh_problem *problem = launch->problem;
    spec->source = sources[launch->config.pass][nh_min(launch->config.pipeline, SMALL_BOXES)];
    spec->count = 0;
    nh_kernel_define(spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_cuda_define_long_sums(spec, problem,
                             problem->op == NHOOD_OP_BWD ? NH_SUMS_OF_QUERY | NH_SUMS_OF_KEY
                                                         : NH_SUMS_OF_QUERY);
    nh_kernel_configure(spec, fields, &launch->config);
    nh_kernel_name_value(spec, "pass", passes[launch->config.pass]);
    nh_kernel_name_value(spec, "pipeline", pipelines[launch->config.pipeline]);
    nh_kernel_name_value(spec, "mask", masks[launch->config.mask]);
}

/* Sets the layouts of the maps of the problem's tensors. alike: as for add_launch. */
static void set_layouts(const struct nh_problem *problem, bool alike, struct small_config *config) {
    const int32_t tensors[] = {NHOOD_Q,   NHOOD_K,   NHOOD_V,   NHOOD_O,
                               NHOOD_D_O, NHOOD_D_Q, NHOOD_D_K, NHOOD_D_V};
    int *const layouts[] = {&config->q_map,   &config->k_map,   &config->v_map,   &config->o_map,
                            &config->d_o_map, &config->d_q_map, &config->d_k_map, &config->d_v_map};
    const int count = problem->op == NHOOD_OP_FWD ? 4 : 8;
    for (int i = 0; i < count; i++)
        *layouts[i] = alike && i ? config->q_map : (int)nh_map_layout_of(problem, tensors[i]);
}

/* Sets the kernel's maps (nh_maps). Those of lines, for the halo, come last. alike: as above. */
static void set_maps(const struct nh_small_launch *launch, bool alike, struct nh_cuda_step *step) {
    enum { MOST = 7, END = -1 };
    static const int32_t mapped[][MOST + 1] = {
        {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_O, END},
        {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_O, NHOOD_D_O, NHOOD_D_Q, END},
        {NHOOD_Q, NHOOD_K, NHOOD_V, NHOOD_D_O, NHOOD_D_K, NHOOD_D_V, NH_DELTA, END}};
    const struct nh_problem *problem = launch->problem;
    /* the tensors that are fetched as a halo, and as the rows of a work tile; warp tiles are stored */
    const uint32_t by_queries = NH_BIT(Q) | NH_BIT(D_O), by_keys = NH_BIT(K) | NH_BIT(V);
    uint32_t halo = nh_small_by_keys(launch) ? by_queries : by_keys,
             rows = nh_small_by_keys(launch) ? by_keys : by_queries;
    if (launch->config.pass == SMALL_BY_QUERY) rows |= NH_BIT(O);
    const struct small_config *config = &launch->config;
    /* statistics of columns, of whose lines the copy engine fetches an even number of rows */
    const int32_t statistics[NH_AXES] = {config->halo[0], config->halo[1],
                                         config->slots && config->rank == 2
                                             ? (int32_t)small_statistics_line(config)
                                             : config->halo[2]};
    step->maps = 0;
    for (const int32_t *t = mapped[launch->config.pass]; nh_small_fetches(launch) && *t != END;
         t++) {
        struct nh_cuda_map *map = &step->map[step->maps];
        const int32_t *own = *t == NH_DELTA   ? statistics
                             : halo >> *t & 1 ? launch->config.halo
                             : rows >> *t & 1 ? launch->config.rows
                                              : launch->config.warp_tile;
        if (*t == NH_DELTA)
            *map = nh_sm90_stats_map(problem, statistics);
        else if (alike && step->maps)
            nh_sm90_map_as(*t, (enum nh_map_layout)config->q_map, own, step->map, map);
        else
            *map = nh_sm90_map(problem, *t, own, 1);
        step->maps++;
    }
    for (const int32_t *t = mapped[launch->config.pass]; config->seam_lines && *t != END; t++)
        if (halo >> *t & 1)
            step->map[step->maps++] = nh_sm90_lines_map(problem, *t, launch->config.halo[2]);
    /* A larger promotion would fetch other heads' rows for nothing where heads lie apart. */
    for (int32_t i = 0; i < step->maps; i++)
        step->map[i].promotion = NH_CU_TENSOR_PROMOTE_128B;
}

/* Binds the partial sums of the bias's gradient, a table for each warp. */
static void bind_bias_sums(struct nh_cuda_operation *operation,
                           const struct nh_small_launch *launch, struct nh_cuda_step *step) {
    const struct nh_problem *problem = launch->problem;
    int64_t sums = step->grid[0] * launch->config.warps * problem->bias_count;
    size_t bytes = (size_t)(problem->heads * sums) * sizeof(float);
    step->args.tensor[NH_D_S].head = sums;
    step->binding[NH_D_S] = (struct nh_cuda_binding){
        .from = NH_BIND_WORKSPACE, .offset_bytes = nh_cuda_reserve(operation, bytes)};
}

/* Counts the work tiles that there are more because they begin before the first row. False if there are too many. */
static bool add_shifted_tiles(const struct nh_small_launch *launch, struct nh_cuda_tiling *tiling) {
    int64_t work_tiles = tiling->work_tiles;
    for (int a = 0; a < NH_AXES; a++) {
        int64_t longest = nh_longest_rows(&launch->problem->axis[a], nh_small_by_keys(launch));
        int64_t tiles = nh_ceil_div(longest + launch->config.shift[a], launch->config.rows[a]);
        work_tiles = work_tiles / tiling->tiles[a] * tiles;
        tiling->tiles[a] = (int)tiles;
    }
    if (work_tiles > MOST_LENGTH) return false;
    tiling->work_tiles = (int)work_tiles;
    return true;
}

/* The blocks that are resident at a time in a group's launch. */
static int64_t grouped_wave(const struct nh_cuda_device *device, const struct nh_cuda_step *step) {
    const int64_t bytes = step->shared_bytes + NH_MEMBER_SHARED_BYTES;
    return device->multiprocessors * nh_cuda_residents_by_shared(device, bytes);
}

/* alike: all tensors of rows have the same extents and strides. */
static nhood_status add_launch(struct nh_cuda_operation *operation, struct nh_small_launch *launch,
                               bool alike, struct nh_cuda_step *step) {
    const struct nh_problem *problem = launch->problem;
    const struct nh_cuda_device *device = operation->device;
    const bool keys = nh_small_by_keys(launch);
    struct nh_cuda_tiling *tiling = &step->own.tiling;
    if (!launch->config.min_blocks)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the boxes do not fit shared memory");
    if (nh_small_fetches(launch)) set_layouts(problem, alike, &launch->config);
    int32_t shared_by = keys ? (int32_t)(problem->heads / problem->kv_heads) : 1;
    if (nh_tiling_set(problem, launch->config.rows, shared_by, keys, 0, tiling) ||
        !add_shifted_tiles(launch, tiling) || tiling->work_tiles > MOST_LENGTH)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^30 boxes of rows");
    memset(tiling->order, 0, sizeof tiling->order); /* the order is the kernels' own */
    step->work_tiles = tiling->work_tiles;
    set_maps(launch, alike, step);
    step->threads = 32 * (launch->config.warps + launch->config.fetchers);
    step->shared_bytes = small_shared_bytes(&launch->config);
    const int64_t wave = device->multiprocessors * launch->config.min_blocks;
    const int64_t blocks = nh_min(step->work_tiles, wave);
    step->grid[0] = nh_max(blocks / launch->config.near_heads, 1) * launch->config.near_heads;
    const bool bias_gradient = launch->config.pass == SMALL_BY_QUERY && problem->has_bias;
    /* sums of the bias's gradient are a block's own, and where halos roll only kernels for groups take any run of work tiles */
    step->wave_blocks = (launch->config.slots && !nh_small_is_grouped(launch)) || bias_gradient
                            ? 0
                            : nh_min(wave, grouped_wave(device, step));
    if (!nh_small_fetches(launch)) {
        step->blocks = (struct nh_cuda_blocks){.heads = keys ? problem->kv_heads : problem->heads};
        memcpy(step->blocks.tile, launch->config.rows, sizeof launch->config.rows);
    }
    step->shares =
        nh_max(1, llrint(NH_TILE_SHARES * (double)step->work_tiles *
                         nh_small_counted_tiles(launch) / small_warp_tiles(&launch->config)));
    if (bias_gradient) bind_bias_sums(operation, launch, step);
    struct nh_kernel_spec spec;
    set_spec(launch, &spec);
    nhood_status status = nh_cuda_step_add(operation, step, &spec);
    return status || !bias_gradient ? status : nh_cuda_add_bias_sum(operation, problem, *step);
}

/* Makes the launches of a member of a group, or those of the problem alone where a group has none. */
static void make_launches(const struct nh_cuda_operation *operation,
                          const struct nh_problem *problem, enum nh_small_serves serves,
                          const int32_t *value, struct nh_small_launch *launch) {
    struct nh_small_launch alone[NH_SMALL_LAUNCHES];
    nh_small_launches_of(problem, operation->device, value, serves, launch);
    for (int i = 0; serves == NH_SMALL_GROUP && i < nh_small_launches(problem); i++) {
        if (launch[i].config.min_blocks) continue;
        nh_small_launches_of(problem, operation->device, value, NH_SMALL_ONE, alone);
        launch[i] = alone[i];
    }
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *given,
                              const struct nh_config *config) {
    const int32_t *value = config->value;
    const enum nh_small_serves serves =
        nh_small_serves_of(operation->for_group, operation->any_length);
    struct nh_problem room;
    const struct nh_problem *problem = nh_small_turned(given, serves, value, &room);
    const uint32_t distinct = nh_sm90_distinct(problem, NH_SMALL_ROWS);
    const bool alike = !(distinct & (distinct - 1));
    struct nh_small_launch launch[NH_SMALL_LAUNCHES];
    struct nh_cuda_step step;
    make_launches(operation, problem, serves, value, launch);
    nh_cuda_step_init(&step, problem);
    if (problem->op == NHOOD_OP_FWD) return add_launch(operation, &launch[0], alike, &step);
    size_t rows = (size_t)(problem->batch * problem->heads * problem->query_tokens);
    const size_t statistics = nh_cuda_reserve(operation, rows * SMALL_STATISTICS_BYTES);
    if (serves ==
        NH_SMALL_ANY_LENGTH) /* members follow each other, so a token has the rows of all heads */
        nh_cuda_bind_workspace(&step, problem, NH_DELTA, statistics,
                               SMALL_STATISTICS_BYTES / (int)sizeof(float));
    else
        nh_cuda_bind_stats(&step, problem, statistics);
    nhood_status status = add_launch(operation, &launch[0], alike, &step);
    step.outputs = NH_BIT(D_K) | NH_BIT(D_V);
    step.overlaps = true;
    return status ? status : add_launch(operation, &launch[1], alike, &step);
}

const struct nh_solver nh_solver_cuda_small = {
    NH_CUDA_SOLVER("cuda.small", knobs, refuse, nh_small_candidates, work, add_steps),
    .refuse_all = refuse_all,
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
};
