#ifndef NH_CPU_GROUP_H
#define NH_CPU_GROUP_H

#include "group.h"

/* Runs the members' work tiles in one loop. */
nh_group_build_fn nh_cpu_group_build;

#endif
