#include "shared_config.h"

#include "candidates.h"
#include "commands.h"
#include "message.h"
#include "output.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>

/* The rank of a config in a group. It is a hash, so that no config is preferred in all groups. */
static uint64_t rank_of(const char *config, uint64_t group) {
    struct random mix = {group};
    for (const char *at = config; *at; at++)
        mix.state = random_bits(&mix) ^ (unsigned char)*at;
    return random_bits(&mix);
}

static const struct candidate *first_ranked(const struct candidates *candidates, uint64_t group) {
    const struct candidate *first = NULL;
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        if (!row->refusal &&
            (!first || rank_of(row->config, group) < rank_of(first->config, group)))
            first = row;
    }
    return first;
}

/* Replaces all wisdom about the problem by one measurement of this config. Checks that the library takes the line: otherwise
 * the estimate would choose, unnoticed. */
static int import(const struct target *target, const nhood_problem *problem, const char *text,
                  const struct candidate *candidate) {
    char device[sizeof target->info.description];
    snprintf(device, sizeof device, "%s", target->info.description);
    for (char *at = device; *at; at++)
        if (*at == ' ') *at = '_';
    char wisdom[sizeof device + PROBLEM_BYTES + SOLVER_BYTES + CONFIG_BYTES + 64];
    snprintf(wisdom, sizeof wisdom, "nhood-wisdom 1\n%s %s %s %s 1 1\n", device, text,
             candidate->solver, *candidate->config ? candidate->config : "-");
    nhood_status status = nhood_wisdom_forget(target->context, target->device, problem, NULL);
    if (status) return complain_library(status, text);
    int64_t accepted;
    status = nhood_wisdom_import(target->context, wisdom, &accepted);
    if (status) return complain_library(status, text);
    return accepted == 1
               ? 0
               : complain(EXIT_FAILURE, "%s: wisdom takes no such line: %s", text, wisdom);
}

int shared_config_prefer(const struct target *target, const nhood_problem *problem,
                         const char *text, const char *solver, uint64_t group) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    struct candidates candidates;
    nhood_status status = candidates_explain(target, problem, &options, &candidates);
    const struct candidate *first = status ? NULL : first_ranked(&candidates, group);
    int failed = status ? complain_library(status, text) : 0;
    if (first) failed = import(target, problem, text, first);
    candidates_free(&candidates);
    return failed;
}
