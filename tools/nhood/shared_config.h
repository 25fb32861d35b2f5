/* Random problems that share what kernels are compiled for run the same config, too, where it is proposed: each config
 * is another kernel. It is drawn, so that configs which only measuring would take are checked as well. */
#ifndef SHARED_CONFIG_H
#define SHARED_CONFIG_H

#include "target.h"

#include <stdint.h>

/* Makes the context's wisdom hold one config of the solver for the problem; the same `group` prefers the same. Returns 0,
 * or the exit status after a message. */
int shared_config_prefer(const struct target *target, const nhood_problem *problem,
                         const char *text, const char *solver, uint64_t group);

#endif
