/* cuda.fused90: the fused forward pass of sm_90 (fused90_forward.cu): which problems it takes, and its configs.
 * fused90_search.c searches the tiles, fused90_work.c computes what they ask of a device. */
#include "cuda_family.h"
#include "fused90_search.h"
#include "fused90_work.h"
#include "permuted_axes.h"

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    if (nh_problem_periodic(problem) && !nh_fused90_goes_around(problem))
        return "a window and a query tile go around a periodic axis that no key tile divides";
    return nh_sm90_refuse(problem, device,
                          NH_BIT(Q) | NH_BIT(K) | NH_BIT(V) | NH_BIT(EXTRA_K) | NH_BIT(EXTRA_V),
                          NH_BIT(O), NH_FUSED90_MOST_DIM);
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const struct nh_fused90_loops loops = nh_fused90_loops_of(problem, config->value);
    nh_fused90_work_of(problem, device->backend, config->value, &loops, work);
    return true;
}

/* ---- configs ---- */

/* Rows that are not finite can be repaired by a launch of their own, after another one that clears the note of them.
 * Without that code, a large kernel compiles in three quarters of the time, but the two launches take 4 us. They are
 * used for calls that take long. If tensors cover a part of a grid, whose work tiles see anything from none to all of
 * their windows, a queue then hands out work tiles. */
enum { WORTH_LAUNCHES_NS = 300000, WORTH_QUEUE_NS = 100000 };

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    struct nh_top_n best;
    nh_top_configs_start(&best, below_ns, config, capacity);
    nh_fused90_search(problem, device, &best);
    int count = best.count;
    const double worth_ns = nh_problem_partial(problem) ? WORTH_QUEUE_NS : WORTH_LAUNCHES_NS;
    for (int i = 0; i < count; i++)
        config[i].value[REPAIR_APART] = best.ns[i] > worth_ns;
    if (!count || count == capacity) return count;
    /* Adds the best config with the other choice, for those who time or check candidates. */
    config[count] = config[0];
    config[count].value[REPAIR_APART] ^= 1;
    return count + 1;
}

/* ---- building ---- */

const struct nh_solver nh_solver_cuda_fused90 = {
    NH_CUDA_SOLVER,
    .name = "cuda.fused90",
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC,
    .knob = nh_fused90_knobs,
    .view = nh_permuted_axes,
    .refuse = refuse,
    .candidates = candidates,
    .work = work,
    .add_steps = nh_fused90_add_steps,
};
