#include "fused90_work.h"

#include "tiling.h"
#include "cluster.h"
#include "rates.h"

#include <math.h>

/* Whether masks across lines are computed once per line of tiles (fused90_softmax.cuh). */
static bool masks_by_line(const struct nh_problem *problem, const int32_t *value) {
    return value[STACK] == 0 && value[TILE_BOXES] * value[KY] * value[KZ] <= 32 &&
           !problem->has_bias;
}

/* Instructions per logit for a bias; rows of several heads share no entries. */
static double bias_instructions(const struct nh_problem *problem, const int32_t *value) {
    enum { SHARED = 15, APART = 19 };
    return !problem->has_bias ? 0 : value[QH] > 1 ? APART : SHARED;
}

/* Sets the work of a block that fetches so many tiles and whose warpgroups multiply `seen` of them, `masked` with
 * masks. */
static void set_units(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                      const int32_t *value, double fetched, double seen, double masked,
                      bool by_line, struct nh_launch_work *launch) {
    double keys = nh_fused90_keys(value), scores = 64 * keys, groups = value[WARPGROUPS];
    double dims = (double)(problem->dim + problem->dim_v), masks = nh_cuda_lane_clocks(scores);
    double tensor = seen * scores * dims / nh_cuda_products_per_clock(problem, cuda, true);
    launch->unit[NH_WORK_TENSOR] = tensor;
    launch->unit[NH_WORK_SHARED] =
        value[Q_IN_REGISTERS] ? 0 : tensor; /* queries are read for each product */
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(seen * scores);
    launch->unit[by_line ? NH_WORK_LINE : NH_WORK_MASK] = masked * masks;
    launch->unit[NH_WORK_IDLE] = by_line ? (groups * fetched - seen) * masks : 0;
    launch->unit[NH_WORK_L2] = nh_cuda_l2_clocks(cuda, (fetched * keys + 64 * groups) * dims * 2);
    launch->unit[NH_WORK_STEP] = seen / groups;
    launch->unit[NH_WORK_INDEX] = problem->rank;
    launch->unit[NH_WORK_SPILL] =
        groups > 2 ? dims : 0; /* setmaxnreg is slow to move registers between warpgroups */
    launch->unit[NH_WORK_VECTOR] =
        nh_cuda_lane_clocks(64 * groups * dims + seen * scores * bias_instructions(problem, value));
    launch->unit[NH_WORK_COPY] =
        value[Q_IN_REGISTERS] ? (problem->rank - 1) * (double)problem->dim : 0;
}

/* Blocks of a cluster share the key tiles of a work tile. Their warpgroups do not skip: they multiply, with masks, what
 * they would otherwise skip. */
void nh_fused90_work_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        const int32_t *value, const struct nh_fused90_loops *loops,
                        struct nh_work *work) {
    double cluster = nh_fused90_cluster_of(problem, cuda, value, &loops->fetched);
    double groups = value[WARPGROUPS], work_tiles = loops->seen.work_tiles;
    double extra = nh_fused90_extra_tiles(problem, value);
    double fetched = loops->fetched.visited / work_tiles + extra,
           seen = loops->seen.visited / work_tiles + groups * extra,
           masked = loops->seen.partial / work_tiles;
    double blocks = nh_fused90_copies(problem, value) * work_tiles, tiles = seen;
    if (cluster > 1) {
        tiles = groups * fetched;
        masked += tiles - seen;
        fetched = ceil(fetched / cluster);
        seen = groups * fetched;
    }
    nh_work_start(work, NH_OPERATION_FUSED90, problem);
    struct nh_launch_work *launch = nh_work_add(work, NH_KERNEL_FUSED90);
    launch->blocks = blocks * cluster;
    launch->warps = 4 * groups;
    launch->steps = fetched;
    launch->longest = fmax(1, (loops->fetched.longest + extra) / cluster / fetched);
    launch->serial = 1 / groups;
    launch->code = (double)(problem->dim + problem->dim_v);
    launch->tiles = blocks * tiles;
    launch->masked_tiles = blocks * masked;
    launch->scores = 64 * nh_fused90_keys(value);
    launch->flops =
        2 * launch->tiles * 64 * nh_fused90_keys(value) * (double)(problem->dim + problem->dim_v);
    set_units(problem, cuda, value, fetched, seen, masked / cluster,
              cluster == 1 && masks_by_line(problem, value), launch);
    if (cluster > 1)
        launch->unit[NH_WORK_REDUCE] =
            nh_cluster_reduction_clocks(64 * value[WARPGROUPS], problem->dim_v);
}

struct nh_fused90_loops nh_fused90_loops_of(const struct nh_problem *problem,
                                            const int32_t *value) {
    int32_t warpgroup_tile[3];
    nh_sm90_warpgroup_tile(value + QX, value[QH], value[STACK], warpgroup_tile);
    if (value[TILE_BOXES] == 1)
        return (struct nh_fused90_loops){
            nh_tiling_count(problem, value + QX, value + QX, value + KX, false, true),
            nh_tiling_count(problem, value + QX, warpgroup_tile, value + KX, false, true)};
    struct nh_box_tile_count count =
        nh_box_tile_count(problem, value + QX, warpgroup_tile[value[STACK]], value[STACK],
                          value + KX, value[TILE_BOXES]);
    return (struct nh_fused90_loops){
        .fetched = {.work_tiles = count.work_tiles, .visited = count.fetched},
        .seen = {
            .work_tiles = count.work_tiles, .visited = count.multiplied, .partial = count.masked}};
}
