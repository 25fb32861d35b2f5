/* What wisdom says about the candidates of a problem. */
#ifndef NH_WISE_CHOICE_H
#define NH_WISE_CHOICE_H

#include "planner.h"

/* A record's candidate; its estimate is left to the caller. */
struct nh_wise_choice {
    struct nh_choice choice; /* no solver: there is none, or none left */
    char solver[NH_WISDOM_SOLVER_BYTES], config[NH_CONFIG_BYTES];
};

/* Goes on to the next slower record, from zeros to the fastest, that names a solver of the request and a config in its
 * words, whether it would propose that today or not. Equal times are decided by names, so that the order of the records does
 * not matter. */
void nh_wise_next(const struct nh_request *request, const struct nh_wisdom_key *key,
                  struct nh_wise_choice *wise);

/* Whether a candidate of the solver was timed. */
bool nh_wise_about(const struct nh_request *request, const struct nh_wisdom_key *key,
                   const struct nh_solver *solver);

#endif
