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

/* Where warpgroups pass over tiles: the rows of all work tiles in shared memory but one, and these work tiles themselves. */
static int64_t skipping_bytes(const struct nh_problem *problem, const int32_t own[3],
                              const int32_t loop[3]) {
    /* work_tile_at in split90_skipping.cuh, rounded up */
    enum { PLACES = NH_BACKWARD90_OWN_PLACES_SKIPPING, WORK_TILE_BYTES = 80 };
    int64_t row = nh_sm90_row_bytes(problem->dim) + nh_sm90_row_bytes(problem->dim_v);
    if (!nh_backward90_skips(problem, own, loop)) return 0;
    return (PLACES - 1) * 64 * WARPGROUPS * row + PLACES * WORK_TILE_BYTES;
}

/* dV alone needs no V. */
int64_t nh_split90_own_bytes(const struct nh_problem *problem, const int32_t own[3],
                             const int32_t loop[3], enum nh_split90_pass pass) {
    int64_t values =
        pass == NH_SPLIT90_D_V ? 64 * WARPGROUPS * nh_sm90_row_bytes(problem->dim_v) : 0;
    return nh_split90_bias_bytes(problem, own, loop, nh_split90_facts[pass].keys) - values +
           skipping_bytes(problem, own, loop);
}

int32_t nh_split90_stages(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                          const int32_t own[3], const int32_t loop[3], enum nh_split90_pass pass) {
    return nh_backward90_stages(problem, cuda, loop, nh_split90_facts[pass].keys,
                                nh_split90_own_bytes(problem, own, loop, pass),
                                nh_backward90_skips(problem, own, loop)
                                    ? NH_BACKWARD90_MOST_STAGES_SKIPPING
                                    : NH_BACKWARD90_MOST_STAGES);
}

/* Registers that setmaxnreg leaves a thread beside addresses and masks. */
static int64_t most_registers(const struct nh_problem *problem, enum nh_split90_pass pass) {
    return problem->has_bias && !nh_split90_facts[pass].keys ? 184 : 208;
}

bool nh_split90_fits(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                     const int32_t own[3], const int32_t loop[3], enum nh_split90_pass pass) {
    if (problem->has_bias && !nh_sm90_pairs(own)) return false;
    int64_t sums =
        nh_split90_facts[pass].sums * problem->dim + nh_split90_facts[pass].sums_v * problem->dim_v;
    /* what is packed of a tile stays while the next one's scores come */
    int64_t registers =
        nh_split90_facts[pass].registers + (nh_backward90_skips(problem, own, loop) ? 1 : 0);
    return sums / 2 + nh_box_volume(loop) * registers / 4 <= most_registers(problem, pass) &&
           nh_split90_stages(problem, cuda, own, loop, pass) >= 2;
}

nhood_status nh_split90_step(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                             size_t stats, const int32_t own[3], const int32_t loop[3],
                             enum nh_split90_pass pass, struct nh_cuda_step *step,
                             struct nh_kernel_spec *spec) {
    nhood_status status =
        nh_backward90_step(problem, cuda, stats, own, loop, nh_split90_facts[pass].keys, true,
                           nh_split90_stages(problem, cuda, own, loop, pass), step, spec);
    if (status) return status;
    if (nh_split90_facts[pass].keys) {
        nh_kernel_define(spec, "NH_SUM_D_K", nh_split90_facts[pass].sums);
        nh_kernel_define(spec, "NH_SUM_D_V", nh_split90_facts[pass].sums_v);
    }
    step->shared_bytes += nh_split90_own_bytes(problem, own, loop, pass);
    step->outputs = nh_split90_facts[pass].outputs;
    step->overlaps = true;
    return NHOOD_OK;
}
