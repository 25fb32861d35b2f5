/* nhood simulate: prints estimates and the counts that they are based on, for a GPU that need not be present. */
#include "candidates.h"
#include "commands.h"
#include "message.h"
#include "output.h"
#include "simulate_gpus.h"
#include "simulate_plot.h"
#include "stride_search.h"
#include "target.h"
#include "tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Enough for six numbers of 64 bits. */
enum { EXTENTS_BYTES = 128 };

struct simulation {
    char text[PROBLEM_BYTES];
    nhood_problem problem;
    struct candidates candidates;
    /* the fastest config that counts tiles; NULL if none does */
    const struct candidate *best;
    struct stride_choice unmasked;
    /* dense attention of the same tokens: its operations over the problem's, and its predicted time or NAN */
    double dense_bound, dense_ns;
    struct gpus gpus;
    struct sharding sharding[MOST_SHARDINGS];
    int shardings;
};

/* ---- useful products ---- */

/* The number of pairs of a query and a key on one axis, without keys that key boxes lack. Causal windows are shorter at the
 * start of the axis. */
static double axis_pairs(const nhood_problem *problem, int32_t a) {
    const nhood_axis *axis = &problem->axis[a];
    int64_t queries = covered_length(problem, a, false);
    double pairs = 0;
    if (problem->windows[a].kind) { /* the operations of this axis alone, of which a pair has two */
        nhood_problem alone;
        nhood_problem_init(&alone, NHOOD_OP_PN, NHOOD_DTYPE_F32, 1);
        alone.axis[0] = *axis;
        alone.windows[0] = problem->windows[a];
        alone.region[0].query_offset = problem->region[a].query_offset;
        alone.region[0].query_length = problem->region[a].query_length;
        alone.dim = 1;
        nhood_problem_cost(&alone, &pairs, NULL);
        return pairs / 2;
    }
    if (!axis->causal) return (double)queries * (double)axis->window;
    for (int64_t i = 0; i < queries; i++) {
        int64_t first, count = 0;
        nhood_window(axis, problem->region[a].query_offset + i, &first, &count);
        pairs += (double)count;
    }
    return pairs;
}

static double pairs_of(const nhood_problem *problem) {
    double pairs = 1, tokens = 1;
    for (int32_t a = 0; a < problem->rank; a++) {
        pairs *= axis_pairs(problem, a);
        tokens *= (double)covered_length(problem, a, false);
    }
    return pairs + tokens * (double)problem->extra_tokens;
}

/* The operations of pairs that exist. nhood_problem_cost counts all slots of causal windows. */
static double useful_flops(const nhood_problem *problem) {
    nhood_problem full = *problem;
    double flops = 0;
    for (int32_t a = 0; a < full.rank; a++)
        full.axis[a].causal = 0;
    nhood_problem_cost(problem, &flops, NULL);
    return flops * pairs_of(problem) / pairs_of(&full);
}

static double waste_of(const nhood_problem *problem, const struct candidate *row) {
    return row->product_flops / useful_flops(problem);
}

/* The names of limits, as printed and as members of JSON objects. */
static const struct {
    const char *name, *member;
} limits[NHOOD_LIMIT_COUNT] = {
    [NHOOD_LIMIT_TENSOR] = {"tensor", "tensor_ns"},
    [NHOOD_LIMIT_EXPONENTIAL] = {"exp", "exponential_ns"},
    [NHOOD_LIMIT_MASK] = {"masks", "mask_ns"},
    [NHOOD_LIMIT_L2] = {"L2", "l2_ns"},
    [NHOOD_LIMIT_MEMORY] = {"memory", "memory_ns"},
};

/* The name of the part of the device that limits the candidate. */
static const char *limit_of(const struct candidate *row) {
    int largest = 0;
    for (int limit = 1; limit < NHOOD_LIMIT_COUNT; limit++)
        if (row->limit_ns[limit] > row->limit_ns[largest]) largest = limit;
    return limits[largest].name;
}

/* ---- asking ---- */

static const struct candidate *best_counted(const struct candidates *candidates) {
    const struct candidate *best = NULL;
    for (size_t i = 0; i < candidates->count; i++) {
        const struct candidate *row = &candidates->row[i];
        if (row->tiles > 0 && (!best || row->estimate_ns < best->estimate_ns)) best = row;
    }
    return best;
}

/* Applies NHOOD_FLAG_CLAMP_WINDOW, so that windows can be compared with lengths. */
static void clamp_windows(nhood_problem *problem) {
    for (int32_t a = 0; a < problem->rank; a++) {
        nhood_axis *axis = &problem->axis[a];
        if (axis->window * axis->dilation > axis->length)
            axis->window = (int64_t)fmax(1, (double)(axis->length / axis->dilation));
        if (axis->stride > axis->window) axis->stride = axis->window;
    }
}

static nhood_status compare_with_dense(const struct target *target, struct simulation *simulation) {
    nhood_problem dense = simulation->problem;
    nhood_status status;
    for (int32_t a = 0; a < dense.rank; a++) {
        const int64_t keys = dense.windows[a].keys ? dense.windows[a].keys : dense.axis[a].length;
        if (dense.windows[a].kind) {
            dense.windows[a] =
                (nhood_windows){.kind = NHOOD_WINDOWS_RESAMPLED, .keys = keys, .window = keys};
            continue;
        }
        dense.axis[a].window = dense.axis[a].length;
        dense.axis[a].stride = dense.axis[a].dilation = 1;
        if (!dense.axis[a].periodic) continue;
        /* With dense windows it does not matter where boxes begin, and on this axis they may not wrap around. */
        dense.region[a].query_offset = dense.region[a].key_offset = 0;
        dense.axis[a].periodic = 0;
    }
    simulation->dense_bound = pairs_of(&dense) / pairs_of(&simulation->problem);
    simulation->dense_ns = candidates_least_ns(target, &dense, &status);
    return status == NHOOD_ERR_UNSUPPORTED ? NHOOD_OK : status;
}

static nhood_status simulate(const struct target *target, struct simulation *simulation) {
    clamp_windows(&simulation->problem);
    nhood_status status =
        candidates_explain(target, &simulation->problem, NULL, &simulation->candidates);
    if (!status && simulation->gpus.count > 1) {
        const double alone_ns = candidates_estimated(&simulation->candidates)->estimate_ns;
        simulation->shardings = gpus_shardings(target, &simulation->gpus, &simulation->problem,
                                               alone_ns, simulation->sharding);
    }
    if (!status) status = compare_with_dense(target, simulation);
    simulation->best = best_counted(&simulation->candidates);
    if (!status && simulation->best)
        status = stride_search(target, &simulation->problem, simulation->best->solver,
                               &simulation->unmasked);
    if (!status && simulation->best && !simulation->unmasked.found)
        status = window_search(target, &simulation->problem, simulation->best->solver,
                               &simulation->unmasked);
    return status;
}

/* ---- printing ---- */

static bool same_windows(const nhood_problem *one, const nhood_problem *other) {
    for (int32_t a = 0; a < one->rank; a++)
        if (one->axis[a].window != other->axis[a].window) return false;
    return true;
}

/* Strides, and before them windows if they differ from the problem's, as in problem texts. */
static const char *extents_text(const struct simulation *simulation, char text[EXTENTS_BYTES]) {
    const nhood_problem *problem = &simulation->unmasked.problem;
    size_t used = 0;
    if (!same_windows(problem, &simulation->problem)) {
        for (int32_t a = 0; a < problem->rank; a++)
            used += (size_t)snprintf(text + used, EXTENTS_BYTES - used, "%s%lld", a ? "x" : "w",
                                     (long long)problem->axis[a].window);
        text[used++] = ':';
    }
    for (int32_t a = 0; a < problem->rank; a++)
        used += (size_t)snprintf(text + used, EXTENTS_BYTES - used, "%s%lld", a ? "x" : "s",
                                 (long long)problem->axis[a].stride);
    return text;
}

static const char columns[] =
    "solvers:        time       tensor    exp       masks     L2        memory    "
    "limit   tiles     masked    waste  ";
enum { TIME_COLUMN = 16, CONFIG_COLUMN = sizeof columns - 1 };

static void print_row(const nhood_problem *problem, const struct candidate *row) {
    char time[UNIT_BYTES];
    if (row->refusal) {
        printf("  %-14srefused: %s\n", row->solver, row->refusal);
    } else if (row->tiles <= 0) {
        printf("  %-14s%-*s%s\n", row->solver, *row->config ? CONFIG_COLUMN - TIME_COLUMN : 0,
               time_text(row->estimate_ns, time), row->config);
    } else {
        printf("  %-14s%-11s", row->solver, time_text(row->estimate_ns, time));
        for (int limit = 0; limit < NHOOD_LIMIT_COUNT; limit++)
            printf("%-10s", time_text(row->limit_ns[limit], time));
        printf("%-8s%-10.0f%-10.0f%-7.2f%s\n", limit_of(row), row->tiles, row->masked_tiles,
               waste_of(problem, row), row->config);
    }
}

static void print_unmasked(const struct simulation *simulation) {
    const struct stride_choice *unmasked = &simulation->unmasked;
    char extents[EXTENTS_BYTES], time[UNIT_BYTES];
    if (!simulation->best) return;
    if (!unmasked->found) {
        printf("unmasked   every candidate of %s needs masks with all strides and windows tried\n",
               simulation->best->solver);
        return;
    }
    printf("unmasked   with %s no tile needs a mask, waste %.2f: %s in %s, %s",
           extents_text(simulation, extents), waste_of(&unmasked->problem, &unmasked->config),
           unmasked->config.solver, time_text(unmasked->config.estimate_ns, time),
           unmasked->config.config);
    if (unmasked->least_ns < unmasked->config.estimate_ns)
        printf("; the least is %s", time_text(unmasked->least_ns, time));
    printf("\n");
}

static void print_simulation(const struct target *target, const struct simulation *simulation) {
    const struct candidates *candidates = &simulation->candidates;
    const struct candidate *best = candidates_estimated(candidates);
    char dense[UNIT_BYTES];
    printf("problem    %s\n", simulation->text);
    printf("device     %s: %s\n", target->info.name, target->info.description);
    printf("dense      %.2f times the products", simulation->dense_bound);
    if (isfinite(simulation->dense_ns))
        printf("; %s, %.2f times as long", time_text(simulation->dense_ns, dense),
               simulation->dense_ns / best->estimate_ns);
    printf("\n");
    print_unmasked(simulation);
    printf("%sconfig\n", columns);
    for (size_t i = 0; i < candidates->count; i++)
        if (target->verbose || candidates_is_best_of_solver(candidates, i))
            print_row(&simulation->problem, &candidates->row[i]);
    if (simulation->gpus.count > 1)
        gpus_print(&simulation->gpus, &simulation->problem, simulation->sharding,
                   simulation->shardings);
}

static void print_row_json(const nhood_problem *problem, const struct candidate *row) {
    json_list_object();
    json_text("solver", row->solver);
    if (row->refusal) {
        json_text("refusal", row->refusal);
    } else {
        json_text("config", row->config);
        json_number("estimate_ns", row->estimate_ns);
    }
    if (row->tiles > 0) {
        for (int limit = 0; limit < NHOOD_LIMIT_COUNT; limit++)
            json_number(limits[limit].member, row->limit_ns[limit]);
        json_text("limit", limit_of(row));
        json_integer("tiles", (int64_t)row->tiles);
        json_integer("masked_tiles", (int64_t)row->masked_tiles);
        json_number("waste", waste_of(problem, row));
    }
    json_object_end();
}

static void print_simulation_json(const struct target *target,
                                  const struct simulation *simulation) {
    const struct candidates *candidates = &simulation->candidates;
    const struct stride_choice *unmasked = &simulation->unmasked;
    char extents[EXTENTS_BYTES];
    json_begin();
    json_text("problem", simulation->text);
    json_text("device", target->info.name);
    json_text("description", target->info.description);
    json_number("dense_products", simulation->dense_bound);
    json_number("dense_estimate_ns", simulation->dense_ns);
    if (unmasked->found) {
        json_text("unmasked_extents", extents_text(simulation, extents));
        json_text("unmasked_solver", unmasked->config.solver);
        json_text("unmasked_config", unmasked->config.config);
        json_number("unmasked_least_ns", unmasked->least_ns);
        json_number("unmasked_estimate_ns", unmasked->config.estimate_ns);
        json_number("unmasked_waste", waste_of(&unmasked->problem, &unmasked->config));
    }
    json_list_begin("solvers");
    for (size_t i = 0; i < candidates->count; i++)
        if (target->verbose || candidates_is_best_of_solver(candidates, i))
            print_row_json(&simulation->problem, &candidates->row[i]);
    json_list_end();
    if (simulation->gpus.count > 1)
        gpus_print_json(simulation->sharding, simulation->shardings, simulation->problem.rank);
    json_end();
}

/* ---- the command ---- */

struct request {
    const char *svg;
    bool json;
    struct gpus gpus;
};

/* Refuses parts of a grid and windows that are not by formula, as only whole grids of other ones are sharded over several GPUs. */
static int refuse_part(const nhood_problem *problem, const char *text) {
    for (int32_t a = 0; a < problem->rank; a++) {
        if (problem->windows[a].kind)
            return complain(EXIT_USAGE, "%s: --gpus shards grids with windows by formula", text);
        const int64_t length = problem->axis[a].length;
        const int64_t queries = covered_length(problem, a, false);
        const int64_t keys = covered_length(problem, a, true);
        if (queries < length || keys < length)
            return complain(EXIT_USAGE,
                            "%s: --gpus shards whole grids, but axis %d has %lld queries and %lld "
                            "keys of %lld tokens",
                            text, a, (long long)queries, (long long)keys, (long long)length);
    }
    return 0;
}

static int simulate_problem(const struct target *target, const char *text, const void *arg) {
    const struct request *request = arg;
    struct simulation simulation = {.best = NULL, .gpus = request->gpus};
    nhood_status status = nhood_problem_parse(text, &simulation.problem);
    const int refused =
        !status && request->gpus.count > 1 ? refuse_part(&simulation.problem, text) : 0;
    if (refused) return refused;
    if (!status && !candidates_exist(&simulation.problem, text)) return EXIT_FAILURE;
    if (!status)
        status = nhood_problem_format(&simulation.problem, simulation.text, PROBLEM_BYTES, NULL);
    if (!status) status = simulate(target, &simulation);
    int result = 0;
    if (status) {
        result = complain_library(status, text);
    } else {
        (request->json ? print_simulation_json : print_simulation)(target, &simulation);
        const struct plot plot = {target, simulation.text, &simulation.problem,
                                  &simulation.candidates, simulation.dense_ns};
        if (request->svg) result = plot_write(&plot, request->svg);
    }
    candidates_free(&simulation.candidates);
    return result;
}

int cmd_simulate(int argc, char **argv) {
    struct target target;
    /* H200s of one host exchange halos in both directions at 280 GB/s per GPU, in 80 us at least: docs/distributed.md. */
    struct request request = {.svg = NULL, .gpus = {1, 280, 80}};
    target_init(&target);
    target.device_name = NULL;
    target.describe = "h200";
    target.describe_option = "gpu";
    const struct option options[] = {
        {.name = "gpu",
         .text = &target.describe,
         .argument = "NAME",
         .help = "a100, h100, h200 or b200, by their published numbers (h200)",
         .values = "a100 h100 h200 b200"},
        {.name = "gpus",
         .integer = &request.gpus.count,
         .low = 1,
         .high = MOST_GPUS,
         .argument = "N",
         .help = "also predict N GPUs that share the grid or the heads (1)"},
        {.name = "link",
         .number = &request.gpus.link_gb_per_s,
         .low = 0.001,
         .high = 1e6,
         .argument = "GB/s",
         .help = "what each of them sends, and receives, at the same time (280)"},
        {.name = "latency",
         .number = &request.gpus.latency_us,
         .low = 0,
         .high = 1e6,
         .argument = "US",
         .help = "microseconds of a collective at least (80)"},
        {.name = "svg",
         .text = &request.svg,
         .argument = "FILE",
         .help = "write a picture, of one problem: tiles of two axes, time over stride"},
        {.name = "json", .flag = &request.json, .help = "print one object per problem"},
        {.name = NULL}};
    const struct usage usage = {
        "simulate", "[options] <problem>...",
        "Prints what a GPU would do with each problem by the estimates that choose plans, without\n"
        "one: per solver the time, its parts, the tiles that are multiplied, those that need "
        "masks,\n"
        "and the waste: operations of the products over useful ones. Beside it, dense attention "
        "on\n"
        "the same tokens, and the smallest strides, or else windows, with which no tile needs a "
        "mask.\n"
        "--device NAME takes a GPU of this machine instead; --verbose lists every config.",
        options, target.options};
    int status, count = options_parse_problems(&usage, argc, argv, &status);
    if (count < 0) return status;
    if (request.svg && count > 1) return complain(EXIT_USAGE, "simulate: --svg takes one problem");
    if (!target.device_name) target.device_name = target.describe;
    status = target_open(&target);
    if (!status)
        status = target_each_problem(&target, argv, count, request.json, simulate_problem, NULL,
                                     &request);
    target_close(&target);
    return status;
}
