/* Sets of problems like those of the operator study in "Faster Neighborhood Attention": as many for each rank, from a grid of
 * batches, sizes, heads, head dims, windows and dilations. The study's own lists were never published. These are drawn from the
 * grid with a fixed seed, so they are the same everywhere. */
#ifndef PAPER_SUITE_H
#define PAPER_SUITE_H

#include "suite.h"

struct paper_options {
    int32_t op, dtype;
    /* 0: the whole suite, else the number of problems; a larger sample contains every smaller one */
    int64_t sample;
    /* problems with more operations are left out; 0: none are */
    double most_gflop;
};

/* True for "paper-1d", "paper-2d" and "paper-3d". */
bool paper_suite_exists(const char *name);

/* Adds the suite's problems in the order of the grid. Returns 0, or the exit status after a message. */
int paper_suite_add(struct suite *suite, const char *name, const struct paper_options *options);

#endif
