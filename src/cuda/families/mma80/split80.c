/* cuda.split80: backward on tensor cores for sm_80 and later, without atomics (split80_backward.cu). One launch
 * computes LSE and delta of the queries, one dQ by blocks that own queries, one dK and dV by blocks that own keys (two
 * if registers do not hold both; where values are wide, one dK and one each part of dV), and as many the gradients of
 * extra tokens. Scores are computed in each of them; results are bit-equal in every run. No f64; head dims up to 256,
 * value dims up to 1,024. */
#include "cuda_family.h"
#include "tiled80.h"
#include "top_n.h"
#include "value_parts.h"

#include <math.h>
#include <string.h>

/* A config is the knobs of the launch by queries, then those of the launch by keys. */
#define NH_KNOBS "split80_knobs.def"
#include "knob_table.h"
enum { BY_QUERY = ROW_0, BY_KEY = BY_KEY_ROW_0, MOST_SIDES = 3, MOST_CANDIDATES = 6 };

static struct nh_tiled80_kernel kernel_of(const struct nh_problem *problem,
                                          const struct nh_cuda_device *cuda, enum mma80_pass pass,
                                          const int32_t *knob) {
    enum { STAGES = 2 };
    return nh_tiled80_kernel(problem, cuda, pass, knob, STAGES);
}

/* The pass of a side, of queries or of keys. */
static enum mma80_pass pass_of(bool inverse) {
    return inverse ? MMA80_BY_KEY : MMA80_BY_QUERY;
}

/* The kernels of a pass. Where values are wide, the first of those that own keys makes dK, with all columns of the values,
 * and each of the others, which need no values, a part of dV. */
static int kernels_of(const struct nh_problem *problem, enum mma80_pass pass) {
    const int parts = nh_value_parts(problem);
    return pass == MMA80_BY_QUERY || parts == 1 ? 1 : 1 + parts;
}

/* The n-th of them. room: for the problem of a part. */
static struct nh_tiled80_kernel nth_kernel(const struct nh_problem *problem,
                                           const struct nh_cuda_device *cuda, enum mma80_pass pass,
                                           const int32_t *knob, int n, struct nh_problem *room) {
    if (kernels_of(problem, pass) == 1) return kernel_of(problem, cuda, pass, knob);
    const struct nh_problem *own = n ? nh_value_part(problem, n - 1, room) : problem;
    struct nh_tiled80_kernel kernel = kernel_of(own, cuda, pass, knob);
    kernel.apart = true;
    kernel.config.sum_first = n == 0;
    kernel.config.sum_second = n > 0;
    return kernel;
}

/* The knobs of kernels for extra tokens, derived from those by keys: rows lie along one axis, no more than needed. */
static void set_extra_knobs(const struct nh_problem *problem, const int32_t *knob,
                            int32_t own[NH_TILED80_KNOBS]) {
    int32_t rows = (int32_t)nh_box_volume(knob);
    memcpy(own, knob, NH_TILED80_KNOBS * sizeof *own);
    for (; own[NH_TILED80_WARPS] % 2 == 0 && rows / 2 >= problem->extra_tokens; rows /= 2)
        own[NH_TILED80_WARPS] /= 2;
    own[0] = own[1] = 1;
    own[2] = rows;
}

/* Blocks of extra tokens loop over all queries; tiles that the end of the grid cuts need masks. */
static struct nh_tiling_count count_extra(const struct nh_tiled80_kernel *extra) {
    const struct nh_problem *problem = extra->problem;
    double rows = (double)nh_ceil_div(problem->extra_tokens, mma80_row_count(&extra->config));
    double all = 1, dense = 1;
    for (int a = 0; a < NH_AXES; a++) {
        int64_t length = problem->axis[a].query.length, tile = extra->config.columns[a];
        all *= (double)nh_ceil_div(length, tile);
        dense *= (double)(length / tile);
    }
    return (struct nh_tiling_count){rows, rows * all, rows * (all - dense), all};
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    static const int32_t smallest[NH_TILED80_KNOBS] = {1, 1, 32, 1, 1, 16, 2},
                         smallest_wide[NH_TILED80_KNOBS] = {1, 1, 16, 1, 1, 16, 1};
    const int32_t *knob = nh_value_parts(problem) > 1 ? smallest_wide : smallest;
    struct nh_problem room;
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    const char *reason = nh_tiled80_refuse(problem);
    if (reason) return reason;
    for (int inverse = 0; inverse < 2; inverse++) {
        const struct nh_tiled80_kernel kernel =
            nth_kernel(problem, device->backend, pass_of(inverse), knob, 0, &room);
        if (!nh_tiled80_residents(&kernel))
            return "not even small tiles of such head dims fit into shared memory";
    }
    return NULL;
}

/* ---- work ---- */

static void start_work(const struct nh_problem *problem, struct nh_work *work) {
    nh_work_start(work, NH_OPERATION_SPLIT80, problem);
    work->overlaps = true;
    work->helpers += 2 + (problem->has_bias != 0);
}

/* Adds the launches of a pass; false: blocks do not fit. */
static bool add_pass(const struct nh_problem *problem, const struct nh_device *device,
                     enum mma80_pass pass, const int32_t *knob, const struct nh_tiling_count *count,
                     struct nh_work *work) {
    for (int n = 0; n < kernels_of(problem, pass); n++) {
        struct nh_problem room;
        const struct nh_tiled80_kernel kernel =
            nth_kernel(problem, device->backend, pass, knob, n, &room);
        if (!nh_tiled80_add_work(&kernel, count, work)) return false;
    }
    return true;
}

/* Adds the launches of one side, those for extra tokens included; false: blocks do not fit. */
static bool add_side(const struct nh_problem *problem, const struct nh_device *device, bool inverse,
                     const int32_t *knob, const struct nh_tiling_count *count,
                     struct nh_work *work) {
    int32_t extra_knob[NH_TILED80_KNOBS];
    if (!add_pass(problem, device, pass_of(inverse), knob, count, work)) return false;
    if (!inverse || !problem->extra_tokens) return true;
    set_extra_knobs(problem, knob, extra_knob);
    const struct nh_tiled80_kernel extra =
        kernel_of(problem, device->backend, MMA80_EXTRA, extra_knob);
    const struct nh_tiling_count extra_count = count_extra(&extra);
    return add_pass(problem, device, MMA80_EXTRA, extra_knob, &extra_count, work);
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    start_work(problem, work);
    for (int inverse = 0; inverse < 2; inverse++) {
        const int32_t *knob = config->value + (inverse ? BY_KEY : BY_QUERY);
        const struct nh_tiling_count count =
            nh_tiling_count(problem, knob, knob, knob + NH_TILED80_COLUMN, inverse, false);
        if (!add_side(problem, device, inverse, knob, &count, work)) return false;
    }
    return true;
}

/* ---- candidates ---- */

/* The last is for wide values, of which shared memory may hold no more. */
static const struct nh_box_variant variants[] = {{32, 16, 2, 0},  {64, 32, 2, 0},  {64, 64, 2, 0},
                                                 {64, 64, 4, 0},  {64, 128, 4, 0}, {64, 16, 4, 0},
                                                 {64, 32, 4, 0},  {128, 32, 4, 0}, {128, 64, 4, 0},
                                                 {128, 32, 8, 0}, {128, 64, 8, 0}, {16, 16, 1, 0}};

static bool add_choice(const struct nh_box_search *search, const struct nh_box_choice *choice,
                       struct nh_work *work) {
    int32_t knob[NH_TILED80_KNOBS];
    nh_tiled80_set_knobs(choice, knob);
    return add_side(search->problem, search->device, search->inverse, knob, &choice->count, work);
}

static bool side_work(const struct nh_box_search *search, const struct nh_box_choice *choice,
                      struct nh_work *work) {
    start_work(search->problem, work);
    return add_choice(search, choice, work);
}

/* The launches of both sides overlap, so the best of each need not be the best together: all pairs are predicted. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct nh_box_choice best[2][MOST_SIDES];
    struct nh_box_search search[2];
    struct nh_top_n top;
    int count[2];
    const int wide_only = nh_value_parts(problem) == 1;
    for (int inverse = 0; inverse < 2; inverse++) {
        search[inverse] = (struct nh_box_search){
            .problem = problem,
            .inverse = inverse,
            .variant = variants,
            .variants = (int)(sizeof variants / sizeof *variants) - wide_only,
            .device = device,
            .work = side_work};
        count[inverse] = nh_box_search(&search[inverse], best[inverse], MOST_SIDES);
        if (!count[inverse]) return 0;
    }
    nh_top_configs_start(&top, config, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int i = 0; i < count[0] * count[1]; i++) {
        const struct nh_box_choice *query = &best[0][i / count[1]], *key = &best[1][i % count[1]];
        struct nh_config tried = {{0}};
        struct nh_work work;
        start_work(problem, &work);
        if (!add_choice(&search[0], query, &work) || !add_choice(&search[1], key, &work)) continue;
        nh_tiled80_set_knobs(query, tried.value + BY_QUERY);
        nh_tiled80_set_knobs(key, tried.value + BY_KEY);
        nh_top_n_add(&top, &tried, nh_predict(device->backend, &work, NULL));
    }
    return top.count;
}

/* ---- plan ---- */

/* Divides the launch for dQ into blocks that keep a table of the bias's gradient each, for a share of a head's query
 * tiles: as many shares as keep the device busy for a few rounds, and no more than 256 MiB of tables. */
static nhood_status add_tables(struct nh_cuda_operation *operation,
                               const struct nh_tiled80_kernel *kernel, struct nh_cuda_step *step) {
    const int64_t most_table_bytes = (int64_t)256 << 20, rounds = 4;
    const struct nh_problem *problem = kernel->problem;
    int64_t head_tiles = nh_tiled80_head_tiles(kernel);
    if (head_tiles > INT32_MAX)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^31 query tiles");
    int64_t blocks = rounds * kernel->cuda->multiprocessors * nh_tiled80_residents(kernel);
    int64_t by_memory = most_table_bytes / (problem->heads * problem->bias_count * 4);
    int64_t wanted = nh_min(nh_ceil_div(blocks, problem->heads), by_memory);
    int64_t shares = nh_max(1, nh_min(wanted, head_tiles));
    step->work_tiles = step->own.tiling.work_tiles = (int)head_tiles;
    step->grid[0] = problem->heads * shares;
    nh_cuda_add_bias_tables(operation, problem, shares, step);
    return NHOOD_OK;
}

/* Makes rows those of extra tokens along the last axis. They see all queries, in the grid's own order. */
static void own_extra(const struct nh_tiled80_kernel *kernel, struct nh_cuda_step *step) {
    static const int slot[] = {NH_K, NH_V, NH_D_K, NH_D_V};
    static const int32_t tensor[] = {NHOOD_EXTRA_K, NHOOD_EXTRA_V, NHOOD_D_EXTRA_K,
                                     NHOOD_D_EXTRA_V};
    const struct nh_problem *problem = kernel->problem;
    for (int i = 0; i < 4; i++) {
        const nhood_strides *s = &problem->strides[tensor[i]];
        step->binding[slot[i]] = (struct nh_cuda_binding){.from = tensor[i]};
        step->args.tensor[slot[i]] = (struct nh_cuda_tensor){
            NULL, s->batch, {0, 0, s->axis[NH_AXES - problem->rank]}, s->head};
    }
    for (int a = 0; a < NH_AXES; a++)
        step->args.axis[a].dilation = 1;
    step->periodic = 0;
    step->grid[0] = problem->batch * problem->kv_heads *
                    nh_ceil_div(problem->extra_tokens, mma80_row_count(&kernel->config));
}

/* Adds a launch of a kernel. all: the problem whose n-th kernel it is. stats: workspace offset of the queries' LSE and
 * delta. */
static nhood_status add_launch(struct nh_cuda_operation *operation,
                               const struct nh_tiled80_kernel *kernel, const struct nh_problem *all,
                               int n, size_t stats) {
    static const uint32_t first[] = {0, NH_BIT(D_Q), NH_BIT(D_K), NH_BIT(D_EXTRA_K)},
                          second[] = {0, 0, NH_BIT(D_V), NH_BIT(D_EXTRA_V)};
    const struct nh_problem *problem = kernel->problem;
    const struct mma80_config *config = &kernel->config;
    struct nh_kernel_spec spec = {.source = "split80_backward.cu"};
    struct nh_cuda_step step;
    nh_tiled80_step(kernel, &step, &spec);
    nh_cuda_bind_workspace(&step, problem, NH_DELTA, stats, 4);
    step.overlaps = true;
    step.outputs = (config->sum_first ? first[config->pass] : 0) |
                   (config->sum_second ? second[config->pass] : 0);
    if (config->pass == MMA80_EXTRA) own_extra(kernel, &step);
    if (n) nh_value_part_bind(&step, all, n - 1);
    if (!mma80_sums_bias(config)) return nh_cuda_step_add(operation, &step, &spec);
    nhood_status status = add_tables(operation, kernel, &step);
    if (!status) status = nh_cuda_step_add(operation, &step, &spec);
    return status ? status : nh_cuda_add_bias_sum(operation, problem, step);
}

/* Adds the launches of a pass: if registers do not hold both sums of its one kernel, the second sum has its own. */
static nhood_status add_launches(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, enum mma80_pass pass,
                                 const int32_t *knob, size_t stats) {
    nhood_status status = NHOOD_OK;
    for (int n = 0; !status && n < kernels_of(problem, pass); n++) {
        struct nh_problem room;
        struct nh_tiled80_kernel kernel =
            nth_kernel(problem, operation->device, pass, knob, n, &room);
        status = add_launch(operation, &kernel, problem, n, stats);
        if (status || nh_tiled80_launches(&kernel) == 1) continue;
        kernel.config.sum_first = 0;
        kernel.config.sum_second = 1;
        status = add_launch(operation, &kernel, problem, n, stats);
    }
    return status;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const int32_t *keys = config->value + BY_KEY;
    size_t rows = (size_t)(problem->batch * problem->query_tokens * problem->heads);
    size_t stats = nh_cuda_reserve(operation, rows * 4 * sizeof(float));
    int32_t extra_knob[NH_TILED80_KNOBS];
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_cuda_bind_workspace(&step, problem, NH_DELTA, stats, 4);
    nhood_status status = nh_cuda_add_stats(operation, &step, problem, 0);
    if (!status)
        status = add_launches(operation, problem, MMA80_BY_QUERY, config->value + BY_QUERY, stats);
    if (!status) status = add_launches(operation, problem, MMA80_BY_KEY, keys, stats);
    if (status || !problem->extra_tokens) return status;
    set_extra_knobs(problem, keys, extra_knob);
    return add_launches(operation, problem, MMA80_EXTRA, extra_knob, stats);
}

const struct nh_solver nh_solver_cuda_split80 = {
    NH_CUDA_SOLVER("cuda.split80", knobs, refuse, candidates, work, add_steps),
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
    .left_to = "cuda.split90",
};
