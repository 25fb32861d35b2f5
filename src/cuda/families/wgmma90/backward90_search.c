/* The search for the tiles with which a backward kernel of sm_90 is fastest. */
#include "backward90.h"

#include "predict.h"
#include "top_n.h"

#include <math.h>
#include <string.h>

/* The tiles that blocks may own. Those that own keys are full, as padding rows of keys cost more than they save
 * (docs/log/wgmma90.md). Those of 112 rows have warpgroup tiles of 56 rows, for grids of multiples of 7. */
static const int32_t own_shapes[][3] = {{1, 1, 128}, {1, 16, 8}, {1, 8, 16}, {1, 4, 32}, {2, 8, 8},
                                        {4, 4, 8},   {2, 4, 16}, {8, 4, 4},  {4, 8, 4},  {1, 4, 28},
                                        {1, 8, 14},  {1, 16, 7}, {8, 2, 7},  {4, 4, 7},  {4, 2, 14},
                                        {2, 4, 14},  {2, 8, 7},  {16, 1, 7}};
static const int32_t loop_shapes[][3] = {
    {1, 1, 32}, {1, 1, 48}, {1, 1, 64}, {1, 1, 80}, {1, 1, 96}, {1, 1, 112}, {1, 1, 128},
    {1, 4, 8},  {1, 2, 16}, {1, 6, 8},  {1, 3, 16}, {1, 8, 8},  {1, 4, 16},  {1, 2, 32},
    {1, 10, 8}, {1, 5, 16}, {1, 12, 8}, {1, 6, 16}, {1, 14, 8}, {1, 16, 8},  {1, 8, 16},
    {2, 2, 8},  {4, 1, 8},  {2, 3, 8},  {3, 2, 8},  {2, 4, 8},  {4, 2, 8},   {2, 5, 8},
    {5, 2, 8},  {2, 6, 8},  {3, 4, 8},  {2, 8, 8},  {4, 4, 8},  {1, 2, 24},  {1, 4, 24},
    {2, 2, 24}, {1, 7, 16}, {7, 1, 16}, {7, 2, 8}};

/* Clocks of a block for a pair of tiles, for the masks of one, and for itself. */
struct prices {
    double tile, mask, block;
};

/* Without a bias, a loop tile's prices and whether it runs only depend on its number of rows, not on the owned tile. */
struct loop_tile {
    const int32_t *shape;
    struct nh_loop_columns place;
    bool runs;
    struct prices price;
};

enum {
    MOST_RANKED = 10,
    OWNED = sizeof own_shapes / sizeof *own_shapes,
    LOOP_SHAPES = sizeof loop_shapes / sizeof *loop_shapes
};

/* One of the pairs with the least work so far. */
struct ranked {
    int32_t own[3];
    const struct loop_tile *loop;
    struct nh_backward90_loops loops;
};

struct state {
    const struct nh_backward90_kernel *kernel; /* its tiles are what is searched */
    bool keys;
    struct nh_loop_counts counts;
    struct loop_tile loop_tile[LOOP_SHAPES];
    int shapes;
    bool known; /* the prices of loop tiles are set, and hold for all owned tiles */
    struct ranked ranked[MOST_RANKED];
    struct nh_top_n top;
};

/* The kernel with a pair of tiles; loop: NULL if none is chosen yet. */
static struct nh_backward90_kernel kernel_with(const struct nh_backward90_kernel *kernel,
                                               const int32_t *own, const int32_t *loop) {
    return (struct nh_backward90_kernel){kernel->problem, kernel->cuda,     kernel->kind, own, loop,
                                         false,           kernel->for_group};
}

/* Collects the loop tiles that suit the problem or, with `all`, every one that runs. */
static void find_loop_tiles(struct state *state, bool all, struct nh_loop_extents *extents) {
    const struct nh_problem *problem = state->kernel->problem;
    state->shapes = 0;
    for (int i = 0; i < LOOP_SHAPES; i++) {
        struct loop_tile *loop = &state->loop_tile[state->shapes];
        loop->shape = loop_shapes[i];
        if (nh_sm90_boxes_fit(problem, loop->shape) &&
            (all || nh_sm90_suits(problem, loop->shape, !state->keys)) &&
            nh_loop_extents_add(extents, loop->shape, &loop->place))
            state->shapes++;
    }
}

static bool laps_fit(const struct nh_backward90_kernel *kernel) {
    return nh_tiling_laps_fit(kernel->problem, kernel->own, kernel->loop,
                              kernel->kind != WGMMA90_QUERY);
}

/* The work of a kernel's launches alone. */
static struct nh_work work_of(const struct nh_backward90_kernel *kernel,
                              const struct nh_backward90_loops *loops) {
    struct nh_work work;
    nh_work_start(&work, NH_OPERATION_SPLIT90, kernel->problem);
    work.overlaps = true;
    nh_backward90_add_work(kernel, loops, &work);
    return work;
}

/* Clocks of all blocks, for a million whose loops have `tiles` tiles each, `masked` of them with masks. */
static double work_clocks(const struct nh_backward90_kernel *kernel, double tiles, double masked) {
    const double many = 1e6;
    const struct nh_backward90_loops loops = {
        .work_tiles = many, .tiles = many * tiles, .masked = many * masked, .longest = tiles};
    const struct nh_work work = work_of(kernel, &loops);
    double clocks = 0;
    for (int i = 0; i < work.launches; i++)
        clocks += work.launch[i].blocks * nh_predict_block_clocks(kernel->cuda, &work.launch[i]);
    return clocks / many;
}

static void find_prices(const struct nh_backward90_kernel *kernel, struct loop_tile *loop) {
    loop->runs = nh_backward90_fits(kernel);
    if (!loop->runs) return;
    double one = work_clocks(kernel, 1, 0), tile = work_clocks(kernel, 2, 0) - one;
    loop->price = (struct prices){tile, work_clocks(kernel, 1, 1) - one, one - tile};
}

/* Ranks the pairs of an owned tile with all loop tiles by their work on a full device plus half of the longest loop, at
 * whose end fewer and fewer blocks run. The best are predicted. */
static void rank_own(struct state *state, const int32_t own[3], const struct nh_loop_rows *rows,
                     const struct nh_loop_rows *by_warpgroup) {
    const struct nh_problem *problem = state->kernel->problem;
    /* prices are for all batch entries and heads together */
    const double copies = (double)(problem->batch * problem->heads);
    for (struct loop_tile *loop = state->loop_tile; loop < state->loop_tile + state->shapes;
         loop++) {
        const struct nh_backward90_kernel kernel = kernel_with(state->kernel, own, loop->shape);
        if (!state->known || problem->has_bias) find_prices(&kernel, loop);
        if (!loop->runs || !laps_fit(&kernel)) continue;
        const struct nh_tiling_count count = nh_loop_count(rows, loop->place);
        struct nh_tiling_count seen;
        bool skips = by_warpgroup && nh_backward90_skips(&kernel);
        if (skips) seen = nh_loop_count(by_warpgroup, loop->place);
        const struct nh_backward90_loops loops =
            nh_backward90_loops_from(&kernel, &count, skips ? &seen : NULL);
        double longest = kernel.cuda->multiprocessors * loops.longest * loop->price.tile / copies;
        double work = loops.tiles * nh_backward90_multiplied_share(&loops) * loop->price.tile +
                      loops.masked * loop->price.mask + loops.work_tiles * loop->price.block +
                      longest / 2;
        if (!(work < nh_top_n_limit(&state->top))) continue;
        const struct ranked ranked = {{own[0], own[1], own[2]}, loop, loops};
        nh_top_n_add(&state->top, &ranked, work);
    }
    state->known = true;
}

static int predict_ranked(struct state *state, struct nh_backward90_pair *best) {
    struct nh_top_n top;
    nh_top_n_start(&top, best, sizeof *best, NH_BACKWARD90_KEPT);
    for (int i = 0; i < state->top.count; i++) {
        const struct ranked *ranked = &state->ranked[i];
        struct nh_backward90_pair pair;
        memcpy(pair.tiles, ranked->own, sizeof ranked->own);
        memcpy(pair.tiles + NH_AXES, ranked->loop->shape, sizeof ranked->own);
        const struct nh_backward90_kernel kernel =
            kernel_with(state->kernel, ranked->own, ranked->loop->shape);
        if (!nh_backward90_fits(&kernel)) continue;
        pair.work = work_of(&kernel, &ranked->loops);
        nh_top_n_add(&top, &pair, nh_predict_clocks(kernel.cuda, &pair.work));
    }
    return top.count;
}

static bool may_own(const struct nh_backward90_kernel *kernel, const int32_t shape[3]) {
    int32_t warpgroup_tile[3];
    return (kernel->kind == WGMMA90_QUERY || nh_box_volume(shape) >= NH_BACKWARD90_ROWS) &&
           nh_sm90_boxes_fit(kernel->problem, shape) &&
           nh_sm90_first_warpgroup_tile(shape, warpgroup_tile);
}

static void try_shape(struct state *state, const int32_t shape[3]) {
    struct nh_loop_rows rows, by_warpgroup;
    if (!may_own(state->kernel, shape)) return;
    nh_loop_rows_of(&state->counts, shape, shape, &rows);
    const struct nh_backward90_kernel kernel = kernel_with(state->kernel, shape, NULL);
    const int32_t *warpgroup_tile = nh_backward90_skips(&kernel);
    if (warpgroup_tile) nh_loop_rows_of(&state->counts, shape, warpgroup_tile, &by_warpgroup);
    rank_own(state, shape, &rows, warpgroup_tile ? &by_warpgroup : NULL);
}

/* Tries the covering tile, unless it is among the others. */
static void try_covering(struct state *state) {
    const struct nh_problem *problem = state->kernel->problem;
    int32_t tile[3];
    if (problem->rank == 1 || problem->has_bias ||
        !nh_covering_tile(problem, NH_BACKWARD90_WARPGROUPS, tile))
        return;
    for (size_t i = 0; i < OWNED; i++)
        if (!memcmp(tile, own_shapes[i], sizeof tile)) return;
    try_shape(state, tile);
}

static void try_all(struct state *state, bool all) {
    const struct nh_problem *problem = state->kernel->problem;
    struct nh_loop_extents extents = {.count = {0}};
    find_loop_tiles(state, all, &extents);
    if (!state->shapes) return;
    nh_loop_counts_start(&state->counts, problem, state->keys, true, &extents);
    state->known = false;
    /* It comes first so that it wins over equals with more blocks. */
    try_covering(state);
    for (size_t i = 0; i < OWNED; i++)
        if ((all || nh_sm90_suits(problem, own_shapes[i], state->keys)) &&
            nh_sm90_sevens_fit(problem, own_shapes[i]))
            try_shape(state, own_shapes[i]);
}

int nh_backward90_best(const struct nh_backward90_kernel *kernel,
                       struct nh_backward90_pair best[NH_BACKWARD90_KEPT]) {
    struct state state;
    state.kernel = kernel;
    state.keys = kernel->kind != WGMMA90_QUERY;
    nh_top_n_start(&state.top, state.ranked, sizeof *state.ranked, MOST_RANKED);
    try_all(&state, false);
    if (!state.top.count) try_all(&state, true);
    return predict_ranked(&state, best);
}

const char *nh_backward90_refuse_around(const struct nh_backward90_kernel *kernel) {
    if (!nh_problem_periodic(kernel->problem)) return NULL;
    for (size_t i = 0; i < OWNED; i++)
        for (size_t j = 0; j < LOOP_SHAPES && may_own(kernel, own_shapes[i]); j++) {
            const struct nh_backward90_kernel tried =
                kernel_with(kernel, own_shapes[i], loop_shapes[j]);
            if (nh_sm90_boxes_fit(kernel->problem, loop_shapes[j]) && laps_fit(&tried) &&
                nh_backward90_fits(&tried))
                return NULL;
        }
    return kernel->kind == WGMMA90_QUERY
               ? "a window and a query tile go around a periodic axis that no key tile divides"
               : "queries of a key tile go around a periodic axis that no query tile divides";
}
