#include "preference.h"

#include <limits.h>
#include <string.h>

/* Matches any value of a knob: it makes no difference to the compiled kernel, or it is not chosen by speed. */
enum { ANY = INT16_MIN };

/* The solvers of the table, in the order of its rows. */
static const struct {
    const char *solver;
    int rows;
} sections[] = {
#define NH_SOLVER(name, rows) {name, rows},
#define NH_PREFERRED(...)
#include "h200_preferred.def"
};
static const int16_t preferred[][NH_CONFIG_KNOBS] = {
#define NH_SOLVER(name, rows)
#define NH_PREFERRED(...) {__VA_ARGS__},
#include "h200_preferred.def"
};

static bool matches(const int16_t row[NH_CONFIG_KNOBS], const struct nh_config *config) {
    for (int k = 0; k < NH_CONFIG_KNOBS; k++)
        if (row[k] != config->value[k] && row[k] != ANY) return false;
    return true;
}

int nh_preference(const struct nh_solver *solver, const struct nh_config *config) {
    const int16_t(*row)[NH_CONFIG_KNOBS] = preferred;
    for (size_t s = 0; s < sizeof sections / sizeof *sections; row += sections[s++].rows) {
        if (strcmp(sections[s].solver, solver->name) != 0) continue;
        for (int i = 0; i < sections[s].rows; i++)
            if (matches(row[i], config)) return i;
    }
    return INT_MAX;
}
