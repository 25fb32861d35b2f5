/* Solvers made for the purpose: their configs are 1, 0, 2, their operations do nothing. */
#ifndef FAKE_SOLVERS_H
#define FAKE_SOLVERS_H

#include "solver.h"

#include <stdatomic.h>
#include <string.h>

enum { FAKE_CONFIGS = 3 };

static inline const char *fake_takes(const struct nh_problem *problem,
                                     const struct nh_device *device) {
    (void)problem;
    (void)device;
    return NULL;
}

static inline const char *fake_refuses(const struct nh_problem *problem,
                                       const struct nh_device *device) {
    (void)problem;
    (void)device;
    return "it never does";
}

static atomic_int fake_asked; /* how often candidates were asked for */

static inline int fake_candidates(const struct nh_problem *problem, const struct nh_device *device,
                                  struct nh_config *config, int capacity) {
    (void)problem;
    (void)device;
    fake_asked++;
    static const int32_t order[FAKE_CONFIGS] = {1, 0, 2};
    int count = capacity < FAKE_CONFIGS ? capacity : FAKE_CONFIGS;
    for (int i = 0; i < count; i++)
        config[i].value[0] = order[i];
    return count;
}

/* What an operation was built from; `live` counts those not destroyed. */
struct fake_operation {
    struct nh_operation base;
    const char *solver;
    int config;
};
static atomic_int fake_live, fake_built;

static inline void fake_destroy(struct nh_operation *operation) {
    fake_live--;
    free(operation);
}

static inline nhood_status fake_build(const char *solver, const struct nh_config *config,
                                      struct nh_operation **operation) {
    struct fake_operation *built = calloc(1, sizeof *built);
    if (!built) return NHOOD_ERR_MEMORY;
    built->base.destroy = fake_destroy;
    built->base.workspace_bytes = 64 * (size_t)(1 + config->value[0]);
    built->solver = solver;
    built->config = config->value[0];
    fake_live++;
    fake_built++;
    *operation = &built->base;
    return NHOOD_OK;
}

static const struct nh_knob fake_knobs[] = {{"size", NULL}, {NULL, NULL}};

#endif
