/* cuda.split90: the backward pass on sm_90. One launch computes statistics of the queries, one dQ by blocks that own
 * queries, and one or, for wide heads, two dK and dV by blocks that own keys; for wide values, each part of dV has one. This takes seven or eight products
 * instead of five, but no atomics and no workspace for dQ, and results are bit-equal in every run. For gradients of
 * extra tokens (split90_extra.cu) blocks own tiles of these and loop over shares of the queries, whose sums are then
 * added in order. */
#include "backward90.h"
#include "cuda_family.h"
#include "permuted_axes.h"
#include "top_n.h"

#include <string.h>

/* A config is two pairs of tiles: of the kernel that owns queries, whose loop is over keys, and of the one that owns
 * keys. */
#define NH_KNOBS "split90_knobs.def"
#include "knob_table.h"
enum { MOST_DIM = 256, ROWS = NH_BACKWARD90_ROWS };

/* The kernel of a config that owns keys, or the one that owns queries. */
static struct nh_backward90_kernel kernel_of(const struct nh_problem *problem,
                                             const struct nh_cuda_device *cuda,
                                             const int32_t *value, bool keys) {
    const int32_t *own = value + (keys ? KEY_OWN_X : QUERY_OWN_X),
                  *loop = value + (keys ? KEY_LOOP_X : QUERY_LOOP_X);
    return (struct nh_backward90_kernel){
        problem, cuda, keys ? WGMMA90_KEY : WGMMA90_QUERY, own, loop, false, false};
}

/* The problem as extra tokens see it: every query attends each, without bias, and their box is a grid of its own. */
static struct nh_problem without_windows(const struct nh_problem *problem) {
    struct nh_problem dense = *problem;
    dense.has_bias = false;
    for (int a = 0; a < NH_AXES; a++)
        dense.axis[a] = nh_whole_axis(problem->axis[a].query.length, 1, 1, 1, 0);
    return dense;
}

/* NULL, or why values above 256 columns are not taken. Own tiles of all columns leave room for small loop tiles alone. */
static const char *refuse_wide(const struct nh_problem *problem, const struct nh_device *device) {
    static const int32_t least[KNOBS] = {1, 1, ROWS, 1, 1, 32, 1, 1, ROWS, 1, 1, 32};
    if (nh_value_parts(problem) == 1) return NULL;
    if (problem->dim_v > NH_MOST_VALUES || problem->dim_v % 16)
        return "value dims must be multiples of 16";
    if (problem->has_bias || problem->extra_tokens)
        return "a value dim above 256, and a bias or extra tokens";
    for (int keys = 0; keys < 2; keys++) {
        const struct nh_backward90_kernel kernel = kernel_of(problem, device->backend, least, keys);
        if (!nh_backward90_fits(&kernel)) return "shared memory does not hold such value dims";
    }
    return NULL;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    static const int32_t none[KNOBS] = {0};
    struct nh_problem room;
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    const char *reason = refuse_wide(problem, device);
    if (!reason)
        reason = nh_sm90_refuse(nh_value_part(problem, 0, &room), device,
                                NH_BIT(Q) | NH_BIT(K) | NH_BIT(V) | NH_BIT(D_O) | NH_BIT(EXTRA_K) |
                                    NH_BIT(EXTRA_V),
                                NH_BIT(D_Q) | NH_BIT(D_K) | NH_BIT(D_V), MOST_DIM);
    if (!reason && problem->extra_tokens) {
        const struct nh_problem dense = without_windows(problem);
        reason = nh_sm90_refuse_boxes(&dense, device, NH_BIT(Q) | NH_BIT(D_O));
        if (!reason && nh_sm90_by_origin(&dense, NH_BIT(Q) | NH_BIT(D_O)))
            reason =
                "extra tokens, and queries or dO whose batch entries or heads are expanded or, "
                "in 3-D, join neither each other nor a row";
    }
    for (int keys = 0; keys < 2 && !reason; keys++) {
        const struct nh_backward90_kernel kernel = kernel_of(problem, device->backend, none, keys);
        reason = nh_backward90_refuse_around(&kernel);
    }
    return reason;
}

/* ---- extra tokens ---- */

static int64_t grid_tiles(const struct nh_problem *problem, const int32_t tile[3]) {
    int64_t tiles = 1;
    for (int a = 0; a < NH_AXES; a++)
        tiles *= nh_ceil_div(problem->axis[a].length, tile[a]);
    return tiles;
}

/* The kernel whose blocks own extra tokens. Its loop tile is the box of queries, of 64 rows or, where heads are wide,
 * 32, that covers the grid with the fewest rows. */
static struct nh_backward90_kernel extra_kernel(const struct nh_problem *dense,
                                                const struct nh_cuda_device *cuda) {
    static const int32_t own[] = {1, 1, ROWS};
    static const int32_t shapes[][3] = {{1, 1, 64}, {1, 8, 8}, {1, 4, 16}, {2, 4, 8},
                                        {1, 1, 32}, {1, 4, 8}, {1, 2, 16}, {2, 2, 8}};
    struct nh_backward90_kernel best = {dense, cuda, WGMMA90_EXTRA, own, NULL, false, false};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct nh_backward90_kernel next = best;
        next.loop = shapes[i];
        if (!nh_sm90_boxes_fit(dense, shapes[i]) || !nh_backward90_fits(&next)) continue;
        if (!best.loop || (nh_box_volume(next.loop) == nh_box_volume(best.loop) &&
                           grid_tiles(dense, next.loop) < grid_tiles(dense, best.loop)))
            best = next;
    }
    return best;
}

/* A launch's blocks own `tiles` tiles of extra tokens, each of them for every one of `shares` shares of the queries.
 * Their f32 sums, [share, batch, head, token, dim], are in the workspace, as are the queries' statistics. */
struct extra {
    int64_t tiles, shares;
    size_t stats, keys, values;
};

static void bind_sums(struct nh_cuda_step *step, const struct nh_problem *problem, int slot,
                      int64_t dim, size_t offset) {
    int64_t head = problem->extra_tokens * dim, batch = problem->kv_heads * head;
    nh_cuda_bind_offset(step, slot, offset);
    step->args.tensor[slot] =
        (struct nh_cuda_tensor){NULL, batch, {problem->batch * batch, 0, dim}, head};
}

/* Adds a launch that makes or adds up these sums. */
static nhood_status add_with_sums(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, const struct extra *extra,
                                  struct nh_cuda_step *step, const struct nh_kernel_spec *spec) {
    bind_sums(step, problem, NH_P, problem->dim, extra->keys);
    bind_sums(step, problem, NH_D_S, problem->dim_v, extra->values);
    step->outputs = NH_BIT(D_EXTRA_K) | NH_BIT(D_EXTRA_V);
    return nh_cuda_step_add(operation, step, spec);
}

static nhood_status add_extra_pass(struct nh_cuda_operation *operation,
                                   const struct nh_backward90_kernel *kernel,
                                   enum nh_backward90_pass pass, const struct extra *extra) {
    const struct nh_problem *problem = kernel->problem;
    struct nh_kernel_spec spec = {.source = "split90_extra.cu"};
    struct nh_cuda_step step;
    struct wgmma90_config config;
    nhood_status status = nh_backward90_step(kernel, pass, extra->stats, &step, &config);
    if (status) return status;
    nh_wgmma90_configure(&spec, problem, config);
    struct nh_cuda_tiling *tiling = &step.own.tiling;
    for (int a = 0; a < NH_AXES; a++)
        tiling->tiles[a] = (int)nh_ceil_div(problem->axis[a].length, kernel->loop[a]);
    tiling->extra_tiles = (int)nh_ceil_div(problem->extra_tokens, ROWS);
    step.work_tiles = tiling->work_tiles = (int)(extra->tiles * extra->shares);
    step.grid[0] = nh_min(step.work_tiles, kernel->cuda->multiprocessors);
    step.map[0] = nh_sm90_extra_map(problem, NHOOD_EXTRA_K, ROWS);
    step.map[1] = nh_sm90_extra_map(problem, NHOOD_EXTRA_V, ROWS);
    return add_with_sums(operation, problem, extra, &step, &spec);
}

static nhood_status add_extra_sum(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, const struct extra *extra) {
    struct nh_kernel_spec spec = {.source = "split90_extra_sum.cu"};
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    step.own.tiling.work_tiles = (int)extra->shares;
    step.threads = MOST_DIM;
    step.grid[0] = problem->batch * problem->kv_heads * problem->extra_tokens;
    step.grid[1] = 2;
    return add_with_sums(operation, problem, extra, &step, &spec);
}

static nhood_status add_extra(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              size_t stats) {
    const struct nh_problem dense = without_windows(problem);
    const struct nh_backward90_kernel kernel = extra_kernel(&dense, operation->device);
    int64_t heads = problem->batch * problem->kv_heads,
            tiles = heads * nh_ceil_div(problem->extra_tokens, ROWS),
            steps = grid_tiles(&dense, kernel.loop) * (problem->heads / problem->kv_heads),
            shares = nh_min(steps, nh_max(1, operation->device->multiprocessors / tiles));
    if (tiles * shares > INT32_MAX || steps > INT32_MAX)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^31 tiles of extra tokens or queries");
    size_t bytes = (size_t)(shares * heads * problem->extra_tokens) * sizeof(float);
    size_t keys = nh_cuda_reserve(operation, bytes * (size_t)problem->dim),
           values = nh_cuda_reserve(operation, bytes * (size_t)problem->dim_v);
    const struct extra extra = {tiles, shares, stats, keys, values};
    nhood_status status = NHOOD_OK;
    for (enum nh_backward90_pass pass = 0; !status && pass < NH_BACKWARD90_PASSES; pass++)
        if (nh_backward90_has(&kernel, pass))
            status = add_extra_pass(operation, &kernel, pass, &extra);
    return status ? status : add_extra_sum(operation, problem, &extra);
}

/* ---- work ---- */

/* Starts the work; the launch for statistics waits for memory. Blocks that own extra tokens share queries evenly. */
static void start_work(const struct nh_problem *problem, struct nh_work *work) {
    nh_work_start(work, NH_OPERATION_SPLIT90, problem);
    work->overlaps = true;
    work->helpers += 1;
    work->helper_bytes +=
        2.5 * 2 *
        (double)(problem->batch * problem->query_tokens * problem->heads * problem->dim_v);
}

static void add_extra_work(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           struct nh_work *work) {
    if (!problem->extra_tokens) return;
    const struct nh_problem dense = without_windows(problem);
    const struct nh_backward90_kernel kernel = extra_kernel(&dense, cuda);
    struct nh_backward90_loops loops = {
        .work_tiles = (double)cuda->multiprocessors / (double)(problem->batch * problem->heads),
        .tiles =
            (double)(nh_ceil_div(problem->extra_tokens, ROWS) * grid_tiles(&dense, kernel.loop))};
    loops.longest = loops.tiles / loops.work_tiles;
    nh_backward90_add_work(&kernel, &loops, work);
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    start_work(problem, work);
    for (int keys = 0; keys < 2; keys++) {
        struct nh_backward90_kernel kernel =
            kernel_of(problem, device->backend, config->value, keys);
        kernel.for_group = device->for_group;
        const struct nh_backward90_loops loops = nh_backward90_loops_of(&kernel);
        nh_backward90_add_work(&kernel, &loops, work);
    }
    add_extra_work(problem, device->backend, work);
    return true;
}

/* ---- configs ---- */

/* Takes over the tiles and launches of a pair. */
static void append(const struct nh_backward90_pair *pair, int32_t *tiles, struct nh_work *work) {
    memcpy(tiles, pair->tiles, sizeof pair->tiles);
    for (int i = 0; i < pair->work.launches; i++)
        work->launch[work->launches++] = pair->work.launch[i];
}

/* The launches by queries and by keys overlap, so the best of each need not be the best together: all pairs are
 * predicted. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    const struct nh_cuda_device *cuda = device->backend;
    struct nh_backward90_pair pair[2][NH_BACKWARD90_KEPT];
    struct nh_top_n top;
    struct nh_config tried = {{0}};
    int count[2];
    for (int keys = 0; keys < 2; keys++) {
        struct nh_backward90_kernel kernel = kernel_of(problem, cuda, tried.value, keys);
        kernel.for_group = device->for_group;
        count[keys] = nh_backward90_best(&kernel, pair[keys]);
    }
    nh_top_configs_start(&top, config, capacity);
    for (int i = 0; i < count[0] * count[1]; i++) {
        struct nh_work work;
        start_work(problem, &work);
        append(&pair[0][i / count[1]], tried.value + QUERY_OWN_X, &work);
        append(&pair[1][i % count[1]], tried.value + KEY_OWN_X, &work);
        add_extra_work(problem, cuda, &work);
        nh_top_n_add(&top, &tried, nh_predict(cuda, &work, NULL));
    }
    return top.count;
}

/* ---- building ---- */

/* Gives each block of the launch for dQ a table of the bias's gradient per head (fused90_bias_gradient.cuh). Heads are
 * divided into parts until the tables are small enough: with more parts, fewer blocks have a table for each head. */
static void add_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                       struct nh_cuda_step *step, struct wgmma90_config *config) {
    const int64_t most_bytes = (int64_t)256 << 20;
    int64_t table_bytes = problem->heads * problem->bias_count * 4, head_parts = 1;
    while (head_parts < problem->heads &&
           (problem->heads % head_parts || table_bytes * (step->grid[0] / head_parts) > most_bytes))
        head_parts++;
    int64_t shares = nh_max(1, step->grid[0] / head_parts);
    config->head_parts = (int)head_parts;
    step->grid[0] = head_parts * shares;
    nh_cuda_add_bias_tables(operation, problem, shares, step);
}

/* Makes a launch for dV that of a part of the columns of `all`. */
static void bind_part(struct nh_cuda_step *step, const struct nh_problem *all, int part) {
    nh_value_part_bind(step, all, part);
    step->binding[NH_D_K].from = NH_BIND_NONE; /* repair would make it with these columns alone */
}

/* all, part: the problem with all values, and the part of them that a kernel for a part makes. */
static nhood_status add_pass(struct nh_cuda_operation *operation,
                             const struct nh_backward90_kernel *kernel,
                             enum nh_backward90_pass pass, size_t stats,
                             const struct nh_problem *all, int part) {
    const struct nh_problem *problem = kernel->problem;
    bool queries = kernel->kind == WGMMA90_QUERY;
    struct nh_kernel_spec spec = {.source = queries ? "split90_query.cu" : "split90_key.cu"};
    struct nh_cuda_step step;
    struct wgmma90_config config;
    nhood_status status = nh_backward90_step(kernel, pass, stats, &step, &config);
    if (status) return status;
    if (kernel->part) bind_part(&step, all, part);
    const bool tables = queries && problem->has_bias;
    if (tables) add_tables(operation, problem, &step, &config);
    nh_wgmma90_configure(&spec, problem, config);
    status = nh_cuda_step_add(operation, &step, &spec);
    return status || !tables ? status : nh_cuda_add_bias_sum(operation, problem, step);
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    struct nh_cuda_step step;
    size_t stats = nh_backward90_start(operation, problem, &step);
    nhood_status status = nh_cuda_add_stats(operation, &step, problem, 0);
    for (int keys = 0; keys < 2; keys++) {
        struct nh_backward90_kernel kernel =
            kernel_of(problem, operation->device, config->value, keys);
        kernel.for_group = operation->for_group;
        for (enum nh_backward90_pass pass = 0; !status && pass < NH_BACKWARD90_PASSES; pass++)
            if (nh_backward90_has(&kernel, pass))
                status = add_pass(operation, &kernel, pass, stats, problem, 0);
        for (int part = 0; !status && part < nh_backward90_parts(&kernel); part++) {
            struct nh_problem room;
            const struct nh_backward90_kernel of_part = nh_backward90_part(&kernel, part, &room);
            status = add_pass(operation, &of_part, NH_BACKWARD90_D_V, stats, problem, part);
        }
    }
    return status || !problem->extra_tokens ? status : add_extra(operation, problem, stats);
}

const struct nh_solver nh_solver_cuda_split90 = {
    NH_CUDA_SOLVER("cuda.split90", knobs, refuse, candidates, work, add_steps),
    .view = nh_permuted_axes,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
};
