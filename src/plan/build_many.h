/* Builds many candidates on several threads, because compiling one may take a second. */
#ifndef NH_BUILD_MANY_H
#define NH_BUILD_MANY_H

#include "planner.h"

struct nh_build {
    struct nh_choice choice;
    /* Written by nh_build_many. NULL: the build failed for `reason`, or time was up before it began and `reason` is "". */
    struct nh_operation *operation;
    nhood_status status;
    char reason[256];
};

/* Builds the first of the list in any case, and begins later ones while nh_steady_s() is less than deadline_s. */
void nh_build_many(const struct nh_problem *problem, const struct nh_device *device,
                   struct nh_build *build, int count, double deadline_s);

#endif
