/* Configs: their text form, their order by estimate, and the functions of solvers that have only one. */
#include "scale.h"
#include "solver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the knob is a further extent of the tile that the knob before begins. */
static bool continues(const struct nh_knob *knob, int i) {
    return i > 0 && strcmp(knob[i].name, knob[i - 1].name) == 0;
}

/* The word of that number and its length; NULL: there is none. */
static const char *nth_word(const char *words, int32_t n, int *length) {
    for (; n > 0 && words; n--)
        words = strchr(words, '|') ? strchr(words, '|') + 1 : NULL;
    if (n < 0 || !words) return NULL;
    *length = (int)strcspn(words, "|");
    return words;
}

void nh_config_text(const struct nh_solver *solver, const struct nh_config *config, char *text,
                    size_t capacity) {
    const struct nh_knob *knob = solver->knob;
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; knob && knob[i].name; i++) {
        char value[16];
        int length, written;
        const char *word = nth_word(knob[i].words, config->value[i], &length);
        if (!word) snprintf(value, sizeof value, "%d", (int)config->value[i]);
        if (!word) word = value, length = (int)strlen(value);
        written = continues(knob, i) ? snprintf(text + used, capacity - used, "x%.*s", length, word)
                                     : snprintf(text + used, capacity - used, "%s%s=%.*s",
                                                i ? "," : "", knob[i].name, length, word);
        if (written < 0 || (size_t)written >= capacity - used) return;
        used += (size_t)written;
    }
}

/* Reads a value, a word of the knob or else a number, and returns its end; NULL: it is neither. */
static const char *read_value(const struct nh_knob *knob, const char *text, int32_t *value) {
    int length;
    for (*value = 0; nth_word(knob->words, *value, &length); ++*value)
        if (!strncmp(text, nth_word(knob->words, *value, &length), (size_t)length) &&
            (text[length] == ',' || !text[length]))
            return text + length;
    if (knob->words) return NULL;
    char *end;
    long long number = strtoll(text, &end, 10);
    if (end == text || number < INT32_MIN || number > INT32_MAX) return NULL;
    *value = (int32_t)number;
    return end;
}

bool nh_config_parse(const struct nh_solver *solver, const char *text, struct nh_config *config) {
    const struct nh_knob *knob = solver->knob;
    memset(config, 0, sizeof *config);
    for (int i = 0; knob && knob[i].name; i++) {
        const bool further = continues(knob, i);
        if (i && *text++ != (further ? 'x' : ',')) return false;
        const size_t length = further ? 0 : strlen(knob[i].name);
        if (!further && (strncmp(text, knob[i].name, length) != 0 || text[length] != '='))
            return false;
        text = read_value(&knob[i], text + length + !further, &config->value[i]);
        if (!text) return false;
    }
    return *text == '\0';
}

const struct nh_problem *nh_solver_view(const struct nh_solver *solver,
                                        const struct nh_problem *problem, struct nh_problem *view) {
    return solver->view ? solver->view(problem, view) : problem;
}

const char *nh_solver_first_refusal(const struct nh_solver *solver, const struct nh_problem *view,
                                    const struct nh_device *device) {
    if (!(solver->takes & NH_TAKES_PARTS) && nh_problem_partial(view)) return "part of a grid";
    if (!(solver->takes & NH_TAKES_PERIODIC) && nh_problem_periodic(view)) return "periodic axis";
    if (!(solver->takes & NH_TAKES_TABLES) && nh_problem_has_tables(view)) return "window table";
    const char *refusal = solver->refuse(view, device);
    if (!refusal && !(solver->takes & NH_TAKES_ANY_SCALE)) refusal = nh_scale_refusal(view);
    return refusal;
}

const char *nh_solver_refusal(const struct nh_solver *solver, const struct nh_problem *view,
                              const struct nh_device *device) {
    const char *refusal = nh_solver_first_refusal(solver, view, device);
    return refusal || !solver->refuse_all ? refusal : solver->refuse_all(view, device);
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
