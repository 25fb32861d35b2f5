/* cuda.fused80: softmax(Q K^T) V in one kernel on tensor cores, for sm_80 and later.
 *
 * A block owns a box of queries of one dilation group and streams the box of keys that they attend, their halo, through
 * shared memory: fused80_forward.cu. Query and key boxes are chosen per problem by counting the tile pairs that each
 * choice visits. No head dims above 256, no f64. */
#include "box_search.h"
#include "rates.h"
#include "cuda_family.h"
#include "dtype.h"
#include "tile_count.h"
#include "tiled80.h"

#include <math.h>
#include <string.h>

enum { MOST_CANDIDATES = 6 };
#define NH_KNOBS "fused80_knobs.def"
#include "knob_table.h"

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

/* The size of struct nh_shared of the kernel, which asserts it. */
static int64_t shared_bytes_of(const struct nh_problem *problem, const int32_t *value) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    int64_t key = w.dim * w.element_bytes + 16, v = w.dim_v * w.element_bytes + 16;
    int64_t loop = columns_of(value) * 16 + 64, bias = columns_of(value) * 8;
    int64_t masks = nh_tiled80_mask_bytes(value + Q0, value + K0);
    int64_t dense = (int64_t)value[WARPS] * 24;
    int64_t bytes = rows_of(value) * nh_max(key, v) +
                    value[STAGES] * columns_of(value) * (key + v) + loop + bias + masks + dense;
    return nh_ceil_div(bytes, 8) * 8;
}

/* An estimate of a thread's registers: accumulators and scores, plus 64 for addresses, operands and the softmax. */
static int64_t registers_of(const struct nh_problem *problem, const int32_t *value) {
    int64_t blocks = rows_of(value) / value[WARPS] / 16;
    return blocks * (nh_tiled80_widths(problem).dim_v + columns_of(value)) / 2 + 64;
}

/* Blocks that are resident on a multiprocessor; 0: not even one fits. */
static int64_t residents_of(const struct nh_problem *problem, const struct nh_cuda_device *device,
                            const int32_t *value) {
    int64_t registers = registers_of(problem, value);
    if (registers > NH_TILED80_MOST_REGISTERS + 8) return 0;
    return nh_tiled80_residents(device, shared_bytes_of(problem, value), value[WARPS], registers);
}

/* ---- work ---- */

/* The registers that a thread lacks, as a share of those that it has: resident blocks share the registers, and spill
 * what does not fit. The compiler takes a few more than registers_of counts. */
static double lacking(const struct nh_problem *problem, const int32_t *value, double residents) {
    enum { SPARE = 16 };
    double share = floor(NH_CUDA_REGISTERS / (32 * value[WARPS] * residents) / 8) * 8;
    share = fmin(share, NH_TILED80_MOST_REGISTERS);
    return fmax(0, (double)registers_of(problem, value) + SPARE - share) / share;
}

static void set_units(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                      const int32_t *value, double masked, struct nh_launch_work *launch) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    double rows = (double)rows_of(value), columns = (double)columns_of(value);
    double dims = (double)(w.dim + w.dim_v), bytes = (double)w.element_bytes;
    double tiles = launch->steps, scores = rows * columns;
    double tensor = scores * dims / nh_cuda_products_per_clock(problem, cuda, false);
    launch->unit[NH_WORK_TENSOR] = tiles * tensor;
    launch->unit[NH_WORK_SPILL] = tiles * tensor * lacking(problem, value, launch->residents);
    launch->unit[NH_WORK_SHARED] =
        tiles * (value[WARPS] * columns * dims + rows * (double)w.dim) * bytes / 128;
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(tiles * scores);
    launch->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(tiles * rows * (double)w.dim_v);
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(tiles * columns * dims * bytes / 16);
    launch->unit[NH_WORK_MASK] = nh_cuda_lane_clocks(masked * scores);
    launch->unit[NH_WORK_L2] = nh_cuda_l2_clocks(cuda, (tiles * columns + rows) * dims * bytes);
    launch->code = nh_tiled80_code(problem, scores * dims, value[WARPS]);
}

static bool work_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                    const int32_t *value, const struct nh_tiling_count *loop,
                    struct nh_work *work) {
    double copies = (double)(problem->batch * problem->heads),
           residents = (double)residents_of(problem, cuda, value);
    double extra = (double)nh_ceil_div(problem->extra_tokens, columns_of(value));
    bool f32 = problem->dtype == NHOOD_DTYPE_F32;
    if (residents <= 0) return false;
    nh_work_start(work, NH_OPERATION_FUSED80, problem);
    struct nh_launch_work *launch =
        nh_work_add(work, f32 ? NH_KERNEL_FUSED80_F32 : NH_KERNEL_FUSED80);
    launch->blocks = copies * loop->work_tiles;
    launch->residents = launch->in_flight = residents;
    launch->warps = value[WARPS];
    launch->steps = loop->visited / loop->work_tiles + extra;
    launch->longest = (loop->longest + extra) / launch->steps;
    launch->serial = 1.0 / value[WARPS];
    launch->tiles = launch->blocks * launch->steps;
    launch->masked_tiles = copies * loop->partial;
    launch->scores = (double)(rows_of(value) * columns_of(value));
    launch->flops = 2 * launch->tiles * (double)(rows_of(value) * columns_of(value)) *
                    (double)(nh_tiled80_widths(problem).dim + nh_tiled80_widths(problem).dim_v);
    set_units(problem, cuda, value, loop->partial / loop->work_tiles, launch);
    return true;
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const struct nh_tiling_count loop = nh_tiling_count(
        problem, config->value + Q0, config->value + Q0, config->value + K0, false, false);
    return work_of(problem, device->backend, config->value, &loop, work);
}

/* ---- candidates ---- */

static const struct nh_box_variant variants[] = {{32, 32, 2, 1},   {64, 64, 2, 2}, {64, 32, 4, 1},
                                                 {128, 64, 4, 2},  {64, 64, 4, 1}, {128, 64, 4, 1},
                                                 {128, 128, 4, 2}, {64, 64, 4, 2}};

static struct nh_config config_of(const struct nh_box_choice *choice) {
    const int32_t *q = choice->row, *k = choice->column;
    return (struct nh_config){
        {q[0], q[1], q[2], k[0], k[1], k[2], choice->variant->warps, choice->variant->stages}};
}

static bool choice_work(const struct nh_box_search *search, const struct nh_box_choice *choice,
                        struct nh_work *work) {
    const struct nh_config config = config_of(choice);
    return work_of(search->problem, search->device->backend, config.value, &choice->count, work);
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    const struct nh_box_search search = {.problem = problem,
                                         .variant = variants,
                                         .variants = sizeof variants / sizeof *variants,
                                         .work = choice_work,
                                         .device = device,
                                         .below_ns = below_ns};
    struct nh_box_choice best[MOST_CANDIDATES];
    int count = nh_box_search(&search, best, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int i = 0; i < count; i++)
        config[i] = config_of(&best[i]);
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

const struct nh_solver nh_solver_cuda_fused80 = {
    NH_CUDA_SOLVER,
    .name = "cuda.fused80",
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC,
    .knob = knobs,
    .refuse = refuse,
    .candidates = candidates,
    .work = work,
    .add_steps = add_steps,
    .left_to = "cuda.fused90",
};
