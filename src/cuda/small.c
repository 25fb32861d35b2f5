/* cuda.small: fused attention for windows whose halo fits shared memory, sm_80 and later.
 *
 * With windows of a few dozen keys, a block of 64 or more queries would multiply mostly masked scores. Here 16 queries
 * at a time, a box, meet just the box of their keys, which matrix loads gather out of the halo of a larger box of
 * queries: see kernels/small.cuh. Boxes are chosen per problem. No f32, no extra tokens, head dims up to 64. */
#include "cuda_solvers.h"
#include "dtype.h"
#include "launch.h"
#include "small_shape.h"

#include <string.h>

enum { MOST_DIM = 64, MOST_LENGTH = 1 << 30, MOST_BOX = 1024, MOST_BIAS = 4096 };
enum { Q0, Q1, Q2, S0, S1, S2, WARPS, KNOBS };
static const char *const knobs[] = {"q0", "q1", "q2", "s0", "s1", "s2", "warps", NULL};

/* ---- what a config needs ---- */

static int64_t shared_bytes_of(const struct nh_problem *problem,
                               const struct nh_small_shape *shape) {
    int64_t key = nh_small_row_bytes(problem->dim), value = nh_small_row_bytes(problem->dim_v);
    return shape->halo_rows * (key + value) + shape->item_rows * nh_max(key, value) +
           nh_small_table_bytes(problem, shape);
}

/* Scores of a chunk, outputs and queries of a thread, and what addresses and masks take. */
static int64_t registers_of(const struct nh_problem *problem, const struct nh_small_shape *shape) {
    int64_t chunks = nh_ceil_div(shape->blocks, 16);
    return 4 * nh_ceil_div(shape->blocks, chunks) + nh_ceil_div(problem->dim, 16) * 4 +
           nh_ceil_div(problem->dim_v, 16) * 8 + (problem->has_bias ? 40 : 28);
}

/* Blocks that share a multiprocessor; 0: not even one fits. */
static int64_t residents_of(const struct nh_problem *problem, const struct nh_cuda_device *device,
                            const struct nh_small_shape *shape, int32_t warps) {
    enum { REGISTERS = 65536, RESERVED_SHARED_BYTES = 1024, MOST_RESIDENTS = 16, MOST_WARPS = 48 };
    int64_t shared = shared_bytes_of(problem, shape);
    if (shared > device->shared_bytes_per_block) return 0;
    int64_t registers = nh_ceil_div(registers_of(problem, shape), 8) * 8;
    int64_t by_shared = device->shared_bytes_per_multiprocessor / (shared + RESERVED_SHARED_BYTES);
    int64_t by_registers = REGISTERS / (32 * warps * registers);
    int64_t residents = nh_min(nh_min(by_shared, by_registers), MOST_WARPS / warps);
    return nh_max(1, nh_min(residents, MOST_RESIDENTS));
}

/* ---- candidates ---- */

/* Rows of an item and of a subtile per axis, warps. Lines of 4 modulo 8 rows leave no gaps in the halo. */
static const int32_t shapes[][KNOBS] = {
    {1, 1, 64, 1, 1, 16, 4}, {1, 1, 128, 1, 1, 16, 8}, {1, 1, 256, 1, 1, 16, 8},
    {1, 8, 28, 1, 4, 4, 7},  {1, 8, 8, 1, 4, 4, 4},    {1, 8, 12, 1, 4, 4, 6},
    {1, 12, 12, 1, 4, 4, 9}, {1, 8, 16, 1, 4, 4, 8},   {1, 8, 20, 1, 4, 4, 5},
    {1, 16, 16, 1, 4, 4, 8}, {1, 12, 28, 1, 4, 4, 7},  {1, 16, 28, 1, 4, 4, 7},
    {1, 4, 28, 1, 4, 4, 7},  {2, 4, 8, 2, 2, 4, 4},    {4, 4, 4, 2, 2, 4, 4},
    {4, 4, 8, 2, 2, 4, 8},   {4, 8, 8, 2, 2, 4, 8},    {4, 8, 12, 2, 2, 4, 8},
    {2, 8, 8, 1, 4, 4, 8},   {4, 8, 8, 1, 4, 4, 8},
};

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device);

static double estimate_shape(const struct nh_problem *problem, const struct nh_cuda_device *device,
                             const struct nh_small_shape *shape, int32_t warps);

static bool shape_of_config(const struct nh_problem *problem, const int32_t *value,
                            struct nh_small_shape *shape) {
    return nh_small_shape_of(problem, NH_SMALL_QUERIES, value + Q0, value + S0, shape);
}

/* Keeps the `capacity` cheapest, cheapest first; returns how many fit. */
static int choose(const struct nh_problem *problem, const struct nh_cuda_device *device,
                  struct nh_config *config, int capacity) {
    enum { MOST_KEPT = 6 };
    double cost[MOST_KEPT];
    int count = 0;
    capacity = (int)nh_min(capacity, MOST_KEPT);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int32_t *tried = shapes[i];
        struct nh_small_shape shape;
        int rank = tried[Q0] > 1 || tried[S0] > 1 ? 3 : tried[Q1] > 1 ? 2 : 1;
        if (rank != problem->rank || !shape_of_config(problem, tried, &shape) ||
            8 * shape.blocks > MOST_BOX || !residents_of(problem, device, &shape, tried[WARPS]))
            continue;
        double ns = estimate_shape(problem, device, &shape, tried[WARPS]);
        int place = count < capacity ? count++ : capacity;
        for (; place > 0 && ns < cost[place - 1]; place--)
            if (place < capacity) {
                cost[place] = cost[place - 1];
                config[place] = config[place - 1];
            }
        if (place == capacity) continue;
        cost[place] = ns;
        memset(&config[place], 0, sizeof *config);
        memcpy(config[place].value, tried, sizeof *shapes);
    }
    return count;
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    return choose(problem, device->backend, config, capacity);
}

/* ---- time ---- */

/* Instructions of a warp for one subtile: products with their loads, then masks, maxima and exponentials. */
static double subtile_instructions(const struct nh_problem *problem,
                                   const struct nh_small_shape *shape) {
    double steps = (double)(nh_ceil_div(problem->dim, 16) + nh_ceil_div(problem->dim_v, 16));
    double per_block = 2 * steps + (shape->dense ? 18 : 26) + (problem->has_bias ? 16 : 0);
    return (double)shape->blocks * per_block + 220;
}

static double estimate_shape(const struct nh_problem *problem, const struct nh_cuda_device *device,
                             const struct nh_small_shape *shape, int32_t warps) {
    /* of the issue slots; of the bytes that a multiprocessor gets from the L2 per clock */
    const double filled = 0.55, l2_bytes_per_clock = 32, launch_ns = 4000;
    double copies = (double)(problem->batch * problem->heads) / device->multiprocessors;
    double residents = (double)residents_of(problem, device, shape, warps);
    double instructions = shape->subtiles * subtile_instructions(problem, shape) +
                          shape->items * (double)(shape->halo_rows + shape->item_rows) *
                              (double)(problem->dim + problem->dim_v) / 16;
    double bytes = shape->items * 2 *
                   (double)(shape->halo_rows * (problem->dim + problem->dim_v) +
                            shape->item_rows * problem->dim);
    double issue = instructions / 4 / filled, copy = bytes / l2_bytes_per_clock;
    /* few blocks hide less of their copies */
    double exposed = 0.15 + 0.5 / residents;
    double clocks = issue > copy ? issue + exposed * copy : copy + exposed * issue;
    double waves = copies * shape->items / residents;
    double tail = waves > 1 ? 1 + 0.3 / waves : 1 / waves < 4 ? 1 / waves : 4;
    double arithmetic = copies * clocks * tail / device->clock_hz;
    double memory = nh_problem_bytes(problem) / (0.85 * device->memory_bytes_per_s);
    return 1e9 * (arithmetic > memory ? arithmetic : memory) + launch_ns;
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config) {
    struct nh_small_shape shape;
    if (!shape_of_config(problem, config->value, &shape)) return 1e18;
    return estimate_shape(problem, device->backend, &shape, config->value[WARPS]);
}

/* ---- refusal ---- */

static bool dim_fits(int64_t dim) {
    return dim % 8 == 0 && dim <= MOST_DIM;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    struct nh_config config;
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    if (problem->dtype != NHOOD_DTYPE_F16 && problem->dtype != NHOOD_DTYPE_BF16)
        return "only f16 and bf16";
    if (!dim_fits(problem->dim) || !dim_fits(problem->dim_v))
        return "head dims must be multiples of 8 up to 64";
    if (!(problem->scale > 0)) return "the scale is not positive";
    if (problem->extra_tokens) return "no extra tokens";
    if (problem->has_bias && problem->bias_count > MOST_BIAS)
        return "a head's bias table has more than 4096 entries";
    if (nh_cuda_vector(problem, UINT32_MAX) < 8) return "a stride is no multiple of 16 bytes";
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].length > MOST_LENGTH) return "an axis is longer than 2^30 tokens";
    if (!choose(problem, device->backend, &config, 1))
        return "the windows of 16 queries hold more than 1024 keys, or a halo exceeds shared "
               "memory";
    return NULL;
}

/* ---- plan ---- */

static struct nh_kernel_spec spec_of(const struct nh_problem *problem,
                                     const struct nh_cuda_device *device,
                                     const struct nh_small_shape *shape, int32_t warps) {
    static const char *const names[][NH_AXES] = {{"NH_Q0", "NH_Q1", "NH_Q2"},
                                                 {"NH_S0", "NH_S1", "NH_S2"},
                                                 {"NH_K0", "NH_K1", "NH_K2"},
                                                 {"NH_H0", "NH_H1", "NH_H2"}};
    struct nh_kernel_spec spec = {.source = "small_forward.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_RANK", problem->rank);
    nh_kernel_define(&spec, "NH_DIM", problem->dim);
    nh_kernel_define(&spec, "NH_DIM_V", problem->dim_v);
    nh_kernel_define(&spec, "NH_WARPS", warps);
    nh_kernel_define(&spec, "NH_MIN_BLOCKS", residents_of(problem, device, shape, warps));
    nh_kernel_define(&spec, "NH_DENSE", shape->dense);
    nh_kernel_define(&spec, "NH_BIAS_COUNT", problem->has_bias ? problem->bias_count : 0);
    nh_kernel_define(&spec, "NH_SHARED_BYTES", shared_bytes_of(problem, shape));
    for (int a = 0; a < NH_AXES; a++) {
        nh_kernel_define(&spec, names[0][a], shape->rows[a]);
        nh_kernel_define(&spec, names[1][a], shape->subtile[a]);
        nh_kernel_define(&spec, names[2][a], shape->columns[a]);
        nh_kernel_define(&spec, names[3][a], shape->halo[a]);
    }
    return spec;
}

static nhood_status set_items(const struct nh_problem *problem, const struct nh_small_shape *shape,
                              int64_t heads, struct nh_cuda_tiling *tiling) {
    int64_t items = problem->batch;
    bool fits = nh_multiply(items, heads, &items);
    *tiling = (struct nh_cuda_tiling){.items = 0};
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        tiling->tiles[a] =
            (int)nh_ceil_div(nh_axis_group_length(axis->length, axis->dilation, 0), shape->rows[a]);
        fits = fits && nh_multiply(items, tiling->tiles[a], &items) &&
               nh_multiply(items, axis->dilation, &items);
    }
    if (!fits || items > MOST_LENGTH)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^30 boxes of rows");
    tiling->items = (int)items;
    return NHOOD_OK;
}

static nhood_status add_forward(struct nh_cuda_operation *operation,
                                const struct nh_problem *problem, const int32_t *value) {
    const struct nh_cuda_device *device = operation->device;
    struct nh_small_shape shape;
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    if (!shape_of_config(problem, value, &shape) ||
        !residents_of(problem, device, &shape, value[WARPS]))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "the boxes do not fit shared memory");
    nhood_status status = set_items(problem, &shape, problem->heads, &step.args.tiling);
    if (status) return status;
    struct nh_kernel_spec spec = spec_of(problem, device, &shape, value[WARPS]);
    step.threads = 32 * value[WARPS];
    step.shared_bytes = shared_bytes_of(problem, &shape);
    step.grid[0] =
        nh_min(step.args.tiling.items,
               device->multiprocessors * residents_of(problem, device, &shape, value[WARPS]));
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    struct nh_cuda_operation *created = NULL;
    nhood_status status = nh_cuda_operation_create(problem, device, &created);
    if (status) return status;
    status = add_forward(created, problem, config->value);
    if (status) {
        created->base.destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}

const struct nh_solver nh_solver_cuda_small = {"cuda.small", NHOOD_DEVICE_CUDA, knobs, refuse,
                                               candidates,   estimate,          build};
