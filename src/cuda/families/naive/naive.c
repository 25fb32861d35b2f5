/* cuda.naive: one group of lanes per row, no tensor cores. It takes every problem. Small windows with small head dims
 * may be cut into tiles of queries, one per thread, with their keys in shared memory, or of keys with their queries:
 * see naive_tile.cuh. */
#include "cuda_family.h"
#include "dtype.h"
#include "rates.h"
#include "tiling.h"

#include <math.h>
#include <string.h>

enum { LANES = 32, LANE_ELEMENTS = 16, WIDE_LANE_ELEMENTS = 8, VECTOR_BYTES = 16 };

#define NH_KNOBS "naive_knobs.def"
#include "knob_table.h"

/* What a row of results belongs to. Rows of queries and keys are computed by groups of lanes, or by threads of a tile;
 * those of extra tokens and biases, which are sums over all queries, by blocks. */
enum rows { QUERIES, KEYS, EXTRA_TOKENS, BIASES };

/* The launches of each operator; `outputs` as in struct nh_cuda_step. */
enum { MOST_PASSES = 4 };
static const struct pass {
    const char *source;
    enum rows rows;
    uint32_t outputs;
} passes[][MOST_PASSES] = {
    [NHOOD_OP_FWD] = {{"naive_forward.cu", QUERIES, 0}},
    [NHOOD_OP_PN] = {{"naive_pn.cu", QUERIES, 0}},
    [NHOOD_OP_NN] = {{"naive_nn.cu", QUERIES, 0}},
    [NHOOD_OP_IN] = {{"naive_in.cu", KEYS, 0}},
    [NHOOD_OP_BWD] = {
        {"naive_backward_query.cu", QUERIES, 0},
        {"naive_backward_key.cu", KEYS, NH_BIT(D_K) | NH_BIT(D_V)},
        {"naive_backward_extra.cu", EXTRA_TOKENS, NH_BIT(D_EXTRA_K) | NH_BIT(D_EXTRA_V)},
        {"naive_backward_bias.cu", BIASES, NH_BIT(D_BIAS)}}};

/* ---- rows ---- */

static bool is_tiled(const int32_t tile[NH_AXES]) {
    return tile[0] > 0;
}

static int64_t widest_row(const struct nh_problem *problem) {
    if (problem->op == NHOOD_OP_PN) return problem->dim;
    if (problem->op == NHOOD_OP_NN || problem->op == NHOOD_OP_IN) return problem->dim_v;
    return nh_max(problem->dim, problem->dim_v);
}

static int64_t rows_of(const struct nh_problem *problem, enum rows rows) {
    switch (rows) {
    case QUERIES: return problem->batch * problem->heads * problem->query_tokens;
    case KEYS: return problem->batch * problem->kv_heads * problem->key_tokens;
    case EXTRA_TOKENS: return problem->batch * problem->kv_heads * problem->extra_tokens;
    default: return problem->has_bias ? problem->heads * problem->bias_count : 0;
    }
}

/* How a row is distributed over lanes; see kernels/common/naive.cuh. tile: none, or the extents of a tile, in which a
 * thread holds whole rows. */
static struct row_config config_of(const struct nh_problem *problem, const int32_t *tile) {
    const int64_t dim = widest_row(problem);
    struct row_config config = {.threads = ROW_THREADS,
                                .group = 1,
                                .vector = nh_cuda_vector(problem, UINT32_MAX),
                                .keys = ROW_KEYS,
                                .extra = !tile || problem->extra_tokens > 0,
                                .biased = problem->has_bias,
                                .rank = 1,
                                .tile = {1, 1, 1}};
    while (!tile && config.group < LANES && config.group * config.vector < dim)
        config.group *= 2;
    const int64_t vectors = nh_ceil_div(dim, config.group * config.vector);
    config.resident = tile || vectors * config.vector <= LANE_ELEMENTS;
    config.vectors =
        config.resident ? (int)vectors : (int)nh_max(1, WIDE_LANE_ELEMENTS / config.vector);
    config.whole = problem->dim == row_chunk(&config) && problem->dim_v == row_chunk(&config);
    if (tile) {
        memcpy(config.tile, tile, sizeof config.tile);
        config.tiled = 1;
        config.rank = problem->rank;
        config.threads = (int)nh_box_volume(tile);
    }
    return config;
}

static int64_t chunks_of(const struct nh_problem *problem, const struct row_config *config) {
    return nh_ceil_div(widest_row(problem), row_chunk(config));
}

/* ---- tiles ---- */

/* Whether tiles are for the problem: a thread holds a row of Q and one of O in registers, and goes over its whole window
 * alone. */
static bool takes_tiles(const struct nh_problem *problem) {
    enum { MOST_DIM = 32, MOST_WINDOW = 13 };
    if (nh_problem_cut(problem)) return false;
    if (problem->op == NHOOD_OP_IN || problem->dtype == NHOOD_DTYPE_F64) return false;
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].window > MOST_WINDOW || problem->axis[a].length > INT32_MAX)
            return false;
    return widest_row(problem) <= MOST_DIM &&
           nh_cuda_vector(problem, UINT32_MAX) * (int64_t)nh_dtype_bytes(problem->dtype) ==
               VECTOR_BYTES;
}

/* A launch with tiles: its blocks, the rows that a block stages on average, their bytes, and for how many blocks a
 * multiprocessor has registers if a thread holds a row of each tensor (config.min_blocks). */
struct tiles {
    struct row_config config;
    double blocks, rows;
    int64_t row_bytes, shared_bytes;
};

static struct tiles tiles_of(const struct nh_problem *problem, const int32_t tile[NH_AXES],
                             bool keys) {
    int64_t element = (int64_t)nh_dtype_bytes(problem->dtype);
    struct row_config config = config_of(problem, tile);
    int64_t row_bytes = row_staged(&config) * element;
    int64_t most_bytes = row_bytes, heads = keys ? problem->kv_heads : problem->heads;
    int64_t per_thread = problem->op != NHOOD_OP_BWD ? 128 : keys ? 255 : 168;
    struct tiles tiles = {
        .blocks = (double)problem->batch * (double)heads, .rows = 1, .row_bytes = row_bytes};
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_tile_count count = nh_tile_count(&problem->axis[a], tile[a], 1, keys);
        tiles.blocks *= (double)count.tiles;
        tiles.rows *= count.visits / (double)count.tiles;
        most_bytes *= count.halo;
    }
    bool fused = problem->op == NHOOD_OP_FWD || problem->op == NHOOD_OP_BWD;
    tiles.shared_bytes =
        fused ? 2 * most_bytes : most_bytes + config.threads * problem->window_count * element;
    config.min_blocks = (int)nh_max(1, NH_CUDA_REGISTERS / (per_thread * config.threads));
    config.by_keys = keys;
    tiles.config = config;
    return tiles;
}

/* ---- plan ---- */

/* Sets what a launch with tiles has more. */
static nhood_status set_tiles(const struct nh_problem *problem, const struct tiles *tiles,
                              struct nh_cuda_step *step) {
    const bool keys = tiles->config.by_keys;
    int32_t shared_by = keys ? (int32_t)(problem->heads / problem->kv_heads) : 1;
    step->shared_bytes = tiles->shared_bytes;
    nhood_status status =
        nh_tiling_set(problem, tiles->config.tile, shared_by, keys, 0, &step->own.tiling);
    step->work_tiles = step->grid[0] = step->own.tiling.work_tiles;
    return status;
}

/* Adds a launch; without rows there is none. The kernels loop over rows that 2^30 blocks leave. Rows of A and of biases
 * are not cut into chunks. */
static nhood_status add_pass(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             const int32_t tile[NH_AXES], const struct pass *pass,
                             struct nh_cuda_step step) {
    static const int sums[] = {NH_SUMS_OF_QUERY, NH_SUMS_OF_KEY, NH_SUMS_OVER_ALL,
                               NH_SUMS_OVER_ALL};
    const bool groups = pass->rows <= KEYS, tiled = groups && is_tiled(tile);
    const int64_t rows = rows_of(problem, pass->rows);
    struct tiles tiles;
    struct nh_kernel_spec spec = {.source = pass->source};
    nhood_status status = NHOOD_OK;
    if (!rows) return NHOOD_OK;
    if (tiled) tiles = tiles_of(problem, tile, pass->rows == KEYS);
    const struct row_config config = tiled ? tiles.config : config_of(problem, NULL);
    nh_cuda_configure_rows(&spec, problem, &config);
    nh_cuda_define_long_sums(&spec, problem, sums[pass->rows]);
    const int of_block = groups ? config.threads / config.group : 1;
    step.outputs = pass->outputs;
    step.threads = config.threads;
    if (groups && !tiled)
        step.blocks = (struct nh_cuda_blocks){
            .heads = pass->rows == KEYS ? problem->kv_heads : problem->heads, .rows = of_block};
    step.grid[0] = nh_min(nh_ceil_div(rows, of_block), (int64_t)1 << 30);
    step.grid[1] =
        problem->op == NHOOD_OP_PN || pass->rows == BIASES ? 1 : chunks_of(problem, &config);
    if (tiled) status = set_tiles(problem, &tiles, &step);
    return status ? status : nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const struct pass *pass = passes[problem->op];
    struct nh_cuda_step step;
    nhood_status status = NHOOD_OK;
    nh_cuda_step_init(&step, problem);
    if (problem->op == NHOOD_OP_BWD) {
        size_t real_bytes = problem->dtype == NHOOD_DTYPE_F64 ? 8 : 4;
        size_t bytes = (size_t)rows_of(problem, QUERIES) * real_bytes;
        nh_cuda_bind_workspace(&step, problem, NH_DELTA, nh_cuda_reserve(operation, bytes), 1);
    }
    for (int i = 0; !status && i < MOST_PASSES && pass[i].source; i++)
        status = add_pass(operation, problem, config->value, &pass[i], step);
    return status;
}

/* ---- work ---- */

/* Adds the work of a launch in which groups of lanes take a row each. The unfused operators have one of attention's two
 * products; the backward pass has seven in two launches. Columns that have to be checked, and elements beyond the last,
 * cost as much as others. */
static void add_rows_work(const struct nh_problem *problem, bool keys, struct nh_work *work) {
    enum { RESIDENTS = 8 };
    const struct row_config config = config_of(problem, NULL);
    double products = problem->op == NHOOD_OP_FWD   ? 2
                      : problem->op != NHOOD_OP_BWD ? 1
                      : keys                        ? 4
                                                    : 3;
    double elements = (double)(chunks_of(problem, &config) * row_lane_elements(&config));
    double window = (double)(problem->window_count + problem->extra_tokens);
    if (keys) window *= (double)(problem->heads / problem->kv_heads);
    struct nh_launch_work *launch = nh_work_add(work, NH_KERNEL_NAIVE_ROWS);
    launch->blocks =
        (double)rows_of(problem, keys ? KEYS : QUERIES) / ((double)ROW_THREADS / config.group);
    launch->residents = launch->in_flight = RESIDENTS;
    launch->warps = (double)ROW_THREADS / LANES;
    launch->steps = window;
    launch->serial = 1 / launch->warps;
    launch->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(ROW_THREADS * window * products * elements);
    launch->unit[NH_WORK_INDEX] = nh_cuda_lane_clocks(ROW_THREADS * window * products);
    if (!config.whole) launch->unit[NH_WORK_IDLE] = launch->unit[NH_WORK_VECTOR];
}

/* Adds the work of a launch with tiles; false: they do not fit. */
static bool add_tiles_work(const struct nh_problem *problem, const struct nh_cuda_device *device,
                           const int32_t tile[NH_AXES], bool keys, struct nh_work *work) {
    const bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    const struct tiles tiles = tiles_of(problem, tile, keys);
    int64_t residents =
        nh_min(nh_cuda_residents_by_shared(device, tiles.shared_bytes), tiles.config.min_blocks);
    int64_t warps = residents * tiles.config.threads / LANES;
    double dim = (double)problem->dim, dim_v = (double)problem->dim_v;
    /* multiply-adds per pair of rows, and tensors that a block stages */
    double dims = problem->op == NHOOD_OP_PN    ? dim
                  : problem->op == NHOOD_OP_NN  ? dim_v
                  : problem->op == NHOOD_OP_BWD ? (dim + dim_v) * (keys ? 2 : 1.5)
                                                : dim + dim_v;
    double tensors = problem->op == NHOOD_OP_PN || problem->op == NHOOD_OP_NN ? 1 : 2;
    if (!warps || tiles.blocks > INT32_MAX) return false;
    double heads = keys ? (double)(problem->heads / problem->kv_heads) : 1;
    double staged = tensors * tiles.rows * (double)(tiles.row_bytes / VECTOR_BYTES);
    double pairs = heads * (double)tiles.config.threads *
                   (double)(problem->window_count + problem->extra_tokens);
    struct nh_launch_work *launch =
        nh_work_add(work, f32 ? NH_KERNEL_NAIVE_TILES_F32 : NH_KERNEL_NAIVE_TILES);
    launch->blocks = tiles.blocks;
    launch->warps = (double)tiles.config.threads / LANES;
    launch->residents = launch->in_flight = (double)warps / launch->warps;
    launch->serial = 1 / launch->warps;
    launch->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(pairs * dims);
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(heads * staged);
    return true;
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const int32_t *tile = config->value;
    const bool tiled = is_tiled(tile);
    if (tiled && nh_problem_cut(problem)) return false;
    nh_work_start(work, NH_OPERATION_NAIVE, problem);
    for (const struct pass *pass = passes[problem->op]; pass->source && pass->rows <= KEYS;
         pass++) {
        bool keys = pass->rows == KEYS;
        if (!tiled) add_rows_work(problem, keys, work);
        if (tiled && !add_tiles_work(problem, device->backend, tile, keys, work)) return false;
    }
    return true;
}

/* ---- candidates ---- */

/* The best tile, if there is one, and rows without tiles, the one with the least estimate first. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    static const int32_t threads[] = {64, 128, 256};
    const struct nh_config rows = {{0}};
    struct nh_config tiles = rows, both[2] = {rows, rows};
    double least = INFINITY;
    for (size_t t = 0; takes_tiles(problem) && t < sizeof threads / sizeof *threads; t++) {
        int32_t box[NH_MOST_BOXES][NH_AXES];
        int boxes = nh_tile_boxes(problem, threads[t], box);
        for (int i = 0; i < boxes; i++) {
            memcpy(tiles.value, box[i], sizeof box[i]);
            double ns = nh_estimate(&nh_solver_cuda_naive, problem, device, &tiles, NULL);
            if (ns >= least) continue;
            least = ns;
            both[0] = tiles;
        }
    }
    int count = isfinite(least) ? 2 : 1;
    nh_least_first(&nh_solver_cuda_naive, problem, device, both, count);
    count = (int)nh_min(count, capacity);
    memcpy(config, both, (size_t)count * sizeof *config);
    return count;
}

const struct nh_solver nh_solver_cuda_naive = {
    NH_CUDA_SOLVER("cuda.naive", knobs, nh_refuse_nothing, candidates, work, add_steps),
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
};
