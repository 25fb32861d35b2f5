/* Which tiles of queries and of keys cuda.fused90 is fastest with. Tiles of queries are passed over by what they cost with
 * any keys at least, pairs by what they cost without masks. */
#include "box.h"
#include "cluster.h"
#include "covering_tile.h"
#include "fused90_time.h"
#include "load.h"
#include "walk_counts.h"

#include <math.h>
#include <string.h>

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
    Q_SHAPES = sizeof q_shapes / sizeof *q_shapes,
    QUERY_TILES = 5 * Q_SHAPES + 2 /* of 1 to MOST_HEADS heads; covering */
};

/* A key tile, and for two or three warpgroups, with queries held or not, the stages that fit: 0 if it does not run so.
 * With a bias, of which each stage has boxes, prices and stages depend on the queries' tile, too, and are not kept. */
struct key_tile {
    const int32_t *shape;
    struct nh_walk_columns columns;
    struct nh_fused90_prices prices[2];
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
    int32_t covering[2][3];
    int keys, queries;
    struct least {
        double column, item;
    } least[2]; /* of two and three warpgroups */
    bool any;   /* of what was tried runs, cheap or not */
    struct nh_top_n *best;
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
    int32_t keys = (int32_t)nh_box_volume(box);
    return keys < LEAST_KEYS ? KEYS_ABREAST / keys : 1;
}

/* ---- tiles of keys ---- */

static void add_keys(struct search *search, const int32_t shape[3]) {
    const struct nh_problem *problem = search->problem;
    struct key_tile *key = &search->key[search->keys];
    struct nh_config config = {{0}};
    int32_t *value = config.value;
    if (!of_rank(shape, problem->rank) || !nh_sm90_boxes_fit(problem, shape) ||
        (abreast_of(shape) > 1 && (problem->rank < 3 || problem->has_bias)) ||
        !nh_walk_add(&search->extents, shape, &key->columns))
        return;
    memcpy(value + KX, shape, 3 * sizeof *shape);
    value[ABREAST] = abreast_of(shape);
    for (value[WARPGROUPS] = 2; value[WARPGROUPS] <= 3; value[WARPGROUPS]++) {
        int of = value[WARPGROUPS] - 2;
        key->prices[of] = nh_fused90_prices_of(problem, search->device->backend, value);
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
            const struct nh_fused90_prices *prices = &key->prices[of];
            double keys = (double)(nh_box_volume(key->shape) * abreast_of(key->shape));
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
    return nh_fused90_launch_ns(search->problem, query->least_scale * busy, search->memory_ns);
}

static void add_queries(struct search *search, const int32_t shape[3], int32_t heads) {
    const struct nh_problem *problem = search->problem;
    const struct nh_cuda_device *cuda = search->device->backend;
    struct query_tile *query = &search->query[search->queries];
    int64_t rows = nh_box_volume(shape) * heads;
    if (!nh_sm90_boxes_fit(problem, shape) ||
        !nh_walk_rows_of(&search->counts, shape, shape, &query->whole))
        return;
    query->shape = shape;
    query->heads = heads;
    query->warpgroups = (int32_t)nh_ceil_div(rows, 64);
    double copies = (double)(problem->batch * problem->heads / heads);
    double items = nh_walk_items(&query->whole);
    query->shares =
        nh_cluster_possible(cuda->multiprocessors, copies * items) && !problem->has_bias;
    query->scale = nh_fused90_scale(cuda, copies, items);
    query->least_scale = query->shares ? copies : query->scale;
    query->least_ns = problem->has_bias ? 0 : least_of_queries(search, query);
    search->any |= query->least_ns > 0 && isfinite(query->least_ns);
    search->queries++;
}

/* ---- pairs ---- */

/* With the stages of `value`. */
static void try_pair(struct search *search, const struct query_tile *query,
                     const struct nh_config *tried, const struct key_tile *key,
                     const struct nh_fused90_walks *of_items) {
    const struct nh_problem *problem = search->problem;
    const struct nh_cuda_device *cuda = search->device->backend;
    const int32_t *value = tried->value;
    const struct nh_fused90_prices *prices = &key->prices[query->warpgroups - 2];
    const struct nh_fused90_walks *walks = of_items;
    struct nh_fused90_prices of_boxes;
    struct nh_fused90_walks of_blocks;
    double cluster = 1, scale = query->scale;
    if (problem->has_bias) {
        of_boxes = nh_fused90_prices_of(problem, cuda, value);
        prices = &of_boxes;
    }
    if (query->shares) cluster = nh_fused90_cluster_of(problem, cuda, value, &of_items->fetched);
    if (cluster > 1) {
        of_blocks = nh_fused90_walks_of_blocks(of_items, value[WARPGROUPS], cluster);
        walks = &of_blocks;
        scale = nh_fused90_scale(cuda, nh_fused90_copies(problem, value), walks->seen.items);
    }
    double busy = scale * nh_fused90_busy_ns(problem, value, prices, walks, key->extra, cluster);
    search->any = true;
    nh_top_n_add(search->best, tried, nh_fused90_launch_ns(problem, busy, search->memory_ns));
}

/* No config of these tiles takes less: none waits for others, nothing is masked, no cluster meets. */
static double least_of_pair(const struct search *search, const struct query_tile *query,
                            const struct key_tile *key, const struct nh_walk_rows *parts) {
    const struct nh_fused90_prices *prices = &key->prices[query->warpgroups - 2];
    double tiles = nh_walk_visits(parts, key->columns) * (prices->tile - prices->spared) +
                   nh_walk_visits(&query->whole, key->columns) * prices->fetch;
    double busy = tiles / abreast_of(key->shape) + nh_walk_items(&query->whole) * prices->item;
    return nh_fused90_launch_ns(search->problem, query->least_scale * busy, search->memory_ns);
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
        if (!biased && least_of_pair(search, query, key, parts) >= nh_top_n_limit(search->best))
            continue;
        const struct nh_fused90_walks walks =
            value[ABREAST] > 1
                ? nh_fused90_walks_of(search->problem, value)
                : (struct nh_fused90_walks){nh_walk_count(&query->whole, key->columns),
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
        if (!nh_sm90_warpgroup_tile(q, query->heads, queries.value[STACK], slab) ||
            (search->problem->has_bias && query->heads == 1 && !nh_sm90_pairs(slab)) ||
            !nh_walk_rows_of(&search->counts, q, slab, &parts))
            continue;
        try_parts(search, query, &queries, &parts);
    }
}

/* Slabs are full, or sevens that fit. */
static bool rows_fit(const struct nh_problem *problem, const int32_t shape[3], int32_t heads) {
    int64_t rows = nh_box_volume(shape) * heads;
    if (rows == 128 || rows == 192) return true;
    return (rows == 112 || rows == 168) && !problem->has_bias && nh_sm90_sevens_fit(problem, shape);
}

/* Of two and three slabs, where they are not among the others. */
static void add_covering(struct search *search) {
    for (int32_t slabs = 2; slabs <= 3; slabs++) {
        int32_t *tile = search->covering[slabs - 2];
        bool known = !nh_covering_tile(search->problem, slabs, tile);
        for (size_t i = 0; i < Q_SHAPES && !known; i++)
            known = !memcmp(tile, q_shapes[i], sizeof q_shapes[i]);
        if (!known) add_queries(search, tile, 1);
    }
}

/* Of those that suit, or of all. */
static void find_tiles(struct search *search, bool all) {
    const struct nh_problem *problem = search->problem;
    int64_t sharing = problem->heads / problem->kv_heads;
    search->keys = search->queries = 0;
    memset(&search->extents, 0, sizeof search->extents);
    for (size_t i = 0; i < KEY_TILES; i++)
        if (all || nh_sm90_suits(problem, k_shapes[i])) add_keys(search, k_shapes[i]);
    if (!search->keys) return;
    nh_walk_start(&search->counts, problem, false, true, &search->extents);
    find_least(search);
    for (size_t i = 0; i < Q_SHAPES; i++) {
        if (!of_rank(q_shapes[i], problem->rank) || !(all || nh_sm90_suits(problem, q_shapes[i])))
            continue;
        for (int32_t heads = 1; heads <= MOST_HEADS && sharing % heads == 0; heads *= 2)
            if (rows_fit(problem, q_shapes[i], heads) &&
                (heads == 1 || nh_map_layout_of(problem, NHOOD_Q) <= NH_MAP_ONE_BATCH))
                add_queries(search, q_shapes[i], heads);
    }
    if (problem->rank > 1 && !problem->has_bias) add_covering(search);
}

/* What the tile of queries takes that promises most: nothing that takes more is the best. */
static double probe(struct search *search) {
    struct nh_top_n *best = search->best, probed;
    const struct query_tile *lowest = search->query;
    struct nh_config config;
    for (int i = 1; i < search->queries; i++)
        if (search->query[i].least_ns < lowest->least_ns) lowest = &search->query[i];
    nh_top_configs_start(&probed, best->below_ns, &config, 1);
    search->best = &probed;
    try_queries(search, lowest);
    search->best = best;
    return nh_top_n_limit(&probed);
}

static void try_tiles(struct search *search, bool all) {
    const double rounding = 1 + 1e-9;
    struct nh_top_n *best = search->best;
    find_tiles(search, all);
    if (best->capacity == 1 && search->queries > 1 && !search->problem->has_bias)
        best->below_ns = fmin(best->below_ns, rounding * probe(search));
    for (int i = 0; i < search->queries; i++)
        if (search->query[i].least_ns < nh_top_n_limit(best))
            try_queries(search, &search->query[i]);
}

void nh_fused90_search(const struct nh_problem *problem, const struct nh_device *device,
                       struct nh_top_n *best) {
    const struct nh_cuda_device *cuda = device->backend;
    struct search search;
    search.problem = problem;
    search.device = device;
    search.memory_ns = nh_cuda_memory_ns(problem, cuda);
    search.any = false;
    search.best = best;
    try_tiles(&search, false);
    if (!search.any) try_tiles(&search, true);
    struct nh_config *config = best->item;
    for (int i = 0; i < best->count; i++) {
        int32_t *value = config[i].value;
        value[ORDER] = nh_tiling_order(problem, value + QX, cuda->multiprocessors);
    }
}
