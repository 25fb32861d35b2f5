/* The planner's own tensors, on which it times operations. */
#ifndef NH_SCRATCH_H
#define NH_SCRATCH_H

#include "solver.h"

struct nh_scratch {
    const struct nh_device *device;
    nhood_io io;
    void *clock;
};

/* Packed tensors of the problem, the optional outputs too. Inputs hold random numbers of variance 1, since the power
 * that a device draws, and so its clock, follows the data; LSE is that of equal weights, so that nothing overflows.
 * MEMORY or DEVICE; must be freed in either case. */
nhood_status nh_scratch_create(const struct nh_device *device, const struct nh_problem *problem,
                               struct nh_scratch *scratch);
void nh_scratch_free(struct nh_scratch *scratch);

/* Makes room for a workspace. */
nhood_status nh_scratch_reserve(struct nh_scratch *scratch, size_t workspace_bytes);

/* Runs an operation, whose workspace must have been reserved. *ns is the time that the device took. */
nhood_status nh_scratch_run(const struct nh_scratch *scratch, const struct nh_operation *operation,
                            double *ns);

#endif
