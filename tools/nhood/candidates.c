#include "candidates.h"

#include "message.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_row(void *user, const nhood_candidate *given) {
    struct candidates *candidates = user;
    if (candidates->count == candidates->capacity) {
        size_t capacity = candidates->capacity ? 2 * candidates->capacity : 32;
        struct candidate *row = realloc(candidates->row, capacity * sizeof *row);
        if (!row) {
            candidates->out_of_memory = true;
            return;
        }
        candidates->row = row;
        candidates->capacity = capacity;
    }
    struct candidate *row = &candidates->row[candidates->count++];
    *row = (struct candidate){.refusal = given->refusal,
                              .estimate_ns = given->estimate_ns,
                              .measured_ns = given->measured_ns,
                              .samples = given->samples,
                              .chosen = given->chosen == 1,
                              .tiles = given->tiles,
                              .masked_tiles = given->masked_tiles,
                              .product_flops = given->product_flops};
    memcpy(row->limit_ns, given->limit_ns, sizeof row->limit_ns);
    snprintf(row->solver, sizeof row->solver, "%s", given->solver);
    snprintf(row->config, sizeof row->config, "%s", given->config);
}

nhood_status candidates_explain(const struct target *target, const nhood_problem *problem,
                                const nhood_plan_options *options, struct candidates *candidates) {
    *candidates = (struct candidates){.count = 0};
    nhood_status status =
        nhood_plan_explain(target->context, target->device, problem, options, add_row, candidates);
    return !status && candidates->out_of_memory ? NHOOD_ERR_MEMORY : status;
}

void candidates_free(struct candidates *candidates) {
    free(candidates->row);
    *candidates = (struct candidates){.count = 0};
}

const struct candidate *candidates_chosen(const struct candidates *candidates) {
    for (size_t i = 0; i < candidates->count; i++)
        if (candidates->row[i].chosen) return &candidates->row[i];
    return NULL;
}

const struct candidate *candidates_estimated(const struct candidates *candidates) {
    const struct candidate *best = NULL;
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        if (!row->refusal && (!best || row->estimate_ns < best->estimate_ns)) best = row;
    }
    return best;
}

const struct candidate *candidates_fastest(const struct candidates *candidates) {
    const struct candidate *best = NULL;
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        if (row->samples && (!best || row->measured_ns < best->measured_ns)) best = row;
    }
    return best;
}

const struct candidate *candidates_find(const struct candidates *candidates, const char *solver,
                                        const char *config) {
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        if (!row->refusal && strcmp(row->solver, solver) == 0 && strcmp(row->config, config) == 0)
            return row;
    }
    return NULL;
}

bool candidates_is_best_of_solver(const struct candidates *candidates, size_t index) {
    const struct candidate *row = &candidates->row[index];
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *other = &candidates->row[i];
        if (strcmp(other->solver, row->solver) != 0) continue;
        if (other->estimate_ns < row->estimate_ns ||
            (i < index && other->estimate_ns <= row->estimate_ns))
            return false;
    }
    return true;
}

bool candidates_exist(const nhood_problem *problem, const char *text) {
    if (problem->batch) return true;
    complain(EXIT_FAILURE, "%s: the batch is empty: there is nothing to compute", text);
    return false;
}

double candidates_least_ns(const struct target *target, const nhood_problem *problem,
                           nhood_status *status) {
    struct candidates candidates;
    nhood_status result = candidates_explain(target, problem, NULL, &candidates);
    const struct candidate *best = result ? NULL : candidates_estimated(&candidates);
    double ns = best ? best->estimate_ns : NAN;
    candidates_free(&candidates);
    if (status) *status = result;
    return ns;
}
