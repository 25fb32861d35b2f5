/* Which launches of cuda.small are worth trying, as configs. */
#ifndef NH_SMALL_CHOICE_H
#define NH_SMALL_CHOICE_H

#include "small_launch.h"
#include "solver.h"

/* Queries of an item, rows of a subtile (16 in all), warps and the copy engine's stages of the launch by queries (0: threads
 * copy; NH_SMALL_IN_TURNS: keys and values to the same place); keys of an item, warps and stages of the one by keys. */
enum {
    NH_SMALL_IN_TURNS = -1,
    NH_SMALL_Q0 = 0,
    NH_SMALL_S0 = 3,
    NH_SMALL_S1,
    NH_SMALL_WARPS,
    NH_SMALL_STAGES,
    NH_SMALL_K0,
    NH_SMALL_KEY_WARPS = 10,
    NH_SMALL_KEY_STAGES
};
extern const char *const nh_small_knobs[];

/* A config's launch of a kernel; false if its halo is larger than any shared memory. */
bool nh_small_launch_of(const struct nh_problem *problem, enum nh_small_kernel kernel,
                        const int32_t *value, struct nh_small_launch *launch);

/* As a solver's `candidates`; none if nothing fits. */
int nh_small_candidates(const struct nh_problem *problem, const struct nh_device *device,
                        double below_ns, struct nh_config *config, int capacity);

#endif
