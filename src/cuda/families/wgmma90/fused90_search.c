/* The search for the tiles of queries and keys with which cuda.fused90 is fastest. Query tiles are skipped if their
 * cost with any keys is too high, and pairs if their cost without masks is. */
#include "cluster.h"
#include "predict.h"
#include "tile_count.h"
#include "fused90_search.h"
#include "fused90_work.h"
#include "tiling.h"

#include <math.h>
#include <string.h>

/* Boxes of fewer than LEAST_KEYS keys share a key tile of TILE_KEYS keys if they have several lines along x; otherwise
 * masks would cost what that saves. */
enum { LEAST_KEYS = 48, TILE_KEYS = 64 };

/* Shapes of query tiles, per rank: boxes near a cube have the smallest halo, long ones the fewest border tiles. A tile
 * of fewer than 112 positions is filled up with heads that share their keys; tiles of 112 and 168 have warpgroup tiles
 * of 56 rows, for grids of multiples of 7. */
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

enum {
    MOST_STAGES = 4,
    MOST_PLANE_STAGES = 8, /* where warps skip planes */
    MOST_HEADS = 16,
    MOST_RANKED = 12,
    KEY_TILES = sizeof k_shapes / sizeof *k_shapes,
    Q_SHAPES = sizeof q_shapes / sizeof *q_shapes,
    QUERY_TILES = 5 * Q_SHAPES + 2 /* with 1 to MOST_HEADS heads; two covering tiles */
};

/* Clocks of a block on a full device: per tile that it fetches, per tile that a warpgroup multiplies, for the masks of
 * one, and for itself. */
struct prices {
    double fetched, seen, masked, block;
};

/* A key tile with, for two and three warpgroups, its prices and the stages that fit, without and with queries in
 * registers; 0: it does not run. With a bias, the stages also depend on the query tile. */
struct key_tile {
    const int32_t *shape;
    struct nh_loop_columns columns;
    struct prices prices[2];
    int32_t stages[2][2];
};

/* A query tile: positions and heads, and the counts of its loops as a whole. */
struct query_tile {
    const int32_t *shape;
    int32_t heads, warpgroups;
    struct nh_loop_rows whole;
};

/* One of the pairs with the least work so far. */
struct ranked {
    const struct key_tile *key;
    struct nh_config config;
    struct nh_fused90_loops loops;
};

struct search {
    const struct nh_problem *problem;
    const struct nh_device *device;
    struct nh_loop_extents extents;
    struct nh_loop_counts counts;
    struct key_tile key[KEY_TILES];
    struct query_tile query[QUERY_TILES];
    int32_t covering[2][3];
    bool any;   /* some pair runs */
    bool parts; /* tensors cover a part of a grid, or some axis is periodic */
    int keys, queries;
    double below; /* configs with more clocks of all blocks together are skipped */
    struct ranked ranked[MOST_RANKED]; /* least clocks first */
    struct nh_top_n top;
};

static int32_t stages_of(const struct search *search, int32_t most, int32_t *value) {
    const struct nh_cuda_device *cuda = search->device->backend;
    if (!nh_fused90_registers_fit(search->problem, value)) return 0;
    for (value[STAGES] = most; value[STAGES] > 1; value[STAGES]--)
        if (nh_fused90_shared_bytes(search->problem, value) <= cuda->shared_bytes_per_block)
            return value[STAGES];
    return 0;
}

static int32_t boxes_per_tile(const int32_t box[3]) {
    int32_t keys = box[0] * box[1] * box[2];
    return keys < LEAST_KEYS ? TILE_KEYS / keys : 1;
}

/* ---- tiles of keys ---- */

static double block_clocks(const struct search *search, const int32_t *value, double fetched,
                           double seen, double masked) {
    const struct nh_fused90_loops loops = {.fetched = {1e6, 1e6 * fetched, 0, fetched},
                                           .seen = {1e6, 1e6 * seen, 1e6 * masked, fetched}};
    struct nh_work work;
    nh_fused90_work_of(search->problem, search->device->backend, value, &loops, &work);
    return nh_predict_block_clocks(search->device->backend, &work.launch[0]);
}

static struct prices prices_of(const struct search *search, int32_t *value) {
    value[STACK] = 1; /* masks that are not computed per line */
    double one = block_clocks(search, value, 1, 1, 0);
    struct prices prices = {.fetched = block_clocks(search, value, 2, 1, 0) - one,
                            .seen = block_clocks(search, value, 1, 2, 0) - one,
                            .masked = block_clocks(search, value, 1, 1, 1) - one};
    prices.block = one - prices.fetched - prices.seen;
    return prices;
}

/* A key tile with as many keys that was added before: it has the same prices and stages. NULL if there is none, or if
 * there is a bias, whose boxes depend on more than the number of keys. */
static const struct key_tile *alike(const struct search *search, const int32_t *value) {
    for (int i = 0; i < search->keys && !search->problem->has_bias; i++)
        if (nh_box_volume(search->key[i].shape) * boxes_per_tile(search->key[i].shape) ==
            nh_fused90_keys(value))
            return &search->key[i];
    return NULL;
}

static void price(const struct search *search, int32_t *value, struct key_tile *key) {
    for (value[WARPGROUPS] = 2; value[WARPGROUPS] <= 3; value[WARPGROUPS]++) {
        int of = value[WARPGROUPS] - 2;
        key->prices[of] = prices_of(search, value);
        for (value[Q_IN_REGISTERS] = 1; value[Q_IN_REGISTERS] >= 0; value[Q_IN_REGISTERS]--)
            key->stages[of][value[Q_IN_REGISTERS]] = stages_of(search, MOST_STAGES, value);
        value[Q_IN_REGISTERS] = 0;
    }
}

static void add_keys(struct search *search, const int32_t shape[3]) {
    const struct nh_problem *problem = search->problem;
    struct key_tile *key = &search->key[search->keys];
    struct nh_config config = {{1, 1, 128, 1}};
    int32_t *value = config.value;
    if (!nh_sm90_boxes_fit(problem, shape) ||
        (boxes_per_tile(shape) > 1 && (problem->rank < 3 || problem->has_bias)) ||
        !nh_loop_extents_add(&search->extents, shape, &key->columns))
        return;
    memcpy(value + KX, shape, 3 * sizeof *shape);
    value[TILE_BOXES] = boxes_per_tile(shape);
    const struct key_tile *same = alike(search, value);
    if (same) {
        memcpy(key->prices, same->prices, sizeof key->prices);
        memcpy(key->stages, same->stages, sizeof key->stages);
    } else {
        price(search, value, key);
    }
    key->shape = shape;
    search->keys++;
}

/* ---- tiles of queries ---- */

static void add_queries(struct search *search, const int32_t shape[3], int32_t heads) {
    struct query_tile *query = &search->query[search->queries];
    int32_t rows = shape[0] * shape[1] * shape[2] * heads;
    if (!nh_sm90_boxes_fit(search->problem, shape) ||
        !nh_loop_rows_of(&search->counts, shape, shape, &query->whole))
        return;
    query->shape = shape;
    query->heads = heads;
    query->warpgroups = (int32_t)nh_ceil_div(rows, 64);
    search->queries++;
}

/* ---- pairs ---- */

/* Whether warpgroup tiles are full, or have multiples of 7 rows that fit the grid. */
static bool rows_fit(const struct nh_problem *problem, const int32_t shape[3], int32_t heads) {
    int64_t rows = nh_box_volume(shape) * heads;
    if (rows == 128 || rows == 192) return true;
    return (rows == 112 || rows == 168) && !problem->has_bias && nh_sm90_sevens_fit(problem, shape);
}

/* Whether a tile of this shape may have so many heads: they must fill it, and the copy engine be able to fetch them
 * together. */
static bool may_share(const struct nh_problem *problem, const int32_t shape[3], int32_t heads) {
    return (problem->heads / problem->kv_heads) % heads == 0 && rows_fit(problem, shape, heads) &&
           (heads == 1 || nh_map_layout_of(problem, NHOOD_Q) <= NH_MAP_ONE_BATCH);
}

static bool may_own(const struct nh_problem *problem, const int32_t shape[3]) {
    bool any = false;
    for (int32_t heads = 1; heads <= MOST_HEADS; heads *= 2)
        any = any || may_share(problem, shape, heads);
    return any && nh_sm90_boxes_fit(problem, shape);
}

bool nh_fused90_goes_around(const struct nh_problem *problem) {
    for (size_t q = 0; q < Q_SHAPES; q++)
        for (size_t k = 0; k < KEY_TILES; k++)
            if (may_own(problem, q_shapes[q]) && nh_sm90_boxes_fit(problem, k_shapes[k]) &&
                nh_tiling_laps_fit(problem, q_shapes[q], k_shapes[k], false))
                return true;
    return false;
}

/* The share of a work tile that one block computes: if there are few work tiles, clusters share them. */
static double share_of(const struct search *search, const struct query_tile *query,
                       const struct key_tile *key, struct nh_config config) {
    const struct nh_cuda_device *cuda = search->device->backend;
    double work_tiles = nh_loop_work_tiles(&query->whole);
    if (!nh_cluster_possible(cuda->multiprocessors,
                             nh_fused90_copies(search->problem, config.value) * work_tiles))
        return 1;
    const struct nh_tiling_count fetched = nh_loop_count(&query->whole, key->columns);
    const int32_t *stages = key->stages[query->warpgroups - 2];
    memcpy(config.value + KX, key->shape, 3 * sizeof *key->shape);
    config.value[TILE_BOXES] = boxes_per_tile(key->shape);
    config.value[STAGES] = stages[stages[0] ? 0 : 1];
    return 1.0 / nh_fused90_cluster_of(search->problem, cuda, config.value, &fetched);
}

/* Tries a query tile, cut into warpgroup tiles, with every key tile, and keeps the pairs with the least work on a full
 * device. The last wave counts as a full one. */
static void try_parts(struct search *search, const struct query_tile *query,
                      const struct nh_config *queries, const struct nh_loop_rows *parts) {
    const struct nh_cuda_device *cuda = search->device->backend;
    bool biased = search->problem->has_bias;
    double copies = nh_fused90_copies(search->problem, queries->value);
    double work_tiles = nh_loop_work_tiles(&query->whole),
           waves = copies * work_tiles / cuda->multiprocessors;
    double whole_waves = ceil(waves) / work_tiles;
    for (const struct key_tile *key = search->key; key < search->key + search->keys; key++) {
        const struct prices *prices = &key->prices[query->warpgroups - 2];
        const int32_t *stages = key->stages[query->warpgroups - 2];
        struct ranked ranked = {.key = key, .config = *queries};
        double limit = nh_top_n_limit(&search->top);
        int32_t boxes = boxes_per_tile(key->shape);
        if ((boxes > 1 && queries->value[STACK] != 0) || !(biased || stages[0] || stages[1]) ||
            (search->parts &&
             !nh_tiling_laps_fit(search->problem, query->shape, key->shape, false)))
            continue;
        double fetched = nh_loop_visits(&query->whole, key->columns),
               seen = nh_loop_visits(parts, key->columns), block = work_tiles * prices->block,
               scale = whole_waves * share_of(search, query, key, *queries);
        double clocks = block + (fetched * prices->fetched + seen * prices->seen) / boxes;
        if (scale * clocks >= limit) continue;
        search->any = true;
        if (copies * clocks >= search->below) continue;
        memcpy(ranked.config.value + KX, key->shape, 3 * sizeof *key->shape);
        ranked.config.value[TILE_BOXES] = boxes;
        ranked.loops = boxes > 1
                           ? nh_fused90_loops_of(search->problem, ranked.config.value)
                           : (struct nh_fused90_loops){nh_loop_count(&query->whole, key->columns),
                                                       nh_loop_count(parts, key->columns)};
        double work = scale * (block + ranked.loops.fetched.visited * prices->fetched +
                               ranked.loops.seen.visited * prices->seen +
                               ranked.loops.seen.partial * prices->masked);
        nh_top_n_add(&search->top, &ranked, work);
    }
}

/* Tries a query tile cut into warpgroup tiles along each axis. */
static void try_queries(struct search *search, const struct query_tile *query) {
    const int32_t *q = query->shape;
    struct nh_config queries = {{q[0], q[1], q[2], query->heads}};
    struct nh_loop_rows parts;
    int32_t warpgroup_tile[3];
    queries.value[WARPGROUPS] = query->warpgroups;
    for (queries.value[STACK] = 0; queries.value[STACK] < NH_AXES; queries.value[STACK]++) {
        if (!nh_sm90_warpgroup_tile(q, query->heads, queries.value[STACK], warpgroup_tile) ||
            (search->problem->has_bias && query->heads == 1 && !nh_sm90_pairs(warpgroup_tile)) ||
            !nh_loop_rows_of(&search->counts, q, warpgroup_tile, &parts))
            continue;
        try_parts(search, query, &queries, &parts);
    }
}

/* Predicts a pair of tiles with and without queries in registers. */
static void predict_pair(struct search *search, struct ranked *ranked, struct nh_top_n *best) {
    const struct nh_problem *problem = search->problem;
    const struct nh_cuda_device *cuda = search->device->backend;
    int32_t *value = ranked->config.value;
    const double work_tiles = nh_fused90_copies(problem, value) * ranked->loops.fetched.work_tiles;
    const bool deep = nh_fused90_skips_planes(problem, value) &&
                      !nh_cluster_possible(cuda->multiprocessors, work_tiles);
    for (value[Q_IN_REGISTERS] = 0; value[Q_IN_REGISTERS] <= 1; value[Q_IN_REGISTERS]++) {
        struct nh_work work;
        if (deep) {
            value[STAGES] = stages_of(search, MOST_PLANE_STAGES, value);
        } else if (problem->has_bias) {
            value[STAGES] = stages_of(search, MOST_STAGES, value);
        } else {
            value[STAGES] = ranked->key->stages[value[WARPGROUPS] - 2][value[Q_IN_REGISTERS]];
        }
        if (!value[STAGES]) continue;
        nh_fused90_work_of(problem, search->device->backend, value, &ranked->loops, &work);
        nh_top_n_add(best, &ranked->config, nh_predict(search->device->backend, &work, NULL));
    }
}

/* Adds the covering tiles of two and three warpgroups, unless they are among the others. */
static void add_covering(struct search *search) {
    for (int32_t warpgroups = 2; warpgroups <= 3; warpgroups++) {
        int32_t *tile = search->covering[warpgroups - 2];
        bool known = !nh_covering_tile(search->problem, warpgroups, tile);
        for (size_t i = 0; i < Q_SHAPES && !known; i++)
            known = !memcmp(tile, q_shapes[i], sizeof q_shapes[i]);
        if (!known) add_queries(search, tile, 1);
    }
}

/* Collects the tiles that suit the problem or, with `all`, every one that runs. */
static void find_tiles(struct search *search, bool all) {
    const struct nh_problem *problem = search->problem;
    search->keys = search->queries = 0;
    memset(&search->extents, 0, sizeof search->extents);
    for (size_t i = 0; i < KEY_TILES; i++)
        if (all || nh_sm90_suits(problem, k_shapes[i], true)) add_keys(search, k_shapes[i]);
    if (!search->keys) return;
    nh_loop_counts_start(&search->counts, problem, false, true, &search->extents);
    for (size_t i = 0; i < Q_SHAPES; i++) {
        if (!(all || nh_sm90_suits(problem, q_shapes[i], false))) continue;
        for (int32_t heads = 1; heads <= MOST_HEADS; heads *= 2)
            if (may_share(problem, q_shapes[i], heads)) add_queries(search, q_shapes[i], heads);
    }
    if (problem->rank > 1 && !problem->has_bias) add_covering(search);
}

/* Tries the pairs of these tiles; returns whether any runs. */
static bool try_tiles(struct search *search, bool all, struct nh_top_n *best) {
    search->any = false;
    find_tiles(search, all);
    nh_top_n_start(&search->top, INFINITY, search->ranked, sizeof *search->ranked, MOST_RANKED);
    for (int i = 0; i < search->queries; i++)
        try_queries(search, &search->query[i]);
    for (int i = 0; i < search->top.count; i++)
        predict_pair(search, &search->ranked[i], best);
    return search->any;
}

void nh_fused90_search(const struct nh_problem *problem, const struct nh_device *device,
                       struct nh_top_n *best) {
    const struct nh_cuda_device *cuda = device->backend;
    struct search search;
    search.problem = problem;
    search.device = device;
    search.parts = nh_problem_partial(problem) || nh_problem_periodic(problem);
    search.below = best->below_ns * nh_predict_clocks_per_ns(cuda);
    if (!try_tiles(&search, false, best)) try_tiles(&search, true, best);
    struct nh_config *config = best->item;
    for (int i = 0; i < best->count; i++) {
        int32_t *value = config[i].value;
        value[ORDER] = nh_tiling_order(problem, value + QX, false, cuda->multiprocessors);
    }
}
