/* cuda.naive: one group of lanes per row, no shared memory, no tensor cores. Takes every problem. */
#include "cuda_solvers.h"
#include "dtype.h"
#include "launch.h"

enum { THREADS = 128, LANES = 32, LANE_ELEMENTS = 16, WIDE_LANE_ELEMENTS = 8 };
#define BIT(tensor) (1u << NHOOD_##tensor)

/* How a row is spread over lanes; see kernels/naive.cuh. */
struct layout {
    int vector, vectors, group;
    bool resident;
    int64_t chunks;
};

static int64_t widest_row(const struct nh_problem *problem) {
    if (problem->op == NHOOD_OP_PN) return problem->dim;
    if (problem->op == NHOOD_OP_NN || problem->op == NHOOD_OP_IN) return problem->dim_v;
    return nh_max(problem->dim, problem->dim_v);
}

static struct layout layout_of(const struct nh_problem *problem) {
    int64_t dim = widest_row(problem);
    struct layout layout = {
        .vector = nh_cuda_vector(problem, UINT32_MAX), .vectors = 1, .group = 1};
    while (layout.group < LANES && layout.group * layout.vector < dim)
        layout.group *= 2;
    int64_t vectors = nh_ceil_div(dim, layout.group * layout.vector);
    layout.resident = vectors * layout.vector <= LANE_ELEMENTS;
    layout.vectors =
        layout.resident ? (int)vectors : (int)nh_max(1, WIDE_LANE_ELEMENTS / layout.vector);
    layout.chunks = nh_ceil_div(dim, (int64_t)layout.group * layout.vector * layout.vectors);
    return layout;
}

static struct nh_kernel_spec spec_of(const struct nh_problem *problem, const struct layout *layout,
                                     const char *source) {
    struct nh_kernel_spec spec = {.source = source};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_VECTOR", layout->vector);
    nh_kernel_define(&spec, "NH_VECTORS", layout->vectors);
    nh_kernel_define(&spec, "NH_GROUP", layout->group);
    nh_kernel_define(&spec, "NH_RESIDENT", layout->resident);
    nh_kernel_define(&spec, "NH_BIASED", problem->has_bias);
    return spec;
}

/* Enough blocks to fill the device several times over; the kernels step through what is left. */
static int64_t blocks_for(int64_t items, int64_t items_per_block) {
    return nh_max(1, nh_min(nh_ceil_div(items, items_per_block), (int64_t)1 << 30));
}

static nhood_status add_rows(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             const struct layout *layout, struct nh_cuda_step *step,
                             const char *source, int64_t heads) {
    struct nh_kernel_spec spec = spec_of(problem, layout, source);
    step->threads = THREADS;
    step->grid[0] = blocks_for(problem->batch * heads * problem->tokens, THREADS / layout->group);
    step->grid[1] = layout->chunks;
    return nh_cuda_step_add(operation, step, &spec);
}

static nhood_status add_blocks(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct layout *layout,
                               struct nh_cuda_step *step, const char *source, int64_t items) {
    struct nh_kernel_spec spec = spec_of(problem, layout, source);
    step->threads = THREADS;
    step->grid[0] = blocks_for(items, 1);
    return nh_cuda_step_add(operation, step, &spec);
}

static nhood_status add_backward(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, const struct layout *layout,
                                 struct nh_cuda_step *step) {
    size_t real_bytes = problem->dtype == NHOOD_DTYPE_F64 ? 8 : 4;
    size_t delta = nh_cuda_reserve(
        operation, (size_t)(problem->batch * problem->tokens * problem->heads) * real_bytes);
    nh_cuda_bind_workspace(step, problem, NH_DELTA, delta, 1);
    nhood_status status =
        add_rows(operation, problem, layout, step, "naive_backward_query.cu", problem->heads);
    step->outputs = BIT(D_K) | BIT(D_V);
    if (!status)
        status =
            add_rows(operation, problem, layout, step, "naive_backward_key.cu", problem->kv_heads);
    step->outputs = BIT(D_EXTRA_K) | BIT(D_EXTRA_V);
    step->grid[1] = layout->chunks;
    if (!status && problem->extra_tokens)
        status = add_blocks(operation, problem, layout, step, "naive_backward_extra.cu",
                            problem->batch * problem->extra_tokens * problem->kv_heads);
    step->outputs = BIT(D_BIAS);
    step->grid[1] = 1;
    if (!status && problem->has_bias)
        status = add_blocks(operation, problem, layout, step, "naive_backward_bias.cu",
                            problem->heads * problem->bias_count);
    return status;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    (void)config;
    struct layout layout = layout_of(problem);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    switch (problem->op) {
    case NHOOD_OP_FWD:
        return add_rows(operation, problem, &layout, &step, "naive_forward.cu", problem->heads);
    case NHOOD_OP_BWD: return add_backward(operation, problem, &layout, &step);
    case NHOOD_OP_PN:
        layout.chunks = 1; /* A has no columns to cut */
        return add_rows(operation, problem, &layout, &step, "naive_pn.cu", problem->heads);
    case NHOOD_OP_NN:
        return add_rows(operation, problem, &layout, &step, "naive_nn.cu", problem->heads);
    default: return add_rows(operation, problem, &layout, &step, "naive_in.cu", problem->kv_heads);
    }
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, add_steps, operation);
}

/* Multiply-adds outside tensor cores: 128 lanes per multiprocessor and clock, of which loads, shuffles and address
 * arithmetic leave a few in a hundred; what every row costs before its first key; and what a key takes that a row has to
 * wait for, where there are few rows. Fitted on an H200. */
static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    const double row_clocks = 145, launch_ns = 7750, lanes = 0.0396, backward = 1.98,
                 key_clocks = 1380;
    (void)config;
    (void)count;
    const struct nh_cuda_device *cuda = device->backend;
    double rows = (double)(problem->batch * problem->heads * problem->tokens);
    double passes = problem->op == NHOOD_OP_BWD ? backward : 1;
    double clocks =
        (nh_problem_flops(problem) / (lanes * 256) + rows * row_clocks) / cuda->multiprocessors;
    double alone = passes * (double)problem->window_count * key_clocks;
    double busy = (clocks > alone ? clocks : alone) / cuda->clock_hz;
    double memory = problem->bytes / cuda->memory_bytes_per_s;
    return 1e9 * (busy > memory ? busy : memory) + passes * launch_ns;
}

const struct nh_solver nh_solver_cuda_naive = {
    "cuda.naive", NHOOD_DEVICE_CUDA, NULL, nh_refuse_nothing, nh_one_config, estimate, build};
