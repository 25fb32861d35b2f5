/* cuda.split90: the backward pass on sm_90. One launch computes statistics of the queries, one dQ by blocks that own
 * queries, and one or, for wide heads, two dK and dV by blocks that own keys. This takes seven or eight products
 * instead of five, but no atomics and no workspace for dQ, and results are bit-equal in every run. */
#include "split90.h"
#include "backward90_search.h"
#include "split90_pass.h"

#include "top_n.h"
#include "cuda_family.h"
#include "cluster.h"
#include "permuted_axes.h"

#include <math.h>
#include <string.h>

/* A config is two pairs of tiles: of the kernel that owns queries, whose loop is over keys, and of the one that owns
 * keys. */
#define NH_KNOBS "split90_knobs.def"
#include "knob_table.h"
enum {
    QUERY_OWN = QUERY_OWN_X,
    QUERY_LOOP = QUERY_LOOP_X,
    KEY_OWN = KEY_OWN_X,
    KEY_LOOP = KEY_LOOP_X
};
/* Tiles of keys are full, as padding rows of keys cost more than they save: docs/log/wgmma90.md. */
enum { WARPGROUPS = NH_BACKWARD90_WARPGROUPS, MOST_DIM = 256, FULL_ROWS = 64 * WARPGROUPS };

static nh_backward90_work pair_work;

static struct nh_backward90_search search_of(const struct nh_problem *problem,
                                             const struct nh_device *device, bool keys) {
    return (struct nh_backward90_search){
        .kernel = {.problem = problem, .cuda = device->backend, .keys = keys, .skips = true},
        .work = pair_work,
        .operation = NH_OPERATION_SPLIT90,
        .least_rows = keys ? FULL_ROWS : 0};
}

/* The kernel of a config that owns keys, or the one that owns queries. */
static struct nh_backward90_kernel kernel_of(const struct nh_problem *problem,
                                             const struct nh_cuda_device *cuda,
                                             const int32_t *value, bool keys) {
    return (struct nh_backward90_kernel){.problem = problem,
                                         .cuda = cuda,
                                         .keys = keys,
                                         .skips = true,
                                         .own = value + (keys ? KEY_OWN : QUERY_OWN),
                                         .loop = value + (keys ? KEY_LOOP : QUERY_LOOP)};
}

static const char *refuse_around(const struct nh_problem *problem, const struct nh_device *device) {
    const struct nh_backward90_search query = search_of(problem, device, false),
                                      key = search_of(problem, device, true);
    if (!nh_problem_periodic(problem)) return NULL;
    if (!nh_backward90_goes_around(&query))
        return "a window and a query tile go around a periodic axis that no key tile divides";
    if (!nh_backward90_goes_around(&key))
        return "queries of a key tile go around a periodic axis that no query tile divides";
    return NULL;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    const char *reason = nh_sm90_refuse(problem, device,
                                        NH_BIT(Q) | NH_BIT(K) | NH_BIT(V) | NH_BIT(D_O) |
                                            NH_BIT(EXTRA_K) | NH_BIT(EXTRA_V),
                                        NH_BIT(D_Q) | NH_BIT(D_K) | NH_BIT(D_V), MOST_DIM);
    if (!reason && problem->extra_tokens) reason = nh_split90_refuse_extra(problem, device);
    return reason ? reason : refuse_around(problem, device);
}

/* ---- work ---- */

/* Instructions per logit for a bias. Beside dQ, helper warps work on every entry of a pair of tiles: this counts per
 * logit of a row of the loop tile, less what they do in the shadow of products. */
static double bias_instructions(const struct nh_backward90_kernel *kernel) {
    const double scores = 3, gradient = 13, hidden = 18;
    if (!kernel->problem->has_bias) return 0;
    if (kernel->keys) return scores;
    double entries = 1;
    for (int a = 0; a < NH_AXES; a++)
        entries *= kernel->own[a] + kernel->loop[a] - 1;
    return fmax(gradient * entries / (double)nh_box_volume(kernel->loop) - hidden, scores);
}

/* Clocks in which blocks that share a work tile add up the sums of a launch; 0 if they cannot share: the sums do not
 * fit in place of the tiles, there is a bias, whose boxes are for whole loops, or warpgroups skip tiles. */
static double sums_clocks(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass) {
    const int64_t rows = 64 * WARPGROUPS, beside = 1024 + 256;
    const struct nh_split90_facts *facts = &nh_split90_facts[pass];
    int64_t dim = kernel->problem->dim, dim_v = kernel->problem->dim_v;
    int64_t widest = nh_max(facts->sums * dim, facts->sums_v * dim_v);
    int64_t bytes = nh_backward90_shared_bytes(kernel, nh_split90_stages(kernel, pass)) +
                    nh_split90_own_bytes(kernel, pass) - beside;
    if (kernel->problem->has_bias || nh_backward90_skips(kernel) ||
        nh_cluster_sums_bytes(rows, widest) > bytes)
        return 0;
    return facts->sums * nh_cluster_reduction_clocks(rows, dim) +
           facts->sums_v * nh_cluster_reduction_clocks(rows, dim_v);
}

/* Whether this launch is one of the kernel's. */
static bool has_pass(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass) {
    return nh_split90_facts[pass].keys == kernel->keys && nh_split90_used(kernel->problem, pass);
}

/* Whether the blocks of all its launches can share work tiles. */
static bool shares(const struct nh_backward90_kernel *kernel) {
    for (enum nh_split90_pass pass = 0; pass < NH_SPLIT90_PASSES; pass++)
        if (has_pass(kernel, pass) && !(sums_clocks(kernel, pass) > 0)) return false;
    return true;
}

/* Adds the kernel's launches. A kernel without an owned tile is for extra tokens, whose blocks share nothing. */
static void add_passes(const struct nh_backward90_kernel *kernel,
                       const struct nh_backward90_loops *loops, struct nh_work *work) {
    const struct nh_problem *problem = kernel->problem;
    bool sharing = kernel->own && shares(kernel);
    for (enum nh_split90_pass pass = 0; pass < NH_SPLIT90_PASSES; pass++) {
        if (!has_pass(kernel, pass)) continue;
        const struct nh_backward90_launch launch = {
            .kind = kernel->keys ? NH_KERNEL_SPLIT90_KEY : NH_KERNEL_SPLIT90_QUERY,
            .products = (double)(nh_split90_facts[pass].products * problem->dim +
                                 nh_split90_facts[pass].products_v * problem->dim_v),
            .column_bytes = (double)(problem->dim + problem->dim_v) * 2,
            .bias_instructions = kernel->own ? bias_instructions(kernel) : 0,
            .sums = sharing ? sums_clocks(kernel, pass) : 0};
        nh_backward90_add_work(kernel, loops, &launch, work);
    }
}

/* Adds the launches for extra tokens, whose blocks divide the queries evenly. */
static void add_extra_work(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           struct nh_work *work) {
    if (!problem->extra_tokens) return;
    struct nh_backward90_loops loops = {.work_tiles = (double)cuda->multiprocessors /
                                                      (double)(problem->batch * problem->heads)};
    const struct nh_backward90_kernel kernel = {
        .problem = problem,
        .cuda = cuda,
        .keys = true,
        .loop = nh_split90_extra_loop_tile(problem, cuda, &loops.tiles)};
    loops.columns = (double)nh_box_volume(kernel.loop);
    loops.longest = loops.tiles / loops.work_tiles;
    add_passes(&kernel, &loops, work);
}

/* Starts the work; the launch for the statistics waits for memory. */
static void start_work(const struct nh_problem *problem, struct nh_work *work) {
    nh_work_start(work, NH_OPERATION_SPLIT90, problem);
    work->overlaps = true;
    work->helpers += 1;
    work->helper_bytes +=
        2.5 * 2 *
        (double)(problem->batch * problem->query_tokens * problem->heads * problem->dim_v);
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    start_work(problem, work);
    for (int keys = 0; keys < 2; keys++) {
        const struct nh_backward90_kernel kernel =
            kernel_of(problem, device->backend, config->value, keys);
        const struct nh_backward90_loops loops = nh_backward90_loops_of(&kernel);
        add_passes(&kernel, &loops, work);
    }
    add_extra_work(problem, device->backend, work);
    return true;
}

/* ---- configs ---- */

static bool pair_work(const struct nh_backward90_kernel *kernel,
                      const struct nh_backward90_loops *loops, struct nh_work *work) {
    for (enum nh_split90_pass pass = 0; pass < NH_SPLIT90_PASSES; pass++)
        if (has_pass(kernel, pass) && !nh_split90_fits(kernel, pass)) return false;
    add_passes(kernel, loops, work);
    return true;
}

static void append(const struct nh_work *launches, struct nh_work *work) {
    for (int i = 0; i < launches->launches; i++)
        work->launch[work->launches++] = launches->launch[i];
}

/* The launches by queries and by keys overlap, so the best of each need not be the best together: all pairs are
 * predicted. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    const struct nh_cuda_device *cuda = device->backend;
    struct nh_backward90_pair query[NH_BACKWARD90_KEPT], key[NH_BACKWARD90_KEPT];
    struct nh_top_n top;
    const size_t tile_bytes = 3 * sizeof(int32_t);
    const struct nh_backward90_search by_query = search_of(problem, device, false),
                                      by_key = search_of(problem, device, true);
    int keys = nh_backward90_best(&by_key, key);
    int queries = keys ? nh_backward90_best(&by_query, query) : 0;
    nh_top_configs_start(&top, below_ns, config, capacity);
    for (int q = 0; q < queries; q++)
        for (int k = 0; k < keys; k++) {
            struct nh_work work;
            start_work(problem, &work);
            append(&query[q].work, &work);
            append(&key[k].work, &work);
            add_extra_work(problem, cuda, &work);
            struct nh_config tried = {{0}};
            memcpy(tried.value + QUERY_OWN, query[q].own, tile_bytes);
            memcpy(tried.value + QUERY_LOOP, query[q].loop, tile_bytes);
            memcpy(tried.value + KEY_OWN, key[k].own, tile_bytes);
            memcpy(tried.value + KEY_LOOP, key[k].loop, tile_bytes);
            nh_top_n_add(&top, &tried, nh_predict(cuda, &work, NULL));
        }
    return top.count;
}

/* ---- building ---- */

static nhood_status add_stats(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              size_t stats) {
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_cuda_bind_stats(&step, problem, stats);
    return nh_cuda_add_stats(operation, &step, problem, 0);
}

/* Adds the extra tokens to the loop for dQ. */
static void add_extra_loop_tiles(struct nh_cuda_step *step, const struct nh_problem *problem,
                                 const int32_t loop[3]) {
    int64_t rows = nh_box_volume(loop);
    step->own.tiling.extra_tiles = (int)nh_ceil_div(problem->extra_tokens, rows);
    step->map[step->maps++] = nh_sm90_extra_map(problem, NHOOD_EXTRA_K, rows);
    step->map[step->maps++] = nh_sm90_extra_map(problem, NHOOD_EXTRA_V, rows);
}

static int32_t cluster_of(const struct nh_backward90_kernel *kernel) {
    const struct nh_backward90_loops loops = nh_backward90_loops_of(kernel);
    return nh_backward90_cluster(kernel, &loops, shares(kernel));
}

static nhood_status add_pass(struct nh_cuda_operation *operation,
                             const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass,
                             size_t stats) {
    const struct nh_problem *problem = kernel->problem;
    struct nh_kernel_spec spec = {.source = kernel->keys ? "split90_key.cu" : "split90_query.cu"};
    struct nh_cuda_step step;
    nhood_status status = nh_split90_step(kernel, pass, stats, &step, &spec);
    if (status) return status;
    if (!kernel->keys && problem->extra_tokens) add_extra_loop_tiles(&step, problem, kernel->loop);
    nh_sm90_add_twins(&step, problem);
    nh_cluster_share(&step, &spec, cluster_of(kernel));
    if (kernel->keys || !problem->has_bias) return nh_cuda_step_add(operation, &step, &spec);
    nh_split90_add_tables(operation, problem, &step, &spec);
    status = nh_cuda_step_add(operation, &step, &spec);
    return status ? status : nh_cuda_add_bias_sum(operation, problem, step);
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    size_t stats = nh_backward90_reserve_stats(operation, problem);
    nhood_status status = add_stats(operation, problem, stats);
    for (enum nh_split90_pass pass = 0; !status && pass < NH_SPLIT90_PASSES; pass++) {
        const struct nh_backward90_kernel kernel =
            kernel_of(problem, operation->device, config->value, nh_split90_facts[pass].keys);
        if (has_pass(&kernel, pass)) status = add_pass(operation, &kernel, pass, stats);
    }
    if (status || !problem->extra_tokens) return status;
    return nh_split90_add_extra(operation, problem, stats);
}

const struct nh_solver nh_solver_cuda_split90 = {
    NH_CUDA_SOLVER,
    .name = "cuda.split90",
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC,
    .knob = knobs,
    .view = nh_permuted_axes,
    .refuse = refuse,
    .candidates = candidates,
    .work = work,
    .add_steps = add_steps,
};
