/* Builds many candidates on several threads: compiling one may take a second. */
#ifndef NH_BUILD_MANY_H
#define NH_BUILD_MANY_H

#include "planner.h"

struct nh_build {
    struct nh_choice choice;
    /* By nh_build_many. NULL: it failed, for the reason given, or time was up before it began ("") */
    struct nh_operation *operation;
    nhood_status status;
    char reason[256];
};

/* The first of the list is built in any case, later ones begin as long as the steady clock is before deadline_s. */
void nh_build_many(const struct nh_problem *problem, const struct nh_device *device,
                   struct nh_build *build, int count, double deadline_s);

#endif
