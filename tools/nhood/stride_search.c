#include "stride_search.h"

#include <stdlib.h>

enum { MOST_PER_AXIS = 128, LEAST_UNIT = 4, MOST_UNIT = 64 };

struct strides {
    int64_t axis[3];
    double product;
};

/* Whether a stride is legal. On a periodic axis it must divide the length of a dilation group. */
static bool fits(const nhood_axis *axis, int64_t stride) {
    return !axis->periodic || axis->length / axis->dilation % stride == 0;
}

/* Lists the strides to try in ascending order, and returns their number. */
static int strides_of(const nhood_axis *axis, int64_t stride[MOST_PER_AXIS]) {
    int count = 0;
    for (int64_t power = 1; power < axis->window && count < MOST_PER_AXIS - 2; power *= 2) {
        if (fits(axis, power)) stride[count++] = power;
        const int64_t between = power / 2 * 3;
        if (power > 1 && between < axis->window && fits(axis, between)) stride[count++] = between;
    }
    if (fits(axis, axis->window)) stride[count++] = axis->window;
    return count;
}

static int by_product(const void *a, const void *b) {
    double first = ((const struct strides *)a)->product,
           second = ((const struct strides *)b)->product;
    return (first > second) - (first < second);
}

/* All combinations of strides, the one with the least product first; NULL without memory. */
static struct strides *combine(const nhood_problem *problem, size_t *count) {
    int64_t stride[3][MOST_PER_AXIS] = {{1}, {1}, {1}};
    int counts[3] = {1, 1, 1};
    for (int32_t a = 0; a < problem->rank; a++)
        counts[a] = strides_of(&problem->axis[a], stride[a]);
    *count = (size_t)counts[0] * (size_t)counts[1] * (size_t)counts[2];
    struct strides *all = malloc(*count * sizeof *all), *next = all;
    if (!all) return NULL;
    for (int x = 0; x < counts[0]; x++)
        for (int y = 0; y < counts[1]; y++)
            for (int z = 0; z < counts[2]; z++) {
                *next = (struct strides){.axis = {stride[0][x], stride[1][y], stride[2][z]}};
                next->product =
                    (double)next->axis[0] * (double)next->axis[1] * (double)next->axis[2];
                next++;
            }
    qsort(all, *count, sizeof *all, by_product);
    return all;
}

static const struct candidate *fastest_unmasked(const struct candidates *candidates) {
    const struct candidate *best = NULL;
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        if (row->tiles > 0 && row->masked_tiles <= 0 &&
            (!best || row->estimate_ns < best->estimate_ns))
            best = row;
    }
    return best;
}

static nhood_status try_strides(const struct target *target, const nhood_problem *problem,
                                const nhood_plan_options *only, struct stride_choice *choice) {
    struct candidates candidates;
    nhood_status status = candidates_explain(target, problem, only, &candidates);
    const struct candidate *unmasked = status ? NULL : fastest_unmasked(&candidates);
    if (unmasked && (!choice->found || unmasked->estimate_ns < choice->config.estimate_ns))
        *choice = (struct stride_choice){true, *problem, *unmasked,
                                         candidates_estimated(&candidates)->estimate_ns};
    candidates_free(&candidates);
    /* The solver need not take all strides. */
    return status == NHOOD_ERR_UNSUPPORTED ? NHOOD_OK : status;
}

nhood_status stride_search(const struct target *target, const nhood_problem *problem,
                           const char *solver, struct stride_choice *choice) {
    const nhood_plan_options only = {.struct_size = sizeof only, .solver = solver};
    size_t count;
    struct strides *all = combine(problem, &count);
    nhood_status status = all ? NHOOD_OK : NHOOD_ERR_MEMORY;
    choice->found = false;
    for (size_t i = 0; !status && i < count; i++) {
        if (choice->found && all[i].product > all[i - 1].product) break;
        nhood_problem tried = *problem;
        for (int32_t a = 0; a < problem->rank; a++)
            tried.axis[a].stride = all[i].axis[a];
        status = try_strides(target, &tried, &only, choice);
    }
    free(all);
    return status;
}

/* Rounds windows to multiples of `unit`. False if an axis is too short. */
static bool round_windows(nhood_problem *problem, int64_t unit) {
    for (int32_t a = 0; a < problem->rank; a++) {
        nhood_axis *axis = &problem->axis[a];
        if (problem->windows[a].kind) continue; /* not by formula */
        int64_t room = axis->length / axis->dilation;
        axis->window = (axis->window + unit - 1) / unit * unit;
        if (axis->window > room) axis->window = room / unit * unit;
        if (!axis->window) return false;
    }
    return true;
}

nhood_status window_search(const struct target *target, const nhood_problem *problem,
                           const char *solver, struct stride_choice *choice) {
    nhood_status status = NHOOD_OK;
    choice->found = false;
    for (int64_t unit = LEAST_UNIT; !status && !choice->found && unit <= MOST_UNIT; unit *= 2) {
        nhood_problem rounded = *problem;
        if (round_windows(&rounded, unit)) status = stride_search(target, &rounded, solver, choice);
    }
    return status;
}
