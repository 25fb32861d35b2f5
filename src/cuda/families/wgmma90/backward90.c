/* The backward on sm_90: what its solvers share. */
#include "backward90.h"
#include "backward_steps.h"
#include "rates.h"
#include "predict.h"

#include "covering_tile.h"
#include "cluster.h"
#include "top_n.h"
#include "loop_counts.h"

#include <math.h>
#include <string.h>

enum { WARPGROUPS = NH_BACKWARD90_WARPGROUPS, STATS_BYTES = 16 };

/* ---- tiles ---- */

/* Tiles of 112 rows are warpgroup tiles of 56, for grids of a multiple of 7. */
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

static struct nh_backward90_loops loops_of(const struct nh_problem *problem,
                                           const struct nh_tiling_count *count, double columns,
                                           bool keys) {
    struct nh_backward90_loops loops = {.work_tiles = count->work_tiles,
                                        .tiles = count->visited,
                                        .masked = count->partial,
                                        .longest = count->longest,
                                        .columns = columns};
    double sharing = (double)(problem->heads / problem->kv_heads);
    double extra = (double)nh_ceil_div(problem->extra_tokens, (int64_t)columns);
    if (keys) {
        loops.work_tiles /= sharing;
        loops.longest *= sharing;
    } else {
        loops.tiles += extra * count->work_tiles;
        loops.longest += extra;
    }
    return loops;
}

/* Tiles whose warpgroups pass over loop tiles, the warpgroup tiles that they are made of, and the windows and head dims for
 * which they do: volumes, where loop tiles are planes, and images, where they have 8 columns. Narrow heads in images gain by
 * few windows (docs/log/wgmma90.md). */
static const struct {
    int32_t rank, own[3], part[3], least_dim, most_dim, least_window, most_window;
} skipping[] = {{3, {4 * WARPGROUPS, 4, 4}, {4, 4, 4}, 1, 64, 5, 11},
                {2, {1, 8, 8 * WARPGROUPS}, {1, 8, 8}, 33, 64, 9, 21},
                {2, {1, 8, 8 * WARPGROUPS}, {1, 8, 8}, 1, 32, 13, 17}};

/* The warpgroup tile of a tile whose warpgroups pass over the loop tiles that suit it, else NULL. */
static const int32_t *skipping_part(const struct nh_problem *problem, const int32_t own[3]) {
    if (!nh_sm90_windows_are_plain(problem) || nh_problem_partial(problem)) return NULL;
    int64_t dim = nh_max(problem->dim, problem->dim_v),
            window = problem->axis[NH_AXES - problem->rank].window;
    for (size_t i = 0; i < sizeof skipping / sizeof *skipping; i++)
        if (problem->rank == skipping[i].rank &&
            !memcmp(own, skipping[i].own, sizeof skipping[i].own) && dim >= skipping[i].least_dim &&
            dim <= skipping[i].most_dim && window >= skipping[i].least_window &&
            window <= skipping[i].most_window)
            return skipping[i].part;
    return NULL;
}

const int32_t *nh_backward90_skips(const struct nh_problem *problem, const int32_t own[3],
                                   const int32_t loop[3]) {
    return loop[0] == 1 && loop[2] == 8 ? skipping_part(problem, own) : NULL;
}

static void set_multiplied(const struct nh_tiling_count *seen, struct nh_backward90_loops *loops) {
    loops->multiplied = seen->visited;
    loops->multiplied_masked = seen->partial;
}

struct nh_backward90_loops nh_backward90_loops_of(const struct nh_problem *problem,
                                                  const int32_t own[3], const int32_t loop[3],
                                                  bool keys, bool skips) {
    const struct nh_tiling_count count =
        keys ? nh_tiling_inverse_count(problem, own, loop) : nh_tiling_count(problem, own, loop);
    struct nh_backward90_loops loops = loops_of(problem, &count, (double)nh_box_volume(loop), keys);
    const int32_t *part = skips ? nh_backward90_skips(problem, own, loop) : NULL;
    if (!part) return loops;
    const struct nh_tiling_count seen = keys
                                            ? nh_tiling_inverse_part_count(problem, own, part, loop)
                                            : nh_tiling_part_count(problem, own, part, loop);
    set_multiplied(&seen, &loops);
    return loops;
}

/* The share of pairs of a warpgroup and a tile that are multiplied. */
static double multiplied_share(const struct nh_backward90_loops *loops) {
    return loops->multiplied > 0 ? loops->multiplied / (WARPGROUPS * loops->tiles) : 1;
}

/* ---- search ---- */

/* A loop tile; without a bias whether it runs, and what it takes, is the same for as many rows, with every tile to own: clocks of
 * blocks for a pair of tiles, for the masks of one, and for themselves. */
struct loop_tile {
    const int32_t *shape;
    struct nh_loop_columns place;
    bool runs;
    double tile, mask, block;
};

enum {
    MOST_RANKED = 10,
    OWNED = sizeof own_shapes / sizeof *own_shapes,
    LOOP_SHAPES = sizeof loop_shapes / sizeof *loop_shapes
};

/* A pair with the least work so far. */
struct ranked {
    int32_t own[3];
    const struct loop_tile *loop;
    struct nh_backward90_loops loops;
};

struct state {
    const struct nh_backward90_search *search;
    struct nh_loop_counts counts;
    struct loop_tile loop_tile[LOOP_SHAPES];
    int shapes;
    bool known; /* prices are those of any tile to own */
    struct ranked ranked[MOST_RANKED];
    struct nh_top_n top;
};

/* Collects the tiles that suit the problem, or all of them. */
static void find_loop_tiles(struct state *state, bool all, struct nh_loop_extents *extents) {
    const struct nh_problem *problem = state->search->problem;
    state->shapes = 0;
    for (int i = 0; i < LOOP_SHAPES; i++) {
        const int32_t *shape = loop_shapes[i];
        struct loop_tile *loop = &state->loop_tile[state->shapes];
        if (!nh_sm90_boxes_fit(problem, shape) ||
            !(all || nh_sm90_suits(problem, shape, !state->search->keys)) ||
            !nh_loop_extents_add(extents, shape, &loop->place))
            continue;
        loop->shape = shape;
        state->shapes++;
    }
}

static bool laps_fit(const struct nh_backward90_search *search, const int32_t own[3],
                     const int32_t loop[3]) {
    return nh_tiling_laps_fit(search->problem, own, loop, search->keys);
}

static bool start_pair(const struct nh_backward90_search *search, const int32_t own[3],
                       const int32_t loop[3], const struct nh_backward90_loops *loops,
                       struct nh_work *work) {
    nh_work_start(work, search->operation, search->problem);
    work->overlaps = true;
    return search->work(search->problem, search->device, own, loop, loops, search->keys, work);
}

/* Clocks of all blocks together, of a million whose loops have so many tiles each. */
static double work_clocks(const struct state *state, const int32_t own[3], const int32_t loop[3],
                          double tiles, double masked) {
    const double many = 1e6;
    const struct nh_backward90_loops loops = {.work_tiles = many,
                                              .tiles = many * tiles,
                                              .masked = many * masked,
                                              .longest = tiles,
                                              .columns = (double)nh_box_volume(loop)};
    struct nh_work work;
    double clocks = 0;
    if (!start_pair(state->search, own, loop, &loops, &work)) return INFINITY;
    for (int i = 0; i < work.launches; i++)
        clocks += work.launch[i].blocks *
                  nh_predict_block_clocks(state->search->device->backend, &work.launch[i]);
    return clocks / many;
}

static void find_prices(const struct state *state, const int32_t own[3], struct loop_tile *loop) {
    const struct loop_tile *alike = state->loop_tile;
    while (nh_box_volume(alike->shape) != nh_box_volume(loop->shape))
        alike++;
    if (alike < loop && !state->search->problem->has_bias) {
        loop->runs = alike->runs;
        loop->tile = alike->tile;
        loop->mask = alike->mask;
        loop->block = alike->block;
        return;
    }
    double one = work_clocks(state, own, loop->shape, 1, 0);
    loop->runs = isfinite(one);
    if (!loop->runs) return;
    loop->tile = work_clocks(state, own, loop->shape, 2, 0) - one;
    loop->mask = work_clocks(state, own, loop->shape, 1, 1) - one;
    loop->block = one - loop->tile;
}

/* Work on a full device and half of the longest loop, in which ever fewer blocks run, say which pairs are worth a
 * prediction. */
static void rank_own(struct state *state, const int32_t own[3], const struct nh_loop_rows *rows,
                     const struct nh_loop_rows *parts) {
    const struct nh_problem *problem = state->search->problem;
    const struct nh_cuda_device *cuda = state->search->device->backend;
    /* prices are those of all batch entries and heads */
    const double copies = (double)(problem->batch * problem->heads);
    for (struct loop_tile *loop = state->loop_tile; loop < state->loop_tile + state->shapes;
         loop++) {
        if (!state->known || problem->has_bias) find_prices(state, own, loop);
        if (!loop->runs || !laps_fit(state->search, own, loop->shape)) continue;
        const struct nh_tiling_count count = nh_loop_count(rows, loop->place);
        struct nh_backward90_loops loops =
            loops_of(problem, &count, (double)nh_box_volume(loop->shape), state->search->keys);
        if (parts && nh_backward90_skips(problem, own, loop->shape)) {
            const struct nh_tiling_count seen = nh_loop_count(parts, loop->place);
            set_multiplied(&seen, &loops);
        }
        double longest = cuda->multiprocessors * loops.longest * loop->tile / copies;
        double work = loops.tiles * multiplied_share(&loops) * loop->tile +
                      loops.masked * loop->mask + loops.work_tiles * loop->block + longest / 2;
        if (!(work < nh_top_n_limit(&state->top))) continue;
        const struct ranked ranked = {{own[0], own[1], own[2]}, loop, loops};
        nh_top_n_add(&state->top, &ranked, work);
    }
    state->known = true;
}

static int predict_ranked(struct state *state, struct nh_backward90_pair *best) {
    struct nh_top_n top;
    nh_top_n_start(&top, INFINITY, best, sizeof *best, NH_BACKWARD90_KEPT);
    for (const struct ranked *ranked = state->ranked; ranked < state->ranked + state->top.count;
         ranked++) {
        struct nh_backward90_pair pair;
        pair.loop = ranked->loop->shape;
        memcpy(pair.own, ranked->own, sizeof pair.own);
        if (!start_pair(state->search, pair.own, pair.loop, &ranked->loops, &pair.work)) continue;
        nh_top_n_add(&top, &pair, nh_predict_clocks(state->search->device->backend, &pair.work));
    }
    return top.count;
}

static bool may_own(const struct nh_backward90_search *search, const int32_t shape[3]) {
    int32_t warpgroup_tile[3];
    return nh_box_volume(shape) >= search->least_rows &&
           nh_sm90_boxes_fit(search->problem, shape) &&
           nh_sm90_first_warpgroup_tile(shape, warpgroup_tile);
}

static void try_shape(struct state *state, const int32_t shape[3]) {
    struct nh_loop_rows rows, parts;
    if (!may_own(state->search, shape) || !nh_loop_rows_of(&state->counts, shape, shape, &rows))
        return;
    const int32_t *part =
        state->search->skips ? skipping_part(state->search->problem, shape) : NULL;
    bool skips = part && nh_loop_rows_of(&state->counts, shape, part, &parts);
    rank_own(state, shape, &rows, skips ? &parts : NULL);
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
    struct nh_loop_extents extents = {.count = {0}};
    find_loop_tiles(state, all, &extents);
    if (!state->shapes) return;
    nh_loop_counts_start(&state->counts, problem, search->keys, true, &extents);
    state->known = false;
    /* first: of as good ones that with fewer blocks */
    try_covering(state);
    for (size_t i = 0; i < OWNED; i++)
        if ((all || nh_sm90_suits(problem, own_shapes[i], search->keys)) &&
            nh_sm90_sevens_fit(problem, own_shapes[i]))
            try_shape(state, own_shapes[i]);
}

int nh_backward90_best(const struct nh_backward90_search *search,
                       struct nh_backward90_pair best[NH_BACKWARD90_KEPT]) {
    struct state state;
    state.search = search;
    nh_top_n_start(&state.top, INFINITY, state.ranked, sizeof *state.ranked, MOST_RANKED);
    try_all(&state, false);
    if (!state.top.count) try_all(&state, true);
    return predict_ranked(&state, best);
}

bool nh_backward90_goes_around(const struct nh_backward90_search *search) {
    for (size_t i = 0; i < OWNED; i++)
        for (size_t j = 0; j < LOOP_SHAPES && may_own(search, own_shapes[i]); j++) {
            const int32_t *own = own_shapes[i], *loop = loop_shapes[j];
            const struct nh_backward90_loops one = {
                .work_tiles = 1, .tiles = 1, .longest = 1, .columns = (double)nh_box_volume(loop)};
            struct nh_work work;
            if (nh_sm90_boxes_fit(search->problem, loop) && laps_fit(search, own, loop) &&
                start_pair(search, own, loop, &one, &work))
                return true;
        }
    return false;
}

/* ---- work ---- */

int32_t nh_backward90_cluster(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                              const struct nh_backward90_loops *loops, bool shares) {
    double work_tiles = (double)(problem->batch * problem->heads) * loops->work_tiles;
    return shares ? nh_cluster_blocks(cuda->multiprocessors / 2.0, work_tiles, loops->longest) : 1;
}

void nh_backward90_add_work(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                            const struct nh_backward90_loops *loops,
                            const struct nh_backward90_launch *of, struct nh_work *work) {
    double copies = (double)(problem->batch * problem->heads);
    double cluster = nh_backward90_cluster(problem, cuda, loops, of->sums > 0);
    double rows = 64 * WARPGROUPS, scores = rows * loops->columns, share = multiplied_share(loops);
    double dims = (double)(problem->dim + problem->dim_v);
    struct nh_launch_work *launch = nh_work_add(work, of->kernel);
    launch->blocks = copies * cluster * loops->work_tiles;
    double tiles = copies * loops->tiles / launch->blocks,
           masked = copies * loops->masked / launch->blocks;
    launch->warps = 4 * WARPGROUPS;
    launch->steps = tiles;
    launch->longest = ceil(loops->longest / cluster) / tiles;
    launch->serial = 1.0 / WARPGROUPS;
    launch->code = dims;
    launch->tiles = copies * (loops->multiplied > 0 ? loops->multiplied : loops->tiles);
    launch->masked_tiles =
        copies * (loops->multiplied > 0 ? loops->multiplied_masked : loops->masked);
    launch->scores = loops->multiplied > 0 ? scores / WARPGROUPS : scores;
    launch->flops = 2 * launch->tiles * launch->scores * of->products;
    launch->unit[NH_WORK_TENSOR] =
        share * tiles * scores * of->products / nh_cuda_products_per_clock(problem, cuda, true);
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(share * tiles * scores);
    launch->unit[NH_WORK_MASK] = nh_cuda_lane_clocks(masked * scores);
    launch->unit[NH_WORK_L2] =
        nh_cuda_l2_clocks(cuda, tiles * loops->columns * of->column_bytes + rows * dims * 2);
    launch->unit[NH_WORK_STEP] = share * tiles;
    launch->unit[NH_WORK_INDEX] = problem->rank;
    launch->unit[NH_WORK_VECTOR] =
        nh_cuda_lane_clocks(dims * rows + tiles * scores * of->bias_instructions);
    launch->unit[NH_WORK_REDUCE] = cluster > 1 ? of->sums : 0;
}

/* ---- shared memory ---- */

int64_t nh_backward90_shared_bytes(const struct nh_problem *problem, const int32_t loop[3],
                                   bool keys, int64_t stages) {
    int64_t row = nh_sm90_row_bytes(problem->dim) + nh_sm90_row_bytes(problem->dim_v);
    int64_t rows = nh_box_volume(loop), stage = rows * row;
    if (keys) stage += rows * STATS_BYTES;
    return 64 * WARPGROUPS * row + stages * stage + 1024 + 256;
}

int32_t nh_backward90_stages(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                             const int32_t loop[3], bool keys, int64_t own_bytes, int32_t most) {
    int32_t stages = most;
    while (stages > 0 && nh_backward90_shared_bytes(problem, loop, keys, stages) + own_bytes >
                             cuda->shared_bytes_per_block)
        stages--;
    return stages;
}

/* ---- launches ---- */

size_t nh_backward90_reserve_stats(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem) {
    return nh_cuda_reserve(
        operation, (size_t)(problem->batch * problem->heads * problem->query_tokens) * STATS_BYTES);
}

nhood_status nh_backward90_step(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                                size_t stats, const int32_t own[3], const int32_t loop[3],
                                bool keys, bool skips, int32_t stages, struct nh_cuda_step *step,
                                struct nh_kernel_spec *spec) {
    static const char *const own_names[] = {"NH_OWN_X", "NH_OWN_Y", "NH_OWN_Z"};
    static const char *const loop_names[] = {"NH_LOOP_X", "NH_LOOP_Y", "NH_LOOP_Z"};
    int32_t warpgroup_tile[3];
    nh_sm90_first_warpgroup_tile(own, warpgroup_tile);
    const int32_t *part = skips ? nh_backward90_skips(problem, own, loop) : NULL;
    if (!part) part = warpgroup_tile;
    const int32_t *q_tile = keys ? loop : part, *k_tile = keys ? part : loop;
    nh_sm90_define(spec, problem, nh_box_volume(loop));
    for (int a = 0; a < NH_AXES; a++) {
        nh_kernel_define(spec, own_names[a], own[a]);
        nh_kernel_define(spec, loop_names[a], loop[a]);
    }
    nh_kernel_define(spec, "NH_TILE_BOXES", 1);
    nh_kernel_define(spec, "NH_WARPGROUPS", WARPGROUPS);
    if (part != warpgroup_tile) {
        nh_kernel_define(spec, "NH_SKIPPING", 1);
        nh_kernel_define(spec, "NH_PLAIN_WINDOWS", 1);
        nh_kernel_define(spec, "NH_OWN_PLACES", NH_BACKWARD90_OWN_PLACES_SKIPPING);
        nh_kernel_define(spec, "NH_STACK", own[0] > part[0] ? 0 : own[1] > part[1] ? 1 : 2);
    }
    nh_kernel_define(spec, "NH_STAGES", stages);
    nh_kernel_define(spec, "NH_D_O_MAP", nh_map_layout_of(problem, NHOOD_D_O));
    nh_kernel_define(spec, "NH_INVERSE", keys);
    nh_cuda_step_init(step, problem);
    nh_cuda_bind_stats(step, problem, stats);
    step->threads = 128 * (WARPGROUPS + 1);
    step->shared_bytes = nh_backward90_shared_bytes(problem, loop, keys, stages);
    struct nh_cuda_map q = nh_sm90_map(problem, NHOOD_Q, q_tile, 1),
                       d_o = nh_sm90_map(problem, NHOOD_D_O, q_tile, 1),
                       k = nh_sm90_map(problem, NHOOD_K, k_tile, 1),
                       v = nh_sm90_map(problem, NHOOD_V, k_tile, 1);
    struct nh_cuda_map by_query[] = {q, d_o, k, v},
                       by_key[] = {k, v, q, d_o, nh_sm90_stats_map(problem, q_tile)};
    step->maps = keys ? 5 : 4;
    memcpy(step->map, keys ? by_key : by_query, (size_t)step->maps * sizeof *step->map);
    nhood_status status = nh_tiling_set(
        problem, own, keys ? (int32_t)(problem->heads / problem->kv_heads) : 1, keys,
        nh_tiling_order(problem, own, keys, cuda->multiprocessors), &step->own.tiling);
    step->work_tiles = step->own.tiling.work_tiles;
    step->grid[0] = nh_min(step->work_tiles, cuda->multiprocessors);
    return status;
}
