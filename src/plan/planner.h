/* Chooses among the solvers of a table. It does not know the backends. */
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

struct nh_choice {
    const struct nh_solver *solver;
    struct nh_config config;
    double estimate_ns; /* if the estimate chose */
    /* if wisdom chose; else 0 */
    int64_t measured_ns, samples;
};

enum { NH_MOST_SOLVERS = 32 };

/* What the problem takes by the choice, in ns; infinity if it cannot take it. */
double nh_choice_estimate(const struct nh_choice *choice, const struct nh_problem *problem,
                          const struct nh_device *device);

/* Builds the choice's operation, and nothing else if that fails. */
nhood_status nh_choice_build(const struct nh_choice *choice, const struct nh_problem *problem,
                             const struct nh_device *device, struct nh_operation **operation);

/* Chooses by wisdom, if it knows the problem, or else by estimates and preferences, and asks no more solvers than needed.
 * Ties go to the earlier row. UNSUPPORTED, with a text that joins the refusals; ARGUMENT if no solver of the requested name
 * runs on the device. */
nhood_status nh_planner_choose(const struct nh_request *request, struct nh_choice *choice);

/* The same, but a config that suits more problems is preferred to one with a lesser estimate only within NH_NEARLY (core/solver.h). */
nhood_status nh_planner_choose_fastest(const struct nh_request *request, struct nh_choice *choice);

/* Calls `report` for every solver's refusal or for each of its candidates. `chosen` is one of the candidates, or NULL. */
void nh_planner_explain(const struct nh_request *request, const struct nh_choice *chosen,
                        nhood_candidate_fn report, void *user);

/* Lists the `capacity` candidates with the least estimates of all solvers that take the problem, the least first. Returns
 * how many were written. */
int nh_planner_list(const struct nh_request *request, struct nh_choice *choice, int capacity);

/* Builds the choice. If the compiler or the device refuses it (COMPILE, DEVICE), the best candidates of the other solvers
 * are tried, the one with the least estimate first, and `failures` has the reasons. If all fail, the status is that of the
 * first, and the error text joins all reasons. */
struct nh_built {
    struct nh_operation *operation;
    struct nh_choice choice;
    char failures[512]; /* "" if the first choice was built */
};
nhood_status nh_planner_build(const struct nh_request *request, const struct nh_choice *choice,
                              struct nh_built *built);

/* ---- groups (group_choice.c) ----
 * Members whose choices are alike share launches and kernels. The problem with the most work leads: it is searched for, unless a
 * leader of its class, in a group before, had about its size (group_memory.h). Others of its class follow if they are computed about
 * as fast by its choice, and are not searched for. Then the next one of those left leads. */

/* What groups have learnt. Any thread may use it; it has its own lock. */
struct nh_group_choices;

nhood_status nh_group_choices_create(const struct nh_host *host, struct nh_group_choices **choices);
void nh_group_choices_destroy(struct nh_group_choices *choices); /* does nothing for NULL */

/* Chooses for `count` different problems of a group on CUDA; `members` of it have each. The request's problem is not used. Where a
 * choice has a solver, it is what was measured or asked for, and is replaced only by another one that is about as fast. apart: set for
 * those whose launches are not to be shared. Problems with batch 0 are left alone. Fails as nh_planner_choose does, for problem
 * *failed. */
nhood_status nh_planner_choose_group(struct nh_group_choices *choices,
                                     const struct nh_request *request,
                                     const struct nh_problem *problem, const int64_t *members,
                                     int64_t count, struct nh_choice *choice, bool *apart,
                                     int64_t *failed);

/* ---- remembered choices (choice_cache.c) ----
 * Asking solvers for candidates and their estimates takes tens of microseconds. */

/* Any thread may use it; it has its own lock. */
struct nh_choice_cache;

nhood_status nh_choice_cache_create(const struct nh_host *host, struct nh_choice_cache **cache);
void nh_choice_cache_destroy(struct nh_choice_cache *cache); /* does nothing for NULL */

/* As nh_planner_choose. Remembers a successful choice until the request's wisdom changes. A cache serves requests with one
 * solver table and one wisdom. */
nhood_status nh_choice_cache_choose(struct nh_choice_cache *cache, const struct nh_request *request,
                                    struct nh_choice *choice);

#endif
