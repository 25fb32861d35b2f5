/* The random problems that tests/gpu/run gives a solver, with the configs that it draws, for scripts/same-code: the same seeds as
 * nhood verify --solver SOLVER --random COUNT --per-kernel EACH --seed SEED has.
 *
 * COUNT are without window tables; those with some that are drawn in between come on top, but for tables that no text has.
 *
 * usage: draw SOLVER COUNT EACH SEED
 * stdout: a line "SOLVER CONFIG PROBLEM" for each; CONFIG is - where EACH is 1, as verify lets the library choose. */
#include "candidates.h"
#include "commands.h"
#include "message.h"
#include "output.h"
#include "random_problem.h"
#include "shared_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DRAWS = 2000 };

static bool takes(const struct target *target, const nhood_problem *problem,
                  const nhood_plan_options *options) {
    return nhood_plan_explain(target->context, target->device, problem, options, NULL, NULL) ==
           NHOOD_OK;
}

/* The axes whose windows are of kinds from `first` on, up to `last`. */
static int axes_of(const nhood_problem *problem, int32_t first, int32_t last) {
    int count = 0;
    for (int a = 0; a < problem->rank; a++)
        count += problem->windows[a].kind >= first && problem->windows[a].kind <= last;
    return count;
}

static int print_case(const struct target *target, const nhood_problem *problem, int64_t each,
                      uint64_t seed, const nhood_plan_options *options) {
    char text[PROBLEM_BYTES];
    struct candidates candidates;
    nhood_status status = nhood_problem_format(problem, text, sizeof text, NULL);
    if (status) return complain_library(status, "problem");
    int failed = 0;
    if (each > 1)
        failed =
            shared_config_prefer(target, problem, text, options->solver, seed / (uint64_t)each);
    if (failed) return failed;
    status = candidates_explain(target, problem, options, &candidates);
    if (status) return complain_library(status, text);
    const char *config = "-";
    for (size_t i = 0; each > 1 && i < candidates.count; i++)
        if (candidates.row[i].chosen && *candidates.row[i].config)
            config = candidates.row[i].config;
    printf("%s %s %s\n", options->solver, config, text);
    candidates_free(&candidates);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 5) return EXIT_FAILURE;
    const int64_t count = atoll(argv[2]), each = atoll(argv[3]);
    const uint64_t seed = strtoull(argv[4], NULL, 10);
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = argv[1]};
    struct target target = {.info = {.struct_size = sizeof target.info}};
    static struct random_tables tables;
    target.device = 1; /* behind the CPU */
    const nhood_context_options context = {.struct_size = sizeof context, .cache = ""};
    nhood_status status = nhood_context_create(&context, &target.context);
    if (!status) status = nhood_device_query(target.context, target.device, &target.info);
    int failed = status ? complain_library(status, "device") : 0;
    int64_t left = count;
    for (int64_t drawn = 0; !failed && left > 0 && drawn < count * MOST_DRAWS; drawn++) {
        nhood_problem problem;
        random_problem(seed + (uint64_t)drawn, each, &problem, &tables);
        if (axes_of(&problem, NHOOD_WINDOWS_TABLE, NHOOD_WINDOWS_TABLE)) continue;
        if (!takes(&target, &problem, &options)) continue;
        failed = print_case(&target, &problem, each, seed + (uint64_t)drawn, &options);
        left -= !axes_of(&problem, NHOOD_WINDOWS_TABLE, NHOOD_WINDOWS_BLOCKS);
    }
    nhood_context_destroy(target.context);
    return failed;
}
