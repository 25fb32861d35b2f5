/* cpu.fused: forward and backward without writing attention weights to memory.
 *
 * Queries fill the lanes of vectors, so that for window slot n the keys of a vector's queries are one shifted load of keys
 * packed by channel, and no multiply-add is wasted on keys outside a window. The products with values and all gradients
 * are band products over packed rows (isa/band.h). The forward is the fused one of section 3.2 of the 2024 paper. */
#include "cpu_solvers.h"
#include "tiled.h"

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op != NHOOD_OP_FWD && problem->op != NHOOD_OP_BWD) return "only fwd and bwd";
    return nh_tiled_refuse(problem, device);
}

const struct nh_solver nh_solver_cpu_fused = {
    .name = "cpu.fused",
    .device_kind = NHOOD_DEVICE_CPU,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
    .knob = nh_tiled_knobs,
    .refuse = refuse,
    .candidates = nh_tiled_candidates,
    .estimate = nh_tiled_estimate,
    .build = nh_tiled_build,
};
