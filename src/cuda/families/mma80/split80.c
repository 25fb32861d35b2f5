/* cuda.split80: backward on tensor cores for sm_80 and later, without atomics: LSE and delta of the queries, then dQ by
 * blocks that own queries, then dK and dV by blocks that own keys, and the same for extra tokens:
 * split80_backward.cu. Scores are computed twice; results are bit-equal every run.
 *
 * No f64; head dim and value dim up to 256. Where registers do not hold dK and dV at once, each has a launch. */
#include "split80.h"

#include "box_search.h"
#include "top_n.h"
#include "cuda_solvers.h"
#include "dtype.h"
#include "load.h"
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

/* Those first that are chosen most often: the search then passes over more of the others. */
static const struct nh_box_variant variants[] = {{32, 16, 2, 0},  {64, 32, 2, 0},  {64, 64, 2, 0},
                                                 {64, 64, 4, 0},  {64, 128, 4, 0}, {64, 16, 4, 0},
                                                 {64, 32, 4, 0},  {128, 32, 4, 0}, {128, 64, 4, 0},
                                                 {128, 32, 8, 0}, {128, 64, 8, 0}};
_Static_assert(sizeof variants / sizeof *variants <= NH_MOST_BOX_VARIANTS, "no room for more");

static void set_side(const struct nh_box_variant *variant, const int32_t row[NH_AXES],
                     const int32_t column[NH_AXES], int32_t side[SPLIT80_SIDE]) {
    memcpy(side + SPLIT80_ROW, row, NH_AXES * sizeof *side);
    memcpy(side + SPLIT80_COLUMN, column, NH_AXES * sizeof *side);
    side[SPLIT80_WARPS] = variant->warps;
}

static struct nh_split80_span span_of(const struct nh_box_search *search,
                                      const struct nh_box_choice *choice) {
    int32_t side[SPLIT80_SIDE];
    set_side(choice->variant, choice->row, choice->column, side);
    return nh_split80_span_of(search->problem, search->device->backend, side, search->inverse,
                              &choice->count, NULL);
}

static double cost(const struct nh_box_search *search, const struct nh_box_choice *choice) {
    const struct nh_split80_span span = span_of(search, choice);
    return nh_split80_side_clocks(&span);
}

static struct nh_box_bound bound(const struct nh_box_search *search,
                                 const struct nh_box_variant *variant) {
    int32_t row[NH_AXES], column[NH_AXES], side[SPLIT80_SIDE];
    nh_box_balanced(variant->rows, row);
    nh_box_balanced(variant->columns, column);
    set_side(variant, row, column, side);
    return nh_split80_bound(search->problem, search->device->backend, side, search->inverse);
}

/* What owns queries or keys, and what its launches take. */
struct side {
    int32_t value[SPLIT80_SIDE];
    struct nh_split80_span span;
};

/* below, spare: as for the search. */
static int best_sides(const struct nh_problem *problem, const struct nh_device *device,
                      bool inverse, double below, double spare, struct side best[MOST_SIDES]) {
    const struct nh_box_search search = {.problem = problem,
                                         .inverse = inverse,
                                         .variant = variants,
                                         .variants = sizeof variants / sizeof *variants,
                                         .bound = bound,
                                         .cost = cost,
                                         .device = device,
                                         .behind = 1.15,
                                         .below = below,
                                         .spare = spare};
    struct nh_box_choice choice[MOST_SIDES];
    int count = nh_box_search(&search, choice, MOST_SIDES);
    for (int i = 0; i < count; i++) {
        set_side(choice[i].variant, choice[i].row, choice[i].column, best[i].value);
        best[i].span = span_of(&search, &choice[i]);
    }
    return count;
}

/* The launches of both sides overlap, so that what is best for each need not be the best together. Together they take no
 * less than what the queries' take alone, nor less than the throughput of both. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    const struct nh_cuda_device *cuda = device->backend;
    struct side query[MOST_SIDES], key[MOST_SIDES];
    struct nh_top_n top;
    double within_ns = below_ns - nh_split80_beside_ns(problem, cuda);
    double below = within_ns / nh_cuda_clocks_ns(cuda, 1), busy = INFINITY;
    int keys = best_sides(problem, device, true, INFINITY, below, key);
    for (int k = 0; k < keys; k++)
        busy = fmin(busy, key[k].span.busy);
    int queries = keys ? best_sides(problem, device, false, below, below - busy, query) : 0;
    nh_top_configs_start(&top, within_ns, config, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int q = 0; q < queries; q++)
        for (int k = 0; k < keys; k++) {
            struct nh_config tried = {{0}};
            memcpy(tried.value, query[q].value, sizeof query[q].value);
            memcpy(tried.value + SPLIT80_SIDE, key[k].value, sizeof key[k].value);
            double clocks = nh_split80_clocks(cuda, &query[q].span, &key[k].span);
            nh_top_n_add(&top, &tried, nh_cuda_clocks_ns(cuda, clocks));
        }
    return top.count;
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
    .estimate = nh_split80_estimate,
    .build = build,
};
