/* Ranks configs that take about as long, so that few compiled kernels serve many sizes. */
#ifndef NH_PREFERENCE_H
#define NH_PREFERENCE_H

#include "solver.h"

/* `preference` of every CUDA solver: the config's row in its section of h200_preferred.def, which lists the configs
 * that were fastest for most problems; INT_MAX if it is not there. Lower is preferred. */
int nh_preference(const struct nh_solver *solver, const struct nh_config *config);

#endif
