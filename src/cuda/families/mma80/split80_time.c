/* How long cuda.split80's launches take. */
#include "split80.h"

#include "load.h"

#include <math.h>

static int launches_of(const struct nh_problem *problem, bool inverse) {
    return inverse && nh_split80_apart(problem) ? 2 : 1;
}

/* Elements that the products of one pair of rows run over, per launch: scores, their gradients, and what is summed
 * up. */
static double product_dims(const struct nh_problem *problem, bool inverse) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    double dim = (double)w.dim, dim_v = (double)w.dim_v;
    if (!inverse) return 2 * dim + dim_v;
    return nh_split80_apart(problem) ? (3 * dim + 2 * dim_v) / 2 : 2 * (dim + dim_v);
}

/* Clocks of a multiprocessor for one tile of columns: products, the matrix loads that feed them, copies, weights and, for
 * a share of the tiles, masks. f32 is multiplied in three products of parts. Fitted on an H200, as all that follows. */
static double tile_clocks(const struct nh_problem *problem, const struct nh_cuda_load *load,
                          const int32_t *side, bool inverse) {
    const double biasing = 0.425;
    const double multiplying = 0.527, loading = 0.464, copying = 6.26, weighing = 0.946,
                 masking = 13.5;
    double f32 = problem->dtype == NHOOD_DTYPE_F32 ? 1.68 : 1;
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    double columns = (double)nh_box_volume(side + SPLIT80_COLUMN);
    double rows = (double)nh_box_volume(side + SPLIT80_ROW);
    double dims = (double)(w.dim + w.dim_v), bytes = (double)w.element_bytes;
    double products = load->products / load->products_per_clock;
    double by_warps = side[SPLIT80_WARPS] * columns * product_dims(problem, inverse);
    double loads = (by_warps + rows * dims) * bytes / 128;
    double bias = problem->has_bias ? load->scores * (inverse ? 8 : 24) / 128 : 0;
    double copies = columns * dims * bytes / 16 * 9 / 128;
    double masks = load->masked_tiles / load->tiles * load->scores / 128;
    return f32 * (multiplying * products + loading * loads + masking * masks) + copying * copies +
           weighing * load->scores / 128 + biasing * bias;
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
        extra = (double)nh_ceil_div(problem->extra_tokens, nh_box_volume(side + SPLIT80_COLUMN));
    return (struct walks){blocks, each * count->visited + blocks * extra, each * count->partial,
                          shared * count->longest + extra};
}

/* Blocks of extra tokens walk the queries of a whole batch entry; tiles that the grid's end cuts take masks. */
static struct walks extra_walks(const struct nh_problem *problem, const int32_t *side) {
    int64_t rows = nh_box_volume(side + SPLIT80_ROW);
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
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    double rows = (double)nh_box_volume(side + SPLIT80_ROW);
    double columns = (double)nh_box_volume(side + SPLIT80_COLUMN);
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

/* Clocks of a tile in those that it takes where a multiprocessor's four schedulers have as many warps each: the block
 * waits for those that share one with more. */
static double crowding(double warps) {
    const double schedulers = 4, waiting = 0.559;
    return 1 + waiting * (ceil(warps / schedulers) * schedulers / warps - 1);
}

static const double block_clocks = 12100, tile_latency = 1660;

/* Of a block that has its multiprocessor to itself, clocks of a tile beside tile_latency, in those that it would
 * take among many: a few warps leave much of it idle. */
static double alone_share(double warps) {
    const double share = 0.427, by_warps = 4.52;
    return share + by_warps / warps;
}

/* What is added to what a full device takes, of a block alone. */
static const double end_share = 0.677;

/* What they ask for is added to `work`, if there is one. `round` is INFINITY where blocks do not fit. */
static struct nh_split80_span span_of(const struct nh_problem *problem,
                                      const struct nh_cuda_device *device, const int32_t *side,
                                      bool inverse, const struct walks *walks,
                                      struct nh_count *work) {
    const struct nh_cuda_load load = load_of(problem, device, side, inverse, walks);
    double residents = (double)nh_split80_residents(problem, device, side, inverse);
    if (residents <= 0) return (struct nh_split80_span){.rounds = 1, .round = INFINITY};
    if (work) nh_cuda_count_load(device, &load, work);
    double tile =
        tile_clocks(problem, &load, side, inverse) * crowding(residents * side[SPLIT80_WARPS]);
    double visits = walks->tiles / walks->blocks, waves = walks->blocks / device->multiprocessors;
    double alone = tile_latency + alone_share(side[SPLIT80_WARPS]) * tile;
    return (struct nh_split80_span){.first =
                                        nh_cuda_first_clocks(problem, &load, side[SPLIT80_WARPS]),
                                    .rounds = waves / residents,
                                    .round = visits * alone + block_clocks,
                                    .longest = walks->longest * alone + block_clocks,
                                    .busy = waves * (visits * tile + block_clocks / residents)};
}

double nh_split80_side_clocks(const struct nh_split80_span *span) {
    double latency = fmax(ceil(span->rounds) * span->round, span->longest);
    return span->first + fmax(latency, span->busy + end_share * span->round) + span->extra;
}

/* Of launches that overlap: blocks of the second begin where the first's last round leaves room. */
static double both_clocks(const struct nh_split80_span *a, const struct nh_split80_span *b) {
    double rounds = ceil(a->rounds), room = rounds - a->rounds;
    bool beside = b->rounds <= room;
    double before = beside ? rounds - 1 : rounds, after = beside ? 1 : ceil(b->rounds - room);
    double latency = fmax(rounds * a->round, before * a->round + after * b->round);
    double busy = a->busy + b->busy + end_share * fmax(a->round, b->round);
    double first = before > 0 ? a->first + b->first : fmax(a->first, b->first);
    return first + fmax(fmax(latency, fmax(a->longest, b->longest)), busy) + b->extra;
}

double nh_split80_clocks(const struct nh_cuda_device *device, const struct nh_split80_span *query,
                         const struct nh_split80_span *key) {
    return device->overlaps ? both_clocks(query, key)
                            : nh_split80_side_clocks(query) + nh_split80_side_clocks(key);
}

/* Of the launches that own extra tokens. */
static double extra_clocks(const struct nh_problem *problem, const struct nh_cuda_device *device,
                           const int32_t *side, struct nh_count *work) {
    int32_t extra[SPLIT80_SIDE];
    if (!problem->extra_tokens) return 0;
    nh_split80_extra_side(problem, side, extra);
    const struct walks walks = extra_walks(problem, extra);
    const struct nh_split80_span span = span_of(problem, device, extra, true, &walks, work);
    return nh_split80_side_clocks(&span);
}

struct nh_split80_span nh_split80_span_of(const struct nh_problem *problem,
                                          const struct nh_cuda_device *device, const int32_t *side,
                                          bool inverse, const struct nh_tiling_count *count,
                                          struct nh_count *work) {
    const struct walks walks = walks_of(problem, side, inverse, count);
    struct nh_split80_span span = span_of(problem, device, side, inverse, &walks, work);
    if (inverse) span.extra = extra_clocks(problem, device, side, work);
    return span;
}

/* A lower bound of all boxes of such sizes, which have at most so many residents, and long ones the fewest. */
static double least_crowding(const struct nh_problem *problem, const struct nh_cuda_device *device,
                             const int32_t *side, bool inverse, double most) {
    int32_t rows = (int32_t)nh_box_volume(side + SPLIT80_ROW);
    int32_t columns = (int32_t)nh_box_volume(side + SPLIT80_COLUMN);
    const int32_t longest[SPLIT80_SIDE] = {1, 1, rows, 1, 1, columns, side[SPLIT80_WARPS]};
    bool alike = (double)nh_split80_residents(problem, device, longest, inverse) == most;
    return alike ? crowding(most * side[SPLIT80_WARPS]) : 1;
}

/* With as many residents as boxes of such sizes may have, and without extra tokens. */
struct nh_box_bound nh_split80_bound(const struct nh_problem *problem,
                                     const struct nh_cuda_device *device, const int32_t *side,
                                     bool inverse) {
    const struct walks plain = {.blocks = 1, .tiles = 1};
    const struct nh_cuda_load plain_load = load_of(problem, device, side, inverse, &plain);
    struct nh_cuda_load masked_load = plain_load;
    masked_load.masked_tiles = 1;
    double warps = side[SPLIT80_WARPS], alone = alone_share(warps);
    double residents = (double)nh_split80_residents(problem, device, side, inverse);
    double crowded = least_crowding(problem, device, side, inverse, residents);
    double tile = crowded * tile_clocks(problem, &plain_load, side, inverse);
    double passes = (double)(problem->batch * launches_of(problem, inverse));
    double sharing = inverse ? (double)(problem->heads / problem->kv_heads) : 1;
    return (struct nh_box_bound){
        .fixed = nh_cuda_first_clocks(problem, &plain_load, warps),
        .per_clock = 1,
        .tile = tile,
        .masks = crowded * tile_clocks(problem, &masked_load, side, inverse) - tile,
        .latency = tile_latency,
        .alone = alone,
        .block = block_clocks,
        .residents = residents,
        .longest = (tile_latency + alone * tile) * sharing,
        .ending = end_share,
        .blocks = passes * (double)(inverse ? problem->kv_heads : problem->heads),
        .walks = passes * (double)problem->heads,
        .multiprocessors = device->multiprocessors};
}

double nh_split80_beside_ns(const struct nh_problem *problem, const struct nh_cuda_device *device) {
    const double alone_ns = 4490, overlapping_ns = 2440, moving = 1.24;
    double launch_ns = device->overlaps ? overlapping_ns : alone_ns;
    int launches =
        2 + launches_of(problem, true) * (problem->extra_tokens ? 2 : 1) + (problem->has_bias != 0);
    return moving * nh_cuda_memory_ns(problem, device) + launches * launch_ns;
}

/* Nanoseconds. */
double nh_split80_estimate(const struct nh_problem *problem, const struct nh_device *device,
                           const struct nh_config *config, struct nh_count *count) {
    const struct nh_cuda_device *cuda = device->backend;
    if (count) {
        *count = (struct nh_count){.tiles = 0};
        count->limit_ns[NHOOD_LIMIT_MEMORY] = nh_cuda_memory_ns(problem, cuda);
    }
    struct nh_split80_span span[2];
    for (int inverse = 0; inverse < 2; inverse++) {
        const int32_t *side = config->value + (inverse ? SPLIT80_SIDE : 0);
        const struct nh_tiling_count walk =
            nh_tiling_grid_count(problem, side + SPLIT80_ROW, side + SPLIT80_COLUMN, inverse);
        span[inverse] = nh_split80_span_of(problem, cuda, side, inverse, &walk, count);
    }
    double clocks = nh_split80_clocks(cuda, &span[0], &span[1]);
    return nh_cuda_clocks_ns(cuda, clocks) + nh_split80_beside_ns(problem, cuda);
}
