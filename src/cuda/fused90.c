/* cuda.fused90: the fused forward of sm_90 (kernels/fused90_forward.cu): what it takes, which tiles are worth trying,
 * and the boxes its copy engine moves. */
#include "cuda_solvers.h"
#include "fused90_maps.h"
#include "load.h"
#include "tiling.h"

#include <string.h>

#define BIT(tensor) (1u << NHOOD_##tensor)
enum { MOST_DIM = 256 };
enum { QX, QY, QZ, QH, KX, KY, KZ, WARPGROUPS, STACK, STAGES, ORDER, HOLD };
static const char *const knobs[] = {"qx",         "qy",    "qz",     "qh",    "kx",   "ky", "kz",
                                    "warpgroups", "stack", "stages", "order", "hold", NULL};

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    return nh_fused90_refuse(
        problem, device, BIT(Q) | BIT(K) | BIT(V) | BIT(EXTRA_K) | BIT(EXTRA_V), BIT(O), MOST_DIM);
}

/* ---- configs ---- */

static int64_t shared_bytes(const struct nh_problem *problem, const int32_t *value) {
    int64_t keys = (int64_t)value[KX] * value[KY] * value[KZ];
    int64_t stage =
        keys * (nh_fused90_row_bytes(problem->dim) + nh_fused90_row_bytes(problem->dim_v));
    if (problem->has_bias) stage += nh_fused90_bias_bytes(value + QX, value + KX);
    return 64 * value[WARPGROUPS] * nh_fused90_row_bytes(problem->dim) + value[STAGES] * stage +
           1024 + 256;
}

/* Sums, scores, weights and held queries of one thread, of what setmaxnreg leaves it beside addresses and masks. */
static bool registers_fit(const struct nh_problem *problem, const int32_t *value) {
    int64_t keys = (int64_t)value[KX] * value[KY] * value[KZ];
    int64_t held = value[HOLD] ? problem->dim / 4 : 0;
    return problem->dim_v / 2 + keys * 3 / 4 + held <= (value[WARPGROUPS] == 2 ? 204 : 124);
}

/* The tiles that blocks fetch, and those that warpgroups multiply. */
struct walks {
    struct nh_tiling_count fetched, seen;
};

static struct walks count_walks(const struct nh_problem *problem, const int32_t *value) {
    int32_t slab[3];
    nh_fused90_slab(value + QX, value[QH], value[STACK], slab);
    return (struct walks){nh_tiling_count(problem, value + QX, value + KX),
                          nh_tiling_part_count(problem, value + QX, slab, value + KX)};
}

/* Nanoseconds. Fitted on an H200: what a launch takes of each limit, and clocks for a turn from one tile to the next and
 * from one item to the next. */
static double predict(const struct nh_problem *problem, const struct nh_device *device,
                      const struct nh_config *config, const struct walks *walks,
                      struct nh_count *count) {
    const double tensor = 0.905, exponential = problem->has_bias ? 2.62 : 0.8, masks = 6.2,
                 l2 = 0.49, memory = 1.18;
    /* the median of 43 pairs of configs that differ in nothing else */
    const double held = 0.99;
    const double turn = 398, item = 3540, launch_ns = 10700;
    const struct nh_cuda_device *cuda = device->backend;
    const int32_t *value = config->value;
    double keys = (double)value[KX] * value[KY] * value[KZ], warpgroups = value[WARPGROUPS];
    double row_bytes = (double)(problem->dim + problem->dim_v) * 2;
    const struct nh_tiling_count *fetched = &walks->fetched, *seen = &walks->seen;
    double copies = (double)(problem->batch * problem->heads / value[QH]);
    double extra = (double)nh_ceil_div(problem->extra_tokens, (int64_t)keys) * seen->items;
    double items = copies * seen->items;
    const struct nh_cuda_load load = {
        .tiles = copies * (seen->visited + warpgroups * extra),
        .masked_tiles = copies * seen->partial,
        .scores = 64 * keys,
        .products = 64 * keys * (double)(problem->dim + problem->dim_v),
        .bytes = (copies * (fetched->visited + extra) * keys + items * 64 * warpgroups) * row_bytes,
        .products_per_clock = nh_cuda_products_per_clock(problem, cuda, true),
    };
    struct nh_count work = {.tiles = 0};
    nh_cuda_count_load(cuda, &load, &work);
    work.limit_ns[NHOOD_LIMIT_MEMORY] = nh_cuda_memory_ns(problem, cuda);
    const double *limit = work.limit_ns;
    double turns = load.tiles / warpgroups * turn + items * item;
    double busy = tensor * limit[NHOOD_LIMIT_TENSOR] +
                  exponential * limit[NHOOD_LIMIT_EXPONENTIAL] + masks * limit[NHOOD_LIMIT_MASK] +
                  l2 * limit[NHOOD_LIMIT_L2] +
                  nh_cuda_clocks_ns(cuda, turns / cuda->multiprocessors);
    busy *= nh_cuda_rounding(items, cuda->multiprocessors);
    if (value[HOLD]) busy *= held;
    double moving = memory * limit[NHOOD_LIMIT_MEMORY];
    if (count) *count = work;
    return (busy > moving ? busy : moving) + launch_ns;
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    struct walks walks = count_walks(problem, config->value);
    return predict(problem, device, config, &walks, count);
}

/* Keeps the `capacity` cheapest, cheapest first. */
static int keep(const struct nh_config *tried, double ns, struct nh_config *config, double *cost,
                int count, int capacity) {
    int at = count;
    while (at > 0 && cost[at - 1] > ns)
        at--;
    if (at == capacity) return count;
    if (count < capacity) count++;
    memmove(&config[at + 1], &config[at], (size_t)(count - 1 - at) * sizeof *config);
    memmove(&cost[at + 1], &cost[at], (size_t)(count - 1 - at) * sizeof *cost);
    config[at] = *tried;
    cost[at] = ns;
    return count;
}

/* Shapes worth trying, per rank: boxes near a cube have the smallest halo, long ones the fewest border tiles. A
 * query tile of fewer than 128 positions is filled up with heads that share their keys. */
static const int32_t q_shapes[][3] = {
    {1, 1, 128}, {1, 1, 192}, {1, 1, 96}, {1, 1, 64}, {1, 1, 48}, {1, 1, 32},
    {1, 1, 24},  {1, 1, 16},  {1, 1, 8},  {1, 16, 8}, {1, 8, 16}, {1, 4, 32},
    {1, 12, 16}, {1, 24, 8},  {1, 8, 8},  {1, 4, 8},  {1, 4, 4},  {1, 12, 8},
    {1, 6, 8},   {2, 8, 8},   {4, 4, 8},  {2, 4, 16}, {8, 4, 4},  {4, 8, 4},
    {3, 8, 8},   {6, 4, 8},   {4, 4, 4},  {2, 4, 8},  {2, 4, 4},  {6, 4, 4},
};
static const int32_t k_shapes[][3] = {
    {1, 1, 64},  {1, 1, 80},  {1, 1, 96},  {1, 1, 112}, {1, 1, 128}, {1, 1, 144},
    {1, 1, 160}, {1, 1, 176}, {1, 8, 8},   {1, 4, 16},  {1, 10, 8},  {1, 5, 16},
    {1, 12, 8},  {1, 6, 16},  {1, 14, 8},  {1, 16, 8},  {1, 8, 16},  {1, 4, 32},
    {1, 9, 16},  {1, 18, 8},  {1, 10, 16}, {1, 20, 8},  {1, 22, 8},  {2, 4, 8},
    {4, 2, 8},   {2, 5, 8},   {5, 2, 8},   {2, 8, 8},   {4, 4, 8},   {3, 4, 8},
    {2, 6, 8},   {1, 3, 32},  {3, 6, 8},   {2, 3, 24},  {1, 6, 24},  {2, 10, 8},
};

static bool of_rank(const int32_t shape[3], int rank) {
    return (rank >= 3 || shape[0] == 1) && (rank >= 2 || shape[1] == 1);
}

enum { MOST_KEPT = 20, MOST_STAGES = 4 };

struct kept {
    const struct nh_problem *problem;
    const struct nh_device *device;
    struct nh_config best[MOST_KEPT + 1];
    double cost[MOST_KEPT + 1];
    int count, capacity;
};

/* All that can vary for one pair of tiles: queries held or not, as many stages as fit. */
static void try_tiles(struct kept *kept, const struct nh_config *tiles) {
    const struct nh_cuda_device *cuda = kept->device->backend;
    struct walks walks = count_walks(kept->problem, tiles->value);
    for (int32_t hold = 0; hold <= 1; hold++) {
        struct nh_config tried = *tiles;
        tried.value[HOLD] = hold;
        for (tried.value[STAGES] = MOST_STAGES; tried.value[STAGES] > 2; tried.value[STAGES]--)
            if (shared_bytes(kept->problem, tried.value) <= cuda->shared_bytes_per_block) break;
        if (shared_bytes(kept->problem, tried.value) > cuda->shared_bytes_per_block ||
            !registers_fit(kept->problem, tried.value))
            continue;
        double ns = predict(kept->problem, kept->device, &tried, &walks, NULL);
        kept->count = keep(&tried, ns, kept->best, kept->cost, kept->count, kept->capacity);
    }
}

static void try_queries(struct kept *kept, const int32_t q[3], int32_t heads) {
    const struct nh_problem *problem = kept->problem;
    const struct nh_cuda_device *cuda = kept->device->backend;
    int32_t rows = q[0] * q[1] * q[2] * heads;
    if ((rows != 128 && rows != 192) || !nh_fused90_boxes_fit(problem, q)) return;
    struct nh_config tiles = {{q[0], q[1], q[2], heads}};
    int32_t slab[3];
    tiles.value[WARPGROUPS] = rows / 64;
    tiles.value[ORDER] = nh_tiling_order(problem, q, cuda->multiprocessors);
    for (tiles.value[STACK] = 0; tiles.value[STACK] < NH_AXES; tiles.value[STACK]++) {
        if (!nh_fused90_slab(q, heads, tiles.value[STACK], slab) ||
            (problem->has_bias && !nh_fused90_pairs(slab)))
            continue;
        for (size_t i = 0; i < sizeof k_shapes / sizeof *k_shapes; i++) {
            if (!of_rank(k_shapes[i], problem->rank) || !nh_fused90_boxes_fit(problem, k_shapes[i]))
                continue;
            memcpy(tiles.value + KX, k_shapes[i], sizeof k_shapes[i]);
            try_tiles(kept, &tiles);
        }
    }
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct kept kept = {.problem = problem, .device = device};
    int64_t sharing = problem->heads / problem->kv_heads;
    kept.capacity = capacity < MOST_KEPT ? capacity : MOST_KEPT;
    for (size_t i = 0; i < sizeof q_shapes / sizeof *q_shapes; i++) {
        if (!of_rank(q_shapes[i], problem->rank)) continue;
        for (int32_t heads = 1; heads <= (problem->has_bias ? 1 : 16) && sharing % heads == 0;
             heads *= 2)
            if (heads == 1 || nh_map_layout_of(problem, NHOOD_Q) <= NH_MAP_ONE_BATCH)
                try_queries(&kept, q_shapes[i], heads);
    }
    memcpy(config, kept.best, (size_t)kept.count * sizeof *config);
    return kept.count;
}

/* ---- building ---- */

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const int32_t *value = config->value;
    int64_t keys = (int64_t)value[KX] * value[KY] * value[KZ];
    struct nh_kernel_spec spec = {.source = "fused90_forward.cu"};
    struct nh_cuda_step step;
    nh_fused90_define(&spec, problem, value + QX, value + KX, value[WARPGROUPS], value[STAGES]);
    int32_t slab[3];
    nh_kernel_define(&spec, "NH_OWN_HEADS", value[QH]);
    nh_kernel_define(&spec, "NH_STACK", value[STACK]);
    nh_kernel_define(&spec, "NH_HOLD", value[HOLD]);
    nh_cuda_step_init(&step, problem);
    nhood_status status =
        nh_tiling_set(problem, value + QX, value[QH], value[ORDER], &step.args.tiling);
    if (status) return status;
    step.args.tiling.extra_tiles = (int)nh_ceil_div(problem->extra_tokens, keys);
    step.threads = 128 * (value[WARPGROUPS] + 1);
    step.grid[0] = nh_min(step.args.tiling.items, operation->device->multiprocessors);
    step.shared_bytes = shared_bytes(problem, value);
    nh_fused90_slab(value + QX, value[QH], value[STACK], slab);
    step.map[step.maps++] = nh_fused90_map(problem, NHOOD_Q, slab, value[QH]);
    step.map[step.maps++] = nh_fused90_map(problem, NHOOD_K, value + KX, 1);
    step.map[step.maps++] = nh_fused90_map(problem, NHOOD_V, value + KX, 1);
    if (problem->extra_tokens) {
        step.map[step.maps++] = nh_fused90_extra_map(problem, NHOOD_EXTRA_K, keys);
        step.map[step.maps++] = nh_fused90_extra_map(problem, NHOOD_EXTRA_V, keys);
    }
    nh_fused90_add_twins(&step, problem);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, add_steps, operation);
}

const struct nh_solver nh_solver_cuda_fused90 = {"cuda.fused90", NHOOD_DEVICE_CUDA, knobs, refuse,
                                                 candidates,     estimate,          build};
