/* The search for launches of cuda.small that are worth trying, as configs. */
#ifndef NH_SMALL_CHOICE_H
#define NH_SMALL_CHOICE_H

#include "small_launch.h"
#include "solver.h"

enum {
#define KNOB NH_KNOB_AS_INDEX
#include "small_knobs.def"
#undef KNOB
};
/* A value of the knob `stages`: threads copy keys and values to the same place, one after the other. */
enum { NH_SMALL_IN_TURNS = -1 };
extern const struct nh_knob nh_small_knobs[];

/* Sets the launch of a kernel in a config; false if its halo exceeds any shared memory. */
bool nh_small_launch_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        enum nh_small_kernel kernel, const int32_t *value,
                        struct nh_small_launch *launch);

/* `candidates` of the solver; returns 0 if nothing fits. */
int nh_small_candidates(const struct nh_problem *problem, const struct nh_device *device,
                        double below_ns, struct nh_config *config, int capacity);

#endif
