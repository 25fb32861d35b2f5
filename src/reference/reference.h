#ifndef NH_REFERENCE_H
#define NH_REFERENCE_H

#include "solver.h"

extern const struct nh_solver nh_solver_reference;

#endif
