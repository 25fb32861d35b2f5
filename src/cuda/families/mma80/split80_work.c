/* What a launch of cuda.split80 needs of shared memory, registers and blocks, and what it asks of a device. */
#include "split80.h"

#include "predict.h"
#include "rates.h"
#include "tile_count.h"

enum { MOST_DIMS_AT_ONCE = 384 };
const struct nh_knob nh_split80_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "split80_knobs.def"
#undef KNOB
    {NULL, NULL}};

bool nh_split80_apart(const struct nh_problem *problem) {
    return problem->dim + problem->dim_v > MOST_DIMS_AT_ONCE;
}

/* The size of struct nh_shared of the kernel, which asserts it. */
int64_t nh_split80_shared_bytes(const struct nh_problem *problem, const int32_t *side,
                                bool inverse) {
    const int32_t *row = side + SPLIT80_ROW, *column = side + SPLIT80_COLUMN;
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    int64_t rows = nh_box_volume(row), columns = nh_box_volume(column);
    int64_t pair = (w.dim + w.dim_v) * w.element_bytes + 32;
    int64_t tensors = inverse ? 3 : 2, loop = tensors * (columns + 4) * 8, bias = columns * 8;
    int64_t stats = SPLIT80_STAGES * columns * 8, dense = (int64_t)side[SPLIT80_WARPS] * 24;
    int64_t masks = nh_tiled80_mask_bytes(row, column);
    int64_t bias_tile = problem->has_bias && !inverse ? rows * (columns + 8) * 4 : 8;
    int64_t bytes =
        (rows + SPLIT80_STAGES * columns) * pair + loop + bias + stats + masks + dense + bias_tile;
    return nh_ceil_div(bytes, 8) * 8;
}

/* An estimate of a thread's registers: gradients, scores and their gradients, plus 64 for addresses and operands. */
static int64_t registers_of(const struct nh_problem *problem, const int32_t *side, bool inverse) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    int64_t blocks = nh_box_volume(side + SPLIT80_ROW) / side[SPLIT80_WARPS] / 16;
    int64_t sums = !inverse                    ? w.dim
                   : nh_split80_apart(problem) ? nh_max(w.dim, w.dim_v)
                                               : w.dim + w.dim_v;
    return blocks * (sums / 2 + nh_box_volume(side + SPLIT80_COLUMN)) + 64;
}

int64_t nh_split80_residents(const struct nh_problem *problem, const struct nh_cuda_device *device,
                             const int32_t *side, bool inverse) {
    enum { SPILLED = 32 };
    int64_t registers = registers_of(problem, side, inverse);
    if (registers > NH_TILED80_MOST_REGISTERS + SPILLED) return 0;
    return nh_tiled80_residents(device, nh_split80_shared_bytes(problem, side, inverse),
                                side[SPLIT80_WARPS], registers);
}

int64_t nh_split80_head_tiles(const struct nh_problem *problem, const int32_t *side, bool inverse) {
    int64_t tiles = problem->batch;
    for (int a = 0; a < NH_AXES; a++)
        tiles *= nh_row_tiles(&problem->axis[a], side[SPLIT80_ROW + a], inverse);
    return tiles;
}

int64_t nh_split80_bias_shares(const struct nh_problem *problem,
                               const struct nh_cuda_device *device, const int32_t *side) {
    const int64_t most_table_bytes = (int64_t)256 << 20, rounds = 4;
    int64_t blocks =
        rounds * device->multiprocessors * nh_split80_residents(problem, device, side, false);
    int64_t by_memory = most_table_bytes / (problem->heads * problem->bias_count * 4);
    int64_t wanted = nh_min(nh_ceil_div(blocks, problem->heads), by_memory);
    return nh_max(1, nh_min(wanted, nh_split80_head_tiles(problem, side, false)));
}

void nh_split80_extra_side(const struct nh_problem *problem, const int32_t *keys,
                           int32_t side[SPLIT80_SIDE]) {
    for (int i = 0; i < SPLIT80_SIDE; i++)
        side[i] = keys[i];
    int32_t rows = (int32_t)nh_box_volume(keys + SPLIT80_ROW);
    for (; side[SPLIT80_WARPS] % 2 == 0 && rows / 2 >= problem->extra_tokens; rows /= 2)
        side[SPLIT80_WARPS] /= 2;
    side[SPLIT80_ROW] = side[SPLIT80_ROW + 1] = 1;
    side[SPLIT80_ROW + 2] = rows;
}

/* ---- work ---- */

static int launches_of(const struct nh_problem *problem, bool inverse) {
    return inverse && nh_split80_apart(problem) ? 2 : 1;
}

/* The inner dimensions of a launch's products of one pair of rows, added up: scores, their gradients, and sums. */
static double product_dims(const struct nh_problem *problem, bool inverse) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    double dim = (double)w.dim, dim_v = (double)w.dim_v;
    if (!inverse) return 2 * dim + dim_v;
    return nh_split80_apart(problem) ? (3 * dim + 2 * dim_v) / 2 : 2 * (dim + dim_v);
}

/* The blocks of a side's launches, the tiles of all their loops, and how many of these need masks. */
struct loops {
    double blocks, tiles, masked;
    /* tiles of the longest loop */
    double longest;
};

static struct loops loops_of(const struct nh_problem *problem, const int32_t *side, bool inverse,
                             const struct nh_tiling_count *count) {
    int64_t heads = inverse ? problem->kv_heads : problem->heads;
    double passes = (double)(problem->batch * launches_of(problem, inverse));
    double blocks = passes * (double)heads * count->work_tiles,
           each = passes * (double)problem->heads;
    double extra = 0, shared = inverse ? (double)(problem->heads / problem->kv_heads) : 1;
    if (!inverse)
        extra = (double)nh_ceil_div(problem->extra_tokens, nh_box_volume(side + SPLIT80_COLUMN));
    return (struct loops){blocks, each * count->visited + blocks * extra, each * count->partial,
                          shared * count->longest + extra};
}

/* Blocks of extra tokens loop over the queries of a whole batch entry; tiles that the end of the grid cuts need
 * masks. */
static struct loops extra_loops(const struct nh_problem *problem, const int32_t *side) {
    int64_t rows = nh_box_volume(side + SPLIT80_ROW);
    double groups = (double)(nh_ceil_div(problem->extra_tokens, rows) * problem->batch *
                             launches_of(problem, true));
    double tiles = (double)problem->heads * groups, dense = tiles;
    for (int a = 0; a < NH_AXES; a++) {
        tiles *= (double)nh_ceil_div(problem->axis[a].query.length, side[SPLIT80_COLUMN + a]);
        dense *= (double)(problem->axis[a].query.length / side[SPLIT80_COLUMN + a]);
    }
    double blocks = (double)problem->kv_heads * groups;
    return (struct loops){blocks, tiles, tiles - dense, tiles / blocks};
}

/* Instructions per entry of a bias; beside dQ its gradient is summed, too. */
static double bias_instructions(const struct nh_problem *problem, bool inverse) {
    enum { READ = 3, READ_AND_SUM = 10 };
    return !problem->has_bias ? 0 : inverse ? READ : READ_AND_SUM;
}

static void set_units(const struct nh_problem *problem, const struct nh_cuda_device *device,
                      const int32_t *side, bool inverse, double masked,
                      struct nh_launch_work *launch) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    double rows = (double)nh_box_volume(side + SPLIT80_ROW);
    double columns = (double)nh_box_volume(side + SPLIT80_COLUMN), scores = rows * columns;
    double dims = (double)(w.dim + w.dim_v), bytes = (double)w.element_bytes;
    double products = scores * product_dims(problem, inverse), tiles = launch->steps;
    double by_warps = launch->warps * columns * product_dims(problem, inverse);
    launch->unit[NH_WORK_TENSOR] =
        tiles * products / nh_cuda_products_per_clock(problem, device, false);
    launch->unit[NH_WORK_SHARED] = tiles * (by_warps + rows * dims) * bytes / 128;
    launch->unit[NH_WORK_EXP] = nh_cuda_exp_clocks(tiles * scores);
    launch->unit[NH_WORK_VECTOR] =
        nh_cuda_lane_clocks(tiles * scores * bias_instructions(problem, inverse));
    launch->unit[NH_WORK_COPY] = nh_cuda_lane_clocks(tiles * columns * dims * bytes / 16);
    launch->unit[NH_WORK_MASK] = nh_cuda_lane_clocks(masked * scores);
    launch->unit[NH_WORK_L2] = nh_cuda_l2_clocks(device, (tiles * columns + rows) * dims * bytes);
    launch->code = nh_tiled80_code(problem, products, launch->warps);
    launch->flops = 2 * launch->tiles * products;
}

/* Adds a launch; false: blocks do not fit. */
static bool add_launch(const struct nh_problem *problem, const struct nh_cuda_device *device,
                       const int32_t *side, bool inverse, const struct loops *loops,
                       struct nh_work *work) {
    static const enum nh_kernel_kind kernel[2][2] = {
        {NH_KERNEL_SPLIT80_QUERY, NH_KERNEL_SPLIT80_QUERY_F32},
        {NH_KERNEL_SPLIT80_KEY, NH_KERNEL_SPLIT80_KEY_F32}};
    double residents = (double)nh_split80_residents(problem, device, side, inverse);
    if (residents <= 0) return false;
    struct nh_launch_work *launch =
        nh_work_add(work, kernel[inverse][problem->dtype == NHOOD_DTYPE_F32]);
    launch->blocks = loops->blocks;
    launch->residents = launch->in_flight = residents;
    launch->warps = side[SPLIT80_WARPS];
    launch->steps = loops->tiles / loops->blocks;
    launch->longest = loops->longest / launch->steps;
    launch->serial = 1 / launch->warps;
    launch->tiles = loops->tiles;
    launch->masked_tiles = loops->masked;
    launch->scores =
        (double)(nh_box_volume(side + SPLIT80_ROW) * nh_box_volume(side + SPLIT80_COLUMN));
    set_units(problem, device, side, inverse, loops->masked / loops->blocks, launch);
    return true;
}

void nh_split80_start(const struct nh_problem *problem, struct nh_work *work) {
    nh_work_start(work, NH_OPERATION_SPLIT80, problem);
    work->overlaps = true;
    work->helpers += 2 + (problem->has_bias != 0);
}

bool nh_split80_add_side(const struct nh_problem *problem, const struct nh_cuda_device *device,
                         const int32_t *side, bool inverse, const struct nh_tiling_count *count,
                         struct nh_work *work) {
    int32_t extra[SPLIT80_SIDE];
    const struct loops loops = loops_of(problem, side, inverse, count);
    if (!add_launch(problem, device, side, inverse, &loops, work)) return false;
    if (!inverse || !problem->extra_tokens) return true;
    nh_split80_extra_side(problem, side, extra);
    const struct loops of_extra = extra_loops(problem, extra);
    return add_launch(problem, device, extra, true, &of_extra, work);
}

bool nh_split80_work(const struct nh_problem *problem, const struct nh_device *device,
                     const struct nh_config *config, struct nh_work *work) {
    nh_split80_start(problem, work);
    for (int inverse = 0; inverse < 2; inverse++) {
        const int32_t *side = config->value + (inverse ? SPLIT80_SIDE : 0);
        const struct nh_tiling_count loop = nh_tiling_count(
            problem, side + SPLIT80_ROW, side + SPLIT80_ROW, side + SPLIT80_COLUMN, inverse, false);
        if (!nh_split80_add_side(problem, device->backend, side, inverse, &loop, work))
            return false;
    }
    return true;
}
