/* Chooses among the solvers it is handed; knows no backend. */
#ifndef NH_PLANNER_H
#define NH_PLANNER_H

#include "solver.h"
#include "wisdom.h"

/* Everything that a choice depends on. */
struct nh_request {
    const struct nh_solver *const *table; /* NULL-terminated */
    const struct nh_device *device;
    const struct nh_problem *problem;
    const char *only; /* a solver's name; NULL: any */
    struct nh_wisdom *wisdom;
};

/* Whether the request asks this solver. */
bool nh_asked(const struct nh_request *request, const struct nh_solver *solver);

struct nh_choice {
    const struct nh_solver *solver;
    struct nh_config config;
    double estimate_ns; /* of what the estimate chose */
    /* of what wisdom chose; else 0 */
    int64_t measured_ns, samples;
};

enum { NH_MOST_SOLVERS = 32 };

/* Chooses by wisdom, if there is any, or by estimate and preference, and asks only as many solvers as that takes. Ties go to the
 * earlier row. The text of UNSUPPORTED joins the refusals; ARGUMENT if no solver of that name runs on the device. */
nhood_status nh_planner_choose(const struct nh_request *request, struct nh_choice *choice);

/* Hands every solver's refusal, or each of its candidates, to `report`. `chosen` is one of the candidates, or NULL. */
void nh_planner_explain(const struct nh_request *request, const struct nh_choice *chosen,
                        nhood_candidate_fn report, void *user);

/* Lists the candidates of all solvers that take the problem, the least estimate first, as far as there is room. Returns how many
 * were written. */
int nh_planner_list(const struct nh_request *request, struct nh_choice *choice, int capacity);

/* Builds the choice. One that the compiler or the device refuses (COMPILE, DEVICE) gives way to the best candidates of
 * the other solvers, least estimate first, and `failures` says so. If all fail, the status is that of the first, and the text
 * joins all. */
struct nh_built {
    struct nh_operation *operation;
    struct nh_choice choice;
    char failures[512]; /* "" if the first choice was built */
};
nhood_status nh_planner_build(const struct nh_request *request, const struct nh_choice *choice,
                              struct nh_built *built);

#endif
