/* Plans problems and executes them on tests/same_code/recording_driver.c, which writes the launches down. For scripts/same-code,
 * which compiles it with the headers of either tree and links that tree's library.
 *
 * usage: launches
 * stdin: a case a line, "SOLVER CONFIG PROBLEM" (CONFIG: as in wisdom, - for what is chosen without), or
 *        "norm_rope SEED CASES" for random problems of RMS norm and rotary positions.
 * stdout: the launches of each case, behind a line "case<TAB>" and the case. A plan that the library refuses has the line
 *         "refused<TAB>" and why. A plan is executed with all outputs, then without each of them ("without<TAB>NUMBER"). */
#include "nhood.h"
#include "norm_rope_case.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 4096, WORD_BYTES = 1024, CUDA = 1 };

/* Memory that is never touched: so far apart that an address tells the tensor. */
static void *address_of(int tensor) {
    return (void *)((uintptr_t)(tensor + 1) << 44);
}

static void *const workspace = (void *)((uintptr_t)1 << 40), *const stream = (void *)0x5000;

static void refuse(void) {
    printf("refused\t%s\n", nhood_last_error());
}

/* ---- attention ---- */

static void execute(const nhood_plan *plan, int without) {
    nhood_io io = {.struct_size = sizeof io,
                   .workspace = workspace,
                   .workspace_bytes = nhood_plan_workspace_bytes(plan),
                   .stream = stream};
    for (int t = 0; t < NHOOD_TENSOR_COUNT; t++)
        io.data[t] = t == without ? NULL : address_of(t);
    if (without >= 0) printf("without\t%d\n", without);
    if (nhood_plan_execute(plan, &io)) refuse();
}

/* Makes wisdom name the config: what is refused here would be chosen by the estimate, unnoticed. */
static nhood_status prefer(nhood_context *context, const nhood_problem *problem, const char *solver,
                           const char *config, const char *text) {
    nhood_device_info info = {.struct_size = sizeof info};
    char line[2 * LINE_BYTES];
    nhood_status status = nhood_device_query(context, CUDA, &info);
    if (status) return status;
    for (char *at = info.description; *at; at++)
        if (*at == ' ') *at = '_';
    snprintf(line, sizeof line, "nhood-wisdom 1\n%s %s %s %s 1 1\n", info.description, text, solver,
             config);
    status = nhood_wisdom_forget(context, CUDA, problem, NULL);
    return status ? status : nhood_wisdom_import(context, line, NULL);
}

static void record(nhood_context *context, const char *solver, const char *config,
                   const char *text) {
    nhood_problem problem;
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    nhood_status status = nhood_problem_parse(text, &problem);
    if (!status && strcmp(config, "-") != 0)
        status = prefer(context, &problem, solver, config, text);
    if (!status) status = nhood_plan_create(context, CUDA, &problem, &options, &plan);
    if (status) {
        refuse();
        return;
    }
    execute(plan, -1);
    for (int t = NHOOD_D_Q; problem.op == NHOOD_OP_BWD && t <= NHOOD_D_EXTRA_V; t++)
        execute(plan, t);
    if (problem.op == NHOOD_OP_FWD) execute(plan, NHOOD_LSE);
    nhood_plan_release(plan);
}

/* ---- RMS norm and rotary positions ---- */

static void record_norm_rope(nhood_context *context, const nhood_norm_rope_problem *problem) {
    nhood_norm_rope_plan *plan = NULL;
    if (nhood_norm_rope_plan_create(context, CUDA, problem, &plan)) {
        refuse();
        return;
    }
    nhood_norm_rope_io io = {.struct_size = sizeof io,
                             .x = address_of(0),
                             .weight = address_of(1),
                             .table = {address_of(2), address_of(3), address_of(4)},
                             .y = address_of(5),
                             .d_y = address_of(6),
                             .d_x = address_of(7),
                             .d_weight = address_of(8),
                             .workspace = workspace,
                             .workspace_bytes = nhood_norm_rope_workspace_bytes(plan),
                             .stream = stream};
    if (nhood_norm_rope_execute(plan, &io)) refuse();
    if (problem->op == NHOOD_OP_BWD) {
        io.d_weight = NULL;
        printf("without\td_weight\n");
        if (nhood_norm_rope_execute(plan, &io)) refuse();
    }
    nhood_norm_rope_plan_destroy(plan);
}

static void record_random_norm_rope(nhood_context *context, uint64_t seed, int cases) {
    for (int i = 0; i < cases; i++) {
        struct norm_rope_case drawn;
        case_random(&drawn, &seed);
        printf("problem\t%d\n", i);
        record_norm_rope(context, &drawn.problem);
    }
}

int main(void) {
    static char line[LINE_BYTES], solver[WORD_BYTES], config[WORD_BYTES], problem[WORD_BYTES];
    const nhood_context_options options = {.struct_size = sizeof options, .cache = ""};
    nhood_context *context = NULL;
    if (nhood_context_create(&options, &context) || nhood_device_count(context) <= CUDA) {
        fprintf(stderr, "launches: no CUDA device: %s\n", nhood_context_notes(context));
        return EXIT_FAILURE;
    }
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%1023s %1023s %1023s", solver, config, problem) != 3) {
            fprintf(stderr, "launches: not a case: %s", line);
            return EXIT_FAILURE;
        }
        printf("case\t%s %s %s\n", solver, config, problem);
        if (strcmp(solver, "norm_rope") == 0)
            record_random_norm_rope(context, strtoull(config, NULL, 10), atoi(problem));
        else
            record(context, solver, config, problem);
    }
    nhood_context_destroy(context);
    return fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
