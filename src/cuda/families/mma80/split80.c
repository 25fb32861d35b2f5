/* cuda.split80: backward on tensor cores for sm_80 and later, without atomics: LSE and delta of the queries, then dQ by
 * blocks that own queries, then dK and dV by blocks that own keys, and the same for extra tokens:
 * split80_backward.cu. Scores are computed twice; results are bit-equal every run.
 *
 * No f64; head dim and value dim up to 256. Where registers do not hold dK and dV at once, each has a launch. */
#include "split80.h"
#include "rates.h"
#include "predict.h"
#include "preference.h"

#include "box_search.h"
#include "top_n.h"
#include "cuda_solvers.h"
#include "dtype.h"
#include "tile_count.h"

#include <math.h>
#include <string.h>

enum { MOST_DIMS_AT_ONCE = 384, MOST_SIDES = 3, MOST_CANDIDATES = 6 };
const struct nh_knob nh_split80_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "split80_knobs.def"
#undef KNOB
    {NULL, NULL}};

/* ---- what one launch needs ---- */

bool nh_split80_apart(const struct nh_problem *problem) {
    return problem->dim + problem->dim_v > MOST_DIMS_AT_ONCE;
}

/* struct nh_shared of the kernel, which asserts that this is its size. */
int64_t nh_split80_shared_bytes(const struct nh_problem *problem, const int32_t *side,
                                bool inverse) {
    const int32_t *row = side + SPLIT80_ROW, *column = side + SPLIT80_COLUMN;
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    int64_t rows = nh_box_volume(row), columns = nh_box_volume(column);
    int64_t pair = (w.dim + w.dim_v) * w.element_bytes + 32;
    int64_t tensors = inverse ? 3 : 2, walk = tensors * (columns + 4) * 8, bias = columns * 8;
    int64_t stats = SPLIT80_STAGES * columns * 8, dense = (int64_t)side[SPLIT80_WARPS] * 24;
    int64_t masks = nh_tiled80_mask_bytes(row, column);
    int64_t bias_tile = problem->has_bias && !inverse ? rows * (columns + 8) * 4 : 8;
    int64_t bytes =
        (rows + SPLIT80_STAGES * columns) * pair + walk + bias + stats + masks + dense + bias_tile;
    return nh_ceil_div(bytes, 8) * 8;
}

/* Gradients, scores and their gradients of a thread, and what addresses and operands take. */
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

int64_t nh_split80_head_tiles(const struct nh_problem *problem, const int32_t *side) {
    int64_t tiles = problem->batch;
    for (int a = 0; a < NH_AXES; a++)
        tiles *= nh_row_tiles(&problem->axis[a], side[SPLIT80_ROW + a]);
    return tiles;
}

int64_t nh_split80_bias_shares(const struct nh_problem *problem,
                               const struct nh_cuda_device *device, const int32_t *side) {
    const int64_t most_table_bytes = (int64_t)256 << 20, rounds = 4;
    int64_t blocks =
        rounds * device->multiprocessors * nh_split80_residents(problem, device, side, false);
    int64_t by_memory = most_table_bytes / (problem->heads * problem->bias_count * 4);
    int64_t wanted = nh_min(nh_ceil_div(blocks, problem->heads), by_memory);
    return nh_max(1, nh_min(wanted, nh_split80_head_tiles(problem, side)));
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

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    static const int32_t smallest[SPLIT80_SIDE] = {1, 1, 32, 1, 1, 16, 2};
    if (problem->op != NHOOD_OP_BWD) return "only the backward pass";
    const char *reason = nh_tiled80_refuse(problem);
    if (reason) return reason;
    for (int inverse = 0; inverse < 2; inverse++)
        if (!nh_split80_residents(problem, device->backend, smallest, inverse))
            return "not even small tiles of such head dims fit into shared memory";
    return NULL;
}

/* ---- candidates ---- */

static const struct nh_box_variant variants[] = {{32, 16, 2, 0},  {64, 32, 2, 0},  {64, 64, 2, 0},
                                                 {64, 64, 4, 0},  {64, 128, 4, 0}, {64, 16, 4, 0},
                                                 {64, 32, 4, 0},  {128, 32, 4, 0}, {128, 64, 4, 0},
                                                 {128, 32, 8, 0}, {128, 64, 8, 0}};

static void set_side(const struct nh_box_choice *choice, int32_t side[SPLIT80_SIDE]) {
    memcpy(side + SPLIT80_ROW, choice->row, NH_AXES * sizeof *side);
    memcpy(side + SPLIT80_COLUMN, choice->column, NH_AXES * sizeof *side);
    side[SPLIT80_WARPS] = choice->variant->warps;
}

static bool add_choice(const struct nh_box_search *search, const struct nh_box_choice *choice,
                       struct nh_work *work) {
    int32_t side[SPLIT80_SIDE];
    set_side(choice, side);
    return nh_split80_add_side(search->problem, search->device->backend, side, search->inverse,
                               &choice->count, work);
}

static bool side_work(const struct nh_box_search *search, const struct nh_box_choice *choice,
                      struct nh_work *work) {
    nh_split80_start(search->problem, work);
    return add_choice(search, choice, work);
}

/* The launches of both sides overlap, so that what is best for each need not be the best together. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    struct nh_box_choice best[2][MOST_SIDES];
    struct nh_box_search search[2];
    struct nh_top_n top;
    int count[2];
    for (int inverse = 0; inverse < 2; inverse++) {
        search[inverse] = (struct nh_box_search){.problem = problem,
                                                 .inverse = inverse,
                                                 .variant = variants,
                                                 .variants = sizeof variants / sizeof *variants,
                                                 .work = side_work,
                                                 .device = device,
                                                 .below_ns = below_ns};
        count[inverse] = nh_box_search(&search[inverse], best[inverse], MOST_SIDES);
    }
    nh_top_configs_start(&top, below_ns, config, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int i = 0; i < count[0] * count[1]; i++) {
        const struct nh_box_choice *query = &best[0][i / count[1]], *key = &best[1][i % count[1]];
        struct nh_config tried = {{0}};
        struct nh_work work;
        nh_split80_start(problem, &work);
        if (!add_choice(&search[0], query, &work) || !add_choice(&search[1], key, &work)) continue;
        set_side(query, tried.value);
        set_side(key, tried.value + SPLIT80_SIDE);
        nh_top_n_add(&top, &tried, nh_predict(device->backend, &work, NULL));
    }
    return top.count;
}

static double estimate(const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *config, struct nh_count *count) {
    return nh_estimate(nh_split80_work, problem, device, config, count);
}

static nhood_status build(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_operation **operation) {
    return nh_cuda_build(problem, device, config, nh_split80_add_steps, operation);
}

const struct nh_solver nh_solver_cuda_split80 = {
    .name = "cuda.split80",
    .device_kind = NHOOD_DEVICE_CUDA,
    .knob = nh_split80_knobs,
    .refuse = refuse,
    .candidates = candidates,
    .estimate = estimate,
    .build = build,
    .work = nh_split80_work,
    .preference = nh_preference,
};
