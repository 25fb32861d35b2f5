/* Chooses among the solvers it is handed; knows no backend. */
#ifndef NH_PLANNER_H
#define NH_PLANNER_H

#include "solver.h"

struct nh_choice {
    const struct nh_solver *solver;
    struct nh_config config;
    double estimate_ns;
};

/* Asks every solver of the table (NULL-terminated) that runs on the device, or only the one named `only`, and
 * hands each answer to report (may be NULL). The cheapest estimate wins; ties go to the earlier row.
 * UNSUPPORTED joins the refusals; ARGUMENT if no solver of that name runs on the device. */
nhood_status nh_planner_choose(const struct nh_solver *const *table, const struct nh_device *device,
                               const struct nh_problem *problem, const char *only,
                               nhood_candidate_fn report, void *user, struct nh_choice *choice);

#endif
