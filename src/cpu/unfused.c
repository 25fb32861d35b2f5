/* cpu.unfused: the operators pn, nn and in, with attention weights in memory. Tiles and products are those of cpu.fused. */
#include "cpu_solvers.h"
#include "tiled.h"

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    if (problem->op == NHOOD_OP_FWD || problem->op == NHOOD_OP_BWD) return "only pn, nn and in";
    return nh_tiled_refuse(problem, device);
}

const struct nh_solver nh_solver_cpu_unfused = {
    .name = "cpu.unfused",
    .device_kind = NHOOD_DEVICE_CPU,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
    .knob = nh_tiled_knobs,
    .refuse = refuse,
    .candidates = nh_tiled_candidates,
    .estimate = nh_tiled_estimate,
    .build = nh_tiled_build,
};
