/* Times what the planner chooses beside the other candidates worth a run, in turns. bench/model/choices.py drives it:
 *
 *     NHOOD_CACHE=.. choices CUT [GPU] < commands
 *
 * GPU: one that `nhood simulate --gpu` knows, for `list` alone.
 * Candidates estimated at more than CUT times the least take no part, but for the best of each solver
 * within a third more. A CUT below 1: the choice alone.
 * Each command is a line, and is answered by a line:
 *
 *     list <problem>               an object: the candidates, the choice by estimate first
 *     prepare <problem>            builds the candidates, so that the cache folder has their kernels
 *     time <problem>               as list, with what each takes
 *     measure <seconds> <problem>  the same after MEASURE with that budget, whose choice is told, too
 *
 * A solver's name behind the problem: of its candidates alone. */
#include "calibration.h"
#include "cuda.h"
#include "device_spec.h"
#include "measure.h"
#include "registry.h"
#include "scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LISTED = 256, MOST_TURNS = 21, LEAST_TURNS = 7, LINE_BYTES = 512 };
static const double most_behind = 4.0 / 3;
/* Fewer turns for candidates that all take long. */
static const double enough_s = 0.1;

struct candidate {
    struct nh_choice choice;
    struct nh_operation *operation; /* NULL: it is not built */
    int samples;                    /* without the warm-up */
    double ns[MOST_TURNS], fastest_ns;
    bool out;
};

struct contest {
    struct nh_request request;
    struct candidate candidate[MOST_LISTED];
    int count;
    int measured; /* what MEASURE chose; -1: it was not asked */
};

/* The first of its solver: candidates come in the order of their estimates. */
static bool first_of_solver(const struct contest *contest, const struct nh_solver *solver) {
    for (int i = 0; i < contest->count; i++)
        if (contest->candidate[i].choice.solver == solver) return false;
    return true;
}

static void add(struct contest *contest, const struct nh_choice *choice) {
    contest->candidate[contest->count] = (struct candidate){.fastest_ns = INFINITY};
    contest->candidate[contest->count++].choice = *choice;
}

/* The planner may prefer a config to one of a little less estimate. */
static void put_choice_first(struct contest *contest) {
    struct nh_choice chosen;
    if (nh_planner_choose(&contest->request, &chosen)) return;
    for (int i = 1; i < contest->count; i++) {
        const struct nh_choice *choice = &contest->candidate[i].choice;
        if (choice->solver != chosen.solver ||
            memcmp(&choice->config, &chosen.config, sizeof chosen.config) != 0)
            continue;
        struct candidate first = contest->candidate[i];
        memmove(&contest->candidate[1], &contest->candidate[0], (size_t)i * sizeof first);
        contest->candidate[0] = first;
    }
}

static void list(struct contest *contest, double cut) {
    struct nh_choice choice[MOST_LISTED];
    contest->count = 0;
    if (cut < 1) {
        if (!nh_planner_choose(&contest->request, choice)) add(contest, choice);
        return;
    }
    int count = nh_planner_list(&contest->request, choice, MOST_LISTED - 1);
    for (int i = 0; i < count; i++) {
        double behind = choice[i].estimate_ns / choice[0].estimate_ns;
        if (behind <= cut ||
            (behind <= most_behind * cut && first_of_solver(contest, choice[i].solver)))
            add(contest, &choice[i]);
    }
    put_choice_first(contest);
}

/* What a plan would be after MEASURE; taken into the contest where the cut left it out. */
static int measure(struct contest *contest, double budget_s) {
    struct nh_choice best;
    int i = 0;
    pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER;
    if (nh_measure(&contest->request, budget_s, &alone) ||
        nh_planner_choose(&contest->request, &best))
        return -1;
    while (i < contest->count &&
           (contest->candidate[i].choice.solver != best.solver ||
            memcmp(&contest->candidate[i].choice.config, &best.config, sizeof best.config)))
        i++;
    /* wisdom knows no estimates */
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(best.solver, contest->request.problem, &room);
    best.estimate_ns =
        best.solver->estimate(best.solver, view, contest->request.device, &best.config, NULL);
    if (i == contest->count) add(contest, &best);
    return i;
}

/* ---- timing ---- */

static void build(const struct contest *contest, struct candidate *candidate) {
    const struct nh_request *request = &contest->request;
    if (nh_choice_build(&candidate->choice, request->problem, request->device,
                        &candidate->operation))
        candidate->operation = NULL;
}

static double fastest_of(const struct contest *contest) {
    double ns = INFINITY;
    for (int i = 0; i < contest->count; i++)
        ns = fmin(ns, contest->candidate[i].fastest_ns);
    return ns;
}

/* Twice as slow as the fastest after one turn and the warm-up, a fifth after five. */
static double patience(int turn) {
    return 1 + 1 / (double)(turn < 5 ? turn : 5);
}

static bool take_turn(struct contest *contest, const struct nh_scratch *scratch, int turn) {
    bool any = false;
    for (int i = 0; i < contest->count; i++) {
        struct candidate *candidate = &contest->candidate[i];
        double ns;
        if (candidate->out || !candidate->operation) continue;
        if (nh_scratch_run(scratch, candidate->operation, &ns)) {
            candidate->out = true;
            continue;
        }
        candidate->fastest_ns = fmin(candidate->fastest_ns, ns);
        if (turn) candidate->ns[candidate->samples++] = ns;
        if (turn && candidate->fastest_ns > patience(turn) * fastest_of(contest) &&
            i != contest->measured && i)
            candidate->out = true;
        any = true;
    }
    return any;
}

static nhood_status run(struct contest *contest) {
    const struct nh_request *request = &contest->request;
    struct nh_scratch scratch;
    nhood_status status = nh_scratch_create(request->device, request->problem, &scratch);
    for (int i = 0; !status && i < contest->count; i++) {
        struct candidate *made = &contest->candidate[i];
        build(contest, made);
        if (made->operation)
            status = nh_scratch_reserve(&scratch, made->operation->workspace_bytes);
    }
    double start = nh_steady_s();
    for (int turn = 0; !status && turn <= MOST_TURNS - 1; turn++) {
        if (turn > LEAST_TURNS && nh_steady_s() - start > enough_s) break;
        if (!take_turn(contest, &scratch, turn)) break;
    }
    for (int i = 0; i < contest->count; i++)
        if (contest->candidate[i].operation)
            contest->candidate[i].operation->destroy(contest->candidate[i].operation);
    nh_scratch_free(&scratch);
    return status;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(struct candidate *candidate) {
    qsort(candidate->ns, (size_t)candidate->samples, sizeof *candidate->ns, ascending);
    return candidate
        ->ns[(candidate->samples - 1) / 2]; /* of two the faster: others only ever add */
}

static void print(struct contest *contest, const char *text, double seconds) {
    printf("{\"problem\": \"%s\", \"seconds\": %.3f, \"measured\": %d, \"candidates\": [", text,
           seconds, contest->measured);
    for (int i = 0; i < contest->count; i++) {
        struct candidate *candidate = &contest->candidate[i];
        const struct nh_choice *choice = &candidate->choice;
        char config[NH_CONFIG_BYTES];
        nh_config_text(choice->solver, &choice->config, config, sizeof config);
        printf("%s[\"%s\", \"%s\", %.0f, %.0f, %d]", i ? ", " : "", choice->solver->name, config,
               choice->estimate_ns, candidate->samples ? median(candidate) : 0, candidate->samples);
    }
    printf("]}\n");
}

static nhood_status time_problem(struct contest *contest, const char *text, double cut,
                                 double budget_s) {
    double start = nh_steady_s();
    list(contest, cut);
    contest->measured = budget_s > 0 ? measure(contest, budget_s) : -1;
    nhood_status status = run(contest);
    if (!status) print(contest, text, nh_steady_s() - start);
    return status;
}

/* ---- commands ---- */

static void prepare(struct contest *contest, double cut) {
    list(contest, cut);
    for (int i = 0; i < contest->count; i++) {
        struct candidate *made = &contest->candidate[i];
        build(contest, made);
        if (made->operation) made->operation->destroy(made->operation);
    }
    printf("{}\n");
}

static nhood_status obey(const struct nh_device *device, const char *line, double cut) {
    static struct contest contest;
    char verb[16], text[LINE_BYTES], solver[64] = "";
    double budget_s = 0;
    nhood_problem given;
    struct nh_problem problem;
    if (sscanf(line, "measure %lf %511s %63s", &budget_s, text, solver) < 2 &&
        sscanf(line, "%15s %511s %63s", verb, text, solver) < 2)
        return nh_error(NHOOD_ERR_ARGUMENT, "not a command");
    nhood_status status = nhood_problem_parse(text, &given);
    if (!status) status = nh_problem_canonical(&given, &problem);
    contest.request =
        (struct nh_request){nh_registry_solvers, device, &problem, *solver ? solver : NULL, NULL};
    if (!status && device->spec_only && strncmp(line, "list", 4) != 0)
        status = nh_error(NHOOD_ERR_ARGUMENT, "%s is only described", device->info.name);
    if (!status) status = nh_wisdom_create(device->host, &contest.request.wisdom);
    if (status) return status;
    if (strncmp(line, "prepare", 7) == 0) {
        prepare(&contest, cut);
    } else if (strncmp(line, "list", 4) == 0) {
        list(&contest, cut);
        print(&contest, text, 0);
    } else {
        status = time_problem(&contest, text, cut, budget_s);
    }
    nh_wisdom_destroy(contest.request.wisdom);
    return status;
}

static void obey_all(const struct nh_device *device, double cut) {
    char line[LINE_BYTES];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (obey(device, line, cut))
            printf("{\"failed\": \"%s\", \"why\": \"%s\"}\n", line, nhood_last_error());
        fflush(stdout);
    }
}

/* Obeys with the estimates that contexts have: calibrated, if the cache folder has a calibration of the device. */
static int choose_on(struct nh_device *device, const char *cache, double cut) {
    if (cache && nh_calibration_attach(device, cache)) {
        fprintf(stderr, "choices: %s\n", nhood_last_error());
        return EXIT_FAILURE;
    }
    obey_all(device, cut);
    nh_calibration_detach(device);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv) {
    const nhood_context_options options = {.struct_size = sizeof options,
                                           .cache = getenv("NHOOD_CACHE"),
                                           .nvrtc = getenv("NHOOD_NVRTC")};
    const struct nh_host host = {0};
    struct nh_device device[NH_MOST_DESCRIBED];
    struct nh_cuda *cuda;
    int32_t count = 0;
    if (argc != 2 && argc != 3) {
        fprintf(stderr, "usage: choices CUT [GPU] < commands\n");
        return EXIT_FAILURE;
    }
    if (argc == 3) {
        if (nh_cuda_describe(argv[2], &host, device, &count)) {
            fprintf(stderr, "choices: %s\n", nhood_last_error());
            return EXIT_FAILURE;
        }
        return choose_on(device, options.cache, atof(argv[1]));
    }
    if (nh_cuda_open(NULL, &options, &host, device, 1, &count, &cuda) || !count) {
        fprintf(stderr, "choices: no GPU: %s\n", cuda ? nh_cuda_note(cuda) : nhood_last_error());
        return EXIT_FAILURE;
    }
    int result = choose_on(device, options.cache, atof(argv[1]));
    nh_cuda_close(cuda, device, count);
    return result;
}
