/* Random legal problems of every kind: each operation, type and option, windows at their limits, any strides. */
#ifndef RANDOM_PROBLEM_H
#define RANDOM_PROBLEM_H

#include "nhood.h"

#include <stdint.h>

/* Small enough for the reference to take milliseconds. The same arguments give the same problem everywhere. Seeds s with
 * the same s / per_kernel give problems for about the same GPU kernels: types, head dims, windows and options are
 * shared; length, stride and dilation of some axis, batch, heads and the number of extra tokens are each problem's own. */
void random_problem(uint64_t seed, int64_t per_kernel, nhood_problem *problem);

#endif
