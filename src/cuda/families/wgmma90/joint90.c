/* cuda.joint90: the backward pass on sm_90 with five products (joint90.cu). The first launch computes statistics of the
 * queries and clears f32 sums for dQ. In the second, blocks own keys, and the copy engine adds each loop tile's dQ to
 * the sums; in one dimension the first to have dQ stores it, and nothing is cleared (nh_backward90_stores_first). Then dQ
 * is converted to the tensors' type, and rows that are not finite are repaired. Blocks add to the sums in no fixed order,
 * so that results are not deterministic. */
#include "backward90.h"
#include "cuda_family.h"
#include "permuted_axes.h"

#include <string.h>

#define NH_KNOBS "joint90_knobs.def"
#include "knob_table.h"
enum { MOST_DIM = 128 };

static struct nh_backward90_kernel kernel_of(const struct nh_problem *problem,
                                             const struct nh_cuda_device *cuda,
                                             const int32_t *value) {
    return (struct nh_backward90_kernel){problem,        cuda,  WGMMA90_JOINT, value + OWN_X,
                                         value + LOOP_X, false, false};
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    static const int32_t none[KNOBS] = {0};
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    if (problem->extra_tokens) return "no extra tokens";
    if (problem->has_bias) return "no relative bias";
    if (problem->flags & NHOOD_FLAG_DETERMINISTIC)
        return "dQ is summed in whatever order blocks come, which differs from run to run";
    const char *reason =
        nh_sm90_refuse(problem, device, NH_BIT(Q) | NH_BIT(K) | NH_BIT(V) | NH_BIT(D_O),
                       NH_BIT(D_Q) | NH_BIT(D_K) | NH_BIT(D_V), MOST_DIM);
    const struct nh_backward90_kernel kernel = kernel_of(problem, device->backend, none);
    return reason ? reason : nh_backward90_refuse_around(&kernel);
}

/* The first and the last launch wait for memory: they read dO and O, clear the sums, read them again and write dQ. */
static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const struct nh_backward90_kernel kernel = kernel_of(problem, device->backend, config->value);
    const struct nh_backward90_loops loops = nh_backward90_loops_of(&kernel);
    double rows = (double)(problem->batch * problem->query_tokens * problem->heads);
    nh_work_start(work, NH_OPERATION_JOINT90, problem);
    nh_backward90_add_work(&kernel, &loops, work);
    /* Sums of a dilated axis lie in the order of its groups: rows are then taken one by one. */
    const double one_by_one = 1.5, taking = problem->axis[2].dilation > 1 ? one_by_one : 1;
    const int64_t clearing = nh_backward90_stores_first(&kernel) ? 0 : 4;
    work->helpers += 2;
    work->helper_bytes += taking * rows *
                          (double)(4 * problem->dim_v + 2 * problem->dim +
                                   (4 + clearing) * nh_backward90_sum_columns(problem));
    return true;
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct nh_backward90_pair best[NH_BACKWARD90_KEPT];
    const struct nh_backward90_kernel kernel = kernel_of(problem, device->backend, config->value);
    int count = (int)nh_min(capacity, nh_backward90_best(&kernel, best));
    for (int i = 0; i < count; i++)
        memcpy(config[i].value + OWN_X, best[i].tiles, sizeof best[i].tiles);
    return count;
}

/* ---- building ---- */

/* A plan, and where it has the statistics of queries, dQ's sums, [B, H, X', Y', Z', columns] (see joint90.cu), and the
 * two words of NH_QUEUE in the workspace. first: bytes before the first query, as periodic axes begin with positions in
 * front of it at which loop tiles may start. */
struct builder {
    struct nh_cuda_operation *operation;
    const struct nh_backward90_kernel *kernel;
    const struct nh_problem *problem;
    size_t stats, sums, first, queue;
    int64_t extent[NH_AXES], columns;
};

static void reserve_sums(struct builder *builder) {
    const struct nh_problem *problem = builder->problem;
    int64_t rows = 1, first = 0;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        const struct nh_axis *axis = &problem->axis[a];
        int64_t before = axis->periodic ? builder->kernel->loop[a] - 1 : 0;
        builder->extent[a] = before + axis->dilation * nh_longest_rows(axis, false);
        first += before * rows;
        rows *= builder->extent[a];
    }
    size_t row_bytes = (size_t)builder->columns * sizeof(float);
    builder->first = (size_t)first * row_bytes;
    builder->sums = nh_cuda_reserve(builder->operation,
                                    (size_t)(rows * problem->batch * problem->heads) * row_bytes);
    builder->queue = nh_cuda_reserve(builder->operation, 2 * sizeof(uint32_t));
}

static void bind_sums(const struct builder *builder, struct nh_cuda_step *step) {
    struct nh_cuda_tensor *t = &step->args.tensor[NH_D_Q_SUMS];
    nh_cuda_bind_offset(step, NH_QUEUE, builder->queue);
    nh_cuda_bind_offset(step, NH_D_Q_SUMS, builder->sums + builder->first);
    t->head = builder->columns;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        t->axis[a] = t->head;
        t->head *= builder->extent[a];
    }
    t->batch = t->head * builder->problem->heads;
}

static nhood_status add_kernel(const struct builder *builder) {
    const struct nh_backward90_kernel *kernel = builder->kernel;
    struct nh_kernel_spec spec = {.source = "joint90.cu"};
    struct nh_cuda_step step;
    struct wgmma90_config config;
    nhood_status status =
        nh_backward90_step(kernel, NH_BACKWARD90_ALL, builder->stats, &step, &config);
    if (status) return status;
    nh_wgmma90_configure(&spec, builder->problem, config);
    bind_sums(builder, &step);
    step.map[step.maps] =
        nh_sm90_sums_map(builder->problem, builder->extent, builder->columns, kernel->loop);
    step.map[step.maps++].offset_bytes = -(int64_t)builder->first;
    return nh_cuda_step_add(builder->operation, &step, &spec);
}

static nhood_status add_convert(const struct builder *builder) {
    enum { COLUMNS = 4 };
    const struct nh_problem *problem = builder->problem;
    struct nh_kernel_spec spec = {.source = "joint90_convert.cu"};
    struct nh_cuda_step step;
    int64_t rows = problem->batch * problem->heads * problem->query_tokens;
    int64_t lanes = builder->columns / COLUMNS;
    nh_cuda_configure_rows(
        &spec, problem,
        &(struct row_config){
            .threads = ROW_THREADS, .group = (int)lanes, .vector = COLUMNS, .vectors = 1});
    nh_cuda_step_init(&step, problem);
    bind_sums(builder, &step);
    nh_cuda_take_runs(builder->operation->device, &spec, &step, rows, lanes);
    step.outputs = NH_BIT(D_Q);
    step.overlaps = true;
    return nh_cuda_step_add(builder->operation, &step, &spec);
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const struct nh_backward90_kernel kernel = kernel_of(problem, operation->device, config->value);
    struct builder builder = {.operation = operation,
                              .kernel = &kernel,
                              .problem = problem,
                              .columns = nh_backward90_sum_columns(problem)};
    struct nh_cuda_step stats, repair;
    builder.stats = nh_backward90_start(operation, problem, &stats);
    reserve_sums(&builder);
    bind_sums(&builder, &stats);
    repair = stats;
    const int64_t cleared = nh_backward90_stores_first(&kernel) ? 0 : builder.columns;
    nhood_status status = nh_cuda_add_stats(operation, &stats, problem, cleared);
    if (!status) status = add_kernel(&builder);
    if (!status) status = add_convert(&builder);
    if (!status)
        status = nh_repair_add(operation, problem, &repair, "joint90_repair.cu", MOST_DIM / 8);
    return status;
}

const struct nh_solver nh_solver_cuda_joint90 = {
    NH_CUDA_SOLVER("cuda.joint90", knobs, refuse, candidates, work, add_steps),
    .view = nh_permuted_axes,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
};
