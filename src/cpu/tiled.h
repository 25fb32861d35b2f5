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
struct nh_tile_run;

/* An operation. Its workspace holds the scratch of each worker, then what nh_tiled_own lists. */
struct nh_tiled {
    struct nh_operation base;
    const struct nh_host *host;
    const struct nh_cpu *cpu;
    const struct nh_tile_kernels *kernels;
    struct nh_geometry geometry;
    size_t real_bytes;
    int64_t scratch_reals, bias_reals, partial_reals;
    int64_t units, round_units; /* pairs of a batch entry and a kv head: all, and per round */
    bool adds_up;               /* adds up partial gradients after each round */
    bool reduces;               /* has a reduction to run after each round */
    bool alone;                 /* too little work to wake other threads */
};

/* The operation as a tiled one, or NULL if it is another one. */
const struct nh_tiled *nh_tiled_of(const struct nh_operation *operation);

/* What an operation keeps of its workspace, in reals: the bias tables, their running gradient, and the partial gradients of a
 * round's tiles. Where partial gradients are not added up, each worker has those of its tile instead, behind them. */
struct nh_tiled_own {
    int64_t bias, d_bias, partial;
};
struct nh_tiled_own nh_tiled_own(const struct nh_tiled *plan);

/* Sets the round that begins at a unit; false if all units are done. */
bool nh_tiled_round(const struct nh_tiled *plan, int64_t unit, struct nh_tile_run *run);

/* The kernels that compute a problem on the device. */
const struct nh_tile_kernels *nh_tiled_kernels(const struct nh_problem *problem,
                                               const struct nh_device *device);

/* With less work than this, waking threads would cost more than it saves (tens of microseconds). */
#define NH_ALONE_FLOPS 2e6

static inline bool nh_tiled_alone(const struct nh_problem *problem) {
    return nh_problem_flops(problem) < NH_ALONE_FLOPS;
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
