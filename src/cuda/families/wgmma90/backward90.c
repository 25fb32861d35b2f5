/* The backward on sm_90: what its solvers share. */
#include "backward90.h"

#include "covering_tile.h"
#include "cluster.h"
#include "load.h"
#include "top_n.h"
#include "walk_counts.h"

#include <math.h>
#include <string.h>

enum { WARPGROUPS = NH_BACKWARD90_WARPGROUPS, STATS_BYTES = 16 };

/* ---- tiles ---- */

/* Tiles of 112 rows are slabs of 56, for grids of a multiple of 7. */
static const int32_t own_shapes[][3] = {{1, 1, 128}, {1, 16, 8}, {1, 8, 16}, {1, 4, 32}, {2, 8, 8},
                                        {4, 4, 8},   {2, 4, 16}, {8, 4, 4},  {4, 8, 4},  {1, 4, 28},
                                        {1, 8, 14},  {1, 16, 7}, {8, 2, 7},  {4, 4, 7},  {4, 2, 14},
                                        {2, 4, 14},  {2, 8, 7},  {16, 1, 7}};
static const int32_t walk_shapes[][3] = {
    {1, 1, 32}, {1, 1, 48}, {1, 1, 64}, {1, 1, 80}, {1, 1, 96}, {1, 1, 112}, {1, 1, 128},
    {1, 4, 8},  {1, 2, 16}, {1, 6, 8},  {1, 3, 16}, {1, 8, 8},  {1, 4, 16},  {1, 2, 32},
    {1, 10, 8}, {1, 5, 16}, {1, 12, 8}, {1, 6, 16}, {1, 14, 8}, {1, 16, 8},  {1, 8, 16},
    {2, 2, 8},  {4, 1, 8},  {2, 3, 8},  {3, 2, 8},  {2, 4, 8},  {4, 2, 8},   {2, 5, 8},
    {5, 2, 8},  {2, 6, 8},  {3, 4, 8},  {2, 8, 8},  {4, 4, 8},  {1, 2, 24},  {1, 4, 24},
    {2, 2, 24}, {1, 7, 16}, {7, 1, 16}, {7, 2, 8}};

static bool fits(const struct nh_problem *problem, const int32_t tile[3]) {
    for (int a = 0; a < NH_AXES - problem->rank; a++)
        if (tile[a] > 1) return false;
    return nh_sm90_boxes_fit(problem, tile);
}

static struct nh_backward90_walks walks_of(const struct nh_problem *problem,
                                           const struct nh_tiling_count *count, double columns,
                                           bool keys) {
    struct nh_backward90_walks walks = {count->items, count->visited, count->partial,
                                        count->longest, columns};
    double sharing = (double)(problem->heads / problem->kv_heads);
    double extra = (double)nh_ceil_div(problem->extra_tokens, (int64_t)columns);
    if (keys) {
        walks.items /= sharing;
        walks.longest *= sharing;
    } else {
        walks.tiles += extra * count->items;
        walks.longest += extra;
    }
    return walks;
}

struct nh_backward90_walks nh_backward90_walks_of(const struct nh_problem *problem,
                                                  const int32_t own[3], const int32_t walk[3],
                                                  bool keys) {
    const struct nh_tiling_count count =
        keys ? nh_tiling_inverse_count(problem, own, walk) : nh_tiling_count(problem, own, walk);
    return walks_of(problem, &count, (double)nh_box_volume(walk), keys);
}

/* ---- search ---- */

/* A tile to walk, and what it costs with those to own that were tried last. */
struct walked {
    const int32_t *shape;
    double columns;
    struct nh_walk_columns place;
    struct nh_backward90_prices prices;
    bool offered;
};

enum {
    OWNED = sizeof own_shapes / sizeof *own_shapes,
    WALKED = sizeof walk_shapes / sizeof *walk_shapes
};

struct state {
    const struct nh_backward90_search *search;
    double copies, sharing,
        multiprocessors; /* sharing: query heads of a key head, if blocks own keys */
    struct nh_walk_counts *counts;
    struct walked walked[WALKED];
    int shapes;
    bool known; /* prices are those of any tile to own */
    bool any;   /* of the pairs runs, cheap or not */
    struct nh_top_n best;
};

/* Of those that suit, or of all. */
static void find_walked(struct state *state, bool all, struct nh_walk_extents *extents) {
    const struct nh_problem *problem = state->search->problem;
    state->shapes = 0;
    for (int i = 0; i < WALKED; i++) {
        const int32_t *shape = walk_shapes[i];
        struct walked *walk = &state->walked[state->shapes];
        if (!fits(problem, shape) || !(all || nh_sm90_suits(problem, shape)) ||
            !nh_walk_add(extents, shape, &walk->place))
            continue;
        walk->shape = shape;
        walk->columns = (double)nh_box_volume(shape);
        state->shapes++;
    }
}

/* Both solvers ask for the same tiles of keys, one after the other: what a thread has counted last is remembered. */
static struct nh_walk_counts *counts_of(const struct nh_problem *problem, bool keys,
                                        const struct nh_walk_extents *extents) {
    static _Thread_local struct nh_walk_counts last[2];
    nh_walk_resume(&last[keys], problem, keys, true, extents);
    return &last[keys];
}

/* A tile to own. */
struct own {
    const int32_t *shape;
    struct nh_walk_rows rows;
    double items; /* over all copies */
};

/* No pair of these takes less: nothing is masked and, unless clusters may share items, the longest walk is waited for. */
static double least_ns(const struct state *state, const struct own *own,
                       const struct walked *walk) {
    const struct nh_backward90_prices *prices = &walk->prices;
    double busy = state->copies * nh_walk_visits(&own->rows, walk->place) * prices->tile +
                  own->items * prices->item;
    if (prices->meeting > 0 && nh_cluster_possible(state->multiprocessors / 2, own->items))
        return busy;
    double longest = state->sharing * nh_walk_longest(&own->rows, walk->place);
    return busy + state->multiprocessors * (longest * prices->tile + prices->item) / 2;
}

static void try_own(struct state *state, const struct own *own) {
    const struct nh_backward90_search *search = state->search;
    const struct nh_problem *problem = search->problem;
    const struct nh_device *device = search->device;
    for (struct walked *walk = state->walked; walk < state->walked + state->shapes; walk++) {
        if (!state->known || problem->has_bias)
            walk->offered = search->offer(problem, device, own->shape, walk->shape, &walk->prices);
        state->any |= walk->offered;
        double least = walk->offered ? least_ns(state, own, walk) : INFINITY;
        if (least >= nh_top_n_limit(&state->best) || least >= search->below) continue;
        const struct nh_tiling_count tiles = nh_walk_count(&own->rows, walk->place);
        const struct nh_backward90_walks walks =
            walks_of(problem, &tiles, walk->columns, search->keys);
        const struct nh_backward90_spans spans =
            nh_backward90_spans_of(problem, device->backend, &walks, &walk->prices);
        struct nh_backward90_pair pair = {
            .walk = walk->shape, .spans = spans, .ns = nh_backward90_ns(&spans)};
        memcpy(pair.own, own->shape, sizeof pair.own);
        nh_top_n_add(&state->best, &pair, pair.ns);
    }
    state->known = true;
}

static void try_shape(struct state *state, const int32_t shape[3]) {
    struct own own = {.shape = shape};
    int32_t slab[3];
    if (nh_box_volume(shape) < state->search->least_rows || !fits(state->search->problem, shape) ||
        !nh_sm90_first_warpgroup_tile(shape, slab) ||
        !nh_walk_rows_of(state->counts, shape, shape, &own.rows))
        return;
    own.items = state->copies * nh_walk_items(&own.rows) / state->sharing;
    try_own(state, &own);
}

/* Where it is not among the others. */
static void try_covering(struct state *state) {
    const struct nh_problem *problem = state->search->problem;
    int32_t tile[3];
    if (problem->rank == 1 || problem->has_bias || !nh_covering_tile(problem, WARPGROUPS, tile))
        return;
    for (size_t i = 0; i < OWNED; i++)
        if (!memcmp(tile, own_shapes[i], sizeof tile)) return;
    try_shape(state, tile);
}

static void try_all(struct state *state, bool all) {
    const struct nh_backward90_search *search = state->search;
    const struct nh_problem *problem = search->problem;
    struct nh_walk_extents extents = {.count = {0}};
    find_walked(state, all, &extents);
    if (!state->shapes) return;
    state->counts = counts_of(problem, search->keys, &extents);
    state->known = false;
    /* first: of as good ones that with fewer blocks */
    try_covering(state);
    for (size_t i = 0; i < OWNED; i++)
        if ((all || nh_sm90_suits(problem, own_shapes[i])) &&
            nh_sm90_sevens_fit(problem, own_shapes[i]))
            try_shape(state, own_shapes[i]);
}

int nh_backward90_best(const struct nh_backward90_search *search,
                       struct nh_backward90_pair best[NH_BACKWARD90_KEPT]) {
    const struct nh_problem *problem = search->problem;
    const struct nh_cuda_device *cuda = search->device->backend;
    struct state state;
    state.search = search;
    state.copies = (double)(problem->batch * problem->heads);
    state.sharing = search->keys ? (double)(problem->heads / problem->kv_heads) : 1;
    state.multiprocessors = cuda->multiprocessors;
    state.any = false;
    nh_top_n_start(&state.best, INFINITY, best, sizeof *best, search->most);
    try_all(&state, false);
    if (!state.any) try_all(&state, true);
    return state.best.count;
}

/* ---- time ---- */

static struct nh_cuda_load load_of(const struct nh_problem *problem,
                                   const struct nh_cuda_device *cuda,
                                   const struct nh_backward90_load *load, double columns,
                                   double tiles, double masked, double items) {
    double rows = 64 * WARPGROUPS, row_bytes = (double)(problem->dim + problem->dim_v) * 2;
    return (struct nh_cuda_load){
        .tiles = tiles,
        .masked_tiles = masked,
        .scores = rows * columns,
        .products = rows * columns * load->products,
        .tile_bytes = columns * load->column_bytes,
        .bytes = items * rows * row_bytes,
        .products_per_clock = nh_cuda_products_per_clock(problem, cuda, true),
    };
}

void nh_backward90_add_prices(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                              const struct nh_backward90_load *load, double columns,
                              struct nh_backward90_prices *prices) {
    const struct nh_cuda_load one = load_of(problem, cuda, load, columns, 1, 1, 0);
    struct nh_count tile = {.tiles = 0};
    nh_cuda_count_load(cuda, &one, &tile);
    double clock = nh_cuda_clocks_ns(cuda, 1.0 / cuda->multiprocessors);
    /* one warpgroup's products hide the other's exponentials in part */
    prices->tile += hypot(load->tensor * tile.limit_ns[NHOOD_LIMIT_TENSOR],
                          load->exponential * tile.limit_ns[NHOOD_LIMIT_EXPONENTIAL]) +
                    load->turn * clock;
    prices->masks += load->masks * tile.limit_ns[NHOOD_LIMIT_MASK];
    prices->item += load->item * problem->rank * clock;
}

int32_t nh_backward90_cluster(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                              const struct nh_backward90_walks *walks,
                              const struct nh_backward90_prices *prices) {
    double items = (double)(problem->batch * problem->heads) * walks->items;
    return prices->meeting > 0
               ? nh_cluster_blocks(cuda->multiprocessors / 2.0, items, walks->longest)
               : 1;
}

struct nh_backward90_spans nh_backward90_spans_of(const struct nh_problem *problem,
                                                  const struct nh_cuda_device *cuda,
                                                  const struct nh_backward90_walks *walks,
                                                  const struct nh_backward90_prices *prices) {
    double copies = (double)(problem->batch * problem->heads);
    double tile = prices->tile + walks->masked / walks->tiles * prices->masks;
    double cluster = nh_backward90_cluster(problem, cuda, walks, prices);
    double item = prices->item + (cluster > 1 ? prices->meeting : 0);
    return (struct nh_backward90_spans){
        .busy = copies * (walks->tiles * tile + cluster * walks->items * item),
        .longest = cuda->multiprocessors * (ceil(walks->longest / cluster) * tile + item),
    };
}

void nh_backward90_overlap(const struct nh_backward90_spans *next,
                           struct nh_backward90_spans *spans) {
    spans->busy += next->busy;
    if (next->longest > spans->longest) spans->longest = next->longest;
}

double nh_backward90_ns(const struct nh_backward90_spans *spans) {
    return nh_cuda_ending(spans->busy, spans->longest);
}

void nh_backward90_count(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                         const struct nh_backward90_walks *walks,
                         const struct nh_backward90_load *load, struct nh_count *work) {
    double copies = (double)(problem->batch * problem->heads);
    const struct nh_cuda_load asked =
        load_of(problem, cuda, load, walks->columns, copies * walks->tiles, copies * walks->masked,
                copies * walks->items);
    nh_cuda_count_load(cuda, &asked, work);
}

/* ---- shared memory ---- */

int64_t nh_backward90_shared_bytes(const struct nh_problem *problem, const int32_t walk[3],
                                   bool keys, int64_t stages) {
    int64_t row = nh_sm90_row_bytes(problem->dim) + nh_sm90_row_bytes(problem->dim_v);
    int64_t rows = nh_box_volume(walk), stage = rows * row;
    if (keys) stage += rows * STATS_BYTES;
    return 64 * WARPGROUPS * row + stages * stage + 1024 + 256;
}

int32_t nh_backward90_stages(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                             const int32_t walk[3], bool keys, int64_t own_bytes) {
    int32_t stages = NH_BACKWARD90_MOST_STAGES;
    while (stages > 0 && nh_backward90_shared_bytes(problem, walk, keys, stages) + own_bytes >
                             cuda->shared_bytes_per_block)
        stages--;
    return stages;
}

/* ---- launches ---- */

size_t nh_backward90_reserve_stats(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem) {
    return nh_cuda_reserve(operation, (size_t)(problem->batch * problem->heads * problem->tokens) *
                                          STATS_BYTES);
}

void nh_backward90_bind_stats(struct nh_cuda_step *step, const struct nh_problem *problem,
                              size_t stats) {
    struct nh_cuda_tensor *t = &step->args.tensor[NH_DELTA];
    step->binding[NH_DELTA] =
        (struct nh_cuda_binding){.from = NH_BIND_WORKSPACE, .offset_bytes = stats};
    int64_t stride = STATS_BYTES / (int64_t)sizeof(float);
    for (int a = NH_AXES - 1; a >= 0; a--) {
        t->axis[a] = stride;
        stride *= problem->axis[a].length;
    }
    t->head = stride;
    t->batch = stride * problem->heads;
}

nhood_status nh_backward90_step(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                                size_t stats, const int32_t own[3], const int32_t walk[3],
                                bool keys, int32_t stages, struct nh_cuda_step *step,
                                struct nh_kernel_spec *spec) {
    static const char *const own_names[] = {"NH_OWN_X", "NH_OWN_Y", "NH_OWN_Z"};
    static const char *const walk_names[] = {"NH_WALK_X", "NH_WALK_Y", "NH_WALK_Z"};
    int32_t slab[3];
    nh_sm90_first_warpgroup_tile(own, slab);
    const int32_t *q_tile = keys ? walk : slab, *k_tile = keys ? slab : walk;
    nh_sm90_define(spec, problem, nh_box_volume(walk));
    for (int a = 0; a < NH_AXES; a++) {
        nh_kernel_define(spec, own_names[a], own[a]);
        nh_kernel_define(spec, walk_names[a], walk[a]);
    }
    nh_kernel_define(spec, "NH_ABREAST", 1);
    nh_kernel_define(spec, "NH_WARPGROUPS", WARPGROUPS);
    nh_kernel_define(spec, "NH_STAGES", stages);
    nh_kernel_define(spec, "NH_D_O_MAP", nh_map_layout_of(problem, NHOOD_D_O));
    nh_kernel_define(spec, "NH_INVERSE", keys);
    nh_cuda_step_init(step, problem);
    nh_backward90_bind_stats(step, problem, stats);
    step->threads = 128 * (WARPGROUPS + 1);
    step->shared_bytes = nh_backward90_shared_bytes(problem, walk, keys, stages);
    struct nh_cuda_map q = nh_sm90_map(problem, NHOOD_Q, q_tile, 1),
                       d_o = nh_sm90_map(problem, NHOOD_D_O, q_tile, 1),
                       k = nh_sm90_map(problem, NHOOD_K, k_tile, 1),
                       v = nh_sm90_map(problem, NHOOD_V, k_tile, 1);
    struct nh_cuda_map by_query[] = {q, d_o, k, v},
                       by_key[] = {k, v, q, d_o, nh_sm90_stats_map(problem, q_tile)};
    step->maps = keys ? 5 : 4;
    memcpy(step->map, keys ? by_key : by_query, (size_t)step->maps * sizeof *step->map);
    nhood_status status =
        nh_tiling_set(problem, own, keys ? (int32_t)(problem->heads / problem->kv_heads) : 1,
                      nh_tiling_order(problem, own, cuda->multiprocessors), &step->own.tiling);
    step->items = step->own.tiling.items;
    step->grid[0] = nh_min(step->items, cuda->multiprocessors);
    return status;
}
