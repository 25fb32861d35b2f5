/* cuda.split80: backward on tensor cores for sm_80 and later, without atomics (split80_backward.cu). One launch
 * computes LSE and delta of the queries, one dQ by blocks that own queries, one dK and dV by blocks that own keys, and
 * one the gradients of extra tokens. Scores are computed twice; results are bit-equal in every run.
 *
 * No f64; head dim and value dim up to 256. If registers do not hold both dK and dV, each has its own launch. */
#include "split80.h"
#include "rates.h"

#include "box_search.h"
#include "top_n.h"
#include "cuda_family.h"
#include "dtype.h"
#include "tile_count.h"

#include <math.h>
#include <string.h>

enum { MOST_SIDES = 3, MOST_CANDIDATES = 6 };

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

/* The least time, over the choices, for which their blocks keep a full device busy. */
static double least_busy_ns(const struct nh_box_search *search, const struct nh_box_choice *choice,
                            int count) {
    double least = INFINITY;
    for (int i = 0; i < count; i++) {
        struct nh_work work;
        if (!side_work(search, &choice[i], &work)) continue;
        least = fmin(least, work.launch[0].blocks *
                                nh_predict_block_clocks(search->device->backend, &work.launch[0]) /
                                nh_predict_clocks_per_ns(search->device->backend));
    }
    return least;
}

/* The launches of both sides overlap, so the best of each need not be the best together: all pairs are predicted. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    struct nh_box_choice best[2][MOST_SIDES];
    struct nh_box_search search[2];
    struct nh_top_n top;
    double below_left_ns = below_ns;
    int count[2];
    for (int inverse = 0; inverse < 2; inverse++) {
        search[inverse] = (struct nh_box_search){.problem = problem,
                                                 .inverse = inverse,
                                                 .variant = variants,
                                                 .variants = sizeof variants / sizeof *variants,
                                                 .work = side_work,
                                                 .device = device,
                                                 .below_ns = below_left_ns};
        count[inverse] = nh_box_search(&search[inverse], best[inverse], MOST_SIDES);
        if (!count[inverse]) return 0;
        /* The search by keys gets the time that the launch by queries leaves. */
        below_left_ns -= least_busy_ns(&search[inverse], best[inverse], count[inverse]);
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

const struct nh_solver nh_solver_cuda_split80 = {
    NH_CUDA_SOLVER,
    .name = "cuda.split80",
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC,
    .knob = nh_split80_knobs,
    .refuse = refuse,
    .candidates = candidates,
    .work = nh_split80_work,
    .add_steps = nh_split80_add_steps,
    .left_to = "cuda.split90",
};
