/* cuda.split80: backward on tensor cores for sm_80 and later, without atomics: LSE and delta of the queries, then dQ by
 * blocks that own queries, then dK and dV by blocks that own keys, and the same for extra tokens:
 * kernels/split80_backward.cu. Scores are computed twice; results are bit-equal every run.
 *
 * No f64; head dim and value dim up to 256. Where registers do not hold dK and dV at once, each has a launch. */
#include "split80.h"

#include "box_search.h"
#include "cuda_solvers.h"
#include "dtype.h"
#include "load.h"
#include "tile_count.h"

#include <math.h>
#include <string.h>

enum { MOST_DIM = 256, MOST_DIMS_AT_ONCE = 384, MOST_LENGTH = 1 << 29, MOST_CANDIDATES = 3 };
static const char *const knobs[] = {"q0", "q1", "q2", "k0", "k1", "k2", "qw", "r0",
                                    "r1", "r2", "c0", "c1", "c2", "rw", NULL};

/* ---- what one launch needs ---- */

struct nh_split80_widths nh_split80_widths(const struct nh_problem *problem) {
    int64_t bytes = (int64_t)nh_dtype_bytes(problem->dtype), step = 32 / bytes;
    return (struct nh_split80_widths){bytes, nh_ceil_div(problem->dim, step) * step,
                                      nh_ceil_div(problem->dim_v, step) * step};
}

bool nh_split80_apart(const struct nh_problem *problem) {
    return problem->dim + problem->dim_v > MOST_DIMS_AT_ONCE;
}

/* struct nh_shared of the kernel, which asserts that this is its size. */
int64_t nh_split80_shared_bytes(const struct nh_problem *problem, const int32_t *side,
                                bool inverse) {
    const int32_t *row = side + SPLIT80_ROW, *column = side + SPLIT80_COLUMN;
    struct nh_split80_widths w = nh_split80_widths(problem);
    int64_t rows = nh_split80_volume(row), columns = nh_split80_volume(column);
    int64_t pair = (w.dim + w.dim_v) * w.element_bytes + 32;
    int64_t tensors = inverse ? 3 : 2, walk = tensors * (columns + 4) * 8, bias = columns * 8;
    int64_t stats = SPLIT80_STAGES * columns * 8, dense = (int64_t)side[SPLIT80_WARPS] * 24;
    int64_t masks = ((int64_t)column[0] + column[1] + column[2] + 3) * 16 +
                    ((int64_t)row[0] + row[1] + row[2]) * 8;
    int64_t bias_tile = problem->has_bias && !inverse ? rows * (columns + 8) * 4 : 8;
    int64_t bytes =
        (rows + SPLIT80_STAGES * columns) * pair + walk + bias + stats + masks + dense + bias_tile;
    return nh_ceil_div(bytes, 8) * 8;
}

/* Gradients, scores and their gradients of a thread, and what addresses and operands take. */
static int64_t registers_of(const struct nh_problem *problem, const int32_t *side, bool inverse) {
    struct nh_split80_widths w = nh_split80_widths(problem);
    int64_t blocks = nh_split80_volume(side + SPLIT80_ROW) / side[SPLIT80_WARPS] / 16;
    int64_t sums = !inverse                    ? w.dim
                   : nh_split80_apart(problem) ? nh_max(w.dim, w.dim_v)
                                               : w.dim + w.dim_v;
    return blocks * (sums / 2 + nh_split80_volume(side + SPLIT80_COLUMN)) + 64;
}

int64_t nh_split80_residents(const struct nh_problem *problem, const struct nh_cuda_device *device,
                             const int32_t *side, bool inverse) {
    enum { MOST_REGISTERS = 255, SPILLED = 32 };
    int64_t registers = registers_of(problem, side, inverse);
    int64_t by_shared =
        nh_cuda_residents_by_shared(device, nh_split80_shared_bytes(problem, side, inverse));
    if (!by_shared || registers > MOST_REGISTERS + SPILLED) return 0;
    int64_t by_registers = NH_CUDA_REGISTERS / (32 * (int64_t)side[SPLIT80_WARPS] *
                                                nh_ceil_div(nh_min(registers, 256), 8) * 8);
    return nh_max(1, nh_min(by_shared, by_registers));
}

int64_t nh_split80_head_tiles(const struct nh_problem *problem, const int32_t *side) {
    int64_t tiles = problem->batch;
    for (int a = 0; a < NH_AXES; a++)
        tiles *=
            nh_tile_count(&problem->axis[a], side[SPLIT80_ROW + a], side[SPLIT80_COLUMN + a], false)
                .tiles;
    return tiles;
}

int64_t nh_split80_bias_shares(const struct nh_problem *problem,
                               const struct nh_cuda_device *device, const int32_t *side) {
    const int64_t most_table_bytes = (int64_t)256 << 20, rounds = 4;
    int64_t blocks =
        rounds * device->multiprocessors * nh_split80_residents(problem, device, side, false);
    int64_t by_memory = most_table_bytes / (problem->heads * problem->bias_count * 4);
    int64_t wanted = nh_min(nh_ceil_div(blocks, problem->heads), by_memory);
    return nh_max(1, nh_min(wanted, nh_split80_head_tiles(problem, side)));
}

void nh_split80_extra_side(const struct nh_problem *problem, const int32_t *keys,
                           int32_t side[SPLIT80_SIDE]) {
    for (int i = 0; i < SPLIT80_SIDE; i++)
        side[i] = keys[i];
    int32_t rows = (int32_t)nh_split80_volume(keys + SPLIT80_ROW);
    for (; side[SPLIT80_WARPS] % 2 == 0 && rows / 2 >= problem->extra_tokens; rows /= 2)
        side[SPLIT80_WARPS] /= 2;
    side[SPLIT80_ROW] = side[SPLIT80_ROW + 1] = 1;
    side[SPLIT80_ROW + 2] = rows;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    static const int32_t smallest[SPLIT80_SIDE] = {1, 1, 32, 1, 1, 16, 2};
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    if (problem->dtype == NHOOD_DTYPE_F64) return "f64 has no tensor core products";
    if (problem->dim > MOST_DIM || problem->dim_v > MOST_DIM)
        return "a head dim or value dim is larger than 256";
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].length > MOST_LENGTH) return "an axis is longer than 2^29 tokens";
    if (problem->extra_tokens > MOST_LENGTH) return "more than 2^29 extra tokens";
    for (int inverse = 0; inverse < 2; inverse++)
        if (!nh_split80_residents(problem, device->backend, smallest, inverse))
            return "not even small tiles of such head dims fit into shared memory";
    return NULL;
}

/* ---- time ---- */

static int launches_of(const struct nh_problem *problem, bool inverse) {
    return inverse && nh_split80_apart(problem) ? 2 : 1;
}

/* Elements that the products of one pair of rows run over, per launch: scores, their gradients, and what is summed
 * up. */
static double product_dims(const struct nh_problem *problem, bool inverse) {
    struct nh_split80_widths w = nh_split80_widths(problem);
    double dim = (double)w.dim, dim_v = (double)w.dim_v;
    if (!inverse) return 2 * dim + dim_v;
    return nh_split80_apart(problem) ? (3 * dim + 2 * dim_v) / 2 : 2 * (dim + dim_v);
}

/* Clocks of a multiprocessor for one tile of columns: products or the matrix loads that feed them, and the
 * instructions of copies, which stand for those of weights, too, and, for a share of the tiles, masks. Fitted to 201
 * problems on an H200, as all that follows. */
static double tile_clocks(const struct nh_problem *problem, const struct nh_cuda_load *load,
                          const int32_t *side, bool inverse) {
    const double loading = 0.56, biasing = 0.425, copying = 10.5, masking = 5.74;
    struct nh_split80_widths w = nh_split80_widths(problem);
    double columns = (double)nh_split80_volume(side + SPLIT80_COLUMN);
    double rows = (double)nh_split80_volume(side + SPLIT80_ROW);
    double dims = (double)(w.dim + w.dim_v), bytes = (double)w.element_bytes;
    double products = load->products / load->products_per_clock;
    double by_warps = side[SPLIT80_WARPS] * columns * product_dims(problem, inverse);
    double loads = (by_warps + rows * dims) * bytes / 128;
    double bias = problem->has_bias ? load->scores * (inverse ? 8 : 24) / 128 : 0;
    double copies = columns * dims * bytes / 16 * 9 / 128;
    double f32 = problem->dtype == NHOOD_DTYPE_F32 ? 2.79 : 1;
    return loading * f32 * (products > loads ? products : loads) + biasing * bias +
           copying * copies + masking * load->masked_tiles / load->tiles * load->scores / 128;
}

/* Blocks of a side's launches, the tiles that all of them walk, and those of them with masks. */
struct walks {
    double blocks, tiles, masked;
    /* tiles of the longest one */
    double longest;
};

static struct walks walks_of(const struct nh_problem *problem, const int32_t *side, bool inverse,
                             const struct nh_tiling_count *count) {
    int64_t heads = inverse ? problem->kv_heads : problem->heads;
    double passes = (double)(problem->batch * launches_of(problem, inverse));
    double blocks = passes * (double)heads * count->items, each = passes * (double)problem->heads;
    double extra = 0, shared = inverse ? (double)(problem->heads / problem->kv_heads) : 1;
    if (!inverse)
        extra =
            (double)nh_ceil_div(problem->extra_tokens, nh_split80_volume(side + SPLIT80_COLUMN));
    return (struct walks){blocks, each * count->visited + blocks * extra, each * count->partial,
                          shared * count->longest + extra};
}

/* Blocks of extra tokens walk the queries of a whole batch entry; tiles that the grid's end cuts take masks. */
static struct walks extra_walks(const struct nh_problem *problem, const int32_t *side) {
    int64_t rows = nh_split80_volume(side + SPLIT80_ROW);
    double groups = (double)(nh_ceil_div(problem->extra_tokens, rows) * problem->batch *
                             launches_of(problem, true));
    double tiles = (double)problem->heads * groups, dense = tiles;
    for (int a = 0; a < NH_AXES; a++) {
        tiles *= (double)nh_ceil_div(problem->axis[a].length, side[SPLIT80_COLUMN + a]);
        dense *= (double)(problem->axis[a].length / side[SPLIT80_COLUMN + a]);
    }
    double blocks = (double)problem->kv_heads * groups;
    return (struct walks){blocks, tiles, tiles - dense, tiles / blocks};
}

static struct nh_cuda_load load_of(const struct nh_problem *problem,
                                   const struct nh_cuda_device *device, const int32_t *side,
                                   bool inverse, const struct walks *walks) {
    struct nh_split80_widths w = nh_split80_widths(problem);
    double rows = (double)nh_split80_volume(side + SPLIT80_ROW);
    double columns = (double)nh_split80_volume(side + SPLIT80_COLUMN);
    double row_bytes = (double)((w.dim + w.dim_v) * w.element_bytes);
    return (struct nh_cuda_load){
        .tiles = walks->tiles,
        .masked_tiles = walks->masked,
        .scores = rows * columns,
        .products = rows * columns * product_dims(problem, inverse),
        .tile_bytes = columns * row_bytes,
        .bytes = walks->blocks * rows * row_bytes,
        .products_per_clock = nh_cuda_products_per_clock(problem, device, false),
    };
}

static const double block_clocks = 9870, tile_latency = 1830;

/* Of a block that has its multiprocessor to itself, clocks of a tile beside tile_latency, in those that it would
 * take among many: a few warps leave much of it idle. */
static double alone_share(double warps) {
    const double share = 0.75, by_warps = 3.4;
    return share + by_warps / warps;
}

/* Clocks of a side's launches; what they ask for is added to `work`, if there is one. INFINITY: they do not fit. */
static double walk_clocks(const struct nh_problem *problem, const struct nh_cuda_device *device,
                          const int32_t *side, bool inverse, const struct walks *walks,
                          struct nh_count *work) {
    const struct nh_cuda_load load = load_of(problem, device, side, inverse, walks);
    double residents = (double)nh_split80_residents(problem, device, side, inverse);
    if (residents <= 0) return INFINITY;
    if (work) nh_cuda_count_load(device, &load, work);
    double tile = tile_clocks(problem, &load, side, inverse);
    double visits = walks->tiles / walks->blocks, waves = walks->blocks / device->multiprocessors;
    double alone = tile_latency + alone_share(side[SPLIT80_WARPS]) * tile;
    double latency = fmax(ceil(waves / residents) * (visits * alone + block_clocks),
                          walks->longest * alone + block_clocks);
    return fmax(latency, waves * (visits * tile + block_clocks / residents));
}

static double side_clocks(const struct nh_problem *problem, const struct nh_cuda_device *device,
                          const int32_t *side, bool inverse, const struct nh_tiling_count *count,
                          struct nh_count *work) {
    struct walks walks = walks_of(problem, side, inverse, count);
    double clocks = walk_clocks(problem, device, side, inverse, &walks, work);
    if (!inverse || !problem->extra_tokens) return clocks;
    int32_t extra[SPLIT80_SIDE];
    nh_split80_extra_side(problem, side, extra);
    walks = extra_walks(problem, extra);
    return clocks + walk_clocks(problem, device, extra, true, &walks, work);
}

/* Launches that own queries and keys overlap: whether blocks of 64 rows, two on a multiprocessor, find room all at
 * once. */
static bool side_by_side(const struct nh_problem *problem, const struct nh_cuda_device *device) {
    return device->overlaps &&
           problem->batch * problem->heads * problem->tokens <= 64 * device->multiprocessors;
}

/* Nanoseconds. */
static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    const double alone_ns = 4490, overlapping_ns = 3740, moving = 1.97;
    const struct nh_cuda_device *cuda = device->backend;
    double launch_ns = cuda->overlaps ? overlapping_ns : alone_ns;
    int launches =
        2 + launches_of(problem, true) * (problem->extra_tokens ? 2 : 1) + (problem->has_bias != 0);
    double memory = nh_cuda_memory_ns(problem, cuda);
    if (count) {
        *count = (struct nh_count){.tiles = 0};
        count->limit_ns[NHOOD_LIMIT_MEMORY] = memory;
    }
    double clocks = 0;
    for (int inverse = 0; inverse < 2; inverse++) {
        const int32_t *side = config->value + (inverse ? SPLIT80_SIDE : 0);
        const struct nh_tiling_count walk =
            nh_tiling_grid_count(problem, side + SPLIT80_ROW, side + SPLIT80_COLUMN, inverse);
        double next = side_clocks(problem, cuda, side, inverse, &walk, count);
        clocks = side_by_side(problem, cuda) ? fmax(clocks, next) : clocks + next;
    }
    return nh_cuda_clocks_ns(cuda, clocks) + moving * memory + launches * launch_ns;
}

/* ---- candidates ---- */

/* Those first that are chosen most often: the search then passes over more of the others. */
static const struct nh_box_variant variants[] = {{32, 16, 2, 0},  {64, 32, 2, 0},  {64, 64, 2, 0},
                                                 {64, 64, 4, 0},  {64, 128, 4, 0}, {64, 16, 4, 0},
                                                 {64, 32, 4, 0},  {128, 32, 4, 0}, {128, 64, 4, 0},
                                                 {128, 32, 8, 0}, {128, 64, 8, 0}};

static void set_side(const struct nh_box_variant *variant, const int32_t row[NH_AXES],
                     const int32_t column[NH_AXES], int32_t side[SPLIT80_SIDE]) {
    memcpy(side + SPLIT80_ROW, row, NH_AXES * sizeof *side);
    memcpy(side + SPLIT80_COLUMN, column, NH_AXES * sizeof *side);
    side[SPLIT80_WARPS] = variant->warps;
}

static double cost(const struct nh_box_search *search, const struct nh_box_variant *variant,
                   const int32_t row[NH_AXES], const int32_t column[NH_AXES],
                   const struct nh_tiling_count *count) {
    int32_t side[SPLIT80_SIDE];
    set_side(variant, row, column, side);
    return side_clocks(search->problem, search->device->backend, side, search->inverse, count,
                       NULL);
}

/* With as many residents as boxes of such sizes may have, and without extra tokens. */
static struct nh_box_bound bound(const struct nh_box_search *search,
                                 const struct nh_box_variant *variant) {
    const struct nh_problem *problem = search->problem;
    const struct nh_cuda_device *cuda = search->device->backend;
    int32_t row[NH_AXES], column[NH_AXES], side[SPLIT80_SIDE];
    nh_box_balanced(variant->rows, row);
    nh_box_balanced(variant->columns, column);
    set_side(variant, row, column, side);
    const struct walks plain = {.blocks = 1, .tiles = 1}, masked = {1, 1, 1, 1};
    const struct nh_cuda_load plain_load = load_of(problem, cuda, side, search->inverse, &plain);
    const struct nh_cuda_load masked_load = load_of(problem, cuda, side, search->inverse, &masked);
    double tile = tile_clocks(problem, &plain_load, side, search->inverse);
    double passes = (double)(problem->batch * launches_of(problem, search->inverse));
    return (struct nh_box_bound){
        .per_clock = 1,
        .tile = tile,
        .masks = tile_clocks(problem, &masked_load, side, search->inverse) - tile,
        .latency = tile_latency,
        .alone = alone_share(variant->warps),
        .block = block_clocks,
        .residents = (double)nh_split80_residents(problem, cuda, side, search->inverse),
        .longest = (tile_latency + alone_share(variant->warps) * tile) *
                   (search->inverse ? (double)(problem->heads / problem->kv_heads) : 1),
        .blocks = passes * (double)(search->inverse ? problem->kv_heads : problem->heads),
        .walks = passes * (double)problem->heads,
        .multiprocessors = cuda->multiprocessors};
}

static int best_sides(const struct nh_problem *problem, const struct nh_device *device,
                      bool inverse, struct nh_box_choice *best, int capacity) {
    const struct nh_box_search search = {.problem = problem,
                                         .inverse = inverse,
                                         .variant = variants,
                                         .variants = sizeof variants / sizeof *variants,
                                         .bound = bound,
                                         .cost = cost,
                                         .device = device};
    return nh_box_search(&search, best, capacity);
}

/* The best of both sides, and each with the next best of the other. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    static const int pair[][2] = {{0, 0}, {1, 0}, {0, 1}, {2, 0}, {0, 2}, {1, 1}};
    struct nh_box_choice by_query[MOST_CANDIDATES], by_key[MOST_CANDIDATES];
    int each = capacity == 1 ? 1 : MOST_CANDIDATES;
    int queries = best_sides(problem, device, false, by_query, each);
    int keys = best_sides(problem, device, true, by_key, each), count = 0;
    for (size_t i = 0; i < sizeof pair / sizeof *pair && count < capacity; i++) {
        if (pair[i][0] >= queries || pair[i][1] >= keys) continue;
        const struct nh_box_choice *q = &by_query[pair[i][0]], *k = &by_key[pair[i][1]];
        int32_t *value = config[count++].value;
        set_side(q->variant, q->row, q->column, value);
        set_side(k->variant, k->row, k->column, value + SPLIT80_SIDE);
    }
    return count;
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, nh_split80_add_steps, operation);
}

const struct nh_solver nh_solver_cuda_split80 = {"cuda.split80", NHOOD_DEVICE_CUDA, knobs, refuse,
                                                 candidates,     estimate,          build};
