/* Ranking, explaining and building candidates. The least estimate wins unless wisdom knows better. */
#include "planner.h"

#include <stdio.h>
#include <string.h>

enum { MOST_CANDIDATES = 64 };

static bool asked(const struct nh_request *request, const struct nh_solver *solver) {
    return solver->device_kind == request->device->info.kind &&
           (!request->only || strcmp(request->only, solver->name) == 0);
}

/* "name: reason", joined by semicolons. */
static void join(char *text, size_t capacity, const char *name, const char *reason) {
    size_t used = strlen(text);
    snprintf(text + used, capacity - used, "%s%s: %s", used ? "; " : "", name, reason);
}

/* What a solver has no knobs for is 0, so that configs can be compared as a whole. */
static int candidates_of(const struct nh_request *request, const struct nh_solver *solver,
                         struct nh_config config[MOST_CANDIDATES]) {
    memset(config, 0, MOST_CANDIDATES * sizeof *config);
    return solver->candidates(request->problem, request->device, config, MOST_CANDIDATES);
}

static struct nh_choice best_of(const struct nh_request *request, const struct nh_solver *solver) {
    struct nh_choice best = {.solver = NULL};
    if (solver->candidates(request->problem, request->device, &best.config, 1) < 1) return best;
    best.solver = solver;
    best.estimate_ns = solver->estimate(request->problem, request->device, &best.config, NULL);
    return best;
}

/* Behind all that are no slower, so that ties go to the earlier row of the table. */
static void insert(struct nh_ranking *ranking, const struct nh_choice *choice) {
    int at = ranking->count++;
    for (; at > 0 && ranking->choice[at - 1].estimate_ns > choice->estimate_ns; at--)
        ranking->choice[at] = ranking->choice[at - 1];
    ranking->choice[at] = *choice;
}

/* ---- what wisdom knows ---- */

struct wise_search {
    const struct nh_request *request;
    const char *expected; /* the solver of the least estimate */
    bool fair;            /* it was timed, too */
    struct nh_choice best;
};

/* A config is only taken if the solver would propose it now: wisdom may be older than the solver. */
static bool proposed(const struct nh_request *request, const struct nh_solver *solver,
                     const struct nh_config *config) {
    struct nh_config candidate[MOST_CANDIDATES];
    int count = candidates_of(request, solver, candidate);
    for (int i = 0; i < count; i++)
        if (!memcmp(&candidate[i], config, sizeof *config)) return true;
    return false;
}

static const struct nh_solver *find_solver(const struct nh_request *request, const char *name) {
    for (int i = 0; request->table[i]; i++)
        if (asked(request, request->table[i]) && !strcmp(request->table[i]->name, name))
            return request->table[i];
    return NULL;
}

/* Equal times are decided by solver and config, so that the order of the records does not matter. */
static bool beats(const struct nh_wisdom_record *record, const struct nh_choice *best) {
    if (!best->solver || record->median_ns != best->measured_ns)
        return !best->solver || record->median_ns < best->measured_ns;
    char config[NH_CONFIG_BYTES];
    nh_config_text(best->solver, &best->config, config, sizeof config);
    int order = strcmp(record->solver, best->solver->name);
    return order ? order < 0 : strcmp(record->config, config) < 0;
}

static void consider_record(void *user, const struct nh_wisdom_record *record) {
    struct wise_search *search = user;
    const struct nh_request *request = search->request;
    search->fair |= !strcmp(record->solver, search->expected);
    if (!beats(record, &search->best)) return;
    const struct nh_solver *solver = find_solver(request, record->solver);
    struct nh_config config;
    if (!solver || !nh_config_parse(solver, record->config, &config) ||
        solver->refuse(request->problem, request->device) || !proposed(request, solver, &config))
        return;
    search->best = (struct nh_choice){
        .solver = solver,
        .config = config,
        .estimate_ns = solver->estimate(request->problem, request->device, &config, NULL),
        .measured_ns = record->median_ns,
        .samples = record->samples,
    };
}

/* Moves wisdom's choice to the front, in place of the same solver's estimate. Records without any of the solver
 * that the estimate prefers say nothing against it: they are of a contest held to one solver, or older than it. */
static void prefer_wisdom(const struct nh_request *request, struct nh_ranking *ranking) {
    struct wise_search search = {.request = request, .expected = ranking->choice[0].solver->name};
    struct nh_wisdom_key key;
    if (!nh_wisdom_has_any(request->wisdom)) return;
    nh_wisdom_key(request->device, request->problem, &key);
    nh_wisdom_visit(request->wisdom, &key, consider_record, &search);
    int at = 0;
    while (at < ranking->count && ranking->choice[at].solver != search.best.solver)
        at++;
    if (at == ranking->count || !search.fair) return;
    for (; at > 0; at--)
        ranking->choice[at] = ranking->choice[at - 1];
    ranking->choice[0] = search.best;
}

nhood_status nh_planner_rank(const struct nh_request *request, struct nh_ranking *ranking) {
    char refusals[3072] = "";
    int count = 0;
    ranking->count = 0;
    for (int i = 0; request->table[i] && ranking->count < NH_MOST_SOLVERS; i++) {
        const struct nh_solver *solver = request->table[i];
        if (!asked(request, solver)) continue;
        count++;
        const char *refusal = solver->refuse(request->problem, request->device);
        struct nh_choice best = {.solver = NULL};
        if (!refusal) best = best_of(request, solver);
        if (best.solver) {
            insert(ranking, &best);
        } else {
            join(refusals, sizeof refusals, solver->name, refusal ? refusal : "no config fits");
        }
    }
    if (!count)
        return nh_error(NHOOD_ERR_ARGUMENT, "options.solver = '%s': no such solver runs on %s",
                        request->only ? request->only : "", request->device->info.name);
    if (!ranking->count) return nh_error(NHOOD_ERR_UNSUPPORTED, "no solver takes it: %s", refusals);
    prefer_wisdom(request, ranking);
    return NHOOD_OK;
}

int nh_planner_list(const struct nh_request *request, struct nh_choice *choice, int capacity) {
    int count = 0;
    for (int i = 0; request->table[i]; i++) {
        const struct nh_solver *solver = request->table[i];
        if (!asked(request, solver) || solver->refuse(request->problem, request->device)) continue;
        struct nh_config config[MOST_CANDIDATES];
        int configs = candidates_of(request, solver, config);
        for (int c = 0; c < configs; c++) {
            double ns = solver->estimate(request->problem, request->device, &config[c], NULL);
            int at = count;
            while (at > 0 && choice[at - 1].estimate_ns > ns)
                at--;
            if (at == capacity) continue;
            if (count < capacity) count++;
            memmove(&choice[at + 1], &choice[at], (size_t)(count - 1 - at) * sizeof *choice);
            choice[at] =
                (struct nh_choice){.solver = solver, .config = config[c], .estimate_ns = ns};
        }
    }
    return count;
}

/* ---- explaining ---- */

static void predict(const struct nh_request *request, const struct nh_solver *solver,
                    const struct nh_config *config, nhood_candidate *row) {
    struct nh_count count = {.tiles = 0};
    row->estimate_ns = solver->estimate(request->problem, request->device, config, &count);
    row->tiles = count.tiles;
    row->masked_tiles = count.masked_tiles;
    row->product_flops = count.flops;
    memcpy(row->limit_ns, count.limit_ns, sizeof row->limit_ns);
}

static void explain_solver(const struct nh_request *request, const struct nh_solver *solver,
                           const struct nh_choice *chosen, nhood_candidate_fn report, void *user) {
    nhood_candidate row = {.struct_size = sizeof row, .solver = solver->name, .config = ""};
    row.refusal = solver->refuse(request->problem, request->device);
    if (row.refusal) {
        report(user, &row);
        return;
    }
    struct nh_wisdom_key key;
    struct nh_config config[MOST_CANDIDATES];
    bool reported = false; /* two candidates may have the same config */
    int count = candidates_of(request, solver, config);
    nh_wisdom_key(request->device, request->problem, &key);
    for (int i = 0; i < count; i++) {
        char text[NH_CONFIG_BYTES];
        int64_t median_ns = 0, samples = 0;
        nh_config_text(solver, &config[i], text, sizeof text);
        nh_wisdom_look_up(request->wisdom, &key, solver->name, text, &median_ns, &samples);
        row.config = text;
        predict(request, solver, &config[i], &row);
        row.measured_ns = (double)median_ns;
        row.samples = samples;
        row.chosen = !reported && solver == chosen->solver &&
                     memcmp(&config[i], &chosen->config, sizeof config[i]) == 0;
        reported |= row.chosen != 0;
        report(user, &row);
    }
}

void nh_planner_explain(const struct nh_request *request, const struct nh_ranking *ranking,
                        nhood_candidate_fn report, void *user) {
    static const struct nh_choice none = {.solver = NULL};
    for (int i = 0; request->table[i]; i++)
        if (asked(request, request->table[i]))
            explain_solver(request, request->table[i], ranking->count ? &ranking->choice[0] : &none,
                           report, user);
}

/* ---- building ---- */

nhood_status nh_planner_build(const struct nh_request *request, const struct nh_ranking *ranking,
                              struct nh_built *built) {
    char failures[3072] = "";
    nhood_status first = NHOOD_OK;
    built->failures[0] = '\0';
    for (int i = 0; i < ranking->count; i++) {
        const struct nh_choice *choice = &ranking->choice[i];
        nhood_status status = choice->solver->build(request->problem, request->device,
                                                    &choice->config, &built->operation);
        if (!status) {
            built->choice = *choice;
            return NHOOD_OK;
        }
        if (status != NHOOD_ERR_COMPILE && status != NHOOD_ERR_DEVICE) return status;
        if (!first) first = status;
        join(failures, sizeof failures, choice->solver->name, nhood_last_error());
        join(built->failures, sizeof built->failures, choice->solver->name, nhood_last_error());
        if (i + 1 < ranking->count)
            nh_log(request->device->host, NHOOD_LOG_WARNING, "%s gives way to %s: %s",
                   choice->solver->name, ranking->choice[i + 1].solver->name, nhood_last_error());
    }
    return nh_error(first, "%s", failures);
}
