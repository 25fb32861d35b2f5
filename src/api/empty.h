/* Operations of problems without batch entries, for which no solver is asked: there is nothing to compute. */
#ifndef NH_EMPTY_H
#define NH_EMPTY_H

#include "norm_rope.h"
#include "solver.h"

/* Both set the gradient of what all batch entries share, a bias or a weight, to zero, if it is wanted. MEMORY, DEVICE. */
nhood_status nh_empty_build(const struct nh_problem *problem, const struct nh_device *device,
                            struct nh_operation **operation);
nhood_status nh_empty_norm_rope(const struct nh_norm_rope *problem, const struct nh_device *device,
                                struct nh_norm_rope_operation **operation);

#endif
