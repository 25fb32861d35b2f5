/* cuda.fused90: the fused forward of sm_90 (kernels/fused90_forward.cu): what it takes, which tiles are worth trying, and
 * how long it takes with them. */
#include "abreast_count.h"
#include "cheapest.h"
#include "cuda_solvers.h"
#include "fused90_cluster.h"
#include "fused90_launch.h"
#include "load.h"
#include "turned_axes.h"
#include "walk_counts.h"

#include <math.h>
#include <string.h>

#define BIT(tensor) (1u << NHOOD_##tensor)
static const char *const knobs[] = {"qx",     "qy",    "qz",      "qh",         "kx",
                                    "ky",     "kz",    "abreast", "warpgroups", "stack",
                                    "stages", "order", "hold",    "again",      NULL};

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    return nh_fused90_refuse(problem, device,
                             BIT(Q) | BIT(K) | BIT(V) | BIT(EXTRA_K) | BIT(EXTRA_V), BIT(O),
                             NH_FUSED90_MOST_DIM);
}

/* ---- configs ---- */

/* The tiles that blocks fetch, and those that warpgroups multiply. */
struct walks {
    struct nh_tiling_count fetched, seen;
};

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

/* Nanoseconds of the device for a tile of a warpgroup, for its masks, for a tile that is fetched, for an item, and for a
 * block's part in adding up what a cluster has; and what holding queries in registers takes from a tile and adds to an
 * item. Where masks are worked out by lines they are cheaper, and what a warpgroup passes over counts for itself: it waits
 * for the others. */
struct prices {
    double tile, masks, line_masks, passing, fetch, item, meeting, spared, holding;
};

/* Whether what rows see across the lines of a walk is worked out once for each (kernels/fused90_forward.cu). */
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
static struct prices prices_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                               const int32_t *value) {
    const double tensor = 0.647, softmax = 0.949, bias = 1.82, masks = 7.15, line_masks = 2,
                 passing = 10, l2 = 0.233;
    /* rows of several heads share no entries */
    const double apart = 1.3;
    /* an item ends and begins slowly where three warpgroups share the registers */
    const double turn = 342, item = 1450, item_axis = 1230, item_width = 1.73, sharing_width = 7;
    /* an item's first keys are waited for; places along one axis leave registers for queries */
    const double item_keys = 0.0119, holding = 1.4, spared = 0.02;
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
    return (struct prices){
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
        .meeting = nh_fused90_meeting_clocks(64 * value[WARPGROUPS], problem->dim_v) * clock,
        .spared = spared * tile.limit_ns[NHOOD_LIMIT_TENSOR],
        .holding = holding * (problem->rank - 1) * (double)problem->dim * clock,
    };
}

/* Blocks of a cluster share the tiles of an item, and are items of their own. Warpgroups multiply, masked, what they
 * would pass over on their own. */
static struct walks walks_of_blocks(const struct walks *walks, double warpgroups, double cluster) {
    if (cluster == 1) return *walks;
    struct walks of = {walks->fetched, walks->fetched};
    of.fetched.items *= cluster;
    of.seen.items *= cluster;
    of.seen.visited *= warpgroups;
    of.seen.partial = walks->seen.partial + of.seen.visited - walks->seen.visited;
    return of;
}

/* Of all copies, whose items are nearly alike, with the end of the launch: of the last round of items, all but a few of
 * the multiprocessors may have none. */
static double scale_of(const struct nh_cuda_device *cuda, double copies, double items) {
    const double waiting = 0.935;
    double rounds = copies * items / cuda->multiprocessors;
    return copies * (1 + waiting * (ceil(rounds) / rounds - 1));
}

/* Nanoseconds that a copy keeps the device busy, with so many tiles of extra tokens to an item. Of a cluster every block
 * takes as long as the one with the most tiles. */
static double busy_ns(const struct nh_problem *problem, const int32_t *value,
                      const struct prices *prices, const struct walks *walks, double extra,
                      double cluster) {
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

/* Of the launch. */
static double launch_ns(const struct nh_problem *problem, double busy, double memory_ns) {
    /* the first tiles take as long as they are wide */
    const double memory = 1.14, overhead_ns = 7550, first_tiles_ns = 15;
    memory_ns *= memory;
    return (busy > memory_ns ? busy : memory_ns) + overhead_ns +
           first_tiles_ns * (double)(problem->dim + problem->dim_v);
}

static struct walks walks_of(const struct nh_problem *problem, const int32_t *value) {
    int32_t slab[3];
    nh_fused90_slab(value + QX, value[QH], value[STACK], slab);
    if (value[ABREAST] == 1)
        return (struct walks){nh_tiling_count(problem, value + QX, value + KX),
                              nh_tiling_part_count(problem, value + QX, slab, value + KX)};
    struct nh_abreast_count count = nh_abreast_count(problem, value + QX, slab[value[STACK]],
                                                     value[STACK], value + KX, value[ABREAST]);
    return (struct walks){
        .fetched = {.items = count.items, .visited = count.fetched},
        .seen = {.items = count.items, .visited = count.multiplied, .partial = count.masked}};
}

static double estimate(const struct nh_problem *given, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    struct nh_problem turned;
    const struct nh_problem *problem = nh_turned_axes(given, &turned);
    const struct nh_cuda_device *cuda = device->backend;
    const int32_t *value = config->value;
    const struct walks of_items = walks_of(problem, value);
    int32_t cluster = nh_fused90_cluster_of(problem, cuda, value, &of_items.fetched);
    const struct walks walks = walks_of_blocks(&of_items, value[WARPGROUPS], cluster);
    const struct prices prices = prices_of(problem, cuda, value);
    double blocks = walks.seen.items, items = of_items.seen.items;
    double extra = nh_fused90_extra_tiles(problem, value);
    double memory_ns = nh_cuda_memory_ns(problem, cuda);
    double busy = scale_of(cuda, nh_fused90_copies(problem, value), blocks) *
                  busy_ns(problem, value, &prices, &walks, extra, cluster);
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
    return launch_ns(problem, busy, memory_ns);
}

/* Boxes of fewer keys are walked several abreast, 64 keys together, along x: elsewhere masks take what that spares. */
enum { LEAST_KEYS = 48, KEYS_ABREAST = 64 };

/* Shapes worth trying, per rank: boxes near a cube have the smallest halo, long ones the fewest border tiles. A
 * query tile of fewer than 112 positions is filled up with heads that share their keys; tiles of 112 and 168 are slabs
 * of 56 rows, for grids of a multiple of 7. */
static const int32_t q_shapes[][3] = {
    {1, 1, 128}, {1, 1, 192}, {1, 1, 96}, {1, 1, 64}, {1, 1, 48}, {1, 1, 32},  {1, 1, 24},
    {1, 1, 16},  {1, 1, 8},   {1, 16, 8}, {1, 8, 16}, {1, 4, 32}, {1, 12, 16}, {1, 24, 8},
    {1, 8, 8},   {1, 4, 8},   {1, 4, 4},  {1, 12, 8}, {1, 6, 8},  {2, 8, 8},   {4, 4, 8},
    {2, 4, 16},  {8, 4, 4},   {4, 8, 4},  {3, 8, 8},  {6, 4, 8},  {4, 4, 4},   {2, 4, 8},
    {2, 4, 4},   {6, 4, 4},   {1, 4, 28}, {1, 8, 14}, {1, 16, 7}, {1, 6, 28},  {1, 12, 14},
    {8, 2, 7},   {4, 4, 7},   {4, 2, 14}, {2, 4, 14}, {2, 8, 7},  {16, 1, 7},  {12, 2, 7},
    {4, 6, 7},   {4, 3, 14},  {3, 8, 7},  {6, 8, 4},  {4, 4, 12}, {4, 12, 4},  {12, 4, 4},
};
static const int32_t k_shapes[][3] = {
    {1, 1, 64},  {1, 1, 80}, {1, 1, 96}, {1, 1, 112}, {1, 1, 128}, {1, 1, 144}, {1, 1, 160},
    {1, 1, 176}, {1, 8, 8},  {1, 4, 16}, {1, 10, 8},  {1, 5, 16},  {1, 12, 8},  {1, 6, 16},
    {1, 14, 8},  {1, 16, 8}, {1, 8, 16}, {1, 4, 32},  {1, 9, 16},  {1, 18, 8},  {1, 10, 16},
    {1, 20, 8},  {1, 22, 8}, {2, 4, 8},  {4, 2, 8},   {2, 5, 8},   {5, 2, 8},   {2, 8, 8},
    {4, 4, 8},   {3, 4, 8},  {2, 6, 8},  {1, 3, 32},  {3, 6, 8},   {2, 3, 24},  {1, 6, 24},
    {2, 10, 8},  {1, 7, 16}, {7, 1, 16}, {7, 2, 8},   {1, 4, 24},  {2, 4, 4},
};

static bool of_rank(const int32_t shape[3], int rank) {
    return (rank >= 3 || shape[0] == 1) && (rank >= 2 || shape[1] == 1);
}

enum {
    MOST_STAGES = 4,
    MOST_HEADS = 16,
    KEY_TILES = sizeof k_shapes / sizeof *k_shapes,
    QUERY_TILES = 5 * sizeof q_shapes / sizeof *q_shapes /* of 1 to MOST_HEADS heads */
};

/* A key tile, and for two or three warpgroups, with queries held or not, the stages that fit: 0 if it does not run so.
 * With a bias, of which each stage has boxes, prices and stages depend on the queries' tile, too, and are not kept. */
struct key_tile {
    const int32_t *shape;
    struct nh_walk_columns columns;
    struct prices prices[2];
    int32_t stages[2][2];
    double extra;
};

/* Positions of so many heads, their tiles as a whole, and the least that they cost with any key tile. Few items may be
 * shared by clusters; scales are those of items that are not, and of all. */
struct query_tile {
    const int32_t *shape;
    int32_t heads, warpgroups;
    struct nh_walk_rows whole;
    bool shares;
    double scale, least_scale, least_ns;
};

struct search {
    const struct nh_problem *problem;
    const struct nh_device *device;
    double memory_ns;
    struct nh_walk_extents extents;
    struct nh_walk_counts counts;
    struct key_tile key[KEY_TILES];
    struct query_tile query[QUERY_TILES];
    int keys, queries;
    struct least {
        double column, item;
    } least[2]; /* of two and three warpgroups */
    bool any;   /* of what was tried runs, cheap or not */
    struct nh_cheapest best;
};

static int32_t stages_of(const struct search *search, int32_t *value) {
    const struct nh_cuda_device *cuda = search->device->backend;
    if (!nh_fused90_registers_fit(search->problem, value)) return 0;
    for (value[STAGES] = MOST_STAGES; value[STAGES] > 1; value[STAGES]--)
        if (nh_fused90_shared_bytes(search->problem, value) <= cuda->shared_bytes_per_block)
            return value[STAGES];
    return 0;
}

static int32_t abreast_of(const int32_t box[3]) {
    int32_t keys = box[0] * box[1] * box[2];
    return keys < LEAST_KEYS ? KEYS_ABREAST / keys : 1;
}

/* ---- tiles of keys ---- */

static void add_keys(struct search *search, const int32_t shape[3]) {
    const struct nh_problem *problem = search->problem;
    struct key_tile *key = &search->key[search->keys];
    struct nh_config config = {{0}};
    int32_t *value = config.value;
    if (!of_rank(shape, problem->rank) || !nh_fused90_boxes_fit(problem, shape) ||
        (abreast_of(shape) > 1 && (problem->rank < 3 || problem->has_bias)) ||
        !nh_walk_add(&search->extents, shape, &key->columns))
        return;
    memcpy(value + KX, shape, 3 * sizeof *shape);
    value[ABREAST] = abreast_of(shape);
    for (value[WARPGROUPS] = 2; value[WARPGROUPS] <= 3; value[WARPGROUPS]++) {
        int of = value[WARPGROUPS] - 2;
        key->prices[of] = prices_of(problem, search->device->backend, value);
        for (value[HOLD] = 0; value[HOLD] <= 1; value[HOLD]++)
            key->stages[of][value[HOLD]] = stages_of(search, value);
    }
    key->shape = shape;
    key->extra = nh_fused90_extra_tiles(problem, value);
    search->keys++;
}

/* ---- tiles of queries ---- */

/* What a column of keys costs at least, and an item; INFINITY: no key tile runs. */
static void find_least(struct search *search) {
    for (int of = 0; of < 2; of++) {
        struct least *least = &search->least[of];
        *least = (struct least){INFINITY, INFINITY};
        for (const struct key_tile *key = search->key; key < search->key + search->keys; key++) {
            const struct prices *prices = &key->prices[of];
            double keys = key->shape[0] * key->shape[1] * key->shape[2] * abreast_of(key->shape);
            double column = (prices->tile - prices->spared + prices->fetch) / keys;
            if (!key->stages[of][0] && !key->stages[of][1]) continue;
            if (column < least->column) least->column = column;
            if (prices->item < least->item) least->item = prices->item;
        }
    }
}

/* No tile holds columns that no row sees, none waits for others, nothing is masked. */
static double least_of_queries(const struct search *search, const struct query_tile *query) {
    const struct least *least = &search->least[query->warpgroups - 2];
    double busy =
        nh_walk_needed(&query->whole) * least->column + nh_walk_items(&query->whole) * least->item;
    return launch_ns(search->problem, query->least_scale * busy, search->memory_ns);
}

static void add_queries(struct search *search, const int32_t shape[3], int32_t heads) {
    const struct nh_problem *problem = search->problem;
    const struct nh_cuda_device *cuda = search->device->backend;
    struct query_tile *query = &search->query[search->queries];
    int32_t rows = shape[0] * shape[1] * shape[2] * heads;
    bool full = rows == 128 || rows == 192, nearly = rows == 112 || rows == 168;
    if ((!full && (!nearly || problem->has_bias || !nh_fused90_sevens_fit(problem, shape))) ||
        !nh_fused90_boxes_fit(problem, shape) ||
        !nh_walk_rows_of(&search->counts, shape, shape, &query->whole))
        return;
    query->shape = shape;
    query->heads = heads;
    query->warpgroups = (int32_t)nh_ceil_div(rows, 64);
    double copies = (double)(problem->batch * problem->heads / heads);
    double items = nh_walk_items(&query->whole);
    query->shares = 2 * copies * items <= cuda->multiprocessors && !problem->has_bias;
    query->scale = scale_of(cuda, copies, items);
    query->least_scale = query->shares ? copies : query->scale;
    query->least_ns = problem->has_bias ? 0 : least_of_queries(search, query);
    search->any |= query->least_ns > 0 && isfinite(query->least_ns);
    search->queries++;
}

/* ---- pairs ---- */

/* With the stages of `value`. */
static void try_pair(struct search *search, const struct query_tile *query,
                     const struct nh_config *tried, const struct key_tile *key,
                     const struct walks *of_items) {
    const struct nh_problem *problem = search->problem;
    const struct nh_cuda_device *cuda = search->device->backend;
    const int32_t *value = tried->value;
    const struct prices *prices = &key->prices[query->warpgroups - 2];
    const struct walks *walks = of_items;
    struct prices of_boxes;
    struct walks of_blocks;
    double cluster = 1, scale = query->scale;
    if (problem->has_bias) {
        of_boxes = prices_of(problem, cuda, value);
        prices = &of_boxes;
    }
    if (query->shares) cluster = nh_fused90_cluster_of(problem, cuda, value, &of_items->fetched);
    if (cluster > 1) {
        of_blocks = walks_of_blocks(of_items, value[WARPGROUPS], cluster);
        walks = &of_blocks;
        scale = scale_of(cuda, nh_fused90_copies(problem, value), walks->seen.items);
    }
    double busy = scale * busy_ns(problem, value, prices, walks, key->extra, cluster);
    search->any = true;
    nh_cheapest_add(&search->best, tried, launch_ns(problem, busy, search->memory_ns));
}

/* No config of these tiles takes less: none waits for others, nothing is masked, no cluster meets. */
static double least_of_pair(const struct search *search, const struct query_tile *query,
                            const struct key_tile *key, const struct nh_walk_rows *parts) {
    const struct prices *prices = &key->prices[query->warpgroups - 2];
    double tiles = nh_walk_visits(parts, key->columns) * (prices->tile - prices->spared) +
                   nh_walk_visits(&query->whole, key->columns) * prices->fetch;
    double busy = tiles / abreast_of(key->shape) + nh_walk_items(&query->whole) * prices->item;
    return launch_ns(search->problem, query->least_scale * busy, search->memory_ns);
}

/* With every key tile, queries held or not. */
static void try_parts(struct search *search, const struct query_tile *query,
                      const struct nh_config *queries, const struct nh_walk_rows *parts) {
    struct nh_config tried = *queries;
    int32_t *value = tried.value;
    bool biased = search->problem->has_bias;
    for (const struct key_tile *key = search->key; key < search->key + search->keys; key++) {
        const int32_t *stages = key->stages[query->warpgroups - 2];
        memcpy(value + KX, key->shape, 3 * sizeof *key->shape);
        value[ABREAST] = abreast_of(key->shape);
        if ((value[ABREAST] > 1 && value[STACK] != 0) || !(biased || stages[0] || stages[1]))
            continue;
        if (!biased && least_of_pair(search, query, key, parts) >= nh_cheapest_limit(&search->best))
            continue;
        const struct walks walks = value[ABREAST] > 1
                                       ? walks_of(search->problem, value)
                                       : (struct walks){nh_walk_count(&query->whole, key->columns),
                                                        nh_walk_count(parts, key->columns)};
        for (value[HOLD] = 0; value[HOLD] <= 1; value[HOLD]++) {
            value[STAGES] = biased ? stages_of(search, value) : stages[value[HOLD]];
            if (value[STAGES]) try_pair(search, query, &tried, key, &walks);
        }
    }
}

/* Stacked along each axis. */
static void try_queries(struct search *search, const struct query_tile *query) {
    const int32_t *q = query->shape;
    struct nh_config queries = {{q[0], q[1], q[2], query->heads}};
    struct nh_walk_rows parts;
    int32_t slab[3];
    queries.value[WARPGROUPS] = query->warpgroups;
    for (queries.value[STACK] = 0; queries.value[STACK] < NH_AXES; queries.value[STACK]++) {
        if (!nh_fused90_slab(q, query->heads, queries.value[STACK], slab) ||
            (search->problem->has_bias && query->heads == 1 && !nh_fused90_pairs(slab)) ||
            !nh_walk_rows_of(&search->counts, q, slab, &parts))
            continue;
        try_parts(search, query, &queries, &parts);
    }
}

/* Of those that suit, or of all. */
static void find_tiles(struct search *search, bool all) {
    const struct nh_problem *problem = search->problem;
    int64_t sharing = problem->heads / problem->kv_heads;
    search->keys = search->queries = 0;
    memset(&search->extents, 0, sizeof search->extents);
    for (size_t i = 0; i < KEY_TILES; i++)
        if (all || nh_fused90_suits(problem, k_shapes[i])) add_keys(search, k_shapes[i]);
    if (!search->keys) return;
    nh_walk_start(&search->counts, problem, false, true, &search->extents);
    find_least(search);
    for (size_t i = 0; i < sizeof q_shapes / sizeof *q_shapes; i++) {
        if (!of_rank(q_shapes[i], problem->rank) ||
            !(all || nh_fused90_suits(problem, q_shapes[i])))
            continue;
        for (int32_t heads = 1; heads <= MOST_HEADS && sharing % heads == 0; heads *= 2)
            if (heads == 1 || nh_map_layout_of(problem, NHOOD_Q) <= NH_MAP_ONE_BATCH)
                add_queries(search, q_shapes[i], heads);
    }
}

/* What the tile of queries takes that promises most: nothing that takes more is the best. */
static double probe(struct search *search) {
    const struct nh_cheapest best = search->best;
    const struct query_tile *lowest = search->query;
    struct nh_config config;
    for (int i = 1; i < search->queries; i++)
        if (search->query[i].least_ns < lowest->least_ns) lowest = &search->query[i];
    nh_cheapest_start(&search->best, best.below_ns, &config, 1);
    try_queries(search, lowest);
    double ns = nh_cheapest_limit(&search->best);
    search->best = best;
    return ns;
}

static void try_tiles(struct search *search, bool all) {
    const double rounding = 1 + 1e-9;
    find_tiles(search, all);
    if (search->best.capacity == 1 && search->queries > 1 && !search->problem->has_bias)
        search->best.below_ns = fmin(search->best.below_ns, rounding * probe(search));
    for (int i = 0; i < search->queries; i++)
        if (search->query[i].least_ns < nh_cheapest_limit(&search->best))
            try_queries(search, &search->query[i]);
}

/* Rows spoilt by NaN are made again by a launch of their own, with one before to say that there are none: a large kernel
 * compiles in three quarters of the time without that code. Where a call takes long the launches do not count. */
enum { WORTH_LAUNCHES_NS = 300000 };

static int candidates(const struct nh_problem *given, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    struct nh_problem turned;
    const struct nh_problem *problem = nh_turned_axes(given, &turned);
    const struct nh_cuda_device *cuda = device->backend;
    struct search search;
    search.problem = problem;
    search.device = device;
    search.memory_ns = nh_cuda_memory_ns(problem, cuda);
    nh_cheapest_start(&search.best, below_ns, config, capacity);
    search.any = false;
    try_tiles(&search, false);
    if (!search.any) try_tiles(&search, true);
    int count = search.best.count;
    for (int i = 0; i < count; i++) {
        config[i].value[ORDER] =
            nh_tiling_order(problem, config[i].value + QX, cuda->multiprocessors);
        config[i].value[AGAIN] = search.best.ns[i] > WORTH_LAUNCHES_NS;
    }
    if (!count || count == capacity) return count;
    /* The best the other way, for those who time or check candidates. */
    config[count] = config[0];
    config[count].value[AGAIN] ^= 1;
    return count + 1;
}

/* ---- building ---- */

static nhood_status build(const struct nh_problem *given, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    struct nh_problem turned;
    const struct nh_problem *problem = nh_turned_axes(given, &turned);
    return nh_cuda_build(problem, device, config, nh_fused90_add_steps, operation);
}

const struct nh_solver nh_solver_cuda_fused90 = {"cuda.fused90", NHOOD_DEVICE_CUDA, knobs, refuse,
                                                 candidates,     estimate,          build};
