/* The backward kernels of sm_90: their registers, shared memory, loops, work and launches. */
#include "backward90.h"

#include "rates.h"

#include <math.h>
#include <string.h>

enum {
    WARPGROUPS = NH_BACKWARD90_WARPGROUPS,
    ROWS = NH_BACKWARD90_ROWS,
    STATS_BYTES = 16,
    MOST_STAGES = 4,
    MOST_STAGES_SKIPPING = 6, /* timed: docs/log/wgmma90.md */
    OWN_PLACES_SKIPPING = 2,
    OWN_PLACES_JOINT = 2
};

/* ---- passes ---- */

static const struct facts {
    uint32_t outputs;
    /* products, and sums in registers, with rows of the head dim and of the value dim (`_v`) */
    int products, products_v, sums, sums_v;
    /* registers of a thread per four rows of a loop tile: scores, their gradients, and packed weights */
    int registers;
} facts[NH_BACKWARD90_PASSES] = {
    [NH_BACKWARD90_D_Q] = {NH_BIT(D_Q), 2, 1, 1, 0, 4},
    [NH_BACKWARD90_D_K_AND_V] = {NH_BIT(D_K) | NH_BIT(D_V), 2, 2, 1, 1, 5},
    [NH_BACKWARD90_D_K] = {NH_BIT(D_K), 2, 1, 1, 0, 4},
    [NH_BACKWARD90_D_V] = {NH_BIT(D_V), 1, 1, 0, 1, 3},
    [NH_BACKWARD90_ALL] = {0, 3, 2, 1, 1, 5},
};

bool nh_backward90_has(const struct nh_backward90_kernel *kernel, enum nh_backward90_pass pass) {
    enum { MOST_TOGETHER = 288 };
    bool together = kernel->problem->dim + kernel->problem->dim_v <= MOST_TOGETHER;
    if (kernel->kind == WGMMA90_QUERY) return pass == NH_BACKWARD90_D_Q;
    if (kernel->kind == WGMMA90_JOINT) return pass == NH_BACKWARD90_ALL;
    if (kernel->part) return pass == NH_BACKWARD90_D_V;
    if (nh_backward90_parts(kernel)) return pass == NH_BACKWARD90_D_K;
    if (together) return pass == NH_BACKWARD90_D_K_AND_V;
    return pass == NH_BACKWARD90_D_K || pass == NH_BACKWARD90_D_V;
}

static bool owns_keys(const struct nh_backward90_kernel *kernel) {
    return kernel->kind != WGMMA90_QUERY;
}

int nh_backward90_parts(const struct nh_backward90_kernel *kernel) {
    const int parts = nh_value_parts(kernel->problem);
    return owns_keys(kernel) && parts > 1 ? parts : 0;
}

struct nh_backward90_kernel nh_backward90_part(const struct nh_backward90_kernel *kernel, int part,
                                               struct nh_problem *room) {
    struct nh_backward90_kernel of_part = *kernel;
    of_part.problem = nh_value_part(kernel->problem, part, room);
    of_part.part = true;
    return of_part;
}

bool nh_backward90_stores_first(const struct nh_backward90_kernel *kernel) {
    const struct nh_problem *problem = kernel->problem;
    return kernel->kind == WGMMA90_JOINT && problem->rank == 1 && !nh_problem_cut(problem) &&
           !nh_problem_strided(problem) && !nh_problem_dilated(problem);
}

/* ---- warpgroup skipping ---- */

/* Owned tiles whose warpgroups skip loop tiles: rank, owned tile, warpgroup tile, and the head dims and windows for
 * which this is faster. They are cubes in volumes, where loop tiles are planes, and squares in images, where loop tiles
 * have 8 columns. In images, narrow heads gain with few windows only (docs/log/wgmma90.md). */
static const struct {
    int32_t rank, own[3], warpgroup_tile[3], least_dim, most_dim, least_window, most_window;
} skipping[] = {{3, {4 * WARPGROUPS, 4, 4}, {4, 4, 4}, 1, 64, 5, 11},
                {2, {1, 8, 8 * WARPGROUPS}, {1, 8, 8}, 33, 64, 9, 21},
                {2, {1, 8, 8 * WARPGROUPS}, {1, 8, 8}, 1, 32, 13, 17}};

const int32_t *nh_backward90_skips(const struct nh_backward90_kernel *kernel) {
    const struct nh_problem *problem = kernel->problem;
    const int32_t *loop = kernel->loop;
    if (kernel->kind > WGMMA90_KEY || !nh_sm90_windows_slide(problem) ||
        (loop && (loop[0] != 1 || loop[2] != 8)))
        return NULL;
    int64_t dim = nh_max(problem->dim, problem->dim_v),
            window = problem->axis[NH_AXES - problem->rank].window;
    for (size_t i = 0; i < sizeof skipping / sizeof *skipping; i++)
        if (problem->rank == skipping[i].rank &&
            !memcmp(kernel->own, skipping[i].own, sizeof skipping[i].own) &&
            dim >= skipping[i].least_dim && dim <= skipping[i].most_dim &&
            window >= skipping[i].least_window && window <= skipping[i].most_window)
            return skipping[i].warpgroup_tile;
    return NULL;
}

/* ---- shared memory and registers ---- */

int64_t nh_backward90_sum_columns(const struct nh_problem *problem) {
    const struct wgmma90_config config = {.dim = (int)problem->dim};
    return wgmma90_d_q_columns(&config);
}

/* The warpgroup tile, and the axis along which these follow each other. */
static int32_t stack_of(const struct nh_backward90_kernel *kernel, int32_t tile[3]) {
    const int32_t *own = kernel->own, *warpgroup_tile = nh_backward90_skips(kernel);
    nh_sm90_first_warpgroup_tile(own, tile);
    if (warpgroup_tile) memcpy(tile, warpgroup_tile, 3 * sizeof *tile);
    return own[0] > tile[0] ? 0 : own[1] > tile[1] ? 1 : 2;
}

/* Whether the joint kernel has two places for K and V, and keeps them in registers (joint90_sums.cuh): for narrow heads in
 * one dimension. Timed: windows of 256 and 1,024 gain 3 and 4 %, of 129 lose 5 %, as loops have four tiles there. */
static bool two_places(const struct nh_backward90_kernel *kernel) {
    enum { MOST_DIM = 64, LEAST_WINDOW = 256 };
    return nh_backward90_stores_first(kernel) && nh_box_volume(kernel->loop) == 64 &&
           kernel->problem->axis[NH_AXES - 1].window >= LEAST_WINDOW &&
           nh_max(kernel->problem->dim, kernel->problem->dim_v) <= MOST_DIM;
}

/* The configuration of a launch as far as shared memory depends on it, with as many stages as fit, or none. */
static struct wgmma90_config config_of(const struct nh_backward90_kernel *kernel,
                                       enum nh_backward90_pass pass) {
    struct wgmma90_config config = nh_wgmma90_config(kernel->problem, kernel->kind);
    int32_t tile[3];
    int most = MOST_STAGES;
    memcpy(config.own, kernel->own, sizeof config.own);
    memcpy(config.loop, kernel->loop, sizeof config.loop);
    config.warpgroups = WARPGROUPS;
    config.stack = stack_of(kernel, tile);
    config.sum_d_k = facts[pass].sums;
    config.sum_d_v = facts[pass].sums_v;
    if (two_places(kernel)) config.own_places = OWN_PLACES_JOINT;
    if (nh_backward90_skips(kernel)) {
        config.skipping = config.stack == 0 ? WGMMA90_SKIP_PLANES : WGMMA90_SKIP_TILES;
        config.own_places = OWN_PLACES_SKIPPING;
        most = MOST_STAGES_SKIPPING;
    }
    /* Tiles that leave no room for as many bias boxes as there could be stages were never timed. */
    for (config.stages = most; config.stages > 0; config.stages--)
        if (wgmma90_block_bytes(&config) + (most - config.stages) * wgmma90_bias_bytes(&config) <=
            nh_cuda_block_room(kernel->cuda, kernel->for_group))
            break;
    return config;
}

static bool pass_fits(const struct nh_backward90_kernel *kernel, enum nh_backward90_pass pass) {
    /* the registers that setmaxnreg gives a thread, less those for addresses and masks */
    enum { MOST_REGISTERS = 208, MOST_REGISTERS_BIASED = 184 };
    const struct nh_problem *problem = kernel->problem;
    int64_t sums = facts[pass].sums * problem->dim + facts[pass].sums_v * problem->dim_v;
    /* where warpgroups skip, packed weights of a tile stay in registers while the next one's scores are computed */
    int64_t registers = facts[pass].registers + (nh_backward90_skips(kernel) ? 1 : 0);
    int64_t most = problem->has_bias && !owns_keys(kernel) ? MOST_REGISTERS_BIASED : MOST_REGISTERS;
    return sums / 2 + nh_box_volume(kernel->loop) * registers / 4 <= most &&
           config_of(kernel, pass).stages >= 2;
}

bool nh_backward90_fits(const struct nh_backward90_kernel *kernel) {
    if (kernel->problem->has_bias && !nh_sm90_pairs(kernel->own)) return false;
    /* The warpgroups of the joint kernel divide the rows of a loop tile. */
    if (kernel->kind == WGMMA90_JOINT && nh_box_volume(kernel->loop) % 64) return false;
    for (enum nh_backward90_pass pass = 0; pass < NH_BACKWARD90_PASSES; pass++)
        if (nh_backward90_has(kernel, pass) && !pass_fits(kernel, pass)) return false;
    for (int part = 0; part < nh_backward90_parts(kernel); part++) {
        struct nh_problem room;
        const struct nh_backward90_kernel of_part = nh_backward90_part(kernel, part, &room);
        if (!pass_fits(&of_part, NH_BACKWARD90_D_V)) return false;
    }
    return true;
}

/* ---- loops ---- */

struct nh_backward90_loops nh_backward90_loops_from(const struct nh_backward90_kernel *kernel,
                                                    const struct nh_tiling_count *count,
                                                    const struct nh_tiling_count *seen) {
    const struct nh_problem *problem = kernel->problem;
    struct nh_backward90_loops loops = {count->work_tiles,        count->visited,
                                        count->partial,           count->longest,
                                        seen ? seen->visited : 0, seen ? seen->partial : 0};
    if (owns_keys(kernel)) {
        double sharing = (double)(problem->heads / problem->kv_heads);
        loops.work_tiles /= sharing;
        loops.longest *= sharing;
    } else {
        double extra = (double)nh_ceil_div(problem->extra_tokens, nh_box_volume(kernel->loop));
        loops.tiles += extra * count->work_tiles;
        loops.longest += extra;
    }
    return loops;
}

/* Counts for loops that begin at multiples of the loop tile's length (nh_backward90_stores_first). Key tiles far from both
 * ends of the axis count alike. */
static struct nh_tiling_count aligned_count(const struct nh_backward90_kernel *kernel) {
    const struct nh_axis *axis = &kernel->problem->axis[2];
    const int64_t own = kernel->own[2], loop = kernel->loop[2],
                  tiles = nh_ceil_div(axis->length, own),
                  border = own % loop ? tiles : nh_ceil_div(axis->window, own) + 1;
    struct nh_tiling_count count = {.work_tiles = (double)tiles};
    for (int64_t tile = 0; tile < tiles; tile++) {
        const struct nh_range first = nh_axis_seen(axis, axis->length, true, tile * own),
                              last = nh_axis_seen(axis, axis->length, true,
                                                  nh_min(tile * own + own, axis->length) - 1);
        const int64_t begin = first.begin / loop, end = nh_ceil_div(last.end, loop),
                      dense = nh_max(first.end / loop - nh_ceil_div(last.begin, loop), 0);
        const int64_t alike = tile == border ? nh_max(tiles - 2 * border, 1) : 1;
        count.visited += (double)(alike * (end - begin));
        count.partial += (double)(alike * (end - begin - dense));
        count.longest = fmax(count.longest, (double)(end - begin));
        tile += alike - 1;
    }
    return count;
}

struct nh_backward90_loops nh_backward90_loops_of(const struct nh_backward90_kernel *kernel) {
    const struct nh_problem *problem = kernel->problem;
    const int32_t *own = kernel->own, *loop = kernel->loop,
                  *warpgroup_tile = nh_backward90_skips(kernel);
    const bool keys = owns_keys(kernel);
    if (nh_backward90_stores_first(kernel)) {
        const struct nh_tiling_count aligned = aligned_count(kernel);
        return nh_backward90_loops_from(kernel, &aligned, NULL);
    }
    const struct nh_tiling_count whole = nh_tiling_count(problem, own, own, loop, keys, true);
    if (!warpgroup_tile) return nh_backward90_loops_from(kernel, &whole, NULL);
    const struct nh_tiling_count seen =
        nh_tiling_count(problem, own, warpgroup_tile, loop, keys, true);
    return nh_backward90_loops_from(kernel, &whole, &seen);
}

double nh_backward90_multiplied_share(const struct nh_backward90_loops *loops) {
    return loops->multiplied > 0 ? loops->multiplied / (WARPGROUPS * loops->tiles) : 1;
}

/* ---- clusters ---- */

/* Clocks in which blocks that share a work tile add up the sums of a launch; 0 if they cannot share: the sums do not
 * fit in place of the tiles, there is a bias, whose boxes are for whole loops, or warpgroups skip tiles. */
static double sums_clocks(const struct nh_backward90_kernel *kernel, enum nh_backward90_pass pass) {
    int64_t dim = kernel->problem->dim, dim_v = kernel->problem->dim_v;
    int64_t widest = nh_max(facts[pass].sums * dim, facts[pass].sums_v * dim_v);
    const struct wgmma90_config config = config_of(kernel, pass);
    if (kernel->kind > WGMMA90_KEY || kernel->problem->has_bias || config.skipping ||
        ROWS * wgmma90_sums_pitch((int)widest) > (int)wgmma90_layout_at(&config, 0).own_full)
        return 0;
    return facts[pass].sums * nh_cluster_reduction_clocks(ROWS, dim) +
           facts[pass].sums_v * nh_cluster_reduction_clocks(ROWS, dim_v);
}

/* The number of blocks that share a work tile; more than 1 only if those of all the kernel's launches can. Half of the
 * multiprocessors are left to the launch of the other side, which runs at the same time. */
static int32_t cluster_of(const struct nh_backward90_kernel *kernel,
                          const struct nh_backward90_loops *loops) {
    double heads = (double)(kernel->problem->batch * kernel->problem->heads);
    if (kernel->for_group) return 1;
    for (enum nh_backward90_pass pass = 0; pass < NH_BACKWARD90_PASSES; pass++)
        if (nh_backward90_has(kernel, pass) && !(sums_clocks(kernel, pass) > 0)) return 1;
    return nh_cluster_blocks(kernel->cuda->multiprocessors / 2.0, heads * loops->work_tiles,
                             loops->longest);
}

/* ---- work ---- */

/* Instructions per logit for a bias, as of commit 3c75332; few of the recorded timings have a bias. Beside dQ, helper warps work on every entry of a pair of tiles: this counts per
 * logit of a row of the loop tile, less what they do in the shadow of products. */
static double bias_instructions(const struct nh_backward90_kernel *kernel) {
    const double scores = 3, gradient = 13, hidden = 18;
    if (!kernel->problem->has_bias) return 0;
    if (owns_keys(kernel)) return scores;
    double entries = 1;
    for (int a = 0; a < NH_AXES; a++)
        entries *= kernel->own[a] + kernel->loop[a] - 1;
    return fmax(gradient * entries / (double)nh_box_volume(kernel->loop) - hidden, scores);
}

static void add_pass_work(const struct nh_backward90_kernel *kernel, enum nh_backward90_pass pass,
                          const struct nh_backward90_loops *loops, struct nh_work *work) {
    static const enum nh_kernel_kind kind[] = {[WGMMA90_QUERY] = NH_KERNEL_SPLIT90_QUERY,
                                               [WGMMA90_KEY] = NH_KERNEL_SPLIT90_KEY,
                                               [WGMMA90_EXTRA] = NH_KERNEL_SPLIT90_KEY,
                                               [WGMMA90_JOINT] = NH_KERNEL_JOINT90};
    const struct nh_problem *problem = kernel->problem;
    const struct nh_cuda_device *cuda = kernel->cuda;
    double copies = (double)(problem->batch * problem->heads), cluster = cluster_of(kernel, loops);
    double rows = ROWS, columns = (double)nh_box_volume(kernel->loop), scores = rows * columns;
    double share = nh_backward90_multiplied_share(loops);
    double dims = (double)(problem->dim + problem->dim_v);
    double products =
        (double)(facts[pass].products * problem->dim + facts[pass].products_v * problem->dim_v);
    /* bytes moved per row of a loop tile, to which the joint kernel adds a row of dQ's sums */
    double column_bytes = dims * 2;
    if (pass == NH_BACKWARD90_ALL) column_bytes += 4 * (double)nh_backward90_sum_columns(problem);
    bool skips = loops->multiplied > 0;
    struct nh_launch_work *launch = nh_work_add(work, kind[kernel->kind]);
    launch->blocks = copies * cluster * loops->work_tiles;
    double tiles = copies * loops->tiles / launch->blocks,
           masked = copies * loops->masked / launch->blocks;
    launch->warps = 4 * WARPGROUPS;
    launch->steps = tiles;
    launch->longest = ceil(loops->longest / cluster) / tiles;
    launch->serial = 1.0 / WARPGROUPS;
    launch->code = dims;
    launch->tiles = copies * (skips ? loops->multiplied : loops->tiles);
    launch->masked_tiles = copies * (skips ? loops->multiplied_masked : loops->masked);
    launch->scores = skips ? scores / WARPGROUPS : scores;
    launch->flops = 2 * launch->tiles * launch->scores * products;
    launch->unit[NH_WORK_TENSOR] =
        share * tiles * scores * products / nh_cuda_products_per_clock(problem, cuda, true);
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(share * tiles * scores);
    launch->unit[NH_WORK_MASK] = nh_cuda_lane_clocks(masked * scores);
    launch->unit[NH_WORK_L2] =
        nh_cuda_l2_clocks(cuda, tiles * columns * column_bytes + rows * dims * 2);
    launch->unit[NH_WORK_STEP] = share * tiles;
    launch->unit[NH_WORK_INDEX] = problem->rank;
    launch->unit[NH_WORK_VECTOR] =
        nh_cuda_lane_clocks(dims * rows + tiles * scores * bias_instructions(kernel));
    launch->unit[NH_WORK_REDUCE] = cluster > 1 ? sums_clocks(kernel, pass) : 0;
}

void nh_backward90_add_work(const struct nh_backward90_kernel *kernel,
                            const struct nh_backward90_loops *loops, struct nh_work *work) {
    for (enum nh_backward90_pass pass = 0; pass < NH_BACKWARD90_PASSES; pass++)
        if (nh_backward90_has(kernel, pass)) add_pass_work(kernel, pass, loops, work);
    for (int part = 0; part < nh_backward90_parts(kernel); part++) {
        struct nh_problem room;
        const struct nh_backward90_kernel of_part = nh_backward90_part(kernel, part, &room);
        add_pass_work(&of_part, NH_BACKWARD90_D_V, loops, work);
    }
}

/* ---- launches ---- */

size_t nh_backward90_start(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step) {
    int64_t rows = problem->batch * problem->heads * problem->query_tokens;
    size_t stats = nh_cuda_reserve(operation, (size_t)rows * STATS_BYTES);
    nh_cuda_step_init(step, problem);
    nh_cuda_bind_stats(step, problem, stats);
    return stats;
}

/* Sets the tensor maps in the order of the kernels' structs: of owned rows, of the loop's, and of extra tokens. */
static void set_maps(const struct nh_backward90_kernel *kernel, const int32_t *warpgroup_tile,
                     struct nh_cuda_step *step) {
    static const int32_t order[2][4] = {{NHOOD_Q, NHOOD_D_O, NHOOD_K, NHOOD_V},
                                        {NHOOD_K, NHOOD_V, NHOOD_Q, NHOOD_D_O}};
    const bool keys = owns_keys(kernel);
    for (int i = 0; i < 4; i++)
        step->map[step->maps++] =
            nh_sm90_map(kernel->problem, order[keys][i], i < 2 ? warpgroup_tile : kernel->loop, 1);
    if (keys) {
        step->map[step->maps++] = nh_sm90_stats_map(kernel->problem, kernel->loop);
    } else {
        nh_sm90_loop_over_extra(step, kernel->problem, nh_box_volume(kernel->loop));
    }
    nh_sm90_add_twins(step, kernel->problem);
}

nhood_status nh_backward90_step(const struct nh_backward90_kernel *kernel,
                                enum nh_backward90_pass pass, size_t stats,
                                struct nh_cuda_step *step, struct wgmma90_config *config) {
    const struct nh_problem *problem = kernel->problem;
    const int32_t multiprocessors = kernel->cuda->multiprocessors;
    const bool keys = owns_keys(kernel);
    int32_t warpgroup_tile[3], heads = keys ? (int32_t)(problem->heads / problem->kv_heads) : 1;
    stack_of(kernel, warpgroup_tile);
    *config = config_of(kernel, pass);
    nh_cuda_step_init(step, problem);
    nh_cuda_bind_stats(step, problem, stats);
    step->outputs = facts[pass].outputs;
    step->overlaps = true;
    step->threads = 128 * (WARPGROUPS + 1);
    step->shared_bytes = wgmma90_shared_bytes(config);
    int32_t order = kernel->kind == WGMMA90_JOINT
                        ? nh_tiling_queue_order(problem)
                        : nh_tiling_order(problem, kernel->own, keys, multiprocessors);
    nhood_status status =
        nh_tiling_set(problem, kernel->own, heads, keys, order, &step->own.tiling);
    set_maps(kernel, warpgroup_tile, step);
    step->work_tiles = step->own.tiling.work_tiles;
    step->grid[0] = nh_min(step->work_tiles, multiprocessors);
    if (!problem->has_bias) step->loop_blocks = multiprocessors;
    if (status || kernel->kind > WGMMA90_KEY) return status;
    const struct nh_backward90_loops loops = nh_backward90_loops_of(kernel);
    config->cluster = cluster_of(kernel, &loops);
    nh_cluster_share(step, config->cluster);
    return NHOOD_OK;
}
