/* cuda.fused90: the fused forward of sm_90 (fused90_forward.cu): what it takes, and how long it takes with some
 * tiles; fused90_search.c looks for the best. */
#include "abreast_count.h"
#include "cuda_solvers.h"
#include "cluster.h"
#include "fused90_time.h"
#include "load.h"
#include "permuted_axes.h"

#include <math.h>

#define BIT(tensor) (1u << NHOOD_##tensor)
const struct nh_knob nh_fused90_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "fused90_knobs.def"
#undef KNOB
    {NULL, NULL}};

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    return nh_sm90_refuse(problem, device, BIT(Q) | BIT(K) | BIT(V) | BIT(EXTRA_K) | BIT(EXTRA_V),
                          BIT(O), NH_FUSED90_MOST_DIM);
}

/* ---- time ---- */

/* What `tiles` of warpgroups, `fetched` tiles of blocks and `items` ask for. */
static struct nh_cuda_load load_of(const struct nh_problem *problem,
                                   const struct nh_cuda_device *cuda, const int32_t *value,
                                   double tiles, double masked, double fetched, double items) {
    double keys = nh_fused90_keys(value);
    double dims = (double)(problem->dim + problem->dim_v);
    return (struct nh_cuda_load){
        .tiles = tiles,
        .masked_tiles = masked,
        .scores = 64 * keys,
        .products = 64 * keys * dims,
        .bytes = (fetched * keys + items * 64 * value[WARPGROUPS]) * dims * 2,
        .products_per_clock = nh_cuda_products_per_clock(problem, cuda, true),
    };
}

/* Whether what rows see across the lines of a walk is worked out once for each (fused90_forward.cu). */
static bool masks_by_line(const struct nh_problem *problem, const int32_t *value) {
    return value[STACK] == 0 && value[ABREAST] * value[KY] * value[KZ] <= 32 && !problem->has_bias;
}

/* For which the warps that lay down the boxes of several heads keep a tile waiting, if its products do not take as long. */
static double boxes_clocks(const int32_t *value) {
    enum { LANES = 96 };
    const double round_clocks = 490;
    int64_t entries = value[QH];
    for (int a = 0; a < NH_AXES; a++)
        entries *= value[QX + a] + value[KX + a] - 1;
    return round_clocks * (double)nh_ceil_div(entries, LANES);
}

/* Fitted on an H200: what a launch takes of each limit, and clocks for a turn from one tile to the next, and for an
 * item and each of its axes. */
struct nh_fused90_prices nh_fused90_prices_of(const struct nh_problem *problem,
                                              const struct nh_cuda_device *cuda,
                                              const int32_t *value) {
    const double tensor = 0.647, softmax = 0.949, bias = 1.82, masks = 7.15, line_masks = 2,
                 passing = 10, l2 = 0.233;
    /* rows of several heads share no entries */
    const double apart = 1.3;
    /* an item ends and begins slowly where three warpgroups share the registers */
    const double turn = 342, item = 1450, item_axis = 1230, item_width = 1.73, sharing_width = 7;
    /* an item's first keys are waited for; places along one axis leave registers for queries */
    const double item_keys = 0.02, holding = 1.4, spared = 0.02;
    struct nh_count tile = {.tiles = 0}, own = {.tiles = 0};
    const struct nh_cuda_load of_tile = load_of(problem, cuda, value, 1, 1, 1, 0),
                              of_item = load_of(problem, cuda, value, 0, 0, 0, 1);
    nh_cuda_count_load(cuda, &of_tile, &tile);
    nh_cuda_count_load(cuda, &of_item, &own);
    double clock = nh_cuda_clocks_ns(cuda, 1.0 / cuda->multiprocessors);
    double sharing = value[WARPGROUPS] == 3 ? sharing_width : 0;
    double exponential = softmax, fetch = l2 * tile.limit_ns[NHOOD_LIMIT_L2];
    if (problem->has_bias) exponential += value[QH] > 1 ? apart * bias : bias;
    const double price = tensor * tile.limit_ns[NHOOD_LIMIT_TENSOR] +
                         exponential * tile.limit_ns[NHOOD_LIMIT_EXPONENTIAL] +
                         turn / value[WARPGROUPS] * clock;
    if (problem->has_bias && value[QH] > 1)
        fetch += fmax(0, boxes_clocks(value) * clock - value[WARPGROUPS] * price);
    return (struct nh_fused90_prices){
        .tile = price,
        .masks = masks * tile.limit_ns[NHOOD_LIMIT_MASK],
        .line_masks = line_masks * tile.limit_ns[NHOOD_LIMIT_MASK],
        .passing = passing * tile.limit_ns[NHOOD_LIMIT_MASK],
        .fetch = fetch,
        .item = l2 * own.limit_ns[NHOOD_LIMIT_L2] +
                (item + item_axis * problem->rank +
                 (item_width * value[WARPGROUPS] + sharing + item_keys * of_tile.scores / 64) *
                     (double)(problem->dim + problem->dim_v)) *
                    clock,
        .meeting = nh_cluster_reduction_clocks(64 * value[WARPGROUPS], problem->dim_v) * clock,
        .spared = spared * tile.limit_ns[NHOOD_LIMIT_TENSOR],
        .holding = holding * (problem->rank - 1) * (double)problem->dim * clock,
    };
}

struct nh_fused90_walks nh_fused90_walks_of_blocks(const struct nh_fused90_walks *walks,
                                                   double warpgroups, double cluster) {
    if (cluster == 1) return *walks;
    struct nh_fused90_walks of = {walks->fetched, walks->fetched};
    of.fetched.items *= cluster;
    of.seen.items *= cluster;
    of.seen.visited *= warpgroups;
    of.seen.partial = walks->seen.partial + of.seen.visited - walks->seen.visited;
    return of;
}

double nh_fused90_scale(const struct nh_cuda_device *cuda, double copies, double items) {
    const double waiting = 0.935;
    double rounds = copies * items / cuda->multiprocessors;
    return copies * (1 + waiting * (ceil(rounds) / rounds - 1));
}

double nh_fused90_busy_ns(const struct nh_problem *problem, const int32_t *value,
                          const struct nh_fused90_prices *prices,
                          const struct nh_fused90_walks *walks, double extra, double cluster) {
    double blocks = walks->seen.items, items = blocks / cluster;
    double tile = prices->tile - (value[HOLD] ? prices->spared : 0);
    double item =
        prices->item + (value[HOLD] ? prices->holding : 0) + (cluster > 1 ? prices->meeting : 0);
    double fetched = walks->fetched.visited + extra * items, each = fetched / blocks;
    double multiplied = walks->seen.visited + value[WARPGROUPS] * extra * items;
    double masks = walks->seen.partial * prices->masks;
    if (cluster == 1 && masks_by_line(problem, value))
        masks = walks->seen.partial * prices->line_masks +
                (value[WARPGROUPS] * fetched - multiplied) * prices->passing;
    double tiles = multiplied * tile + masks + fetched * prices->fetch;
    return tiles * (cluster > 1 ? ceil(each) / each : 1) + blocks * item;
}

double nh_fused90_launch_ns(const struct nh_problem *problem, double busy, double memory_ns) {
    /* the first tiles take as long as they are wide */
    const double memory = 1.14, overhead_ns = 7550, first_tiles_ns = 15;
    memory_ns *= memory;
    return (busy > memory_ns ? busy : memory_ns) + overhead_ns +
           first_tiles_ns * (double)(problem->dim + problem->dim_v);
}

struct nh_fused90_walks nh_fused90_walks_of(const struct nh_problem *problem,
                                            const int32_t *value) {
    int32_t slab[3];
    nh_sm90_warpgroup_tile(value + QX, value[QH], value[STACK], slab);
    if (value[ABREAST] == 1)
        return (struct nh_fused90_walks){
            nh_tiling_count(problem, value + QX, value + KX),
            nh_tiling_part_count(problem, value + QX, slab, value + KX)};
    struct nh_abreast_count count = nh_abreast_count(problem, value + QX, slab[value[STACK]],
                                                     value[STACK], value + KX, value[ABREAST]);
    return (struct nh_fused90_walks){
        .fetched = {.items = count.items, .visited = count.fetched},
        .seen = {.items = count.items, .visited = count.multiplied, .partial = count.masked}};
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    const struct nh_cuda_device *cuda = device->backend;
    const int32_t *value = config->value;
    const struct nh_fused90_walks of_items = nh_fused90_walks_of(problem, value);
    int32_t cluster = nh_fused90_cluster_of(problem, cuda, value, &of_items.fetched);
    const struct nh_fused90_walks walks =
        nh_fused90_walks_of_blocks(&of_items, value[WARPGROUPS], cluster);
    const struct nh_fused90_prices prices = nh_fused90_prices_of(problem, cuda, value);
    double blocks = walks.seen.items, items = of_items.seen.items;
    double extra = nh_fused90_extra_tiles(problem, value);
    double memory_ns = nh_cuda_memory_ns(problem, cuda);
    double busy = nh_fused90_scale(cuda, nh_fused90_copies(problem, value), blocks) *
                  nh_fused90_busy_ns(problem, value, &prices, &walks, extra, cluster);
    if (count) {
        double copies = nh_fused90_copies(problem, value),
               tiles = value[WARPGROUPS] * extra * items;
        const struct nh_cuda_load load =
            load_of(problem, cuda, value, copies * (walks.seen.visited + tiles),
                    copies * walks.seen.partial, copies * (walks.fetched.visited + extra * items),
                    copies * blocks);
        *count = (struct nh_count){.tiles = 0};
        nh_cuda_count_load(cuda, &load, count);
        count->limit_ns[NHOOD_LIMIT_MEMORY] = memory_ns;
    }
    return nh_fused90_launch_ns(problem, busy, memory_ns);
}

/* ---- configs ---- */

/* Rows that are not finite are repaired by a launch of their own, with one before to say that there are none: a large kernel
 * compiles in three quarters of the time without that code. Where a call takes long the launches do not count. */
enum { WORTH_LAUNCHES_NS = 300000 };

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    struct nh_top_n best;
    nh_top_configs_start(&best, below_ns, config, capacity);
    nh_fused90_search(problem, device, &best);
    int count = best.count;
    for (int i = 0; i < count; i++)
        config[i].value[REPAIR_APART] = best.ns[i] > WORTH_LAUNCHES_NS;
    if (!count || count == capacity) return count;
    /* The best the other way, for those who time or check candidates. */
    config[count] = config[0];
    config[count].value[REPAIR_APART] ^= 1;
    return count + 1;
}

/* ---- building ---- */

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, nh_fused90_add_steps, operation);
}

const struct nh_solver nh_solver_cuda_fused90 = {
    .name = "cuda.fused90",
    .device_kind = NHOOD_DEVICE_CUDA,
    .knob = nh_fused90_knobs,
    .view = nh_permuted_axes,
    .refuse = refuse,
    .candidates = candidates,
    .estimate = estimate,
    .build = build,
};
