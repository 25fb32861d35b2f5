/* nhood verify: checks every solver against the reference, on given and on random problems. */
#include "commands.h"
#include "message.h"
#include "oracle.h"
#include "output.h"
#include "progress.h"
#include "random_problem.h"
#include "shared_config.h"
#include "verify_group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SOLVERS = 64 };

struct verify {
    struct target target;
    const char *solver;
    int64_t random, groups, per_kernel, seed;
    bool json;
    /* counts so far */
    int64_t problems, group_runs, runs[MOST_SOLVERS], failures;
    double worst_share;
    char worst_problem[PROBLEM_BYTES];
};

/* A problem and the seed of its data. Random problems are drawn from the seed, too. */
struct test_case {
    nhood_problem problem;
    struct random_tables tables; /* of a random problem */
    char text[PROBLEM_BYTES];
    uint64_t seed;
    bool random;
};

static bool passed(const struct comparison *worst) {
    return worst->share <= 1 && worst->spoiled < 0;
}

static void print_run_json(const struct verify *verify, const struct test_case *test,
                           const char *solver, const char *place, const struct comparison *worst) {
    json_begin();
    json_text("problem", test->text);
    json_integer("seed", (int64_t)test->seed);
    json_flag("random", test->random);
    if (test->random) json_integer("per_kernel", verify->per_kernel);
    json_text("solver", solver);
    json_flag("passed", passed(worst));
    if (worst->tensor >= 0) {
        json_text("tensor", tensor_name(worst->tensor));
        json_text("index", place);
        json_number("value", worst->value);
        json_number("expected", worst->expected);
        json_number("limit", worst->limit);
    }
    json_number("share_of_limit", worst->share);
    if (worst->spoiled >= 0) json_text("written_outside", tensor_name(worst->spoiled));
    json_end();
}

static void print_run(const struct verify *verify, const struct test_case *test, const char *solver,
                      const char *place, const struct comparison *worst) {
    bool ok = passed(worst);
    if (ok && test->random && !verify->target.verbose) return;
    progress_hide();
    printf("%-5s%-14s%s\n", ok ? "ok" : "FAIL", solver, test->text);
    if (worst->tensor < 0)
        printf("     an empty batch: no results\n");
    else
        printf("     worst error %.3g of the limit: %s%s = %.9g, reference %.9g, limit %.2g\n",
               worst->share, tensor_name(worst->tensor), place, worst->value, worst->expected,
               worst->limit);
    if (worst->spoiled >= 0)
        printf("     wrote outside the elements of %s\n", tensor_name(worst->spoiled));
    const struct target *target = &verify->target;
    if (ok) return;
    printf("     reproduce: nhood verify --solver %s --seed %llu%s%s", solver,
           (unsigned long long)test->seed, target->isa ? " --isa " : "",
           target->isa ? target->isa : "");
    if (target->threads) printf(" --threads %lld", (long long)target->threads);
    if (test->random && verify->per_kernel > 1)
        printf(" --per-kernel %lld", (long long)verify->per_kernel);
    printf(test->random ? " --random 1\n" : " %s\n", test->text);
}

/* Checks one solver. Returns 0, or an exit status after a message if the check could not be made. */
static int verify_solver(struct verify *verify, const struct test_case *test, int32_t index,
                         struct problem_data *given, const struct oracle *oracle) {
    struct target *target = &verify->target;
    const char *solver = nhood_solver_name(index, NULL);
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan;
    if (test->random && verify->per_kernel > 1) {
        uint64_t group = test->seed / (uint64_t)verify->per_kernel;
        int failed = shared_config_prefer(target, &given->problem, test->text, solver, group);
        if (failed) return failed;
    }
    nhood_status status =
        nhood_plan_create(target->context, target->device, &given->problem, &options, &plan);
    if (status) return complain_library(status, test->text);
    bool ready = data_prepare(given, plan) && data_mark_workspace(given);
    for (int32_t t = 0; ready && t < NHOOD_TENSOR_COUNT; t++)
        if (tensor_role(&given->problem, t) == TENSOR_OUTPUT) ready = data_mark(given, t);
    struct comparison worst;
    int failed = EXIT_FAILURE;
    if (ready) {
        status = nhood_plan_execute(plan, &given->io);
        if (status) {
            failed = complain_library(status, test->text);
        } else if (!buffer_wait(&target->info)) {
            failed = complain(EXIT_FAILURE, "%s: %s failed on the device", test->text, solver);
        } else {
            failed = oracle_compare(oracle, given, &worst);
        }
    }
    nhood_plan_release(plan);
    if (failed) return failed;
    char place[PLACE_BYTES];
    if (worst.tensor >= 0)
        view_place(&given->view[worst.tensor], given->problem.rank, worst.row, worst.inner, place);
    if (verify->json)
        print_run_json(verify, test, solver, place, &worst);
    else
        print_run(verify, test, solver, place, &worst);
    verify->runs[index]++;
    verify->failures += !passed(&worst);
    if (worst.share >= verify->worst_share) {
        verify->worst_share = worst.share;
        memcpy(verify->worst_problem, test->text, sizeof test->text);
    }
    return 0;
}

/* Whether a solver is to be checked. The reference is checked against itself only on request, which shows its rounding. */
static bool is_wanted(const struct verify *verify, int32_t index) {
    int32_t kind;
    const char *name = nhood_solver_name(index, &kind);
    if (kind != verify->target.info.kind) return false;
    return verify->solver ? strcmp(name, verify->solver) == 0 : strcmp(name, "reference") != 0;
}

/* Finds the solvers that take the problem, and returns their number. */
static int find_solvers(const struct verify *verify, const nhood_problem *problem,
                        bool takes[MOST_SOLVERS]) {
    int count = 0;
    for (int32_t i = 0; i < MOST_SOLVERS && nhood_solver_name(i, NULL); i++) {
        nhood_plan_options options = {.struct_size = sizeof options,
                                      .solver = nhood_solver_name(i, NULL)};
        takes[i] = is_wanted(verify, i) &&
                   nhood_plan_explain(verify->target.context, verify->target.device, problem,
                                      &options, NULL, NULL) == NHOOD_OK;
        count += takes[i];
    }
    return count;
}

/* The most draws per random problem that is wanted, if only those count that the given solver takes. */
enum { MOST_DRAWS = 2000 };

static bool solver_takes(const struct verify *verify, const nhood_problem *problem) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = verify->solver};
    return nhood_plan_explain(verify->target.context, verify->target.device, problem, &options,
                              NULL, NULL) == NHOOD_OK;
}

static int verify_case(struct verify *verify, struct test_case *test) {
    bool takes[MOST_SOLVERS] = {false};
    nhood_status status = nhood_problem_format(&test->problem, test->text, sizeof test->text, NULL);
    if (status) return complain_library(status, "problem");
    verify->problems++;
    if (!find_solvers(verify, &test->problem, takes)) {
        if (test->random) return 0;
        return complain(EXIT_FAILURE, "%s: %s; see 'nhood plan'", test->text,
                        verify->solver ? "the solver refuses it"
                                       : "no solver takes it but the reference");
    }
    struct problem_data given;
    struct oracle oracle = {.truth = {.io = {0}}};
    int failed = data_create(&given, &verify->target.info, &test->problem) ? 0 : EXIT_FAILURE;
    if (!failed) failed = oracle_create(&oracle, &verify->target, &given, test->seed);
    for (int32_t i = 0; !failed && i < MOST_SOLVERS; i++)
        if (takes[i]) failed = verify_solver(verify, test, i, &given, &oracle);
    oracle_free(&oracle);
    data_free(&given);
    return failed;
}

/* ---- groups ---- */

static void print_group(const struct verify *verify, const struct suite *suite, bool random,
                        uint64_t seed, size_t index, const struct comparison *worst) {
    const bool ok = passed(worst);
    const char *solver = verify->solver ? verify->solver : "as chosen";
    if (verify->json) {
        char *text = suite_group_text(suite->problem);
        json_begin();
        json_text("problem", text ? text : "");
        json_integer("members", (int64_t)suite->count);
        json_text("worst_member", suite->problem[index].text);
        json_integer("index", (int64_t)index);
        json_integer("seed", (int64_t)seed);
        json_flag("random", random);
        json_text("solver", solver);
        json_flag("passed", ok);
        json_number("share_of_limit", worst->share);
        json_end();
        free(text);
        return;
    }
    if (ok && random && !verify->target.verbose) return;
    progress_hide();
    printf("%-5s%-14sgroup of %zu, worst error %.3g of the limit, in member %zu, %s\n",
           ok ? "ok" : "FAIL", solver, suite->count, worst->share, index,
           suite->problem[index].text);
    if (worst->spoiled >= 0)
        printf("     wrote outside the elements of %s\n", tensor_name(worst->spoiled));
    if (!ok && random)
        printf("     reproduce: nhood verify --seed %llu --groups 1\n", (unsigned long long)seed);
}

/* All members in one call, by the planner's choices or, with --solver, by that solver. */
static int verify_group(struct verify *verify, const struct suite *suite, bool random,
                        uint64_t seed) {
    struct group_case group;
    struct comparison worst;
    size_t index = 0;
    int failed = group_case_create(&group, &verify->target, suite->problem, seed);
    if (!failed) failed = group_case_run(&group, &verify->target, verify->solver, &worst, &index);
    group_case_free(&group);
    if (failed) return failed;
    print_group(verify, suite, random, seed, index, &worst);
    verify->problems++;
    verify->group_runs++;
    verify->failures += !passed(&worst);
    if (worst.share >= verify->worst_share) {
        verify->worst_share = worst.share;
        memcpy(verify->worst_problem, suite->problem[index].text, PROBLEM_BYTES);
    }
    return 0;
}

static int verify_group_text(struct verify *verify, const char *text) {
    struct suite suite = {.count = 0};
    int failed = suite_add(&suite, text, text);
    if (!failed) failed = verify_group(verify, &suite, false, (uint64_t)verify->seed);
    suite_free(&suite);
    return failed;
}

static int verify_random_groups(struct verify *verify, double total) {
    int failed = 0;
    for (int64_t i = 0; !failed && i < verify->groups; i++) {
        struct suite suite = {.count = 0};
        const uint64_t seed = (uint64_t)(verify->seed + i);
        failed = random_group(&suite, seed);
        if (!failed) failed = verify_group(verify, &suite, true, seed);
        if (!failed) progress_show((double)verify->problems / total, suite.problem[0].text);
        suite_free(&suite);
    }
    return failed;
}

static int verify_text(struct verify *verify, const char *text) {
    struct test_case test = {.seed = (uint64_t)verify->seed};
    if (strchr(text, ';')) return verify_group_text(verify, text);
    nhood_status status = nhood_problem_parse(text, &test.problem);
    return status ? complain_library(status, text) : verify_case(verify, &test);
}

static int verify_all(struct verify *verify, int count, char **texts) {
    struct test_case test;
    int failed = 0;
    double total = (double)count + (double)verify->random + (double)verify->groups;
    progress_start();
    for (int i = 0; !failed && i < count; i++) {
        failed = verify_text(verify, texts[i]);
        progress_show((double)verify->problems / total, texts[i]);
    }
    if (!failed) failed = verify_random_groups(verify, total);
    int64_t drawn = 0, left = verify->random;
    while (!failed && left > 0 && drawn < verify->random * MOST_DRAWS) {
        test = (struct test_case){.seed = (uint64_t)(verify->seed + drawn++), .random = true};
        random_problem(test.seed, verify->per_kernel, &test.problem, &test.tables);
        if (verify->solver && !solver_takes(verify, &test.problem)) continue;
        failed = verify_case(verify, &test);
        left--;
        progress_show((double)verify->problems / total, test.text);
    }
    progress_hide();
    return failed;
}

static int64_t run_count(const struct verify *verify) {
    int64_t runs = verify->group_runs;
    for (int i = 0; i < MOST_SOLVERS; i++)
        runs += verify->runs[i];
    return runs;
}

static void print_summary(const struct verify *verify) {
    if (verify->json) {
        json_begin();
        json_integer("problems", verify->problems);
        json_integer("runs", run_count(verify));
        json_integer("failures", verify->failures);
        json_number("worst_share_of_limit", verify->worst_share);
        json_text("worst_problem", verify->worst_problem);
        json_end();
        return;
    }
    printf("%lld problems:", (long long)verify->problems);
    for (int32_t i = 0; i < MOST_SOLVERS; i++)
        if (verify->runs[i])
            printf(" %s %lld,", nhood_solver_name(i, NULL), (long long)verify->runs[i]);
    if (verify->group_runs) printf(" groups %lld,", (long long)verify->group_runs);
    printf(" %lld failed", (long long)verify->failures);
    if (run_count(verify))
        printf("; worst error %.2g of its limit, in %s", verify->worst_share,
               verify->worst_problem);
    printf("\n");
}

int cmd_verify(int argc, char **argv) {
    struct verify verify = {.random = -1, .per_kernel = 1, .seed = 1};
    target_init(&verify.target);
    const struct option options[] = {
        {.name = "random",
         .integer = &verify.random,
         .high = 1e9,
         .argument = "N",
         .help = "random problems (100, if none is given); with --solver, ones that it takes"},
        {.name = "groups",
         .integer = &verify.groups,
         .high = 1e9,
         .argument = "N",
         .help = "random groups, each in one call (0)"},
        {.name = "per-kernel",
         .integer = &verify.per_kernel,
         .low = 1,
         .high = 1e9,
         .argument = "M",
         .help = "of random problems, M in turn share kernels, of a drawn config (1)"},
        {.name = "seed",
         .integer = &verify.seed,
         .high = 1e15,
         .argument = "S",
         .help = "of the first random problem and of all data (1)"},
        {.name = "solver",
         .text = &verify.solver,
         .argument = "NAME",
         .help = "only this solver (each but the reference)"},
        {.name = "json", .flag = &verify.json, .help = "print one object per run, and one for all"},
        {.name = NULL}};
    const struct usage usage = {
        "verify", "[options] [<problem>...]",
        "Runs every solver that takes a problem on random data and compares each output element\n"
        "with the f64 reference. The limit of an error follows from the storage type, the length\n"
        "of the sums and how the reference reacts to roundings of its inputs. Memory beside the\n"
        "outputs must stay untouched. A group, <op>:<dtype>:<b..h..d..>;<member>;.., is one call "
        "for\n"
        "all members. Exit status 1 if anything is wrong. The i-th random problem\n"
        "depends on S + i and M alone, so a failure names the one seed that reproduces it.",
        options, verify.target.options};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    if (verify.random < 0) verify.random = count || verify.groups ? 0 : 100;
    status = target_open(&verify.target);
    if (!status && verify.solver && target_find_solver(&verify.target, verify.solver) < 0)
        status = EXIT_USAGE;
    if (!status) status = verify_all(&verify, count, argv);
    if (!status) print_summary(&verify);
    if (!status && !run_count(&verify))
        status =
            complain(EXIT_FAILURE, "verify: nothing was checked: no solver%s takes these problems",
                     verify.solver ? " asked for" : " but the reference");
    target_close(&verify.target);
    return status ? status : verify.failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
