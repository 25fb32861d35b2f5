/* cuda.naive: one group of lanes per row, no tensor cores. It takes every problem. Small windows with small head dims
 * may be cut into tiles of queries whose keys lie in shared memory. */
#include "cuda_family.h"
#include "rates.h"
#include "dtype.h"
#include "naive_tile.h"
#include "tiling.h"

#include <string.h>

enum { THREADS = 128, LANES = 32, LANE_ELEMENTS = 16, WIDE_LANE_ELEMENTS = 8 };

#define NH_KNOBS "naive_knobs.def"
#include "knob_table.h"

static bool is_tiled(const struct nh_config *config) {
    return config->value[T0] > 0;
}

/* How a row is distributed over lanes; see kernels/common/naive.cuh. */
struct layout {
    int vector, vectors, group;
    bool resident;
    int64_t chunks;
};

static int64_t widest_row(const struct nh_problem *problem) {
    if (problem->op == NHOOD_OP_PN) return problem->dim;
    if (problem->op == NHOOD_OP_NN || problem->op == NHOOD_OP_IN) return problem->dim_v;
    return nh_max(problem->dim, problem->dim_v);
}

static struct layout layout_of(const struct nh_problem *problem) {
    int64_t dim = widest_row(problem);
    struct layout layout = {
        .vector = nh_cuda_vector(problem, UINT32_MAX), .vectors = 1, .group = 1};
    while (layout.group < LANES && layout.group * layout.vector < dim)
        layout.group *= 2;
    int64_t vectors = nh_ceil_div(dim, layout.group * layout.vector);
    layout.resident = vectors * layout.vector <= LANE_ELEMENTS;
    layout.vectors =
        layout.resident ? (int)vectors : (int)nh_max(1, WIDE_LANE_ELEMENTS / layout.vector);
    layout.chunks = nh_ceil_div(dim, (int64_t)layout.group * layout.vector * layout.vectors);
    return layout;
}

/* The layout with tiles: a thread holds whole rows. */
static struct layout layout_of_tiles(const struct nh_problem *problem) {
    int vector = nh_cuda_vector(problem, UINT32_MAX);
    return (struct layout){.vector = vector,
                           .vectors = (int)nh_ceil_div(widest_row(problem), vector),
                           .group = 1,
                           .resident = true,
                           .chunks = 1};
}

static bool is_whole(const struct nh_problem *problem, const struct layout *layout) {
    int64_t chunk = (int64_t)layout->group * layout->vectors * layout->vector;
    return problem->dim == chunk && problem->dim_v == chunk;
}

static struct nh_kernel_spec spec_of(const struct nh_problem *problem, const struct layout *layout,
                                     const char *source, int sums) {
    struct nh_kernel_spec spec = {.source = source};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_cuda_define_long_sums(&spec, problem, sums);
    nh_kernel_define(&spec, "NH_VECTOR", layout->vector);
    nh_kernel_define(&spec, "NH_VECTORS", layout->vectors);
    nh_kernel_define(&spec, "NH_GROUP", layout->group);
    nh_kernel_define(&spec, "NH_RESIDENT", layout->resident);
    nh_kernel_define(&spec, "NH_WHOLE", is_whole(problem, layout));
    nh_kernel_define(&spec, "NH_BIASED", problem->has_bias);
    return spec;
}

/* Blocks for `count` rows, at most 2^30; the kernels loop over rows that remain. */
static int64_t blocks_for(int64_t count, int64_t count_per_block) {
    return nh_max(1, nh_min(nh_ceil_div(count, count_per_block), (int64_t)1 << 30));
}

static nhood_status add_blocks(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct layout *layout,
                               struct nh_cuda_step *step, const char *source, int64_t count) {
    struct nh_kernel_spec spec = spec_of(problem, layout, source, NH_SUMS_OVER_ALL);
    step->threads = THREADS;
    step->grid[0] = blocks_for(count, 1);
    return nh_cuda_step_add(operation, step, &spec);
}

/* A launch that computes one row of results per group. */
struct pass {
    const char *source;
    /* rows are keys, else queries */
    bool keys;
};

static int64_t row_tokens(const struct nh_problem *problem, bool keys) {
    return keys ? problem->key_tokens : problem->query_tokens;
}

static nhood_status add_rows(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             const struct nh_cuda_step *step, const struct pass *pass) {
    struct layout layout = layout_of(problem);
    struct nh_kernel_spec spec =
        spec_of(problem, &layout, pass->source, pass->keys ? NH_SUMS_OF_KEY : NH_SUMS_OF_QUERY);
    struct nh_cuda_step own = *step;
    int64_t heads = pass->keys ? problem->kv_heads : problem->heads;
    own.threads = THREADS;
    own.grid[0] = blocks_for(problem->batch * heads * row_tokens(problem, pass->keys),
                             THREADS / layout.group);
    own.grid[1] =
        problem->op == NHOOD_OP_PN ? 1 : layout.chunks; /* rows of A are not cut into chunks */
    return nh_cuda_step_add(operation, &own, &spec);
}

static nhood_status add_tiles(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const int32_t tile[NH_AXES], const struct nh_cuda_step *step,
                              const struct pass *pass) {
    struct layout layout = layout_of_tiles(problem);
    struct nh_kernel_spec spec =
        spec_of(problem, &layout, pass->source, pass->keys ? NH_SUMS_OF_KEY : NH_SUMS_OF_QUERY);
    struct nh_cuda_step tiled = *step;
    tiled.threads = 1;
    for (int a = 0; a < NH_AXES; a++)
        tiled.threads *= tile[a];
    nh_kernel_define_knobs(&spec, knobs, NH_AXES, tile);
    nh_kernel_define(&spec, "NH_TILED", 1);
    nh_kernel_define(&spec, "NH_EXTRA", problem->extra_tokens > 0);
    nh_kernel_define(&spec, "NH_RANK", problem->rank);
    nh_kernel_define(&spec, "NH_THREADS", tiled.threads);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS", nh_naive_tile_resident(problem->op, tile, pass->keys));
    nhood_status status =
        nh_tiling_set(problem, tile, pass->keys ? (int32_t)(problem->heads / problem->kv_heads) : 1,
                      pass->keys, 0, &tiled.own.tiling);
    if (status) return status;
    tiled.work_tiles = tiled.grid[0] = tiled.own.tiling.work_tiles;
    tiled.shared_bytes = nh_naive_tile_shared_bytes(problem, tile, pass->keys);
    return nh_cuda_step_add(operation, &tiled, &spec);
}

static nhood_status add_pass(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             const struct nh_config *config, const struct nh_cuda_step *step,
                             const struct pass *pass) {
    return is_tiled(config) ? add_tiles(operation, problem, config->value, step, pass)
                            : add_rows(operation, problem, step, pass);
}

static nhood_status add_backward(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, const struct nh_config *config,
                                 struct nh_cuda_step *step) {
    static const struct pass queries = {"naive_backward_query.cu", false},
                             keys = {"naive_backward_key.cu", true};
    struct layout layout = layout_of(problem);
    size_t real_bytes = problem->dtype == NHOOD_DTYPE_F64 ? 8 : 4;
    size_t delta = nh_cuda_reserve(
        operation, (size_t)(problem->batch * problem->query_tokens * problem->heads) * real_bytes);
    nh_cuda_bind_workspace(step, problem, NH_DELTA, delta, 1);
    nhood_status status = add_pass(operation, problem, config, step, &queries);
    step->outputs = NH_BIT(D_K) | NH_BIT(D_V);
    if (!status) status = add_pass(operation, problem, config, step, &keys);
    step->outputs = NH_BIT(D_EXTRA_K) | NH_BIT(D_EXTRA_V);
    step->grid[1] = layout.chunks;
    if (!status && problem->extra_tokens)
        status = add_blocks(operation, problem, &layout, step, "naive_backward_extra.cu",
                            problem->batch * problem->extra_tokens * problem->kv_heads);
    step->outputs = NH_BIT(D_BIAS);
    step->grid[1] = 1;
    if (!status && problem->has_bias)
        status = add_blocks(operation, problem, &layout, step, "naive_backward_bias.cu",
                            problem->heads * problem->bias_count);
    return status;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    static const struct pass pass[] = {[NHOOD_OP_FWD] = {"naive_forward.cu", false},
                                       [NHOOD_OP_PN] = {"naive_pn.cu", false},
                                       [NHOOD_OP_NN] = {"naive_nn.cu", false},
                                       [NHOOD_OP_IN] = {"naive_in.cu", true}};
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    if (problem->op == NHOOD_OP_BWD) return add_backward(operation, problem, config, &step);
    return add_pass(operation, problem, config, &step, &pass[problem->op]);
}

/* Adds the work of a launch in which groups of lanes take a row each. The unfused operators have one of attention's two
 * products; the backward pass has seven in two launches. Columns that have to be checked, and elements beyond the last,
 * cost as much as others. */
static void add_rows_work(const struct nh_problem *problem, bool keys, struct nh_work *work) {
    enum { RESIDENTS = 8 };
    struct layout layout = layout_of(problem);
    double products = problem->op == NHOOD_OP_FWD   ? 2
                      : problem->op != NHOOD_OP_BWD ? 1
                      : keys                        ? 4
                                                    : 3;
    double elements = (double)(layout.chunks * layout.vectors * layout.vector);
    double window = (double)(problem->window_count + problem->extra_tokens);
    double rows = (double)THREADS / layout.group;
    double heads = (double)(keys ? problem->kv_heads : problem->heads);
    if (keys) window *= (double)(problem->heads / problem->kv_heads);
    struct nh_launch_work *launch = nh_work_add(work, NH_KERNEL_NAIVE_ROWS);
    launch->blocks = (double)(problem->batch * row_tokens(problem, keys)) * heads / rows;
    launch->residents = launch->in_flight = RESIDENTS;
    launch->warps = (double)THREADS / LANES;
    launch->steps = window;
    launch->serial = 1 / launch->warps;
    launch->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(THREADS * window * products * elements);
    launch->unit[NH_WORK_INDEX] = nh_cuda_lane_clocks(THREADS * window * products);
    if (!is_whole(problem, &layout)) launch->unit[NH_WORK_IDLE] = launch->unit[NH_WORK_VECTOR];
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    if (is_tiled(config)) return nh_naive_tile_work(problem, device->backend, config->value, work);
    nh_work_start(work, NH_OPERATION_NAIVE, problem);
    add_rows_work(problem, problem->op == NHOOD_OP_IN, work);
    if (problem->op == NHOOD_OP_BWD) add_rows_work(problem, true, work);
    return true;
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    (void)below_ns;
    struct nh_config both[2] = {{{0}}};
    int count = 1 + nh_naive_tile_choose(problem, device->backend, both[0].value);
    nh_least_first(&nh_solver_cuda_naive, problem, device, both, count);
    count = (int)nh_min(count, capacity);
    memcpy(config, both, (size_t)count * sizeof *config);
    return count;
}

const struct nh_solver nh_solver_cuda_naive = {
    NH_CUDA_SOLVER,
    .name = "cuda.naive",
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC,
    .knob = knobs,
    .refuse = nh_refuse_nothing,
    .candidates = candidates,
    .work = work,
    .add_steps = add_steps,
};
