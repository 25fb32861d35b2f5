/* Random legal problems of every kind: all operations, types and options, windows at their limits, any strides. */
#ifndef RANDOM_PROBLEM_H
#define RANDOM_PROBLEM_H

#include "nhood.h"

#include <stdint.h>

enum { RANDOM_MOST_QUERIES = 250 }; /* of an axis with a window table */

/* Memory for the window tables of a problem. */
struct random_tables {
    nhood_range range[3][RANDOM_MOST_QUERIES];
};

/* Draws a problem that takes the reference milliseconds. The same arguments give the same problem on every machine. Seeds s with
 * equal s / per_kernel give problems for about the same GPU kernels: they share types, head dims, windows and options, and
 * differ in length, stride and dilation of some axis, batch, heads and the number of extra tokens. Window tables lie in
 * *tables; if that is NULL, windows have no tables but generators. */
void random_problem(uint64_t seed, int64_t per_kernel, nhood_problem *problem,
                    struct random_tables *tables);

#endif
