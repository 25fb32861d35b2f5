/* What the kernels of cuda.fused80 and cuda.split80 need and ask of a device, and setting up their launches. */
#include "tiled80.h"

#include "dtype.h"
#include "rates.h"
#include "value_parts.h"

#include <math.h>
#include <string.h>

enum { MOST_DIM = 256, MOST_LENGTH = 1 << 29, MOST_DIMS_AT_ONCE = 384, MOST_REGISTERS = 255 };

static const char *refuse_axis(const struct nh_problem *problem, const struct nh_axis *axis) {
    if (nh_max(axis->length, nh_axis_keys(axis)) > (axis->periodic ? MOST_LENGTH / 2 : MOST_LENGTH))
        return "an axis is longer than 2^29 tokens, or 2^28 where it is periodic";
    return nh_refuse_pieces(axis, problem->op == NHOOD_OP_BWD);
}

const char *nh_tiled80_refuse(const struct nh_problem *problem) {
    if (problem->dtype == NHOOD_DTYPE_F64) return "f64 has no tensor core products";
    if (problem->dim > MOST_DIM) return "a head dim is larger than 256";
    if (problem->dim_v > NH_MOST_VALUES) return "a value dim is larger than 1024";
    for (int a = 0; a < NH_AXES; a++) {
        const char *reason = refuse_axis(problem, &problem->axis[a]);
        if (reason) return reason;
    }
    if (problem->extra_tokens > MOST_LENGTH) return "more than 2^29 extra tokens";
    return NULL;
}

void nh_tiled80_set_knobs(const struct nh_box_choice *choice, int32_t knob[NH_TILED80_KNOBS]) {
    memcpy(knob + NH_TILED80_ROW, choice->row, sizeof choice->row);
    memcpy(knob + NH_TILED80_COLUMN, choice->column, sizeof choice->column);
    knob[NH_TILED80_WARPS] = choice->variant->warps;
}

/* ---- what a kernel needs ---- */

static bool by_key(const struct nh_tiled80_kernel *kernel) {
    return mma80_owns_keys(&kernel->config);
}

int nh_tiled80_launches(const struct nh_tiled80_kernel *kernel) {
    const struct nh_problem *problem = kernel->problem;
    const bool both = by_key(kernel) && !kernel->apart;
    return both && problem->dim + problem->dim_v > MOST_DIMS_AT_ONCE ? 2 : 1;
}

struct nh_tiled80_kernel nh_tiled80_kernel(const struct nh_problem *problem,
                                           const struct nh_cuda_device *cuda, enum mma80_pass pass,
                                           const int32_t knob[NH_TILED80_KNOBS], int32_t stages) {
    const bool biased = problem->has_bias && pass != MMA80_EXTRA;
    struct nh_tiled80_kernel kernel = {
        .problem = problem,
        .cuda = cuda,
        .config = {.pass = (int)pass,
                   .element_bytes = (int)nh_dtype_bytes(problem->dtype),
                   .dim = (int)problem->dim,
                   .dim_v = (int)problem->dim_v,
                   .warps = knob[NH_TILED80_WARPS],
                   .stages = stages,
                   .extra = problem->extra_tokens > 0 && pass < MMA80_BY_KEY,
                   .biased = biased,
                   .prescale = biased || !(problem->scale > 0),
                   .tf32 = problem->dtype == NHOOD_DTYPE_F32 &&
                           (problem->flags & NHOOD_FLAG_ALLOW_TF32),
                   .sum_first = pass != MMA80_FORWARD}};
    kernel.config.sum_second = by_key(&kernel) && nh_tiled80_launches(&kernel) == 1;
    memcpy(kernel.config.rows, knob + NH_TILED80_ROW, sizeof kernel.config.rows);
    memcpy(kernel.config.columns, knob + NH_TILED80_COLUMN, sizeof kernel.config.columns);
    return kernel;
}

/* Rows and columns of the tiles, and head dims in shared memory. */
struct sizes {
    int64_t rows, columns, dim, dim_v;
};

static struct sizes sizes_of(const struct nh_tiled80_kernel *kernel) {
    const struct mma80_config *config = &kernel->config;
    return (struct sizes){mma80_row_count(config), mma80_column_count(config),
                          mma80_padded(config, config->dim), mma80_padded(config, config->dim_v)};
}

/* The columns of dK and dV that a thread holds, the most of its launches. */
static int64_t sums_by_keys(const struct nh_tiled80_kernel *kernel, const struct sizes *s) {
    if (kernel->apart) return kernel->config.sum_first ? s->dim : s->dim_v;
    return nh_tiled80_launches(kernel) == 2 ? nh_max(s->dim, s->dim_v) : s->dim + s->dim_v;
}

/* An estimate of a thread's registers: sums, scores and, backward, their gradients, plus 64 for all else. */
static int64_t registers_of(const struct nh_tiled80_kernel *kernel) {
    const struct sizes s = sizes_of(kernel);
    const int64_t by_keys = sums_by_keys(kernel, &s);
    const int64_t sums[] = {s.dim_v, s.dim, by_keys, by_keys};
    int64_t blocks = s.rows / kernel->config.warps / 16,
            scores = kernel->config.pass == MMA80_FORWARD ? s.columns / 2 : s.columns;
    return blocks * (sums[kernel->config.pass] / 2 + scores) + 64;
}

int64_t nh_tiled80_residents(const struct nh_tiled80_kernel *kernel) {
    enum { GRANTED = 8, MOST_GRANTED = 256 }; /* registers of a thread are granted in units of 8 */
    const int64_t spilled = kernel->config.pass == MMA80_FORWARD ? 8 : 32;
    int64_t registers = registers_of(kernel);
    if (registers > MOST_REGISTERS + spilled) return 0;
    int64_t by_shared =
        nh_cuda_residents_by_shared(kernel->cuda, mma80_shared_bytes(&kernel->config));
    if (!by_shared) return 0;
    int64_t granted = nh_ceil_div(nh_min(registers, MOST_GRANTED), GRANTED) * GRANTED;
    return nh_max(1, nh_min(by_shared, NH_CUDA_REGISTERS / (32 * kernel->config.warps * granted)));
}

int64_t nh_tiled80_head_tiles(const struct nh_tiled80_kernel *kernel) {
    int64_t tiles = kernel->problem->batch;
    for (int a = 0; a < NH_AXES; a++)
        tiles *= nh_row_tiles(&kernel->problem->axis[a], kernel->config.rows[a], by_key(kernel));
    return tiles;
}

/* ---- work ---- */

/* The inner dimensions of a launch's products of one pair of rows, added up: scores, their gradients, and sums. */
static double product_dims(const struct nh_tiled80_kernel *kernel) {
    const struct sizes s = sizes_of(kernel);
    double dim = (double)s.dim, dim_v = (double)s.dim_v;
    if (kernel->config.pass == MMA80_FORWARD) return dim + dim_v;
    if (kernel->config.pass == MMA80_BY_QUERY) return 2 * dim + dim_v;
    if (kernel->apart) return kernel->config.sum_first ? 2 * dim + dim_v : dim + dim_v;
    return nh_tiled80_launches(kernel) == 2 ? (3 * dim + 2 * dim_v) / 2 : 2 * (dim + dim_v);
}

/* The blocks of a kernel's launches, the tiles of all loops, how many need masks, and the tiles of the longest loop. */
struct loops {
    double blocks, tiles, masked, longest;
};

static struct loops loops_of(const struct nh_tiled80_kernel *kernel,
                             const struct nh_tiling_count *count) {
    const struct nh_problem *problem = kernel->problem;
    bool keys = by_key(kernel);
    double passes = (double)(problem->batch * nh_tiled80_launches(kernel));
    double blocks =
               passes * (double)(keys ? problem->kv_heads : problem->heads) * count->work_tiles,
           each = passes * (double)problem->heads;
    double shared = keys ? (double)(problem->heads / problem->kv_heads) : 1;
    double extra =
        keys ? 0 : (double)nh_ceil_div(problem->extra_tokens, mma80_column_count(&kernel->config));
    return (struct loops){blocks, each * count->visited + blocks * extra, each * count->partial,
                          shared * count->longest + extra};
}

/* The registers that a thread of the forward lacks, as a share of those that it has: resident blocks share the
 * registers, and spill what does not fit. The compiler takes a few more than registers_of counts. */
static double lacking(const struct nh_tiled80_kernel *kernel, double residents) {
    enum { SPARE = 16 };
    double share = floor(NH_CUDA_REGISTERS / (32 * kernel->config.warps * residents) / 8) * 8;
    share = fmin(share, MOST_REGISTERS);
    return fmax(0, (double)registers_of(kernel) + SPARE - share) / share;
}

/* Instructions beside products: the forward rescales its output; backward a bias is read and, beside dQ, its gradient
 * summed. */
static double other_instructions(const struct nh_tiled80_kernel *kernel, const struct sizes *s) {
    enum { READ = 3, READ_AND_SUM = 10 };
    if (kernel->config.pass == MMA80_FORWARD) return (double)(s->rows * s->dim_v);
    if (!kernel->problem->has_bias) return 0;
    return (double)(s->rows * s->columns) * (by_key(kernel) ? READ : READ_AND_SUM);
}

static void set_units(const struct nh_tiled80_kernel *kernel, double masked,
                      struct nh_launch_work *launch) {
    const struct nh_cuda_device *cuda = kernel->cuda;
    const struct sizes s = sizes_of(kernel);
    const bool forward = kernel->config.pass == MMA80_FORWARD;
    double rows = (double)s.rows, columns = (double)s.columns, scores = rows * columns;
    double dims = (double)(s.dim + s.dim_v), bytes = (double)kernel->config.element_bytes;
    double depth = product_dims(kernel), products = scores * depth, tiles = launch->steps;
    /* the inner dimension of a product instruction; f32 takes three of TF32 */
    double step = kernel->problem->dtype == NHOOD_DTYPE_F32 ? 8 / 3.0 : 16;
    double own = rows * (forward ? (double)s.dim : dims);
    launch->unit[NH_WORK_TENSOR] =
        tiles * products / nh_cuda_products_per_clock(kernel->problem, cuda, false);
    launch->unit[NH_WORK_SPILL] =
        forward ? launch->unit[NH_WORK_TENSOR] * lacking(kernel, launch->residents) : 0;
    launch->unit[NH_WORK_SHARED] = tiles * (launch->warps * columns * depth + own) * bytes / 128;
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(tiles * scores);
    launch->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(tiles * other_instructions(kernel, &s));
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(tiles * columns * dims * bytes / 16);
    launch->unit[NH_WORK_MASK] = nh_cuda_lane_clocks(masked * scores);
    launch->unit[NH_WORK_L2] = nh_cuda_l2_clocks(cuda, (tiles * columns + rows) * dims * bytes);
    launch->code = products / (16 * 8 * step * launch->warps);
    launch->scores = scores;
    launch->flops = 2 * launch->tiles * products;
}

bool nh_tiled80_add_work(const struct nh_tiled80_kernel *kernel,
                         const struct nh_tiling_count *count, struct nh_work *work) {
    static const enum nh_kernel_kind kind[][2] = {
        {NH_KERNEL_FUSED80, NH_KERNEL_FUSED80_F32},
        {NH_KERNEL_SPLIT80_QUERY, NH_KERNEL_SPLIT80_QUERY_F32},
        {NH_KERNEL_SPLIT80_KEY, NH_KERNEL_SPLIT80_KEY_F32},
        {NH_KERNEL_SPLIT80_KEY, NH_KERNEL_SPLIT80_KEY_F32}};
    const struct loops loops = loops_of(kernel, count);
    double residents = (double)nh_tiled80_residents(kernel);
    if (residents <= 0) return false;
    struct nh_launch_work *launch =
        nh_work_add(work, kind[kernel->config.pass][kernel->problem->dtype == NHOOD_DTYPE_F32]);
    launch->blocks = loops.blocks;
    launch->residents = launch->in_flight = residents;
    launch->warps = kernel->config.warps;
    launch->steps = loops.tiles / loops.blocks;
    launch->longest = loops.longest / launch->steps;
    launch->serial = 1 / launch->warps;
    launch->tiles = loops.tiles;
    launch->masked_tiles = loops.masked;
    set_units(kernel, loops.masked / loops.blocks, launch);
    return true;
}

/* ---- launches ---- */

void nh_tiled80_step(const struct nh_tiled80_kernel *kernel, struct nh_cuda_step *step,
                     struct nh_kernel_spec *spec) {
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(MMA80_CONFIG);
    static const char *const passes[] = {NH_NAMED(MMA80_FORWARD), NH_NAMED(MMA80_BY_QUERY),
                                         NH_NAMED(MMA80_BY_KEY), NH_NAMED(MMA80_EXTRA)};
    static const int sums[] = {NH_SUMS_OF_QUERY, NH_SUMS_OF_QUERY, NH_SUMS_OF_KEY,
                               NH_SUMS_OVER_ALL};
    const struct nh_problem *problem = kernel->problem;
    struct mma80_config config = kernel->config;
    config.vector = nh_cuda_vector(problem, UINT32_MAX);
    config.min_blocks = (int)nh_tiled80_residents(kernel);
    config.long_sums = nh_cuda_sums_are_long(problem, sums[config.pass]);
    nh_kernel_define(spec, "NH_DTYPE", problem->dtype);
    nh_kernel_configure(spec, fields, &config);
    nh_kernel_name_value(spec, "pass", passes[config.pass]);
    nh_cuda_step_init(step, problem);
    step->threads = 32 * config.warps;
    step->shared_bytes = mma80_shared_bytes(&config);
    step->blocks.heads = by_key(kernel) ? problem->kv_heads : problem->heads;
    memcpy(step->blocks.tile, config.rows, sizeof config.rows);
    step->grid[0] = step->blocks.heads * nh_tiled80_head_tiles(kernel);
}
