/* The search for the tiles of queries and keys with which cuda.fused90 is fastest. Query tiles are skipped if their
 * cost with any keys is too high, and pairs if their cost without masks is. */
#include "fused90.h"
#include "launch90.h"
#include "predict.h"
#include "tensor_maps.h"

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
    /* The order of work tiles where key tiles are planes of whole lines: lines next to each other in
     * memory are then fetched at about the same time, which for windows of 11 x 11 x 11 on
     * 121 x 272 x 480 tokens takes 3 % less (docs/log/wgmma90.md, 2026-11-28). */
    ALONG_LINES = 0,
    KEY_TILES = sizeof k_shapes / sizeof *k_shapes,
    Q_SHAPES = sizeof q_shapes / sizeof *q_shapes
};

/* Clocks of a block on a full device: per tile that it fetches, per tile that a warpgroup multiplies, for the masks of
 * one, and for itself. */
struct prices {
    double fetched, seen, masked, block;
};

/* A key tile with, for two and three warpgroups, its prices and whether it runs, which with a bias also depends on the
 * query tile. */
struct key_tile {
    const int32_t *shape;
    struct nh_loop_columns columns;
    struct prices prices[2];
    bool runs[2];
};

/* One of the pairs with the least work so far. */
struct ranked {
    struct nh_config config;
    struct nh_fused90_loops loops;
};

struct search {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    bool for_group;
    struct nh_loop_counts counts;
    struct key_tile key[KEY_TILES + 1];
    int keys;
    int32_t lines[3]; /* the key tile of whole lines */
    bool any;         /* some pair runs */
    bool region;      /* tensors cover a part of a grid, or some axis is periodic */
    struct ranked ranked[MOST_RANKED]; /* least clocks first */
    struct nh_top_n top;
};

static struct nh_fused90 with(const struct search *search, const int32_t *value) {
    return (struct nh_fused90){search->problem, search->cuda, value, search->for_group};
}

static int32_t boxes_per_tile(const int32_t box[3]) {
    int64_t keys = nh_box_volume(box);
    return (int32_t)(keys < LEAST_KEYS ? TILE_KEYS / keys : 1);
}

static void set_keys(int32_t *value, const int32_t shape[3]) {
    memcpy(value + KX, shape, 3 * sizeof *shape);
    value[TILE_BOXES] = boxes_per_tile(shape);
}

/* Sets the most stages that fit, at first without queries in registers; false: it does not run. */
static bool set_stages(const struct search *search, int32_t *value) {
    const struct nh_fused90 of = with(search, value);
    for (value[Q_IN_REGISTERS] = 0; value[Q_IN_REGISTERS] <= 1; value[Q_IN_REGISTERS]++)
        if ((value[STAGES] = nh_fused90_stages(&of, MOST_STAGES)) > 0) return true;
    return false;
}

/* ---- tiles of keys ---- */

static double block_clocks(const struct search *search, const int32_t *value, double fetched,
                           double seen, double masked) {
    const struct nh_fused90 of = with(search, value);
    const struct nh_fused90_loops loops = {.fetched = {1e6, 1e6 * fetched, 0, fetched},
                                           .seen = {1e6, 1e6 * seen, 1e6 * masked, fetched}};
    struct nh_work work;
    nh_work_start(&work, NH_OPERATION_FUSED90, search->problem);
    nh_fused90_add_work(&of, &loops, &work);
    return nh_predict_block_clocks(search->cuda, &work.launch[0]);
}

static void price(const struct search *search, int32_t *value, struct key_tile *key) {
    value[STACK] = 1; /* masks that are not computed per line */
    for (int i = 0; i < 2; i++) {
        value[WARPGROUPS] = i + 2;
        value[Q_IN_REGISTERS] = 0;
        double one = block_clocks(search, value, 1, 1, 0);
        struct prices *prices = &key->prices[i];
        prices->fetched = block_clocks(search, value, 2, 1, 0) - one;
        prices->seen = block_clocks(search, value, 1, 2, 0) - one;
        prices->masked = block_clocks(search, value, 1, 1, 1) - one;
        prices->block = one - prices->fetched - prices->seen;
        key->runs[i] = search->problem->has_bias || set_stages(search, value);
    }
}

static void add_keys(struct search *search, struct nh_loop_extents *extents,
                     const int32_t shape[3]) {
    struct key_tile *key = &search->key[search->keys];
    struct nh_config config = {{1, 1, 128, 1}};
    if (!nh_sm90_boxes_fit(search->problem, shape) ||
        (boxes_per_tile(shape) > 1 && (search->problem->rank < 3 || search->problem->has_bias)) ||
        !nh_loop_extents_add(extents, shape, &key->columns))
        return;
    set_keys(config.value, shape);
    price(search, config.value, key);
    key->shape = shape;
    search->keys++;
}

/* ---- tiles of queries ---- */

/* Whether a tile of this shape may have so many heads. With them, warpgroup tiles must be full, or have multiples of 7
 * rows that fit the grid, and the copy engine must be able to fetch the heads together. */
static bool may_share(const struct nh_problem *problem, const int32_t shape[3], int32_t heads) {
    int64_t rows = nh_box_volume(shape) * heads;
    bool full = rows == 128 || rows == 192, sevens = rows == 112 || rows == 168;
    return (problem->heads / problem->kv_heads) % heads == 0 &&
           (full || (sevens && !problem->has_bias && nh_sm90_sevens_fit(problem, shape))) &&
           (heads == 1 || nh_map_layout_of(problem, NHOOD_Q) <= NH_MAP_ONE_BATCH);
}

bool nh_fused90_goes_around(const struct nh_problem *problem) {
    for (size_t q = 0; q < Q_SHAPES; q++)
        for (int32_t heads = 1; heads <= MOST_HEADS; heads *= 2)
            for (size_t k = 0; k < KEY_TILES && may_share(problem, q_shapes[q], heads); k++)
                if (nh_sm90_boxes_fit(problem, q_shapes[q]) &&
                    nh_sm90_boxes_fit(problem, k_shapes[k]) &&
                    nh_tiling_laps_fit(problem, q_shapes[q], k_shapes[k], false))
                    return true;
    return false;
}

/* ---- pairs ---- */

/* The share of a work tile that one block computes: if there are few work tiles, clusters share them. */
static double share_of(const struct search *search, struct nh_config config,
                       const struct nh_tiling_count *fetched) {
    const struct nh_fused90 of = with(search, config.value);
    if (!nh_cluster_possible(search->cuda->multiprocessors,
                             nh_fused90_copies(&of) * fetched->work_tiles))
        return 1;
    set_stages(search, config.value);
    return 1.0 / nh_fused90_cluster(&of, fetched);
}

/* Tries a query tile, cut into warpgroup tiles, with every key tile, and keeps the pairs with the least work on a full
 * device. The last wave counts as a full one. Pairs that take too long without masks are left out early, as tiles of
 * several boxes take long to count. */
static void try_key_tiles(struct search *search, const struct nh_config *queries,
                          const struct nh_loop_rows *whole,
                          const struct nh_loop_rows *by_warpgroup) {
    const int warpgroups = queries->value[WARPGROUPS];
    for (const struct key_tile *key = search->key; key < search->key + search->keys; key++) {
        const struct prices *prices = &key->prices[warpgroups - 2];
        struct ranked ranked = {.config = *queries};
        int32_t *value = ranked.config.value, boxes = boxes_per_tile(key->shape);
        const struct nh_fused90 of = with(search, value);
        if ((boxes > 1 && value[STACK] != 0) || !key->runs[warpgroups - 2] ||
            (search->region && !nh_tiling_laps_fit(search->problem, value + QX, key->shape, false)))
            continue;
        set_keys(value, key->shape);
        if (nh_fused90_has_mask_step(value) && !nh_fused90_skips(&of)) continue;
        ranked.loops.fetched = nh_loop_count(whole, key->columns);
        ranked.loops.seen = nh_loop_count(by_warpgroup, key->columns);
        const struct nh_tiling_count *fetched = &ranked.loops.fetched, *seen = &ranked.loops.seen;
        double copies = nh_fused90_copies(&of), work_tiles = fetched->work_tiles,
               waves = copies * work_tiles / search->cuda->multiprocessors;
        double scale = ceil(waves) / work_tiles * share_of(search, ranked.config, fetched);
        double block = work_tiles * prices->block;
        double clocks =
            block + (fetched->visited * prices->fetched + seen->visited * prices->seen) / boxes;
        if (scale * clocks >= nh_top_n_limit(&search->top)) continue;
        search->any = true;
        if (boxes > 1) ranked.loops = nh_fused90_loops_of(&of);
        double work = block + fetched->visited * prices->fetched + seen->visited * prices->seen +
                      seen->partial * prices->masked;
        nh_top_n_add(&search->top, &ranked, scale * work);
    }
}

/* Tries a tile of these queries of so many heads, cut into warpgroup tiles along each axis. */
static void try_queries(struct search *search, const int32_t q[3], int32_t heads) {
    struct nh_config queries = {{q[0], q[1], q[2], heads}};
    struct nh_loop_rows whole, by_warpgroup;
    int32_t warpgroup_tile[3], *stack = &queries.value[STACK];
    if (!nh_sm90_boxes_fit(search->problem, q)) return;
    nh_loop_rows_of(&search->counts, q, q, &whole);
    queries.value[WARPGROUPS] = (int32_t)nh_ceil_div(nh_box_volume(q) * heads, 64);
    for (*stack = 0; *stack < NH_AXES; ++*stack)
        if (nh_sm90_warpgroup_tile(q, heads, *stack, warpgroup_tile) &&
            (!search->problem->has_bias || heads > 1 || nh_sm90_pairs(warpgroup_tile))) {
            nh_loop_rows_of(&search->counts, q, warpgroup_tile, &by_warpgroup);
            try_key_tiles(search, &queries, &whole, &by_warpgroup);
        }
}

/* Tries the covering tiles of two and three warpgroups, unless they are among the others. */
static void try_covering(struct search *search) {
    for (int32_t warpgroups = 2; warpgroups <= 3; warpgroups++) {
        int32_t tile[3];
        bool known = !nh_covering_tile(search->problem, warpgroups, tile);
        for (size_t i = 0; i < Q_SHAPES && !known; i++)
            known = !memcmp(tile, q_shapes[i], sizeof q_shapes[i]);
        if (!known) try_queries(search, tile, 1);
    }
}

/* Predicts a pair of tiles with and without queries in registers. */
static void predict_pair(struct search *search, struct ranked *ranked, struct nh_top_n *best) {
    int32_t *value = ranked->config.value;
    const struct nh_fused90 of = with(search, value);
    const double work_tiles = nh_fused90_copies(&of) * ranked->loops.fetched.work_tiles;
    const bool deep =
        nh_fused90_skips(&of) && !nh_cluster_possible(search->cuda->multiprocessors, work_tiles);
    for (value[Q_IN_REGISTERS] = 0; value[Q_IN_REGISTERS] <= 1; value[Q_IN_REGISTERS]++) {
        struct nh_work work;
        value[STAGES] = nh_fused90_stages(&of, deep ? MOST_PLANE_STAGES : MOST_STAGES);
        if (!value[STAGES]) continue;
        nh_work_start(&work, NH_OPERATION_FUSED90, search->problem);
        nh_fused90_add_work(&of, &ranked->loops, &work);
        nh_top_n_add(best, &ranked->config, nh_predict(search->cuda, &work, NULL));
    }
}

/* Tries the pairs of tiles that suit the problem or, with `all`, of all tiles; returns whether any runs. */
static bool try_tiles(struct search *search, bool all, struct nh_top_n *best) {
    const struct nh_problem *problem = search->problem;
    struct nh_loop_extents extents = {.count = {0}};
    search->any = false;
    search->keys = 0;
    nh_top_n_start(&search->top, search->ranked, sizeof *search->ranked, MOST_RANKED);
    for (size_t i = 0; i < KEY_TILES; i++)
        if (all || nh_sm90_suits(problem, k_shapes[i], true))
            add_keys(search, &extents, k_shapes[i]);
    if (nh_fused90_lines(problem, search->lines)) add_keys(search, &extents, search->lines);
    nh_loop_counts_start(&search->counts, problem, false, true, &extents);
    for (size_t i = 0; i < Q_SHAPES && search->keys; i++) {
        if (!(all || nh_sm90_suits(problem, q_shapes[i], false))) continue;
        for (int32_t heads = 1; heads <= MOST_HEADS; heads *= 2)
            if (may_share(problem, q_shapes[i], heads)) try_queries(search, q_shapes[i], heads);
    }
    if (problem->rank > 1 && !problem->has_bias) try_covering(search);
    for (int i = 0; i < search->top.count; i++)
        predict_pair(search, &search->ranked[i], best);
    return search->any;
}

void nh_fused90_search(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                       bool for_group, struct nh_top_n *best) {
    struct search search;
    search.problem = problem;
    search.cuda = cuda;
    search.for_group = for_group;
    search.region = nh_problem_cut(problem);
    if (!try_tiles(&search, false, best)) try_tiles(&search, true, best);
    struct nh_config *config = best->item;
    for (int i = 0; i < best->count; i++) {
        int32_t *value = config[i].value;
        value[ORDER] = problem->rank == 3 && nh_fused90_has_mask_step(value)
                           ? ALONG_LINES
                           : nh_tiling_order(problem, value + QX, false, cuda->multiprocessors);
    }
}
