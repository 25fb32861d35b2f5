/* cuda.split90: the backward pass on sm_90 in three launches: stats of the queries, dQ by the blocks that own
 * queries, dK and dV by the blocks that own keys. Five products become seven, and nothing is added atomically, no
 * scratch of dQ is kept, and results are bit-equal run to run. */
#include "cuda_solvers.h"
#include "fused90_maps.h"
#include "tiling.h"

#include <string.h>

#define BIT(tensor) (1u << NHOOD_##tensor)
/* A config is two pairs of tiles: of the kernel that owns queries (walking keys), and of the one that owns keys. */
enum { QUERY_OWN = 0, QUERY_WALK = 3, KEY_OWN = 6, KEY_WALK = 9 };
static const char *const knobs[] = {"qx", "qy", "qz", "kx", "ky", "kz", "ox",
                                    "oy", "oz", "wx", "wy", "wz", NULL};
enum { WARPGROUPS = 2, MOST_DIM = 128, MOST_STAGES = 4, STATS_BYTES = 16 };

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    if (problem->extra_tokens) return "no extra tokens";
    return nh_fused90_refuse(problem, device, BIT(Q) | BIT(K) | BIT(V) | BIT(D_O),
                             BIT(D_Q) | BIT(D_K) | BIT(D_V), MOST_DIM);
}

static int64_t rows_of(const int32_t tile[3]) {
    return (int64_t)tile[0] * tile[1] * tile[2];
}

static int64_t shared_bytes(const struct nh_problem *problem, const int32_t walk[3], bool keys,
                            int64_t stages) {
    int64_t row = nh_fused90_row_bytes(problem->dim) + nh_fused90_row_bytes(problem->dim_v);
    int64_t stage = rows_of(walk) * row;
    if (keys) stage += nh_ceil_div(rows_of(walk) * STATS_BYTES, 1024) * 1024;
    return 64 * WARPGROUPS * row + stages * stage + 1024 + 256;
}

static int32_t stages_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                         const int32_t walk[3], bool keys) {
    int32_t stages = MOST_STAGES;
    while (stages > 0 && shared_bytes(problem, walk, keys, stages) > cuda->shared_bytes_per_block)
        stages--;
    return stages;
}

/* Sums, scores, their gradients and what is packed of them, of what setmaxnreg leaves beside addresses and masks. */
static bool registers_fit(const struct nh_problem *problem, const int32_t walk[3], bool keys) {
    int64_t sums = keys ? (problem->dim + problem->dim_v) / 2 : problem->dim / 2;
    return sums + rows_of(walk) * (keys ? 5 : 4) / 4 <= 208;
}

/* ---- estimate ---- */

/* Products of one tile pair at about four fifths of the tensor cores' rate, and a turn from tile to tile. */
static void add_kernel_work(const struct nh_problem *problem, const struct nh_device *device,
                            const int32_t own[3], const int32_t walk[3], bool keys,
                            struct nh_count *work) {
    const double share_of_clock = 0.8;
    const struct nh_cuda_device *cuda = device->backend;
    struct nh_tiling_count count =
        keys ? nh_tiling_inverse_count(problem, own, walk) : nh_tiling_count(problem, own, walk);
    double rows = (double)rows_of(walk);
    double dims = keys ? 2.0 * (double)(problem->dim + problem->dim_v)
                       : (double)(2 * problem->dim + problem->dim_v);
    double tile = WARPGROUPS * rows * dims / 32 / 0.80 + 500;
    double copies = (double)(problem->batch * problem->heads);
    double clocks = copies * (count.visited * tile + count.partial * WARPGROUPS * 0.7 * rows +
                              count.items * 2000);
    work->tiles += copies * count.visited;
    work->masked_tiles += copies * count.partial;
    work->flops += copies * count.visited * 2 * 64 * WARPGROUPS * rows * dims;
    work->compute_ns += 1e9 * clocks / cuda->multiprocessors / (share_of_clock * cuda->clock_hz);
}

static double kernel_ns(const struct nh_problem *problem, const struct nh_device *device,
                        const int32_t own[3], const int32_t walk[3], bool keys) {
    struct nh_count work = {.tiles = 0};
    add_kernel_work(problem, device, own, walk, keys, &work);
    return work.compute_ns;
}

/* Only the launch for the stats waits for memory. */
static void count_work(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *work) {
    const struct nh_cuda_device *cuda = device->backend;
    const int32_t *value = config->value;
    *work = (struct nh_count){.tiles = 0};
    work->memory_ns = 1e9 * 2.5 * 2 *
                      (double)(problem->batch * problem->tokens * problem->heads * problem->dim_v) /
                      cuda->memory_bytes_per_s;
    add_kernel_work(problem, device, value + QUERY_OWN, value + QUERY_WALK, false, work);
    add_kernel_work(problem, device, value + KEY_OWN, value + KEY_WALK, true, work);
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config) {
    struct nh_count work;
    count_work(problem, device, config, &work);
    return work.memory_ns + 12000 + work.compute_ns;
}

/* ---- configs ---- */

static const int32_t own_shapes[][3] = {{1, 1, 128}, {1, 16, 8}, {1, 8, 16}, {1, 4, 32}, {2, 8, 8},
                                        {4, 4, 8},   {2, 4, 16}, {8, 4, 4},  {4, 8, 4}};
static const int32_t walk_shapes[][3] = {
    {1, 1, 32},  {1, 1, 48}, {1, 1, 64}, {1, 1, 80}, {1, 1, 96}, {1, 1, 112},
    {1, 1, 128}, {1, 4, 8},  {1, 2, 16}, {1, 6, 8},  {1, 3, 16}, {1, 8, 8},
    {1, 4, 16},  {1, 2, 32}, {1, 10, 8}, {1, 5, 16}, {1, 12, 8}, {1, 6, 16},
    {1, 14, 8},  {1, 16, 8}, {1, 8, 16}, {2, 2, 8},  {4, 1, 8},  {2, 3, 8},
    {3, 2, 8},   {2, 4, 8},  {4, 2, 8},  {2, 5, 8},  {5, 2, 8},  {2, 6, 8},
    {3, 4, 8},   {2, 8, 8},  {4, 4, 8},  {1, 2, 24}, {1, 4, 24}, {2, 2, 24}};

enum { KEPT = 3 };

struct pair {
    const int32_t *own, *walk;
    double ns;
};

static bool pair_fits(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                      const struct pair *pair, bool keys) {
    int first = NH_AXES - problem->rank;
    for (int a = 0; a < first; a++)
        if (pair->own[a] > 1 || pair->walk[a] > 1) return false;
    return nh_fused90_splits(pair->own, 1) && nh_fused90_boxes_fit(problem, pair->own) &&
           nh_fused90_boxes_fit(problem, pair->walk) && registers_fit(problem, pair->walk, keys) &&
           stages_of(problem, cuda, pair->walk, keys) >= 2;
}

/* The cheapest pairs of one kernel, cheapest first; how many. */
static int best_pairs(const struct nh_problem *problem, const struct nh_device *device, bool keys,
                      struct pair best[KEPT]) {
    int count = 0;
    for (size_t i = 0; i < sizeof own_shapes / sizeof *own_shapes; i++)
        for (size_t j = 0; j < sizeof walk_shapes / sizeof *walk_shapes; j++) {
            struct pair pair = {own_shapes[i], walk_shapes[j], 0};
            if (!pair_fits(problem, device->backend, &pair, keys)) continue;
            pair.ns = kernel_ns(problem, device, pair.own, pair.walk, keys);
            int at = count < KEPT ? count++ : KEPT;
            while (at > 0 && best[at - 1].ns > pair.ns) {
                if (at < KEPT) best[at] = best[at - 1];
                at--;
            }
            if (at < KEPT) best[at] = pair;
        }
    return count;
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct pair query[KEPT], key[KEPT];
    int queries = best_pairs(problem, device, false, query),
        keys = best_pairs(problem, device, true, key), count = 0;
    for (int q = 0; q < queries; q++)
        for (int k = 0; k < keys && count < capacity; k++) {
            int32_t *value = config[count++].value;
            memcpy(value + QUERY_OWN, query[q].own, sizeof own_shapes[0]);
            memcpy(value + QUERY_WALK, query[q].walk, sizeof walk_shapes[0]);
            memcpy(value + KEY_OWN, key[k].own, sizeof own_shapes[0]);
            memcpy(value + KEY_WALK, key[k].walk, sizeof walk_shapes[0]);
        }
    return count;
}

/* ---- building ---- */

static void bind_stats(struct nh_cuda_step *step, const struct nh_problem *problem, size_t offset) {
    struct nh_cuda_tensor *t = &step->args.tensor[NH_DELTA];
    step->binding[NH_DELTA] =
        (struct nh_cuda_binding){.from = NH_BIND_WORKSPACE, .offset_bytes = offset};
    int64_t stride = STATS_BYTES / (int64_t)sizeof(float);
    for (int a = NH_AXES - 1; a >= 0; a--) {
        t->axis[a] = stride;
        stride *= problem->axis[a].length;
    }
    t->head = stride;
    t->batch = stride * problem->heads;
}

static nhood_status add_stats(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              size_t stats) {
    enum { THREADS = 128, LANES = 32 };
    struct nh_kernel_spec spec = {.source = "backward_stats.cu"};
    struct nh_cuda_step step;
    int64_t vector = nh_cuda_vector(problem, BIT(O) | BIT(D_O)), group = 1;
    while (group < LANES && group * vector < problem->dim_v)
        group *= 2;
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_VECTOR", vector);
    nh_kernel_define(&spec, "NH_VECTORS", nh_ceil_div(problem->dim_v, group * vector));
    nh_kernel_define(&spec, "NH_GROUP", group);
    nh_kernel_define(&spec, "NH_RESIDENT", 1);
    nh_kernel_define(&spec, "NH_BIASED", 0);
    nh_cuda_step_init(&step, problem);
    bind_stats(&step, problem, stats);
    int64_t rows = problem->batch * problem->heads * problem->tokens;
    step.threads = THREADS;
    step.grid[0] = nh_min(nh_ceil_div(rows, THREADS / group), (int64_t)1 << 30);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status add_kernel(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, size_t stats, const int32_t own[3],
                               const int32_t walk[3], bool keys) {
    const struct nh_cuda_device *cuda = operation->device;
    const int32_t *q_tile = keys ? walk : own, *k_tile = keys ? own : walk;
    int32_t stages = stages_of(problem, cuda, walk, keys);
    struct nh_kernel_spec spec = {.source = keys ? "split90_key.cu" : "split90_query.cu"};
    struct nh_cuda_step step;
    nh_fused90_define(&spec, problem, own, walk, WARPGROUPS, stages);
    nh_kernel_define(&spec, "NH_D_O_MAP", nh_map_layout_of(problem, NHOOD_D_O));
    nh_kernel_define(&spec, "NH_INVERSE", keys);
    nh_cuda_step_init(&step, problem);
    bind_stats(&step, problem, stats);
    nhood_status status =
        nh_tiling_set(problem, own, keys ? (int32_t)(problem->heads / problem->kv_heads) : 1,
                      nh_tiling_order(problem, own, cuda->multiprocessors), &step.args.tiling);
    if (status) return status;
    step.threads = 128 * (WARPGROUPS + 1);
    step.grid[0] = nh_min(step.args.tiling.items, cuda->multiprocessors);
    step.shared_bytes = shared_bytes(problem, walk, keys, stages);
    step.outputs = keys ? BIT(D_K) | BIT(D_V) : BIT(D_Q);
    struct nh_cuda_map q = nh_fused90_map(problem, NHOOD_Q, q_tile, 1),
                       d_o = nh_fused90_map(problem, NHOOD_D_O, q_tile, 1),
                       k = nh_fused90_map(problem, NHOOD_K, k_tile, 1),
                       v = nh_fused90_map(problem, NHOOD_V, k_tile, 1);
    struct nh_cuda_map by_query[] = {q, d_o, k, v},
                       by_key[] = {k, v, q, d_o, nh_fused90_stats_map(problem, q_tile)};
    step.maps = keys ? 5 : 4;
    memcpy(step.map, keys ? by_key : by_query, (size_t)step.maps * sizeof *step.map);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    const int32_t *value = config->value;
    struct nh_cuda_operation *created = NULL;
    nhood_status status = nh_cuda_operation_create(problem, device, &created);
    if (status) return status;
    size_t stats = nh_cuda_reserve(
        created, (size_t)(problem->batch * problem->heads * problem->tokens) * STATS_BYTES);
    status = add_stats(created, problem, stats);
    if (!status)
        status = add_kernel(created, problem, stats, value + QUERY_OWN, value + QUERY_WALK, false);
    if (!status)
        status = add_kernel(created, problem, stats, value + KEY_OWN, value + KEY_WALK, true);
    if (status) {
        created->base.destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}

const struct nh_solver nh_solver_cuda_split90 = {
    "cuda.split90", NHOOD_DEVICE_CUDA, knobs, refuse, candidates, estimate, build, count_work};
