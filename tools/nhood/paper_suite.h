/* Sets of problems in the manner of the operator study of "Faster Neighborhood Attention": as many as it had for each
 * rank, from a grid of batches, sizes, heads, head dims, windows and dilations. The study's own lists were never
 * published; these are drawn from the grid by a seed, the same everywhere. */
#ifndef PAPER_SUITE_H
#define PAPER_SUITE_H

#include "suite.h"

struct paper_options {
    int32_t op, dtype;
    /* 0: the whole suite, else that many; a larger sample contains every smaller one */
    int64_t sample;
    /* problems with more operations are left out; 0: none are */
    double most_gflop;
};

/* "paper-1d", "paper-2d" or "paper-3d"; false for other names. */
bool paper_suite_exists(const char *name);

/* Adds the suite's problems in the order of the grid. Returns 0, or the exit status after a message. */
int paper_suite_add(struct suite *suite, const char *name, const struct paper_options *options);

#endif
