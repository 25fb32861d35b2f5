/* Visits the candidates that wisdom knows for a problem, from the fastest to the slowest. */
#ifndef NH_WISE_CHOICE_H
#define NH_WISE_CHOICE_H

#include "planner.h"

/* The candidate of a record. */
struct nh_wise_choice {
    struct nh_choice choice; /* without a solver: there is no further record */
    int row;                 /* of the solver in the table */
    char solver[NH_WISDOM_SOLVER_BYTES], config[NH_CONFIG_BYTES];
};

/* Moves to the next slower record or, from a zeroed *wise, to the fastest one. Skips records whose solver the request does
 * not ask or whose config the solver cannot read; whether the solver would still propose the config is not checked. Equal
 * times are ordered by names, so that the result does not depend on the order of records. */
void nh_wise_next(const struct nh_request *request, const struct nh_wisdom_key *key,
                  struct nh_wise_choice *wise);

/* The solvers with records of this key, as bits by rows of the table. */
uint32_t nh_wise_rows(const struct nh_request *request, const struct nh_wisdom_key *key);

#endif
