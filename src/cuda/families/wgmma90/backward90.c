/* The backward kernels of sm_90: their loops, what they ask of a device, and setting up their launches. */
#include "backward90.h"

#include "cluster.h"
#include "rates.h"

#include <math.h>
#include <string.h>

enum { WARPGROUPS = NH_BACKWARD90_WARPGROUPS, STATS_BYTES = 16 };

/* ---- warpgroup skipping ---- */

/* Owned tiles whose warpgroups skip loop tiles: rank, owned tile, warpgroup tile, and the head dims and windows for
 * which this is faster. They are cubes in volumes, where loop tiles are planes, and squares in images, where loop tiles
 * have 8 columns. In images, narrow heads gain with few windows only (docs/log/wgmma90.md). */
static const struct {
    int32_t rank, own[3], part[3], least_dim, most_dim, least_window, most_window;
} skipping[] = {{3, {4 * WARPGROUPS, 4, 4}, {4, 4, 4}, 1, 64, 5, 11},
                {2, {1, 8, 8 * WARPGROUPS}, {1, 8, 8}, 33, 64, 9, 21},
                {2, {1, 8, 8 * WARPGROUPS}, {1, 8, 8}, 1, 32, 13, 17}};

const int32_t *nh_backward90_skipping_part(const struct nh_backward90_kernel *kernel) {
    const struct nh_problem *problem = kernel->problem;
    if (!kernel->skips || !nh_sm90_windows_slide(problem)) return NULL;
    int64_t dim = nh_max(problem->dim, problem->dim_v),
            window = problem->axis[NH_AXES - problem->rank].window;
    for (size_t i = 0; i < sizeof skipping / sizeof *skipping; i++)
        if (problem->rank == skipping[i].rank &&
            !memcmp(kernel->own, skipping[i].own, sizeof skipping[i].own) &&
            dim >= skipping[i].least_dim && dim <= skipping[i].most_dim &&
            window >= skipping[i].least_window && window <= skipping[i].most_window)
            return skipping[i].part;
    return NULL;
}

const int32_t *nh_backward90_skips(const struct nh_backward90_kernel *kernel) {
    return kernel->loop[0] == 1 && kernel->loop[2] == 8 ? nh_backward90_skipping_part(kernel)
                                                        : NULL;
}

/* ---- loops ---- */

struct nh_backward90_loops nh_backward90_loops_from(const struct nh_backward90_kernel *kernel,
                                                    const struct nh_tiling_count *count,
                                                    const struct nh_tiling_count *seen) {
    const struct nh_problem *problem = kernel->problem;
    struct nh_backward90_loops loops = {.work_tiles = count->work_tiles,
                                        .tiles = count->visited,
                                        .masked = count->partial,
                                        .longest = count->longest,
                                        .columns = (double)nh_box_volume(kernel->loop)};
    if (kernel->keys) {
        double sharing = (double)(problem->heads / problem->kv_heads);
        loops.work_tiles /= sharing;
        loops.longest *= sharing;
    } else {
        double extra = (double)nh_ceil_div(problem->extra_tokens, (int64_t)loops.columns);
        loops.tiles += extra * count->work_tiles;
        loops.longest += extra;
    }
    if (seen) {
        loops.multiplied = seen->visited;
        loops.multiplied_masked = seen->partial;
    }
    return loops;
}

struct nh_backward90_loops nh_backward90_loops_of(const struct nh_backward90_kernel *kernel) {
    const struct nh_problem *problem = kernel->problem;
    const int32_t *own = kernel->own, *loop = kernel->loop, *part = nh_backward90_skips(kernel);
    struct nh_tiling_count seen,
        count = nh_tiling_count(problem, own, own, loop, kernel->keys, true);
    if (part) seen = nh_tiling_count(problem, own, part, loop, kernel->keys, true);
    return nh_backward90_loops_from(kernel, &count, part ? &seen : NULL);
}

double nh_backward90_multiplied_share(const struct nh_backward90_loops *loops) {
    return loops->multiplied > 0 ? loops->multiplied / (WARPGROUPS * loops->tiles) : 1;
}

/* ---- work ---- */

int32_t nh_backward90_cluster(const struct nh_backward90_kernel *kernel,
                              const struct nh_backward90_loops *loops, bool shares) {
    double work_tiles =
        (double)(kernel->problem->batch * kernel->problem->heads) * loops->work_tiles;
    if (!shares) return 1;
    return nh_cluster_blocks(kernel->cuda->multiprocessors / 2.0, work_tiles, loops->longest);
}

void nh_backward90_add_work(const struct nh_backward90_kernel *kernel,
                            const struct nh_backward90_loops *loops,
                            const struct nh_backward90_launch *of, struct nh_work *work) {
    const struct nh_problem *problem = kernel->problem;
    const struct nh_cuda_device *cuda = kernel->cuda;
    double copies = (double)(problem->batch * problem->heads);
    double cluster = nh_backward90_cluster(kernel, loops, of->sums > 0);
    double rows = 64 * WARPGROUPS, scores = rows * loops->columns;
    double share = nh_backward90_multiplied_share(loops);
    double dims = (double)(problem->dim + problem->dim_v);
    struct nh_launch_work *launch = nh_work_add(work, of->kind);
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

int64_t nh_backward90_shared_bytes(const struct nh_backward90_kernel *kernel, int64_t stages) {
    int64_t row =
        nh_sm90_row_bytes(kernel->problem->dim) + nh_sm90_row_bytes(kernel->problem->dim_v);
    int64_t rows = nh_box_volume(kernel->loop), stage = rows * row;
    if (kernel->keys) stage += rows * STATS_BYTES;
    return 64 * WARPGROUPS * row + stages * stage + 1024 + 256;
}

int32_t nh_backward90_stages(const struct nh_backward90_kernel *kernel, int64_t own_bytes,
                             int32_t most) {
    int32_t stages = most;
    while (stages > 0 && nh_backward90_shared_bytes(kernel, stages) + own_bytes >
                             kernel->cuda->shared_bytes_per_block)
        stages--;
    return stages;
}

/* ---- launches ---- */

size_t nh_backward90_reserve_stats(struct nh_cuda_operation *operation,
                                   const struct nh_problem *problem) {
    return nh_cuda_reserve(
        operation, (size_t)(problem->batch * problem->heads * problem->query_tokens) * STATS_BYTES);
}

/* Defines the macros of a kernel; part: its warpgroup tile. */
static void define(const struct nh_backward90_kernel *kernel, const int32_t *part, int32_t stages,
                   struct nh_kernel_spec *spec) {
    static const char *const own_names[] = {"NH_OWN_X", "NH_OWN_Y", "NH_OWN_Z"};
    static const char *const loop_names[] = {"NH_LOOP_X", "NH_LOOP_Y", "NH_LOOP_Z"};
    const struct nh_problem *problem = kernel->problem;
    const int32_t *own = kernel->own, *loop = kernel->loop;
    nh_sm90_define(spec, problem, nh_box_volume(loop));
    for (int a = 0; a < NH_AXES; a++) {
        nh_kernel_define(spec, own_names[a], own[a]);
        nh_kernel_define(spec, loop_names[a], loop[a]);
    }
    nh_kernel_define(spec, "NH_TILE_BOXES", 1);
    nh_kernel_define(spec, "NH_WARPGROUPS", WARPGROUPS);
    if (nh_backward90_skips(kernel)) {
        nh_kernel_define(spec, "NH_SKIPPING", 1);
        nh_kernel_define(spec, "NH_PLAIN_WINDOWS", 1);
        nh_kernel_define(spec, "NH_OWN_PLACES", NH_BACKWARD90_OWN_PLACES_SKIPPING);
        nh_kernel_define(spec, "NH_STACK", own[0] > part[0] ? 0 : own[1] > part[1] ? 1 : 2);
    }
    nh_kernel_define(spec, "NH_STAGES", stages);
    nh_kernel_define(spec, "NH_D_O_MAP", nh_map_layout_of(problem, NHOOD_D_O));
    nh_kernel_define(spec, "NH_INVERSE", kernel->keys);
}

/* Sets the tensor maps in the order of the kernels' structs. */
static void set_maps(const struct nh_backward90_kernel *kernel, const int32_t *part,
                     struct nh_cuda_step *step) {
    const struct nh_problem *problem = kernel->problem;
    const int32_t *q_tile = kernel->keys ? kernel->loop : part,
                  *k_tile = kernel->keys ? part : kernel->loop;
    const struct nh_cuda_map q = nh_sm90_map(problem, NHOOD_Q, q_tile, 1),
                             d_o = nh_sm90_map(problem, NHOOD_D_O, q_tile, 1),
                             k = nh_sm90_map(problem, NHOOD_K, k_tile, 1),
                             v = nh_sm90_map(problem, NHOOD_V, k_tile, 1);
    const struct nh_cuda_map by_query[] = {q, d_o, k, v},
                             by_key[] = {k, v, q, d_o, nh_sm90_stats_map(problem, q_tile)};
    step->maps = kernel->keys ? 5 : 4;
    memcpy(step->map, kernel->keys ? by_key : by_query, (size_t)step->maps * sizeof *step->map);
}

nhood_status nh_backward90_step(const struct nh_backward90_kernel *kernel, size_t stats,
                                int32_t stages, struct nh_cuda_step *step,
                                struct nh_kernel_spec *spec) {
    const struct nh_problem *problem = kernel->problem;
    const int32_t *part = nh_backward90_skips(kernel);
    int32_t warpgroup_tile[3];
    nh_sm90_first_warpgroup_tile(kernel->own, warpgroup_tile);
    if (!part) part = warpgroup_tile;
    define(kernel, part, stages, spec);
    nh_cuda_step_init(step, problem);
    nh_cuda_bind_stats(step, problem, stats);
    step->threads = 128 * (WARPGROUPS + 1);
    step->shared_bytes = nh_backward90_shared_bytes(kernel, stages);
    set_maps(kernel, part, step);
    nhood_status status = nh_tiling_set(
        problem, kernel->own, kernel->keys ? (int32_t)(problem->heads / problem->kv_heads) : 1,
        kernel->keys,
        nh_tiling_order(problem, kernel->own, kernel->keys, kernel->cuda->multiprocessors),
        &step->own.tiling);
    step->work_tiles = step->own.tiling.work_tiles;
    step->grid[0] = nh_min(step->work_tiles, kernel->cuda->multiprocessors);
    return status;
}
