/* Finds strides or windows with which a solver needs no masks. */
#ifndef STRIDE_SEARCH_H
#define STRIDE_SEARCH_H

#include "candidates.h"

struct stride_choice {
    bool found;
    /* the problem with these strides and windows, and the fastest config for it that masks nothing */
    nhood_problem problem;
    struct candidate config;
    /* the least estimate of all configs, including those that mask */
    double least_ns;
};

/* Finds the strides with which one of the solver's candidates masks no tile: those with the least product and, among these,
 * with the least predicted time. It tries strides of 1, 2^n, 3 * 2^n and the window, as tiles have such extents, and the rows of
 * a tile have equal windows only if they share a block of the stride. Returns the library's status. */
nhood_status stride_search(const struct target *target, const nhood_problem *problem,
                           const char *solver, struct stride_choice *choice);

/* The same for problems with windows for which no strides are found. The windows are rounded to multiples of 4, or of the next
 * power of two with which strides are found: up if the axis has room, else down. */
nhood_status window_search(const struct target *target, const nhood_problem *problem,
                           const char *solver, struct stride_choice *choice);

#endif
