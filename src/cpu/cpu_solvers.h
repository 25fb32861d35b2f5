/* The CPU backend's rows of the solver table. */
#ifndef NH_CPU_SOLVERS_H
#define NH_CPU_SOLVERS_H

#include "solver.h"

extern const struct nh_solver nh_solver_cpu_fused;   /* fwd and bwd */
extern const struct nh_solver nh_solver_cpu_unfused; /* pn, nn and in */

#endif
