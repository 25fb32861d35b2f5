/* The planner's own tensors, on which it times operations. */
#ifndef NH_SCRATCH_H
#define NH_SCRATCH_H

#include "solver.h"

struct nh_scratch {
    const struct nh_device *device;
    nhood_io io;
    void *clock;
};

/* Makes packed tensors of the problem, including optional outputs. Inputs are random numbers of variance 1, because the
 * power that a device draws, and with it the clock, depends on the data. LSE is that of equal weights, so that nothing
 * overflows. MEMORY or DEVICE; *scratch must be freed even then. */
nhood_status nh_scratch_create(const struct nh_device *device, const struct nh_problem *problem,
                               struct nh_scratch *scratch);
void nh_scratch_free(struct nh_scratch *scratch);

/* Makes the workspace at least this large. MEMORY or DEVICE. */
nhood_status nh_scratch_reserve(struct nh_scratch *scratch, size_t workspace_bytes);

/* Runs an operation whose workspace was reserved. *ns is the time on the device. */
nhood_status nh_scratch_run(const struct nh_scratch *scratch, const struct nh_operation *operation,
                            double *ns);

#endif
