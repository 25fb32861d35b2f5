/* The tiled CPU operation: a geometry, the kernels of an instruction set, and the loop over work tiles. */
#ifndef NH_TILED_H
#define NH_TILED_H

#include "cpu.h"
#include "geometry.h"

/* Values of a config: the lane axis, and the extents of a tile of queries, with the lane axis last. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "tiled_knobs.def"
#undef KNOB
};
extern const struct nh_knob nh_tiled_knobs[];

struct nh_tile_kernels;

/* The kernels that compute a problem on the device. */
const struct nh_tile_kernels *nh_tiled_kernels(const struct nh_problem *problem,
                                               const struct nh_device *device);

/* Whether a problem has so little work that waking threads would cost more than it saves (tens of microseconds). */
static inline bool nh_tiled_alone(const struct nh_problem *problem) {
    return nh_problem_flops(problem) < 2e6;
}

const char *nh_tiled_refuse(const struct nh_problem *problem, const struct nh_device *device);
int nh_tiled_candidates(const struct nh_problem *problem, const struct nh_device *device,
                        struct nh_config *config, int capacity);
double nh_tiled_estimate(const struct nh_solver *solver, const struct nh_problem *problem,
                         const struct nh_device *device, const struct nh_config *config,
                         struct nh_count *count);
nhood_status nh_tiled_build(const struct nh_solver *solver, const struct nh_problem *problem,
                            const struct nh_device *device, const struct nh_config *config,
                            struct nh_operation **operation);

#endif
