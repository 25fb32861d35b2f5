#include "launch90.h"

#include "tensor_maps.h"
#include "value_parts.h"

/* ---- configurations ---- */

struct wgmma90_config nh_wgmma90_config(const struct nh_problem *problem,
                                        enum wgmma90_kernel kernel) {
    struct wgmma90_config config = {.kernel = (int)kernel,
                                    .rank = problem->rank,
                                    .dim = (int)problem->dim,
                                    .dim_v = (int)problem->dim_v,
                                    .own_heads = 1,
                                    .loop_boxes = 1,
                                    .own_places = 1,
                                    .cluster = 1,
                                    .head_parts = 1,
                                    .extra = problem->extra_tokens > 0,
                                    .biased = problem->has_bias,
                                    .sum_d_k = 1,
                                    .sum_d_v = 1};
    for (int a = 0; a < NH_AXES; a++)
        config.region_axes |= nh_is_cut(&problem->axis[a]) << a;
    return config;
}

void nh_wgmma90_configure(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                          struct wgmma90_config config) {
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(WGMMA90_CONFIG);
    static const char *const kernels[] = {NH_NAMED(WGMMA90_FORWARD), NH_NAMED(WGMMA90_QUERY),
                                          NH_NAMED(WGMMA90_KEY), NH_NAMED(WGMMA90_EXTRA),
                                          NH_NAMED(WGMMA90_JOINT)};
    static const char *const masks[] = {NH_NAMED(WGMMA90_MASK_BITS), NH_NAMED(WGMMA90_MASK_PLACES),
                                        NH_NAMED(WGMMA90_MASK_PRODUCT)};
    static const char *const skipping[] = {NH_NAMED(WGMMA90_SKIP_NOTHING),
                                           NH_NAMED(WGMMA90_SKIP_TILES),
                                           NH_NAMED(WGMMA90_SKIP_PLANES)};
    config.q_map = (int)nh_map_layout_of(problem, NHOOD_Q);
    config.k_map = (int)nh_map_layout_of(problem, NHOOD_K);
    config.v_map = (int)nh_map_layout_of(problem, NHOOD_V);
    if (problem->op == NHOOD_OP_BWD) config.d_o_map = (int)nh_map_layout_of(problem, NHOOD_D_O);
    config.folded = nh_sm90_folds(problem);
    config.far_axes = nh_sm90_far_axes(problem);
    config.uneven_axes = nh_sm90_uneven_axes(problem);
    config.strided = nh_problem_strided(problem);
    config.dilated = nh_problem_dilated(problem);
    config.causal = nh_problem_causal(problem);
    nh_kernel_define(spec, "NH_DTYPE", problem->dtype);
    if (nh_value_parts(problem) > 1) nh_kernel_define(spec, "NH_WIDE_VALUES", 1);
    nh_kernel_configure(spec, fields, &config);
    nh_kernel_name_value(spec, "kernel", kernels[config.kernel]);
    nh_kernel_name_value(spec, "mask", masks[config.mask]);
    nh_kernel_name_value(spec, "skipping", skipping[config.skipping]);
}

/* ---- clusters ---- */

/* Clusters of 8 are the largest that every device of compute capability 9.0 takes. They cannot use all multiprocessors:
 * on an H200 with 132 of them, 14 clusters of 8 ran at once and 16 did not, while 32 of 4 did. */
enum { MOST = 8 };
static const double within_most = 0.875;

bool nh_cluster_possible(double multiprocessors, double work_tiles) {
    return 2 * work_tiles <= multiprocessors;
}

int32_t nh_cluster_blocks(double multiprocessors, double work_tiles, double tiles) {
    int32_t cluster = 1;
    for (int32_t next = 2; next <= MOST && next <= tiles; next *= 2)
        if (next * work_tiles <= (next == MOST ? within_most : 1) * multiprocessors) cluster = next;
    return cluster;
}

/* Both numbers follow from launches of 13 and 14 work tiles with clusters of 1 to 8 blocks (docs/log/wgmma90.md, 89ab1ed).
 * The table's coefficient of NH_WORK_REDUCE scales them, so that only their ratio matters. */
double nh_cluster_reduction_clocks(int64_t rows, int64_t dim) {
    const double meeting = 1500, element = 0.1;
    return meeting + element * (double)(rows * dim);
}

void nh_cluster_share(struct nh_cuda_step *step, int32_t cluster) {
    if (cluster == 1) return;
    step->cluster = cluster;
    step->grid[0] = step->work_tiles * cluster;
    step->loop_blocks = 0;
}

nhood_status nh_repair_add(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, const char *source, int64_t lanes) {
    enum { THREADS = 128, BLOCKS_PER_MULTIPROCESSOR = 4 };
    struct nh_kernel_spec spec = {.source = source};
    nh_cuda_configure_rows(&spec, problem,
                           &(struct row_config){.threads = THREADS,
                                                .group = (int)lanes,
                                                .vector = 8,
                                                .vectors = 1,
                                                .resident = 1,
                                                .keys = ROW_KEYS,
                                                .delta_at = 1,
                                                .extra = problem->extra_tokens > 0,
                                                .biased = problem->has_bias});
    step->overlaps = true;
    step->threads = THREADS;
    step->grid[0] = BLOCKS_PER_MULTIPROCESSOR * operation->device->multiprocessors;
    step->loop_blocks = operation->device->multiprocessors; /* most find nothing to do */
    return nh_cuda_step_add(operation, step, &spec);
}
