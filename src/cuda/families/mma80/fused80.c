/* cuda.fused80: softmax(Q K^T) V in one kernel on tensor cores, for sm_80 and everything later.
 *
 * A block owns a box of queries of one dilation group and streams the box of keys that they attend, their halo,
 * through shared memory: fused80_forward.cu. Query and key boxes are chosen per problem by counting the tile
 * pairs that each choice visits. Head dims beyond 256 and f64 are not for it. */
#include "box_search.h"
#include "cuda_solvers.h"
#include "dtype.h"
#include "launch.h"
#include "load.h"
#include "tile_count.h"
#include "tiled80.h"

#include <math.h>
#include <string.h>

enum { MOST_CANDIDATES = 6 };
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "fused80_knobs.def"
#undef KNOB
    KNOBS
};
static const struct nh_knob knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "fused80_knobs.def"
#undef KNOB
    {NULL, NULL}};

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    (void)device;
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    return nh_tiled80_refuse(problem);
}

/* ---- what a config needs ---- */

static int64_t rows_of(const int32_t *value) {
    return nh_box_volume(value + Q0);
}

static int64_t columns_of(const int32_t *value) {
    return nh_box_volume(value + K0);
}

/* struct nh_shared of the kernel, which asserts that this is its size. */
static int64_t shared_bytes_of(const struct nh_problem *problem, const int32_t *value) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    int64_t key = w.dim * w.element_bytes + 16, v = w.dim_v * w.element_bytes + 16;
    int64_t walk = columns_of(value) * 16 + 64, bias = columns_of(value) * 8;
    int64_t masks = nh_tiled80_mask_bytes(value + Q0, value + K0);
    int64_t dense = (int64_t)value[WARPS] * 24;
    int64_t bytes = rows_of(value) * nh_max(key, v) +
                    value[STAGES] * columns_of(value) * (key + v) + walk + bias + masks + dense;
    return nh_ceil_div(bytes, 8) * 8;
}

/* Accumulators and scores of a thread, and as many again as addresses, operands and the softmax take. */
static int64_t registers_of(const struct nh_problem *problem, const int32_t *value) {
    int64_t blocks = rows_of(value) / value[WARPS] / 16;
    return blocks * (nh_tiled80_widths(problem).dim_v + columns_of(value)) / 2 + 64;
}

/* Blocks that share a multiprocessor; 0: not even one fits. */
static int64_t residents_of(const struct nh_problem *problem, const struct nh_cuda_device *device,
                            const int32_t *value) {
    int64_t registers = registers_of(problem, value);
    if (registers > NH_TILED80_MOST_REGISTERS + 8) return 0;
    return nh_tiled80_residents(device, shared_bytes_of(problem, value), value[WARPS], registers);
}

/* ---- time ---- */

/* Clocks of a multiprocessor for one key tile of one block: products or the matrix loads that feed them, and the
 * instructions of softmax, copies and, for a share of the tiles, masks. Fitted on an H200, as all that follows. */
static double tile_clocks(const struct nh_problem *problem, const struct nh_cuda_load *load,
                          const int32_t *value) {
    const double multiplying = 0.886, loading = 0.535, softening = 0.869, copying = 2.02,
                 masking = 6.3;
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    double rows = (double)rows_of(value), columns = (double)columns_of(value);
    double dims = (double)(w.dim + w.dim_v), bytes = (double)w.element_bytes;
    double products = load->products / load->products_per_clock;
    double loads = (value[WARPS] * columns * dims + rows * (double)w.dim) * bytes / 128;
    double softmax = rows * (columns * 6 + (double)w.dim_v) / 128;
    double copies = columns * dims * bytes / 16 * 9 / 128;
    double masks = load->masked_tiles / load->tiles * load->scores / 128;
    double f32 = problem->dtype == NHOOD_DTYPE_F32 ? 1.25 : 1;
    return f32 * (multiplying * products + loading * loads) + softening * softmax +
           copying * copies + masking * masks;
}

static struct nh_cuda_load load_of(const struct nh_problem *problem,
                                   const struct nh_cuda_device *device, const int32_t *value,
                                   double tiles, double masked, double blocks) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    double rows = (double)rows_of(value), columns = (double)columns_of(value);
    double row_bytes = (double)((w.dim + w.dim_v) * w.element_bytes);
    return (struct nh_cuda_load){
        .tiles = tiles,
        .masked_tiles = masked,
        .scores = rows * columns,
        .products = rows * columns * (double)(w.dim + w.dim_v),
        .tile_bytes = columns * row_bytes,
        .bytes = blocks * rows * row_bytes,
        .products_per_clock = nh_cuda_products_per_clock(problem, device, false),
    };
}

/* Clocks of a tile in those that it takes with registers to spare: blocks that share a multiprocessor spill what their
 * share does not hold. */
static double spilling(const struct nh_problem *problem, const int32_t *value, double residents) {
    enum { SPARE = 16 };
    const double cost = 0.333;
    double share = floor(NH_CUDA_REGISTERS / (32 * value[WARPS] * residents) / 8) * 8;
    share = fmin(share, NH_TILED80_MOST_REGISTERS);
    double missing = (double)registers_of(problem, value) + SPARE - share;
    return 1 + cost * fmax(0, missing) / share;
}

/* end_share: of a block alone, added to what a full device takes. */
static const double block_clocks = 17200, tile_latency = 1600, launch_ns = 2920, end_share = 0.349;

/* Of a block that has its multiprocessor to itself, as in split80_time.c. */
static double alone_share(double warps) {
    const double share = 0.254, by_warps = 3.09;
    return share + by_warps / warps;
}

static double memory_ns(const struct nh_problem *problem, const struct nh_cuda_device *device) {
    return 1.2 * nh_cuda_memory_ns(problem, device);
}

/* Nanoseconds; INFINITY: not even one block fits. */
static double predict(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                      const int32_t *value, const struct nh_tiling_count *walk,
                      struct nh_count *count) {
    double copies = (double)(problem->batch * problem->heads), blocks = copies * walk->items;
    double extra = (double)nh_ceil_div(problem->extra_tokens, columns_of(value));
    double visits = walk->visited / walk->items + extra;
    const struct nh_cuda_load load =
        load_of(problem, cuda, value, copies * walk->visited + blocks * extra,
                copies * walk->partial, blocks);
    double residents = (double)residents_of(problem, cuda, value);
    if (residents <= 0) return INFINITY;
    double tile = tile_clocks(problem, &load, value) * spilling(problem, value, residents);
    double waves = blocks / cuda->multiprocessors;
    /* a multiprocessor that has several blocks hides the latencies of one behind the others */
    double alone = tile_latency + alone_share(value[WARPS]) * tile;
    double round = visits * alone + block_clocks;
    double latency =
        fmax(ceil(waves / residents) * round, (walk->longest + extra) * alone + block_clocks);
    /* of the last blocks, many multiprocessors have none */
    double busiest = (waves + ceil(waves)) / 2;
    double throughput = busiest * (visits * tile + block_clocks / residents) + end_share * round;
    double first = nh_cuda_first_clocks(problem, &load, value[WARPS]);
    double busy = nh_cuda_clocks_ns(cuda, first + fmax(latency, throughput));
    if (count) {
        *count = (struct nh_count){.tiles = 0};
        nh_cuda_count_load(cuda, &load, count);
        count->limit_ns[NHOOD_LIMIT_MEMORY] = nh_cuda_memory_ns(problem, cuda);
    }
    return fmax(busy, memory_ns(problem, cuda)) + launch_ns;
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    const int32_t *value = config->value;
    const struct nh_tiling_count walk =
        nh_tiling_grid_count(problem, value + Q0, value + K0, false);
    return predict(problem, device->backend, value, &walk, count);
}

/* ---- candidates ---- */

/* Those first that are chosen most often: the search then passes over more of the others. */
static const struct nh_box_variant variants[] = {{32, 32, 2, 1},   {64, 64, 2, 2}, {64, 32, 4, 1},
                                                 {128, 64, 4, 2},  {64, 64, 4, 1}, {128, 64, 4, 1},
                                                 {128, 128, 4, 2}, {64, 64, 4, 2}, {128, 64, 8, 1}};
_Static_assert(sizeof variants / sizeof *variants <= NH_MOST_BOX_VARIANTS, "no room for more");

static struct nh_config config_of(const struct nh_box_variant *variant, const int32_t q[3],
                                  const int32_t k[3]) {
    return (struct nh_config){
        {q[0], q[1], q[2], k[0], k[1], k[2], variant->warps, variant->stages}};
}

static double cost(const struct nh_box_search *search, const struct nh_box_choice *choice) {
    const struct nh_config config = config_of(choice->variant, choice->row, choice->column);
    return predict(search->problem, search->device->backend, config.value, &choice->count, NULL);
}

/* With as many residents as boxes of such sizes may have, which long ones have fewest of, and without extra tokens. */
static struct nh_box_bound bound(const struct nh_box_search *search,
                                 const struct nh_box_variant *variant) {
    const struct nh_problem *problem = search->problem;
    const struct nh_cuda_device *cuda = search->device->backend;
    int32_t q[NH_AXES], k[NH_AXES];
    nh_box_balanced(variant->rows, q);
    nh_box_balanced(variant->columns, k);
    const struct nh_config config = config_of(variant, q, k);
    const struct nh_cuda_load plain = load_of(problem, cuda, config.value, 1, 0, 1);
    struct nh_cuda_load masked = plain;
    masked.masked_tiles = 1;
    const struct nh_config longest =
        config_of(variant, (int32_t[]){1, 1, variant->rows}, (int32_t[]){1, 1, variant->columns});
    double fewest = (double)residents_of(problem, cuda, longest.value);
    double spilt = spilling(problem, config.value, fmax(fewest, 1));
    double tile = spilt * tile_clocks(problem, &plain, config.value);
    double alone = alone_share(variant->warps);
    double first = nh_cuda_first_clocks(problem, &plain, variant->warps);
    double copies = (double)(problem->batch * problem->heads);
    return (struct nh_box_bound){.least = memory_ns(problem, cuda) + launch_ns,
                                 .fixed = launch_ns + nh_cuda_clocks_ns(cuda, first),
                                 .per_clock = nh_cuda_clocks_ns(cuda, 1),
                                 .tile = tile,
                                 .masks =
                                     spilt * tile_clocks(problem, &masked, config.value) - tile,
                                 .latency = tile_latency,
                                 .alone = alone,
                                 .longest = tile_latency + alone * tile,
                                 .ending = end_share,
                                 .block = block_clocks,
                                 .residents = (double)residents_of(problem, cuda, config.value),
                                 .blocks = copies,
                                 .walks = copies,
                                 .multiprocessors = cuda->multiprocessors};
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    const struct nh_box_search search = {.problem = problem,
                                         .variant = variants,
                                         .variants = sizeof variants / sizeof *variants,
                                         .bound = bound,
                                         .cost = cost,
                                         .device = device,
                                         .behind = INFINITY,
                                         .below = below_ns,
                                         .spare = INFINITY};
    struct nh_box_choice best[MOST_CANDIDATES];
    int count = nh_box_search(&search, best, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int i = 0; i < count; i++)
        config[i] = config_of(best[i].variant, best[i].row, best[i].column);
    return count;
}

/* ---- plan ---- */

static struct nh_kernel_spec spec_of(const struct nh_problem *problem,
                                     const struct nh_cuda_device *device, const int32_t *value) {
    struct nh_kernel_spec spec = {.source = "fused80_forward.cu"};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_DIM", problem->dim);
    nh_kernel_define(&spec, "NH_DIM_V", problem->dim_v);
    nh_kernel_define(&spec, "NH_VECTOR", nh_cuda_vector(problem, UINT32_MAX));
    nh_kernel_define(&spec, "NH_MIN_BLOCKS", residents_of(problem, device, value));
    nh_kernel_define(&spec, "NH_EXTRA_TOKENS", problem->extra_tokens > 0);
    nh_kernel_define(&spec, "NH_BIASED", problem->has_bias);
    nh_kernel_define(&spec, "NH_PRESCALE", problem->has_bias || !(problem->scale > 0));
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_kernel_define(&spec, "NH_SHARED_BYTES", shared_bytes_of(problem, value));
    nh_cuda_define_long_sums(&spec, problem, NH_SUMS_OF_QUERY);
    nh_kernel_define_knobs(&spec, knobs, KNOBS, value);
    return spec;
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    const int32_t *value = config->value;
    struct nh_kernel_spec spec = spec_of(problem, operation->device, value);
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    step.threads = 32 * value[WARPS];
    step.shared_bytes = shared_bytes_of(problem, value);
    step.grid[0] = problem->batch * problem->heads;
    for (int a = 0; a < NH_AXES; a++)
        step.grid[0] *= nh_tile_count(&problem->axis[a], value[Q0 + a], value[K0 + a], false).tiles;
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, add_steps, operation);
}

const struct nh_solver nh_solver_cuda_fused80 = {
    .name = "cuda.fused80",
    .device_kind = NHOOD_DEVICE_CUDA,
    .knob = knobs,
    .refuse = refuse,
    .candidates = candidates,
    .estimate = estimate,
    .build = build,
};
