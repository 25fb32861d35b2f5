/* Which configs are preferred to others that take about as long, so that few kernels serve many sizes. */
#ifndef NH_PREFERENCE_H
#define NH_PREFERENCE_H

#include "solver.h"

/* A solver's `preference`: by h200_preferred.def, the configs that were fastest for most problems. */
int nh_preference(const struct nh_solver *solver, const struct nh_config *config);

#endif
