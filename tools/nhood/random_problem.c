#include "random_problem.h"

#include "random.h"
#include "random.h"
#include "storage.h"
#include "tensors.h"

#include <string.h>

/* Useful operations of the largest problem. */
#define MOST_FLOPS 3e6

#define PICK(random, list)                                                                         \
    ((list)[random_integer(random, 0, (int64_t)(sizeof(list) / sizeof *(list)) - 1)])

static int64_t draw_dim(struct random *random) {
    static const int64_t usual[] = {8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256};
    return random_once_in(random, 3) ? random_integer(random, 1, 40) : PICK(random, usual);
}

static void draw_window(struct random *random, int32_t rank, nhood_axis *axis) {
    static const int64_t longest_window[] = {0, 60, 13, 7};
    axis->window = random_once_in(random, 8) ? 1 : random_integer(random, 1, longest_window[rank]);
}

/* Draws length, stride and dilation of an axis. */
static void draw_extent(struct random *random, int32_t rank, nhood_axis *axis) {
    static const int64_t longest_rest[] = {0, 200, 24, 9};
    axis->dilation = random_once_in(random, 3) ? random_integer(random, 2, 4) : 1;
    if (rank == 1 && random_once_in(random, 8)) axis->dilation = random_integer(random, 5, 20);
    axis->stride = random_once_in(random, 3) ? random_integer(random, 1, axis->window) : 1;
    axis->length = axis->window * axis->dilation;
    if (!random_once_in(random, 5)) axis->length += random_integer(random, 1, longest_rest[rank]);
}

/* Mostly makes a window too large on purpose, which NHOOD_FLAG_CLAMP_WINDOW makes legal. */
static void clamp_axis(struct random *random, nhood_problem *problem) {
    problem->flags |= NHOOD_FLAG_CLAMP_WINDOW;
    problem->axis[random_integer(random, 0, problem->rank - 1)].length =
        random_integer(random, 1, 5);
}

static void draw_options(struct random *random, nhood_problem *problem) {
    static const double scales[] = {0, 1, -0.3, 0.05};
    bool softmax = problem->op == NHOOD_OP_FWD || problem->op == NHOOD_OP_BWD;
    bool causal = false;
    for (int a = 0; a < problem->rank; a++)
        causal = causal || problem->axis[a].causal;
    if (problem->op <= NHOOD_OP_PN) {
        problem->has_bias = !causal && random_once_in(random, 3);
        if (random_once_in(random, 4)) problem->scale = PICK(random, scales);
    }
    if (softmax && random_once_in(random, 4)) problem->extra_tokens = random_integer(random, 1, 20);
    if (random_once_in(random, 8)) problem->flags |= NHOOD_FLAG_DETERMINISTIC;
    if (problem->dtype == NHOOD_DTYPE_F32 && random_once_in(random, 4))
        problem->flags |= NHOOD_FLAG_ALLOW_TF32;
    if (problem->op == NHOOD_OP_PN && random_once_in(random, 2))
        problem->flags |= NHOOD_FLAG_ZERO_FILL;
}

static void draw_shape(struct random *random, nhood_problem *problem) {
    static const int32_t ops[] = {NHOOD_OP_FWD, NHOOD_OP_FWD, NHOOD_OP_BWD, NHOOD_OP_BWD,
                                  NHOOD_OP_BWD, NHOOD_OP_PN,  NHOOD_OP_NN,  NHOOD_OP_IN};
    nhood_problem_init(problem, PICK(random, ops),
                       (int32_t)random_integer(random, NHOOD_DTYPE_F64, NHOOD_DTYPE_BF16),
                       (int32_t)random_integer(random, 1, 3));
    for (int a = 0; a < problem->rank; a++) {
        draw_window(random, problem->rank, &problem->axis[a]);
        draw_extent(random, problem->rank, &problem->axis[a]);
        problem->axis[a].causal = random_once_in(random, 4);
    }
    problem->batch = random_integer(random, 1, 3);
    problem->kv_heads = random_integer(random, 1, 3);
    problem->heads = problem->kv_heads;
    if (random_once_in(random, 3)) problem->heads *= random_integer(random, 2, 4);
    problem->dim = draw_dim(random);
    if (random_once_in(random, 3)) problem->dim_v = draw_dim(random);
    if (random_once_in(random, 16)) clamp_axis(random, problem);
    draw_options(random, problem);
}

/* Draws the strides of a tensor: its axes are in some order in memory, with gaps, and some run backwards. */
static void draw_strides(struct random *random, const struct view *packed, bool broadcast,
                         nhood_strides *strides) {
    int order[] = {VIEW_HEAD, VIEW_AXIS + 2, VIEW_AXIS + 1, VIEW_AXIS, VIEW_BATCH};
    int64_t stride[VIEW_INNER], step = packed->extent[VIEW_INNER];
    bool gaps = random_once_in(random, 2);
    int64_t unit = random_once_in(random, 2) ? 1 : 8; /* 8 keeps rows aligned for vector loads */
    if (random_once_in(random, 2))                    /* tokens lie closer together than heads */
        memcpy(order, (int[]){VIEW_AXIS + 2, VIEW_AXIS + 1, VIEW_AXIS, VIEW_HEAD, VIEW_BATCH},
               sizeof order);
    for (int i = 0; i < VIEW_INNER; i++) {
        if (gaps) step += unit * random_integer(random, 0, 7);
        stride[order[i]] = random_once_in(random, 8) ? -step : step;
        step *= packed->extent[order[i]];
    }
    if (broadcast) stride[PICK(random, order)] = 0;
    *strides = (nhood_strides){stride[VIEW_BATCH],
                               {stride[VIEW_AXIS], stride[VIEW_AXIS + 1], stride[VIEW_AXIS + 2]},
                               stride[VIEW_HEAD]};
}

/* Whether element 0 of a tensor is aligned to 16 bytes if its lowest element is. If not, CUDA must be told. */
static bool starts_aligned(const nhood_problem *problem, int32_t tensor) {
    enum { CUDA_ALIGNMENT = 16 };
    struct view view;
    if (!view_create(problem, tensor, &view) || !view.rows) return true;
    return (size_t)view.origin * storage_bytes(tensor_dtype(problem, tensor)) % CUDA_ALIGNMENT == 0;
}

static bool has_region(const nhood_problem *problem) {
    bool any = false;
    for (int a = 0; a < problem->rank; a++)
        any |= problem->region[a].query_length || problem->region[a].key_length;
    return any;
}

static bool has_tables(const nhood_problem *problem) {
    return problem->windows[0].kind || problem->windows[1].kind || problem->windows[2].kind;
}

static void draw_layout(struct random *random, nhood_problem *problem) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        struct view packed;
        bool table = t == NHOOD_BIAS || t == NHOOD_D_BIAS;
        if (table || random_once_in(random, 2) || !view_create(problem, t, &packed) || !packed.rows)
            continue;
        /* O and LSE of a backward are written by a forward, so their elements must be distinct. */
        bool broadcast = tensor_role(problem, t) == TENSOR_INPUT && t != NHOOD_O &&
                         t != NHOOD_LSE && random_once_in(random, 8);
        /* A slot that is unused for one query is NaN, so it must not be shared with another query. */
        if (t == NHOOD_A && (has_region(problem) || has_tables(problem))) broadcast = false;
        draw_strides(random, &packed, broadcast, &problem->strides[t]);
        if (!starts_aligned(problem, t)) problem->flags |= NHOOD_FLAG_UNALIGNED;
    }
    if (random_once_in(random, 8)) problem->flags |= NHOOD_FLAG_UNALIGNED;
}

static bool is_small(const nhood_problem *problem) {
    double flops;
    return nhood_problem_cost(problem, &flops, NULL) == NHOOD_OK && flops <= MOST_FLOPS;
}

/* Makes another problem for about the same kernels. Only one axis is drawn again, because tiles are chosen by extents. */
static void redraw_extents(struct random *random, nhood_problem *problem) {
    const nhood_problem first = *problem;
    do {
        *problem = first;
        draw_extent(random, problem->rank,
                    &problem->axis[random_integer(random, 0, problem->rank - 1)]);
        problem->batch = random_integer(random, 1, 3);
        problem->kv_heads = random_integer(random, 1, 3);
        problem->heads = problem->kv_heads * (first.heads / first.kv_heads);
        if (first.extra_tokens) problem->extra_tokens = random_integer(random, 1, 20);
        if (first.flags & NHOOD_FLAG_CLAMP_WINDOW) clamp_axis(random, problem);
    } while (!is_small(problem));
}

/* Draws a box of an axis, anywhere or at one of the ends. Short boxes leave some windows without a key. */
static void draw_box(struct random *random, const nhood_axis *axis, int64_t *offset,
                     int64_t *length) {
    *length = random_integer(random, 1, axis->length);
    if (random_once_in(random, 3)) *length = random_integer(random, 1, (axis->length + 3) / 4);
    int64_t most = axis->periodic ? axis->length - 1 : axis->length - *length;
    *offset = random_integer(random, 0, most);
    if (random_once_in(random, 4)) *offset = 0;
    if (random_once_in(random, 4)) *offset = most;
}

/* Makes an axis periodic if it can be, with a length that its dilation and stride divide. */
static void draw_periodic(struct random *random, nhood_axis *axis) {
    if (axis->causal || !random_once_in(random, 2)) return;
    int64_t unit = axis->dilation * axis->stride;
    axis->periodic = 1;
    axis->length = (axis->length + unit - 1) / unit * unit;
}

/* Draws a part of the grid and periodic axes for one problem in three. It uses a separate sequence of random numbers, so that
 * the other properties of a seed's problem do not depend on it. */
static void draw_parts(uint64_t seed, uint64_t member, nhood_problem *problem) {
    struct random shared = {~(seed - member)}, own = {~seed};
    const nhood_problem whole = *problem;
    if (!random_once_in(&shared, 3)) return;
    for (int a = 0; a < problem->rank; a++) {
        nhood_axis *axis = &problem->axis[a];
        nhood_region *region = &problem->region[a];
        bool queries = random_once_in(&shared, 2), keys = random_once_in(&shared, 3);
        if (!(problem->flags & NHOOD_FLAG_CLAMP_WINDOW)) draw_periodic(&shared, axis);
        if (queries) draw_box(&own, axis, &region->query_offset, &region->query_length);
        if (keys) draw_box(&own, axis, &region->key_offset, &region->key_length);
    }
    if (!is_small(problem)) *problem = whole;
}

/* Draws ranges that may leave gaps, overlap, and be empty. */
static void draw_ranges(struct random *random, int64_t queries, int64_t keys, nhood_range *range) {
    const int64_t mean = 2 + 2 * keys / queries, usual = random_integer(random, 0, mean + 6);
    int64_t first = 0, end = 0;
    for (int64_t i = 0; i < queries; i++) {
        if (!random_once_in(random, 3)) first += random_integer(random, 0, mean);
        if (first > keys) first = keys;
        int64_t next =
            first + usual + (random_once_in(random, 6) ? random_integer(random, 0, 9) : 0);
        if (random_once_in(random, 10)) next = first;
        if (next > end) end = next < keys ? next : keys;
        if (first > end) end = first;
        range[i] = (nhood_range){(int32_t)first, (int32_t)(end - first)};
    }
}

/* Gives an axis windows that are not by formula. */
static void draw_windows(struct random *random, int32_t rank, int a, nhood_problem *problem,
                         struct random_tables *tables) {
    static const int64_t longest[] = {0, RANDOM_MOST_QUERIES, 40, 16};
    nhood_axis *axis = &problem->axis[a];
    nhood_windows *windows = &problem->windows[a];
    *axis = (nhood_axis){random_integer(random, 1, longest[rank]), 1, 1, 1, 0, 0};
    windows->kind = (int32_t)random_integer(
        random, tables ? NHOOD_WINDOWS_TABLE : NHOOD_WINDOWS_RESAMPLED, NHOOD_WINDOWS_BLOCKS);
    int64_t keys = axis->length, most = longest[rank] < keys ? longest[rank] : keys;
    if (windows->kind <= NHOOD_WINDOWS_RESAMPLED)
        windows->keys = keys = most = random_integer(random, 1, longest[rank]);
    if (windows->kind == NHOOD_WINDOWS_TABLE) {
        draw_ranges(random, axis->length, keys, tables->range[a]);
        windows->range = tables->range[a];
    } else {
        windows->window = random_integer(random, 1, most < 20 ? most : 20);
    }
    if (windows->kind == NHOOD_WINDOWS_BLOCKS)
        windows->shift = random_integer(random, 0, windows->window - 1);
    if (random_once_in(random, 3)) windows->padding = random_integer(random, 0, keys);
    const nhood_axis of_keys = {.length = keys};
    problem->region[a] = (nhood_region){0};
    if (random_once_in(random, 4))
        draw_box(random, axis, &problem->region[a].query_offset, &problem->region[a].query_length);
    if (random_once_in(random, 4))
        draw_box(random, &of_keys, &problem->region[a].key_offset, &problem->region[a].key_length);
}

/* Gives some axes of one problem in five windows that are not by formula, by a sequence of random numbers of their own. */
static void draw_tables(uint64_t seed, nhood_problem *problem, struct random_tables *tables) {
    struct random random = {seed ^ UINT64_C(0x7ab1e)};
    const nhood_problem before = *problem;
    if (!random_once_in(&random, 5)) return;
    const int first = (int)random_integer(&random, 0, problem->rank - 1);
    for (int a = 0; a < problem->rank; a++)
        if (a == first || random_once_in(&random, 2))
            draw_windows(&random, problem->rank, a, problem, tables);
    problem->has_bias = 0;
    if (!is_small(problem)) *problem = before;
}

/* Gives one problem in eight values of more columns than registers hold sums of, in most of these a multiple of 16, by a
 * sequence of random numbers of their own. */
static void draw_wide_values(uint64_t seed, uint64_t member, nhood_problem *problem) {
    struct random random = {(seed - member) ^ UINT64_C(0xa1e5)};
    const int64_t before = problem->dim_v;
    const bool softmax = problem->op == NHOOD_OP_FWD || problem->op == NHOOD_OP_BWD;
    if (!random_once_in(&random, 8) || !softmax) return;
    problem->dim_v = random_once_in(&random, 3) ? random_integer(&random, 257, 1024)
                                                : 16 * random_integer(&random, 17, 64);
    if (!is_small(problem)) problem->dim_v = before;
}

void random_problem(uint64_t seed, int64_t per_kernel, nhood_problem *problem,
                    struct random_tables *tables) {
    uint64_t member = seed % (uint64_t)per_kernel;
    struct random shared = {seed - member}, own = {seed};
    do
        draw_shape(&shared, problem);
    while (!is_small(problem));
    if (member) redraw_extents(&own, problem);
    draw_parts(seed, member, problem);
    draw_tables(seed, problem, tables);
    draw_wide_values(seed, member, problem);
    draw_layout(&shared, problem);
}
