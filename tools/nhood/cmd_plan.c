/* nhood plan: prints which solver is chosen for a problem, why, and what else was considered. */
#include "candidates.h"
#include "clock.h"
#include "commands.h"
#include "message.h"
#include "output.h"
#include "suite.h"
#include "target.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t candidate_count(const struct candidates *candidates) {
    size_t count = 0;
    for (size_t i = 0; i < candidates->count; i++)
        count += !candidates->row[i].refusal;
    return count;
}

static void print_rows(const struct candidates *candidates, bool verbose) {
    char estimate[UNIT_BYTES], measured[UNIT_BYTES];
    printf("considered:     estimate    measured    config\n");
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        if (row->refusal) {
            printf("  %-14srefused: %s\n", row->solver, row->refusal);
        } else if (verbose || row->chosen || candidates_is_best_of_solver(candidates, i)) {
            printf("%c %-14s%-12s%-12s%s\n", row->chosen ? '*' : ' ', row->solver,
                   time_text(row->estimate_ns, estimate),
                   row->samples ? time_text(row->measured_ns, measured) : "-", row->config);
        }
    }
}

static void print_rows_json(const struct candidates *candidates) {
    json_list_begin("considered");
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        json_list_object();
        json_text("solver", row->solver);
        if (row->refusal) {
            json_text("refusal", row->refusal);
        } else {
            json_text("config", row->config);
            json_number("estimate_ns", row->estimate_ns);
            json_number("measured_ns", row->samples ? row->measured_ns : NAN);
            json_integer("samples", row->samples);
            json_flag("chosen", row->chosen);
        }
        json_object_end();
    }
    json_list_end();
}

struct built {
    char problem[PROBLEM_BYTES];
    const char *description;
    double creation_ns, workspace_bytes;
    /* of this plan alone */
    nhood_kernel_counts kernels;
};

static nhood_kernel_counts count_kernels(const struct target *target) {
    nhood_kernel_counts counts = {.struct_size = sizeof counts};
    nhood_context_kernels(target->context, &counts);
    return counts;
}

static nhood_kernel_counts kernels_since(const struct target *target,
                                         const nhood_kernel_counts *before) {
    nhood_kernel_counts counts = count_kernels(target);
    counts.from_memory -= before->from_memory;
    counts.from_store -= before->from_store;
    counts.compiled -= before->compiled;
    counts.from_bundle -= before->from_bundle;
    counts.bundle_ns -= before->bundle_ns;
    counts.store_ns -= before->store_ns;
    counts.compile_ns -= before->compile_ns;
    return counts;
}

static void print_kernels(const nhood_kernel_counts *counts) {
    char bundle[UNIT_BYTES], store[UNIT_BYTES], compile[UNIT_BYTES];
    printf("kernels    %lld from memory, %lld from bundles in %s, %lld from the store in %s, "
           "%lld compiled in %s\n",
           (long long)counts->from_memory, (long long)counts->from_bundle,
           time_text(counts->bundle_ns, bundle), (long long)counts->from_store,
           time_text(counts->store_ns, store), (long long)counts->compiled,
           time_text(counts->compile_ns, compile));
}

static void print_kernels_json(const nhood_kernel_counts *counts) {
    json_integer("kernels_from_memory", counts->from_memory);
    json_integer("kernels_from_bundle", counts->from_bundle);
    json_integer("kernels_from_store", counts->from_store);
    json_integer("kernels_compiled", counts->compiled);
    json_number("bundle_ns", counts->bundle_ns);
    json_number("store_ns", counts->store_ns);
    json_number("compile_ns", counts->compile_ns);
}

static void print_plan(const struct target *target, const struct candidates *candidates,
                       const struct built *built) {
    char creation[UNIT_BYTES], workspace[UNIT_BYTES], expected[UNIT_BYTES];
    const struct candidate *chosen = candidates_chosen(candidates);
    printf("problem    %s\n", built->problem);
    printf("device     %s: %s\n", target->info.name, target->info.description);
    if (!chosen) {
        printf("solver     none: the batch is empty, there is nothing to compute\n");
        return;
    }
    printf("solver     %s%s%s\n", chosen->solver, *chosen->config ? " " : "", chosen->config);
    if (candidate_count(candidates) == 1)
        printf("why        the only candidate\n");
    else if (chosen->samples)
        printf("why        fastest of the candidates that wisdom knows\n");
    else if (chosen == candidates_estimated(candidates))
        printf("why        least time of %zu candidates, by estimate\n",
               candidate_count(candidates));
    else
        printf("why        of %zu candidates, preferred to others that take about as long by "
               "estimate\n",
               candidate_count(candidates));
    printf("expected   %s\n",
           time_text(chosen->samples ? chosen->measured_ns : chosen->estimate_ns, expected));
    printf("workspace  %s\n", size_text(built->workspace_bytes, workspace));
    printf("created in %s\n", time_text(built->creation_ns, creation));
    if (target->verbose) {
        if (target->info.kind == NHOOD_DEVICE_CUDA) print_kernels(&built->kernels);
        printf("plan       %s\n", built->description);
    }
    print_rows(candidates, target->verbose);
}

static void print_plan_json(const struct target *target, const struct candidates *candidates,
                            const struct built *built) {
    const struct candidate *chosen = candidates_chosen(candidates);
    json_begin();
    json_text("problem", built->problem);
    json_text("device", target->info.name);
    if (chosen) { /* not for an empty batch */
        json_text("solver", chosen->solver);
        json_text("config", chosen->config);
        json_number("estimate_ns", chosen->estimate_ns);
        json_number("measured_ns", chosen->samples ? chosen->measured_ns : NAN);
    }
    json_text("description", built->description);
    json_number("workspace_bytes", built->workspace_bytes);
    json_number("creation_ns", built->creation_ns);
    if (target->info.kind == NHOOD_DEVICE_CUDA) print_kernels_json(&built->kernels);
    print_rows_json(candidates);
    json_end();
}

struct request {
    nhood_plan_options options;
    bool json;
};

static int plan_problem(const struct target *target, const char *text, const void *arg) {
    const struct request *request = arg;
    const nhood_plan_options *options = &request->options;
    struct candidates candidates;
    struct built built;
    nhood_problem problem;
    nhood_plan *plan = NULL;
    nhood_status status = nhood_problem_parse(text, &problem);
    if (!status) status = nhood_problem_format(&problem, built.problem, PROBLEM_BYTES, NULL);
    if (status) return complain_library(status, text);
    status = candidates_explain(target, &problem, options, &candidates);
    nhood_kernel_counts before = count_kernels(target);
    double start = clock_ns();
    if (!status)
        status = nhood_plan_create(target->context, target->device, &problem, options, &plan);
    built.creation_ns = clock_ns() - start;
    built.kernels = kernels_since(target, &before);
    int result = 0;
    if (candidates.out_of_memory) {
        result = complain(EXIT_FAILURE, "no memory for the list of candidates");
    } else if (status) {
        result = complain_library(status, text);
    } else {
        built.description = nhood_plan_description(plan);
        built.workspace_bytes = (double)nhood_plan_workspace_bytes(plan);
        (request->json ? print_plan_json : print_plan)(target, &candidates, &built);
    }
    nhood_plan_release(plan);
    candidates_free(&candidates);
    return result;
}

static void print_group(const struct target *target, const struct built *built) {
    char creation[UNIT_BYTES], workspace[UNIT_BYTES];
    printf("plan       %s\n", built->description);
    printf("workspace  %s\n", size_text(built->workspace_bytes, workspace));
    printf("created in %s\n", time_text(built->creation_ns, creation));
    if (target->verbose && target->info.kind == NHOOD_DEVICE_CUDA) print_kernels(&built->kernels);
}

static void print_group_json(const struct target *target, const struct suite *members,
                             const char *text, const struct built *built) {
    json_begin();
    json_text("problem", text);
    json_integer("members", (int64_t)members->count);
    json_text("device", target->info.name);
    json_text("description", built->description);
    json_number("workspace_bytes", built->workspace_bytes);
    json_number("creation_ns", built->creation_ns);
    if (target->info.kind == NHOOD_DEVICE_CUDA) print_kernels_json(&built->kernels);
    json_end();
}

/* The plan of the group itself. Its choice is that of its members, which follow. */
static int plan_group(const struct target *target, const struct suite *members, const void *arg) {
    const struct request *request = arg;
    nhood_problem *problems = calloc(members->count, sizeof *problems);
    char *text = suite_group_text(members->problem);
    nhood_plan *plan = NULL;
    struct built built;
    int failed = problems && text ? 0 : complain(EXIT_FAILURE, "no memory for a group");
    for (size_t i = 0; !failed && i < members->count; i++)
        problems[i] = members->problem[i].problem;
    const nhood_kernel_counts before = count_kernels(target);
    const double start = clock_ns();
    nhood_status status = NHOOD_OK;
    if (!failed)
        status = nhood_plan_create_group(target->context, target->device, problems,
                                         (int64_t)members->count, &request->options, &plan);
    built.creation_ns = clock_ns() - start;
    built.kernels = kernels_since(target, &before);
    if (status) failed = complain_library(status, "group");
    if (!failed) {
        built.description = nhood_plan_description(plan);
        built.workspace_bytes = (double)nhood_plan_workspace_bytes(plan);
        if (request->json)
            print_group_json(target, members, text, &built);
        else
            print_group(target, &built);
    }
    nhood_plan_release(plan);
    free(problems);
    free(text);
    return failed;
}

int cmd_plan(int argc, char **argv) {
    struct target target;
    struct request request = {.options = {.struct_size = sizeof request.options}};
    target_init(&target);
    const struct option options[] = {
        {.name = "solver",
         .text = &request.options.solver,
         .argument = "NAME",
         .help = "consider only this solver"},
        {.name = "json", .flag = &request.json, .help = "print one object per problem"},
        {.name = NULL}};
    const struct usage usage = {
        "plan", "[options] <problem>...",
        "Prints the solver chosen for each problem and why, the workspace it needs, the time its\n"
        "creation took, every solver that refused, and the best estimate of each other; with\n"
        "--verbose every candidate's, and where CUDA kernels came from. See 'nhood --help' for "
        "the\n"
        "text of a problem. Of a group: its plan, then those of its different members.",
        options, target.options};
    int status, count = options_parse_problems(&usage, argc, argv, &status);
    if (count < 0) return status;
    status = target_open(&target);
    const char *solver = request.options.solver;
    if (!status && solver && target_find_solver(&target, solver) < 0) status = EXIT_USAGE;
    if (!status)
        status = target_each_problem(&target, argv, count, request.json, plan_problem, plan_group,
                                     &request);
    target_close(&target);
    return status;
}
