/* Configs: their text form, their order by estimate, and the functions of solvers that have only one. */
#include "scale.h"
#include "solver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void nh_config_text(const struct nh_solver *solver, const struct nh_config *config, char *text,
                    size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; solver->knob && solver->knob[i].name; i++) {
        int written = snprintf(text + used, capacity - used, "%s%s=%d", i ? "," : "",
                               solver->knob[i].name, config->value[i]);
        if (written < 0 || (size_t)written >= capacity - used) return;
        used += (size_t)written;
    }
}

bool nh_config_parse(const struct nh_solver *solver, const char *text, struct nh_config *config) {
    memset(config, 0, sizeof *config);
    for (int i = 0; solver->knob && solver->knob[i].name; i++) {
        if (i && *text++ != ',') return false;
        size_t length = strlen(solver->knob[i].name);
        if (strncmp(text, solver->knob[i].name, length) != 0 || text[length] != '=') return false;
        char *end;
        const char *digits = text + length + 1;
        long value = strtol(digits, &end, 10);
        if (end == digits || value < INT32_MIN || value > INT32_MAX) return false;
        config->value[i] = (int32_t)value;
        text = end;
    }
    return *text == '\0';
}

const struct nh_problem *nh_solver_view(const struct nh_solver *solver,
                                        const struct nh_problem *problem, struct nh_problem *view) {
    return solver->view ? solver->view(problem, view) : problem;
}

const char *nh_solver_refusal(const struct nh_solver *solver, const struct nh_problem *view,
                              const struct nh_device *device) {
    if (!(solver->takes & NH_TAKES_PARTS) && nh_problem_partial(view)) return "part of a grid";
    if (!(solver->takes & NH_TAKES_PERIODIC) && nh_problem_periodic(view)) return "periodic axis";
    const char *refusal = solver->refuse(view, device);
    if (!refusal && !(solver->takes & NH_TAKES_ANY_SCALE)) refusal = nh_scale_refusal(view);
    return refusal;
}

const char *nh_refuse_nothing(const struct nh_problem *problem, const struct nh_device *device) {
    (void)problem;
    (void)device;
    return NULL;
}

int nh_one_config(const struct nh_problem *problem, const struct nh_device *device,
                  struct nh_config *config, int capacity) {
    (void)problem;
    (void)device;
    (void)capacity;
    memset(config, 0, sizeof *config);
    return 1;
}

void nh_least_first(const struct nh_solver *solver, const struct nh_problem *problem,
                    const struct nh_device *device, struct nh_config *config, int count) {
    int best = 0;
    double least = 0;
    for (int i = 0; i < count; i++) {
        double ns = solver->estimate(solver, problem, device, &config[i], NULL);
        if (i > 0 && ns >= least) continue;
        best = i;
        least = ns;
    }
    const struct nh_config first = config[best];
    memmove(&config[1], &config[0], (size_t)best * sizeof *config);
    config[0] = first;
}
