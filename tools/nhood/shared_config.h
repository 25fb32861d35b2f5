/* Makes random problems for the same kernels run the same config if it is proposed, because each config is another kernel. The
 * config is drawn, so that configs are checked, too, that would be chosen only by measuring. */
#ifndef SHARED_CONFIG_H
#define SHARED_CONFIG_H

#include "target.h"

#include <stdint.h>

/* Makes the context's wisdom name one config of the solver for the problem. Problems of the same `group` prefer the same one.
 * Returns 0, or the exit status after a message. */
int shared_config_prefer(const struct target *target, const nhood_problem *problem,
                         const char *text, const char *solver, uint64_t group);

#endif
