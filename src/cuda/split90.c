/* cuda.split90: the backward pass on sm_90 in three launches: stats of the queries, dQ by the blocks that own
 * queries, dK and dV by the blocks that own keys. Five products become seven, and nothing is added atomically, no
 * scratch of dQ is kept, and results are bit-equal run to run. */
#include "backward90.h"
#include "cuda_solvers.h"

#include <string.h>

#define BIT(tensor) (1u << NHOOD_##tensor)
/* A config is two pairs of tiles: of the kernel that owns queries (walking keys), and of the one that owns keys. */
enum { QUERY_OWN = 0, QUERY_WALK = 3, KEY_OWN = 6, KEY_WALK = 9 };
static const char *const knobs[] = {"qx", "qy", "qz", "kx", "ky", "kz", "ox",
                                    "oy", "oz", "wx", "wy", "wz", NULL};
enum { WARPGROUPS = NH_BACKWARD90_WARPGROUPS };

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    if (problem->extra_tokens) return "no extra tokens";
    return nh_fused90_refuse(problem, device, BIT(Q) | BIT(K) | BIT(V) | BIT(D_O),
                             BIT(D_Q) | BIT(D_K) | BIT(D_V), NH_BACKWARD90_MOST_DIM);
}

/* Sums, scores, their gradients and what is packed of them, of what setmaxnreg leaves beside addresses and masks. */
static bool registers_fit(const struct nh_problem *problem, const int32_t walk[3], bool keys) {
    int64_t sums = keys ? (problem->dim + problem->dim_v) / 2 : problem->dim / 2;
    return sums + nh_backward90_rows(walk) * (keys ? 5 : 4) / 4 <= 208;
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
    double rows = (double)nh_backward90_rows(walk);
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

static double kernel_ns(const struct nh_problem *problem, const struct nh_device *device,
                        const int32_t own[3], const int32_t walk[3], bool keys) {
    struct nh_count work = {.tiles = 0};
    if (!registers_fit(problem, walk, keys) ||
        nh_backward90_stages(problem, device->backend, walk, keys, 0) < 2)
        return -1;
    add_kernel_work(problem, device, own, walk, keys, &work);
    return work.compute_ns;
}

static double query_ns(const struct nh_problem *problem, const struct nh_device *device,
                       const int32_t own[3], const int32_t walk[3]) {
    return kernel_ns(problem, device, own, walk, false);
}

static double key_ns(const struct nh_problem *problem, const struct nh_device *device,
                     const int32_t own[3], const int32_t walk[3]) {
    return kernel_ns(problem, device, own, walk, true);
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct nh_backward90_pair query[NH_BACKWARD90_KEPT], key[NH_BACKWARD90_KEPT];
    const size_t tile_bytes = 3 * sizeof(int32_t);
    int queries = nh_backward90_best(problem, device, query_ns, query),
        keys = nh_backward90_best(problem, device, key_ns, key), count = 0;
    for (int q = 0; q < queries; q++)
        for (int k = 0; k < keys && count < capacity; k++) {
            int32_t *value = config[count++].value;
            memcpy(value + QUERY_OWN, query[q].own, tile_bytes);
            memcpy(value + QUERY_WALK, query[q].walk, tile_bytes);
            memcpy(value + KEY_OWN, key[k].own, tile_bytes);
            memcpy(value + KEY_WALK, key[k].walk, tile_bytes);
        }
    return count;
}

/* ---- building ---- */

static nhood_status add_stats(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              size_t stats) {
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_backward90_bind_stats(&step, problem, stats);
    return nh_backward90_add_stats(operation, &step, problem);
}

static nhood_status add_kernel(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, size_t stats, const int32_t own[3],
                               const int32_t walk[3], bool keys) {
    const struct nh_cuda_device *cuda = operation->device;
    struct nh_kernel_spec spec = {.source = keys ? "split90_key.cu" : "split90_query.cu"};
    struct nh_cuda_step step;
    nhood_status status =
        nh_backward90_step(problem, cuda, stats, own, walk, keys,
                           nh_backward90_stages(problem, cuda, walk, keys, 0), &step, &spec);
    if (status) return status;
    step.outputs = keys ? BIT(D_K) | BIT(D_V) : BIT(D_Q);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    const int32_t *value = config->value;
    struct nh_cuda_operation *created = NULL;
    nhood_status status = nh_cuda_operation_create(problem, device, &created);
    if (status) return status;
    size_t stats = nh_backward90_reserve_stats(created, problem);
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
