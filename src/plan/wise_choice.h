/* Choosing among the candidates that wisdom knows of a problem. */
#ifndef NH_WISE_CHOICE_H
#define NH_WISE_CHOICE_H

#include "planner.h"

/* The candidate of a record. */
struct nh_wise_choice {
    struct nh_choice choice; /* no solver: there is none, or none left */
    int row;                 /* the solver's, in the table */
    char solver[NH_WISDOM_SOLVER_BYTES], config[NH_CONFIG_BYTES];
};

/* Goes on to the next slower record, from zeros to the fastest, that names a solver of the request and a config in
 * its words, whether it would propose that today or not. Equal times are decided by names, so that the order of the
 * records does not matter. */
void nh_wise_next(const struct nh_request *request, const struct nh_wisdom_key *key,
                  struct nh_wise_choice *wise);

/* The solvers with timed candidates, as bits by rows of the table. */
uint32_t nh_wise_rows(const struct nh_request *request, const struct nh_wisdom_key *key);

#endif
