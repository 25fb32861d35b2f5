/* Which strides, or windows, spare a solver all masks. */
#ifndef STRIDE_SEARCH_H
#define STRIDE_SEARCH_H

#include "candidates.h"

struct stride_choice {
    bool found;
    /* the problem with these strides and windows, and the fastest config for it that masks nothing */
    nhood_problem problem;
    struct candidate config;
    /* of the fastest config, which may mask */
    double least_ns;
};

/* The strides of least product, then least predicted time, with which one of the solver's candidates masks no tile.
 * Strides are 1, 2^n, 3 * 2^n and the window: tiles have such extents, and windows of a tile's rows only agree if whole tiles
 * share a stride. Returns what the library does. */
nhood_status stride_search(const struct target *target, const nhood_problem *problem,
                           const char *solver, struct stride_choice *choice);

/* For windows that no stride helps: the same with all of them rounded, up where the axis has the room, else down, to multiples
 * of 4, or the next power of two with which the search succeeds. */
nhood_status window_search(const struct target *target, const nhood_problem *problem,
                           const char *solver, struct stride_choice *choice);

#endif
