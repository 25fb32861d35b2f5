/* Draws a picture of a simulation. */
#ifndef SIMULATE_PLOT_H
#define SIMULATE_PLOT_H

#include "candidates.h"

struct plot {
    const struct target *target;
    const char *text; /* of the problem */
    const nhood_problem *problem;
    const struct candidates *candidates;
    /* predicted time of dense attention, or NAN */
    double dense_ns;
};

/* Writes an SVG file with the predicted time over the stride, which is the same on all axes, and for problems with two axes the
 * key tiles that the KV loop of the fastest config visits, for a query tile at the border and for one in the middle. Returns 0,
 * or the exit status after a message. */
int plot_write(const struct plot *plot, const char *path);

#endif
