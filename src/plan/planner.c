/* ESTIMATE planning: the cheapest prediction over every candidate of every solver that does not refuse. */
#include "planner.h"

#include <stdio.h>
#include <string.h>

enum { MOST_CANDIDATES = 64, TEXT_BYTES = 256 };

struct search {
    const struct nh_device *device;
    const struct nh_problem *problem;
    struct nh_choice best;
    bool reported; /* the best has been: two candidates may have the same config */
    char refusals[3072];
};

static void note_refusal(struct search *search, const char *name, const char *reason) {
    size_t used = strlen(search->refusals);
    snprintf(search->refusals + used, sizeof search->refusals - used, "%s%s: %s", used ? "; " : "",
             name, reason);
}

static void consider(struct search *search, const struct nh_solver *solver) {
    const char *refusal = solver->refuse(search->problem, search->device);
    if (refusal) {
        note_refusal(search, solver->name, refusal);
        return;
    }
    struct nh_config config[MOST_CANDIDATES];
    int count = solver->candidates(search->problem, search->device, config, MOST_CANDIDATES);
    for (int i = 0; i < count; i++) {
        double ns = solver->estimate(search->problem, search->device, &config[i]);
        if (search->best.solver && ns >= search->best.estimate_ns) continue;
        search->best = (struct nh_choice){solver, config[i], ns};
    }
}

static void report_solver(struct search *search, const struct nh_solver *solver,
                          nhood_candidate_fn report, void *user) {
    nhood_candidate row = {.struct_size = sizeof row, .solver = solver->name, .config = ""};
    row.refusal = solver->refuse(search->problem, search->device);
    if (row.refusal) {
        report(user, &row);
        return;
    }
    struct nh_config config[MOST_CANDIDATES];
    int count = solver->candidates(search->problem, search->device, config, MOST_CANDIDATES);
    for (int i = 0; i < count; i++) {
        char text[TEXT_BYTES];
        nh_config_text(solver, &config[i], text, sizeof text);
        row.config = text;
        row.estimate_ns = solver->estimate(search->problem, search->device, &config[i]);
        row.chosen = !search->reported && solver == search->best.solver &&
                     memcmp(&config[i], &search->best.config, sizeof config[i]) == 0;
        search->reported |= row.chosen != 0;
        report(user, &row);
    }
}

nhood_status nh_planner_choose(const struct nh_solver *const *table, const struct nh_device *device,
                               const struct nh_problem *problem, const char *only,
                               nhood_candidate_fn report, void *user, struct nh_choice *choice) {
    struct search search = {.device = device, .problem = problem};
    int asked = 0;
    for (int i = 0; table[i]; i++) {
        if (table[i]->device_kind != device->info.kind ||
            (only && strcmp(only, table[i]->name) != 0))
            continue;
        consider(&search, table[i]);
        asked++;
    }
    for (int i = 0; report && table[i]; i++)
        if (table[i]->device_kind == device->info.kind &&
            (!only || strcmp(only, table[i]->name) == 0))
            report_solver(&search, table[i], report, user);
    if (!asked)
        return nh_error(NHOOD_ERR_ARGUMENT, "options.solver = '%s': no such solver runs on %s",
                        only ? only : "", device->info.name);
    if (!search.best.solver)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "no solver takes it: %s", search.refusals);
    *choice = search.best;
    return NHOOD_OK;
}
