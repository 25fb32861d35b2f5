#include "split90_pass.h"

#include "split90.h"

enum { WARPGROUPS = NH_BACKWARD90_WARPGROUPS };

const struct nh_split90_facts nh_split90_facts[NH_SPLIT90_PASSES] = {
    [NH_SPLIT90_D_Q] = {false, NH_BIT(D_Q), 2, 1, 1, 0, 4},
    [NH_SPLIT90_D_K_AND_V] = {true, NH_BIT(D_K) | NH_BIT(D_V), 2, 2, 1, 1, 5},
    [NH_SPLIT90_D_K] = {true, NH_BIT(D_K), 2, 1, 1, 0, 4},
    [NH_SPLIT90_D_V] = {true, NH_BIT(D_V), 1, 1, 0, 1, 3},
};

bool nh_split90_used(const struct nh_problem *problem, enum nh_split90_pass pass) {
    enum { MOST_TOGETHER = 288 };
    if (!nh_split90_facts[pass].keys) return true;
    return (pass == NH_SPLIT90_D_K_AND_V) == (problem->dim + problem->dim_v <= MOST_TOGETHER);
}

/* Shared memory for warpgroup skipping: the own rows of all work tiles held at a time but one, and these work tiles
 * themselves. */
static int64_t skipping_bytes(const struct nh_backward90_kernel *kernel) {
    /* the size of an entry of work_tile_at in split90_skipping.cuh, rounded up; with regions it is larger */
    enum { PLACES = NH_BACKWARD90_OWN_PLACES_SKIPPING, WORK_TILE_BYTES = 80, REGION_BYTES = 80 };
    int64_t row =
        nh_sm90_row_bytes(kernel->problem->dim) + nh_sm90_row_bytes(kernel->problem->dim_v);
    if (!nh_backward90_skips(kernel)) return 0;
    bool regions = nh_problem_partial(kernel->problem) || nh_problem_periodic(kernel->problem);
    return (PLACES - 1) * 64 * WARPGROUPS * row +
           PLACES * (WORK_TILE_BYTES + regions * REGION_BYTES);
}

/* The launch for dV alone needs no V. */
int64_t nh_split90_own_bytes(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass) {
    int64_t values =
        pass == NH_SPLIT90_D_V ? 64 * WARPGROUPS * nh_sm90_row_bytes(kernel->problem->dim_v) : 0;
    return nh_split90_bias_bytes(kernel) - values + skipping_bytes(kernel);
}

int32_t nh_split90_stages(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass) {
    return nh_backward90_stages(kernel, nh_split90_own_bytes(kernel, pass),
                                nh_backward90_skips(kernel) ? NH_BACKWARD90_MOST_STAGES_SKIPPING
                                                            : NH_BACKWARD90_MOST_STAGES);
}

bool nh_split90_fits(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass) {
    /* the registers that setmaxnreg gives a thread, less those for addresses and masks */
    enum { MOST_REGISTERS = 208, MOST_REGISTERS_BIASED = 184 };
    const struct nh_problem *problem = kernel->problem;
    const struct nh_split90_facts *facts = &nh_split90_facts[pass];
    if (problem->has_bias && !nh_sm90_pairs(kernel->own)) return false;
    int64_t sums = facts->sums * problem->dim + facts->sums_v * problem->dim_v;
    /* where warpgroups skip, packed weights of a tile stay in registers while the next one's scores are computed */
    int64_t registers = facts->registers + (nh_backward90_skips(kernel) ? 1 : 0);
    int64_t most = problem->has_bias && !facts->keys ? MOST_REGISTERS_BIASED : MOST_REGISTERS;
    return sums / 2 + nh_box_volume(kernel->loop) * registers / 4 <= most &&
           nh_split90_stages(kernel, pass) >= 2;
}

nhood_status nh_split90_step(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass,
                             size_t stats, struct nh_cuda_step *step, struct nh_kernel_spec *spec) {
    nhood_status status =
        nh_backward90_step(kernel, stats, nh_split90_stages(kernel, pass), step, spec);
    if (status) return status;
    if (kernel->keys) {
        nh_kernel_define(spec, "NH_SUM_D_K", nh_split90_facts[pass].sums);
        nh_kernel_define(spec, "NH_SUM_D_V", nh_split90_facts[pass].sums_v);
    }
    step->shared_bytes += nh_split90_own_bytes(kernel, pass);
    step->outputs = nh_split90_facts[pass].outputs;
    step->overlaps = true;
    return NHOOD_OK;
}
