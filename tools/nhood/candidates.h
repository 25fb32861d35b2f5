/* All solvers' refusals and candidates for a problem. */
#ifndef CANDIDATES_H
#define CANDIDATES_H

#include "target.h"

enum { SOLVER_BYTES = 64, CONFIG_BYTES = 256 };

/* The refusal of a solver, or one of its candidates. */
struct candidate {
    char solver[SOLVER_BYTES], config[CONFIG_BYTES];
    /* the reason of a refusal, a constant text of the solver; NULL for a candidate */
    const char *refusal;
    double estimate_ns;
    /* 0 if wisdom does not know it */
    double measured_ns;
    int64_t samples;
    bool chosen;
    /* as in nhood_candidate: all 0 if the solver does not count tiles */
    double tiles, masked_tiles, product_flops, limit_ns[NHOOD_LIMIT_COUNT];
};

struct candidates {
    struct candidate *row;
    size_t count, capacity;
    bool out_of_memory;
};

/* Asks the library. Returns the status of nhood_plan_explain, or MEMORY; *candidates must be freed even then. */
nhood_status candidates_explain(const struct target *target, const nhood_problem *problem,
                                const nhood_plan_options *options, struct candidates *candidates);
void candidates_free(struct candidates *candidates);

/* False, after a message, if the problem's batch is empty, so that no solver has anything to do. */
bool candidates_exist(const nhood_problem *problem, const char *text);

/* The least estimate of a problem; NAN if no solver takes it. *status (may be NULL) is that of candidates_explain. */
double candidates_least_ns(const struct target *target, const nhood_problem *problem,
                           nhood_status *status);

/* The next three return NULL if there is none. The candidate that a plan would take: */
const struct candidate *candidates_chosen(const struct candidates *candidates);
/* The first one with the least estimate, and the first one with the least measured time: */
const struct candidate *candidates_estimated(const struct candidates *candidates);
const struct candidate *candidates_fastest(const struct candidates *candidates);
/* The candidate of this solver with this config; NULL if there is none. */
const struct candidate *candidates_find(const struct candidates *candidates, const char *solver,
                                        const char *config);
/* Whether it is the first of its solver's candidates with the least estimate. */
bool candidates_is_best_of_solver(const struct candidates *candidates, size_t index);

#endif
