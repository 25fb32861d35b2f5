/* nhood plan: which solver a problem gets, why, and what else was considered. */
#include "clock.h"
#include "commands.h"
#include "message.h"
#include "output.h"
#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, CONFIG_BYTES = 256 };

/* A row of the table: what one solver, or one of its configs, has to say. */
struct row {
    char solver[NAME_BYTES], config[CONFIG_BYTES];
    /* a refusal, kept by the solver for ever; NULL for a candidate */
    const char *refusal;
    double estimate_ns;
    bool chosen;
};

struct report {
    struct row *rows;
    size_t count, capacity;
    bool out_of_memory;
};

static void add_row(void *user, const nhood_candidate *candidate) {
    struct report *report = user;
    if (report->count == report->capacity) {
        size_t capacity = report->capacity ? 2 * report->capacity : 32;
        struct row *rows = realloc(report->rows, capacity * sizeof *rows);
        if (!rows) {
            report->out_of_memory = true;
            return;
        }
        report->rows = rows;
        report->capacity = capacity;
    }
    struct row *row = &report->rows[report->count++];
    snprintf(row->solver, sizeof row->solver, "%s", candidate->solver);
    snprintf(row->config, sizeof row->config, "%s", candidate->config);
    row->refusal = candidate->refusal;
    row->estimate_ns = candidate->estimate_ns;
    row->chosen = candidate->chosen == 1;
}

static const struct row *chosen_row(const struct report *report) {
    for (size_t i = 0; i < report->count; i++)
        if (report->rows[i].chosen) return &report->rows[i];
    return NULL;
}

static size_t candidate_count(const struct report *report) {
    size_t count = 0;
    for (size_t i = 0; i < report->count; i++)
        count += !report->rows[i].refusal;
    return count;
}

/* Without --verbose, of each solver only its best candidate. */
static bool is_best_of_solver(const struct report *report, size_t index) {
    const struct row *row = &report->rows[index];
    for (size_t i = 0; i < report->count; i++) {
        const struct row *other = &report->rows[i];
        if (strcmp(other->solver, row->solver) != 0) continue;
        if (other->estimate_ns < row->estimate_ns ||
            (i < index && other->estimate_ns <= row->estimate_ns))
            return false;
    }
    return true;
}

static void print_rows(const struct report *report, bool verbose) {
    char time[UNIT_BYTES];
    printf("considered:\n");
    for (size_t i = 0; i < report->count; i++) {
        const struct row *row = &report->rows[i];
        if (row->refusal) {
            printf("  %-14srefused: %s\n", row->solver, row->refusal);
        } else if (verbose || row->chosen || is_best_of_solver(report, i)) {
            printf("%c %-14s%-12s%s\n", row->chosen ? '*' : ' ', row->solver,
                   time_text(row->estimate_ns, time), row->config);
        }
    }
}

static void print_rows_json(const struct report *report) {
    json_list_begin("considered");
    for (size_t i = 0; i < report->count; i++) {
        const struct row *row = &report->rows[i];
        json_list_object();
        json_text("solver", row->solver);
        if (row->refusal) {
            json_text("refusal", row->refusal);
        } else {
            json_text("config", row->config);
            json_number("estimate_ns", row->estimate_ns);
            json_flag("chosen", row->chosen);
        }
        json_object_end();
    }
    json_list_end();
}

struct built {
    char problem[PROBLEM_BYTES];
    double creation_ns, workspace_bytes;
};

static void print_plan(const struct target *target, const struct report *report,
                       const struct built *built) {
    char creation[UNIT_BYTES], workspace[UNIT_BYTES], estimate[UNIT_BYTES];
    const struct row *chosen = chosen_row(report);
    printf("problem    %s\n", built->problem);
    printf("device     %s: %s\n", target->info.name, target->info.description);
    printf("solver     %s%s%s\n", chosen->solver, *chosen->config ? " " : "", chosen->config);
    if (candidate_count(report) == 1)
        printf("why        the only candidate\n");
    else
        printf("why        least time of %zu candidates, by estimate\n", candidate_count(report));
    printf("expected   %s\n", time_text(chosen->estimate_ns, estimate));
    printf("workspace  %s\n", size_text(built->workspace_bytes, workspace));
    printf("created in %s\n", time_text(built->creation_ns, creation));
    print_rows(report, target->verbose);
}

static void print_plan_json(const struct target *target, const struct report *report,
                            const struct built *built) {
    const struct row *chosen = chosen_row(report);
    json_begin();
    json_text("problem", built->problem);
    json_text("device", target->info.name);
    json_text("solver", chosen->solver);
    json_text("config", chosen->config);
    json_number("estimate_ns", chosen->estimate_ns);
    json_number("workspace_bytes", built->workspace_bytes);
    json_number("creation_ns", built->creation_ns);
    print_rows_json(report);
    json_end();
}

static int plan_problem(const struct target *target, const char *text,
                        const nhood_plan_options *options, bool json) {
    struct report report = {.count = 0};
    struct built built;
    nhood_problem problem;
    nhood_plan *plan = NULL;
    nhood_status status = nhood_problem_parse(text, &problem);
    if (!status) status = nhood_problem_format(&problem, built.problem, PROBLEM_BYTES, NULL);
    if (status) return complain_library(status, text);
    status =
        nhood_plan_explain(target->context, target->device, &problem, options, add_row, &report);
    double start = clock_ns();
    if (!status)
        status = nhood_plan_create(target->context, target->device, &problem, options, &plan);
    built.creation_ns = clock_ns() - start;
    int result = 0;
    if (status) {
        result = complain_library(status, text);
    } else if (report.out_of_memory || !chosen_row(&report)) {
        result = complain(EXIT_FAILURE, "no memory for the list of candidates");
    } else {
        built.workspace_bytes = (double)nhood_plan_workspace_bytes(plan);
        (json ? print_plan_json : print_plan)(target, &report, &built);
    }
    nhood_plan_release(plan);
    free(report.rows);
    return result;
}

int cmd_plan(int argc, char **argv) {
    struct target target;
    nhood_plan_options chosen = {.struct_size = sizeof chosen};
    bool json = false;
    target_init(&target);
    const struct option options[] = {
        {.name = "solver",
         .text = &chosen.solver,
         .argument = "NAME",
         .help = "consider only this solver"},
        {.name = "json", .flag = &json, .help = "print one object per problem"},
        {.name = NULL}};
    const struct usage usage = {
        "plan", "[options] <problem>...",
        "Prints the solver chosen for each problem and why, the workspace it needs, the time its\n"
        "creation took, every solver that refused, and the best estimate of each other; with\n"
        "--verbose every candidate's. See 'nhood --help' for the text of a problem.",
        options, target.options};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    if (count == 0) return complain(EXIT_USAGE, "plan: no problem given; see 'nhood plan --help'");
    status = target_open(&target);
    if (!status && chosen.solver && target_find_solver(&target, chosen.solver) < 0)
        status = EXIT_USAGE;
    if (!status)
        for (int i = 0; i < count; i++) {
            if (i && !json) printf("\n");
            int failed = plan_problem(&target, argv[i], &chosen, json);
            if (failed) status = failed;
        }
    target_close(&target);
    return status;
}
