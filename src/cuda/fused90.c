/* cuda.fused90: the fused forward of sm_90 (kernels/fused90_forward.cu): what it takes, which tiles are worth trying,
 * and the boxes its copy engine moves. */
#include "cuda_solvers.h"
#include "launch.h"
#include "tiling.h"

#include <string.h>

enum { MOST_DIM = 256, LEAST_DIM = 32, MOST_ELEMENT_STRIDE = 8, MOST_BOX = 256 };
enum { QX, QY, QZ, QH, KX, KY, KZ, WARPGROUPS, STAGES, ORDER, HOLD };
static const char *const knobs[] = {"qx", "qy",         "qz",     "qh",    "kx",   "ky",
                                    "kz", "warpgroups", "stages", "order", "hold", NULL};

/* How a tensor map's five axes are used; the numbers are those of place() in the kernel. */
enum map_layout { SPLIT, SPLIT_ONE_BATCH, HEADS_IN_ROW, HEADS_IN_BATCH, NO_LAYOUT };

static enum map_layout layout_of(const struct nh_problem *problem, int32_t tensor) {
    bool kv = tensor != NHOOD_Q;
    int64_t heads = kv ? problem->kv_heads : problem->heads;
    int64_t dim = tensor == NHOOD_V ? problem->dim_v : problem->dim;
    const nhood_strides *s = &problem->strides[tensor];
    if (problem->rank < 3) return SPLIT;
    if (problem->batch == 1) return SPLIT_ONE_BATCH;
    if (heads == 1 || s->head == dim) return HEADS_IN_ROW;
    return s->batch == heads * s->head ? HEADS_IN_BATCH : NO_LAYOUT;
}

/* Strides that a tensor map can have: positive multiples of 16 bytes, where the axis has more than one entry. */
static bool strides_fit(const struct nh_problem *problem, int32_t tensor, bool extra) {
    const nhood_strides *s = &problem->strides[tensor];
    int64_t heads = tensor == NHOOD_Q || tensor == NHOOD_O ? problem->heads : problem->kv_heads;
    const struct {
        int64_t extent, stride;
    } row[] = {{problem->batch, s->batch},
               {extra ? problem->extra_tokens : problem->axis[0].length, s->axis[0]},
               {extra ? problem->extra_tokens : problem->axis[1].length, s->axis[1]},
               {extra ? problem->extra_tokens : problem->axis[2].length, s->axis[2]},
               {heads, s->head}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        if (extra && i >= 1 && i <= 3 && (int)i - 1 != NH_AXES - problem->rank) continue;
        if (row[i].extent > 1 && (row[i].stride <= 0 || row[i].stride % 8 || row[i].stride >> 38))
            return false;
    }
    return true;
}

static const char *refuse_layout(const struct nh_problem *problem) {
    static const int32_t mapped[] = {NHOOD_Q, NHOOD_K, NHOOD_V};
    if (problem->flags & NHOOD_FLAG_UNALIGNED) return "tensors may start at any element";
    for (int i = 0; i < 3; i++) {
        if (!strides_fit(problem, mapped[i], false))
            return "a stride is not a positive multiple of 16 bytes";
        if (layout_of(problem, mapped[i]) == NO_LAYOUT)
            return "a 3-D tensor whose batch and heads join neither each other nor a row";
    }
    if (nh_cuda_vector(problem, 1u << NH_O) < 8) return "a stride of O is no multiple of 16 bytes";
    if (problem->extra_tokens &&
        (!strides_fit(problem, NHOOD_EXTRA_K, true) || !strides_fit(problem, NHOOD_EXTRA_V, true)))
        return "a stride is not a positive multiple of 16 bytes";
    return NULL;
}

static bool dim_fits(int64_t dim) {
    return dim >= LEAST_DIM && dim <= MOST_DIM && dim % 16 == 0;
}

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    const struct nh_cuda_device *cuda = device->backend;
    if (cuda->arch != 90) return "needs compute capability 9.0";
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    if (problem->dtype != NHOOD_DTYPE_F16 && problem->dtype != NHOOD_DTYPE_BF16)
        return "only f16 and bf16";
    if (!dim_fits(problem->dim) || !dim_fits(problem->dim_v))
        return "head dims must be multiples of 16 from 32 to 256";
    if (problem->has_bias) return "no relative bias";
    if (!(problem->scale > 0)) return "the scale is not positive";
    for (int a = 0; a < NH_AXES; a++) {
        if (problem->axis[a].length > INT32_MAX) return "an axis has 2^31 tokens or more";
        if (problem->axis[a].dilation > MOST_ELEMENT_STRIDE) return "a dilation above 8";
    }
    if (problem->extra_tokens > INT32_MAX) return "2^31 extra tokens or more";
    return refuse_layout(problem);
}

/* ---- configs ---- */

static int64_t row_bytes(int64_t dim) {
    return dim == 32 ? 64 : nh_ceil_div(dim, 64) * 128;
}

static int64_t shared_bytes(const struct nh_problem *problem, const int32_t *value) {
    int64_t keys = (int64_t)value[KX] * value[KY] * value[KZ];
    int64_t stage = keys * (row_bytes(problem->dim) + row_bytes(problem->dim_v));
    return 64 * value[WARPGROUPS] * row_bytes(problem->dim) + value[STAGES] * stage + 1024 + 256;
}

/* Sums, scores, weights and held queries of one thread, of what setmaxnreg leaves it beside addresses and masks. */
static bool registers_fit(const struct nh_problem *problem, const int32_t *value) {
    int64_t keys = (int64_t)value[KX] * value[KY] * value[KZ];
    int64_t held = value[HOLD] ? problem->dim / 4 : 0;
    return problem->dim_v / 2 + keys * 3 / 4 + held <= (value[WARPGROUPS] == 2 ? 204 : 124);
}

static bool boxes_fit(const struct nh_problem *problem, const int32_t *tile) {
    for (int a = 0; a < NH_AXES; a++)
        if (tile[a] * problem->axis[a].dilation > MOST_BOX) return false;
    return true;
}

/* The rows of one warpgroup must be a box. */
static bool splits_into_slabs(const int32_t *q, int32_t heads) {
    int32_t plane = q[1] * q[2], slab = 64 / heads;
    if (plane <= slab) return slab % plane == 0;
    return plane % slab == 0 && (slab % q[2] == 0 || q[2] % slab == 0);
}

/* Clocks of one key tile, fitted on an H200: products at nine tenths of the tensor cores' rate, or the softmax where
 * that is slower, and what it costs to turn from one tile to the next: less with three warpgroups, which cover for
 * each other. Queries held in registers spare the products a third of their reads. */
static double tile_clocks(const struct nh_problem *problem, const int32_t *value) {
    double keys = (double)value[KX] * value[KY] * value[KZ];
    double products = keys * (double)(problem->dim + problem->dim_v) / 32 / 0.90;
    double softmax = 8.5 * keys;
    double turn = value[WARPGROUPS] == 2 ? 460 : 216;
    return value[WARPGROUPS] * (products > softmax ? products : softmax) + turn;
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config) {
    /* Under full load the card runs at its power limit and not at its highest clock. */
    const double share_of_clock = 0.8;
    const struct nh_cuda_device *cuda = device->backend;
    const int32_t *value = config->value;
    int64_t keys = (int64_t)value[KX] * value[KY] * value[KZ];
    struct nh_tiling_count count = nh_tiling_count(problem, value + QX, value + KX);
    double copies = (double)(problem->batch * problem->heads / value[QH]);
    double extra = (double)nh_ceil_div(problem->extra_tokens, keys) * count.items;
    double clocks =
        copies * ((count.visited + extra) * tile_clocks(problem, value) +
                  count.partial * value[WARPGROUPS] * 0.7 * (double)keys + count.items * 1500);
    double waves = copies * count.items / cuda->multiprocessors;
    double filled = waves / (double)(int64_t)(waves + 0.999);
    double compute = clocks / cuda->multiprocessors / filled / (share_of_clock * cuda->clock_hz);
    double memory = nh_problem_bytes(problem) / (0.85 * cuda->memory_bytes_per_s);
    return 1e9 * (compute > memory ? compute : memory) + 4000;
}

/* Keeps the `capacity` cheapest, cheapest first. */
static int keep(const struct nh_problem *problem, const struct nh_device *device,
                const struct nh_config *tried, struct nh_config *config, double *cost, int count,
                int capacity) {
    double ns = estimate(problem, device, tried);
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
    for (int32_t hold = 0; hold <= 1; hold++) {
        struct nh_config tried = *tiles;
        tried.value[HOLD] = hold;
        for (tried.value[STAGES] = MOST_STAGES; tried.value[STAGES] > 2; tried.value[STAGES]--)
            if (shared_bytes(kept->problem, tried.value) <= cuda->shared_bytes_per_block) break;
        if (shared_bytes(kept->problem, tried.value) > cuda->shared_bytes_per_block ||
            !registers_fit(kept->problem, tried.value))
            continue;
        kept->count = keep(kept->problem, kept->device, &tried, kept->best, kept->cost, kept->count,
                           kept->capacity);
    }
}

static void try_queries(struct kept *kept, const int32_t q[3], int32_t heads) {
    const struct nh_problem *problem = kept->problem;
    const struct nh_cuda_device *cuda = kept->device->backend;
    int32_t rows = q[0] * q[1] * q[2] * heads;
    if (rows != 128 && rows != 192) return;
    if (!splits_into_slabs(q, heads) || !boxes_fit(problem, q)) return;
    struct nh_config tiles = {{q[0], q[1], q[2], heads}};
    tiles.value[WARPGROUPS] = rows / 64;
    tiles.value[ORDER] = nh_tiling_order(problem, q, cuda->multiprocessors);
    for (size_t i = 0; i < sizeof k_shapes / sizeof *k_shapes; i++) {
        if (!of_rank(k_shapes[i], problem->rank) || !boxes_fit(problem, k_shapes[i])) continue;
        memcpy(tiles.value + KX, k_shapes[i], sizeof k_shapes[i]);
        try_tiles(kept, &tiles);
    }
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    struct kept kept = {.problem = problem, .device = device};
    int64_t sharing = problem->heads / problem->kv_heads;
    kept.capacity = capacity < MOST_KEPT ? capacity : MOST_KEPT;
    for (size_t i = 0; i < sizeof q_shapes / sizeof *q_shapes; i++) {
        if (!of_rank(q_shapes[i], problem->rank)) continue;
        for (int32_t heads = 1; heads <= 16 && sharing % heads == 0; heads *= 2)
            if (heads == 1 || layout_of(problem, NHOOD_Q) <= SPLIT_ONE_BATCH)
                try_queries(&kept, q_shapes[i], heads);
    }
    memcpy(config, kept.best, (size_t)kept.count * sizeof *config);
    /* Which order shares the most keys depends on how the blocks drift apart: the best tiles in the other orders. */
    int count = kept.count;
    for (int32_t order = 0; order < nh_tiling_orders(problem->rank) && count < capacity; order++) {
        if (!kept.count || order == config[0].value[ORDER]) continue;
        config[count] = config[0];
        config[count++].value[ORDER] = order;
    }
    return count;
}

/* ---- building ---- */

static void set_axis(struct nh_cuda_map *map, int index, int64_t extent, int64_t stride,
                     int64_t tile, int64_t dilation) {
    map->extent[index] = (uint64_t)extent;
    if (index > 0) map->stride_bytes[index - 1] = extent > 1 ? (uint64_t)stride * 2 : 16;
    map->box[index] = (uint32_t)(tile * dilation);
    map->element_stride[index] = (uint32_t)dilation;
}

static struct nh_cuda_map map_of(const struct nh_problem *problem, int32_t tensor,
                                 const int32_t *tile, int32_t tile_heads) {
    const nhood_strides *s = &problem->strides[tensor];
    int64_t heads = tensor == NHOOD_Q ? problem->heads : problem->kv_heads;
    int64_t dim = tensor == NHOOD_V ? problem->dim_v : problem->dim;
    enum map_layout layout = layout_of(problem, tensor);
    struct nh_cuda_map map = {.slot = tensor,
                              .rank = 5,
                              .swizzle =
                                  dim == 32 ? NH_CU_TENSOR_SWIZZLE_64B : NH_CU_TENSOR_SWIZZLE_128B,
                              .promotion = NH_CU_TENSOR_PROMOTE_256B};
    int next = 1;
    set_axis(&map, 0, layout == HEADS_IN_ROW ? heads * dim : dim, 1, dim == 32 ? 32 : 64, 1);
    if (layout <= SPLIT_ONE_BATCH) set_axis(&map, next++, heads, s->head, tile_heads, 1);
    for (int a = NH_AXES - 1; a >= (layout == SPLIT); a--)
        set_axis(&map, next++, problem->axis[a].length, s->axis[a], tile[a],
                 problem->axis[a].dilation);
    if (layout == SPLIT || layout == HEADS_IN_ROW)
        set_axis(&map, next++, problem->batch, s->batch, 1, 1);
    if (layout == HEADS_IN_BATCH) set_axis(&map, next++, problem->batch * heads, s->head, 1, 1);
    return map;
}

static struct nh_cuda_map extra_map_of(const struct nh_problem *problem, int32_t tensor,
                                       int64_t keys) {
    const nhood_strides *s = &problem->strides[tensor];
    int64_t dim = tensor == NHOOD_EXTRA_V ? problem->dim_v : problem->dim;
    struct nh_cuda_map map = {.slot = tensor,
                              .rank = 5,
                              .swizzle =
                                  dim == 32 ? NH_CU_TENSOR_SWIZZLE_64B : NH_CU_TENSOR_SWIZZLE_128B,
                              .promotion = NH_CU_TENSOR_PROMOTE_256B};
    set_axis(&map, 0, dim, 1, dim == 32 ? 32 : 64, 1);
    set_axis(&map, 1, problem->kv_heads, s->head, 1, 1);
    set_axis(&map, 2, problem->extra_tokens, s->axis[NH_AXES - problem->rank], keys, 1);
    set_axis(&map, 3, 1, 0, 1, 1);
    set_axis(&map, 4, problem->batch, s->batch, 1, 1);
    return map;
}

static struct nh_kernel_spec spec_of(const struct nh_problem *problem, const int32_t *value) {
    static const char *const names[] = {
        [QX] = "NH_QX",        [QY] = "NH_QY", [QZ] = "NH_QZ", [QH] = "NH_QH",
        [KX] = "NH_KX",        [KY] = "NH_KY", [KZ] = "NH_KZ", [WARPGROUPS] = "NH_WARPGROUPS",
        [STAGES] = "NH_STAGES"};
    int32_t keys = value[KX] * value[KY] * value[KZ];
    struct nh_kernel_spec spec = {.source = "fused90_forward.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_RANK", problem->rank);
    nh_kernel_define(&spec, "NH_DIM", problem->dim);
    nh_kernel_define(&spec, "NH_DIM_V", problem->dim_v);
    nh_kernel_define(&spec, "NH_DIM_V16", problem->dim_v / 16);
    nh_kernel_define(&spec, "NH_KEYS_N", keys);
    nh_kernel_define(&spec, "NH_KEYS16", keys / 16);
    nh_kernel_define(&spec, "NH_EXTRA", problem->extra_tokens > 0);
    nh_kernel_define(&spec, "NH_Q_MAP", layout_of(problem, NHOOD_Q));
    nh_kernel_define(&spec, "NH_K_MAP", layout_of(problem, NHOOD_K));
    nh_kernel_define(&spec, "NH_V_MAP", layout_of(problem, NHOOD_V));
    for (int i = QX; i <= STAGES; i++)
        nh_kernel_define(&spec, names[i], value[i]);
    nh_kernel_define(&spec, "NH_HOLD", value[HOLD]);
    return spec;
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    const struct nh_cuda_device *cuda = device->backend;
    const int32_t *value = config->value;
    int64_t keys = (int64_t)value[KX] * value[KY] * value[KZ];
    struct nh_kernel_spec spec = spec_of(problem, value);
    struct nh_cuda_operation *created = NULL;
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nhood_status status =
        nh_tiling_set(problem, value + QX, value[QH], value[ORDER], &step.args.tiling);
    if (status) return status;
    step.args.tiling.extra_tiles = (int)nh_ceil_div(problem->extra_tokens, keys);
    step.threads = 128 * (value[WARPGROUPS] + 1);
    step.grid[0] = nh_min(step.args.tiling.items, cuda->multiprocessors);
    step.shared_bytes = shared_bytes(problem, value);
    step.map[step.maps++] = map_of(problem, NHOOD_Q, value + QX, value[QH]);
    step.map[step.maps++] = map_of(problem, NHOOD_K, value + KX, 1);
    step.map[step.maps++] = map_of(problem, NHOOD_V, value + KX, 1);
    if (problem->extra_tokens) {
        step.map[step.maps++] = extra_map_of(problem, NHOOD_EXTRA_K, keys);
        step.map[step.maps++] = extra_map_of(problem, NHOOD_EXTRA_V, keys);
    }
    if ((status = nh_cuda_operation_create(problem, device, &created))) return status;
    status = nh_cuda_step_add(created, &step, &spec);
    if (status) {
        created->base.destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}

const struct nh_solver nh_solver_cuda_fused90 = {"cuda.fused90", NHOOD_DEVICE_CUDA, knobs, refuse,
                                                 candidates,     estimate,          build};
