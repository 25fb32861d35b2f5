#include "fused90_launch.h"

#include "cluster.h"
#include "repair.h"
#include "tile_count.h"

const struct nh_knob nh_fused90_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "fused90_knobs.def"
#undef KNOB
    {NULL, NULL}};

int32_t nh_fused90_keys(const int32_t *value) {
    return (int32_t)nh_box_volume(value + KX) * value[TILE_BOXES];
}

int64_t nh_fused90_shared_bytes(const struct nh_problem *problem, const int32_t *value) {
    int64_t keys = nh_fused90_keys(value);
    int64_t stage = keys * (nh_sm90_row_bytes(problem->dim) + nh_sm90_row_bytes(problem->dim_v));
    if (problem->has_bias) stage += nh_sm90_bias_bytes(value + QX, value[QH], value + KX);
    int64_t barriers = 2 + 6 * value[STAGES];
    if (nh_problem_partial(problem) || nh_problem_periodic(problem)) barriers += 3; /* a queue */
    return 64 * value[WARPGROUPS] * nh_sm90_row_bytes(problem->dim) + value[STAGES] * stage + 1024 +
           nh_max(256, 8 * barriers);
}

bool nh_fused90_registers_fit(const struct nh_problem *problem, const int32_t *value) {
    int64_t keys = nh_fused90_keys(value);
    int64_t held = value[Q_IN_REGISTERS] ? problem->dim / 4 : 0;
    return problem->dim_v / 2 + keys * 3 / 4 + held <= (value[WARPGROUPS] == 2 ? 204 : 124);
}

/* Timed on an H200, skipping planes is faster for cubes of 4 x 4 x 4 rows, windows from 5 to 11 and head dims up to 64.
 * Lines follow each other along axis 1, and tensors must cover it, as otherwise the lines that all rows see
 * (NH_WHOLE_BEGIN) are not known in advance. */
bool nh_fused90_skips_planes(const struct nh_problem *problem, const int32_t *value) {
    enum { ROWS = 4, LEAST_WINDOW = 5, MOST_WINDOW = 11, MOST_DIM = 64 };
    int32_t tile[3], lines = (int32_t)problem->axis[1].window + ROWS - 1;
    return problem->rank == 3 && problem->dim <= MOST_DIM && problem->dim_v <= MOST_DIM &&
           nh_sm90_windows_are_plain(problem) && !nh_is_cut(&problem->axis[1]) &&
           problem->axis[0].window >= LEAST_WINDOW && problem->axis[0].window <= MOST_WINDOW &&
           value[WARPGROUPS] == 3 && value[STACK] == 0 && value[QH] == 1 && value[KX] == 1 &&
           value[KZ] == 8 && value[TILE_BOXES] == 1 && value[KY] >= lines &&
           nh_sm90_warpgroup_tile(value + QX, value[QH], 0, tile) && tile[0] == ROWS &&
           tile[1] == ROWS && tile[2] == ROWS;
}

double nh_fused90_copies(const struct nh_problem *problem, const int32_t *value) {
    return (double)(problem->batch * problem->heads / value[QH]);
}

double nh_fused90_extra_tiles(const struct nh_problem *problem, const int32_t *value) {
    return (double)nh_ceil_div(problem->extra_tokens, nh_fused90_keys(value));
}

/* Whether the last query tile of some dilation group has a warpgroup with padding rows only. In a cluster, where
 * warpgroups do not skip, it would multiply every key tile for nothing. */
static bool pads_a_warpgroup(const struct nh_problem *problem, const int32_t *value) {
    const struct nh_axis *axis = &problem->axis[value[STACK]];
    const int64_t length[] = {nh_longest_rows(axis, false), axis->query.length / axis->dilation};
    int32_t tile[3], rows = value[QX + value[STACK]];
    if (!nh_sm90_warpgroup_tile(value + QX, value[QH], value[STACK], tile)) return false;
    for (int i = 0; i < 2; i++) {
        int64_t last = length[i] % rows;
        if (last > 0 && last <= rows - tile[value[STACK]]) return true;
    }
    return false;
}

int32_t nh_fused90_cluster_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                              const int32_t *value, const struct nh_tiling_count *fetched) {
    int64_t keys = nh_fused90_keys(value), rows = 64 * value[WARPGROUPS];
    double work_tiles = nh_fused90_copies(problem, value) * fetched->work_tiles;
    if (!nh_cluster_possible(cuda->multiprocessors, work_tiles) || problem->has_bias ||
        value[TILE_BOXES] > 1 || pads_a_warpgroup(problem, value))
        return 1;
    int64_t row = nh_sm90_row_bytes(problem->dim), row_v = nh_sm90_row_bytes(problem->dim_v);
    if (nh_cluster_sums_bytes(rows, problem->dim_v) >
        rows * row + value[STAGES] * keys * (row + row_v))
        return 1;
    return nh_cluster_blocks(cuda->multiprocessors, work_tiles,
                             fetched->visited / fetched->work_tiles +
                                 nh_fused90_extra_tiles(problem, value));
}

/* ---- launches ---- */

static nhood_status add_repair(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, size_t words) {
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_repair_bind(&step, words);
    return nh_repair_add(operation, problem, &step, "fused90_repair.cu", NH_FUSED90_MOST_DIM / 8);
}

/* Tells the kernel which lines of a key tile every row of the work tile sees. The halo begins where the window of the
 * first of QY rows does, each further row's window begins at most one line later, and none ends before the first
 * row's. */
static void define_whole_lines(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                               const int32_t *value) {
    if (!nh_fused90_skips_planes(problem, value)) return;
    nh_kernel_define(spec, "NH_WHOLE_BEGIN", value[QY] - 1);
    nh_kernel_define(spec, "NH_WHOLE_END", problem->axis[1].window);
}

static nhood_status add_forward(struct nh_cuda_operation *operation,
                                const struct nh_problem *problem, const int32_t *value,
                                size_t words) {
    int64_t keys = nh_fused90_keys(value);
    struct nh_kernel_spec spec = {.source = "fused90_forward.cu"};
    struct nh_cuda_step step;
    nh_sm90_define(&spec, problem, keys);
    nh_kernel_define_knobs(&spec, nh_fused90_knobs, NH_CONFIG_KNOBS, value);
    int32_t warpgroup_tile[3];
    define_whole_lines(&spec, problem, value);
    nh_cuda_step_init(&step, problem);
    if (value[REPAIR_APART]) nh_repair_bind(&step, words);
    nhood_status status =
        nh_tiling_set(problem, value + QX, value[QH], false, value[ORDER], &step.own.tiling);
    if (status) return status;
    step.work_tiles = step.own.tiling.work_tiles;
    step.own.tiling.extra_tiles = (int)nh_ceil_div(problem->extra_tokens, keys);
    step.threads = 128 * (value[WARPGROUPS] + 1);
    step.grid[0] = nh_min(step.work_tiles, operation->device->multiprocessors);
    const struct nh_tiling_count fetched =
        nh_tiling_count(problem, value + QX, value + QX, value + KX, false, true);
    nh_cluster_share(&step, &spec,
                     nh_fused90_cluster_of(problem, operation->device, value, &fetched));
    step.shared_bytes = nh_fused90_shared_bytes(problem, value);
    nh_sm90_warpgroup_tile(value + QX, value[QH], value[STACK], warpgroup_tile);
    step.map[step.maps++] = nh_sm90_map(problem, NHOOD_Q, warpgroup_tile, value[QH]);
    step.map[step.maps++] = nh_sm90_map(problem, NHOOD_K, value + KX, 1);
    step.map[step.maps++] = nh_sm90_map(problem, NHOOD_V, value + KX, 1);
    if (problem->extra_tokens) {
        step.map[step.maps++] = nh_sm90_extra_map(problem, NHOOD_EXTRA_K, keys);
        step.map[step.maps++] = nh_sm90_extra_map(problem, NHOOD_EXTRA_V, keys);
    }
    nh_sm90_add_twins(&step, problem);
    return nh_cuda_step_add(operation, &step, &spec);
}

nhood_status nh_fused90_add_steps(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem,
                                  const struct nh_config *config) {
    const int32_t *value = config->value;
    if (!value[REPAIR_APART]) return add_forward(operation, problem, value, 0);
    size_t words = nh_cuda_reserve(operation, 2 * sizeof(uint32_t));
    nhood_status status = nh_repair_add_clear(operation, problem, words);
    if (!status) status = add_forward(operation, problem, value, words);
    if (!status) status = add_repair(operation, problem, words);
    return status;
}
