/* Ranking, explaining and building candidates. The least estimate wins unless wisdom knows better. */
#include "planner.h"

#include "wise_choice.h"

#include <stdio.h>
#include <string.h>

enum { MOST_CANDIDATES = 64 };

bool nh_asked(const struct nh_request *request, const struct nh_solver *solver) {
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

/* What wisdom knows to be fastest, and whether its solver would still propose it: wisdom may be older than the solver. */
struct wise {
    struct nh_wise_choice known;
    bool proposed;
};

/* Solvers are asked for their best candidate, that of the wise choice for all of them. */
static struct nh_choice best_of(const struct nh_request *request, const struct nh_solver *solver,
                                struct wise *wise) {
    struct nh_config config[MOST_CANDIDATES];
    const struct nh_choice *known = &wise->known.choice;
    bool all = solver == known->solver;
    memset(config, 0, (all ? MOST_CANDIDATES : 1) * sizeof *config);
    int count =
        solver->candidates(request->problem, request->device, config, all ? MOST_CANDIDATES : 1);
    for (int i = 0; all && i < count; i++)
        wise->proposed |= !memcmp(&config[i], &known->config, sizeof *config);
    struct nh_choice best = {.solver = NULL};
    if (count < 1) return best;
    best.solver = solver;
    best.config = config[0];
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

/* Moves wisdom's choice to the front, in place of the same solver's estimate. Records without any of the solver
 * that the estimate prefers say nothing against it: they are of a contest held to one solver, or older than it. */
static void prefer_wisdom(const struct nh_request *request, const struct nh_wisdom_key *key,
                          struct wise *wise, struct nh_ranking *ranking) {
    struct nh_choice *chosen = &wise->known.choice;
    if (!chosen->solver || !nh_wise_about(request, key, ranking->choice[0].solver)) return;
    while (!wise->proposed) {
        nh_wise_next(request, key, &wise->known);
        if (!chosen->solver) return;
        if (!chosen->solver->refuse(request->problem, request->device))
            best_of(request, chosen->solver, wise);
    }
    chosen->estimate_ns =
        chosen->solver->estimate(request->problem, request->device, &chosen->config, NULL);
    int at = 0;
    while (ranking->choice[at].solver != chosen->solver)
        at++;
    for (; at > 0; at--)
        ranking->choice[at] = ranking->choice[at - 1];
    ranking->choice[0] = *chosen;
}

nhood_status nh_planner_rank(const struct nh_request *request, struct nh_ranking *ranking) {
    char refusals[3072] = "";
    int count = 0;
    struct nh_wisdom_key key;
    struct wise wise = {.proposed = false};
    ranking->count = 0;
    if (nh_wisdom_has_any(request->wisdom)) {
        nh_wisdom_key(request->device, request->problem, &key);
        nh_wise_next(request, &key, &wise.known);
    }
    for (int i = 0; request->table[i] && ranking->count < NH_MOST_SOLVERS; i++) {
        const struct nh_solver *solver = request->table[i];
        if (!nh_asked(request, solver)) continue;
        count++;
        const char *refusal = solver->refuse(request->problem, request->device);
        struct nh_choice best = {.solver = NULL};
        if (!refusal) best = best_of(request, solver, &wise);
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
    prefer_wisdom(request, &key, &wise, ranking);
    return NHOOD_OK;
}

int nh_planner_list(const struct nh_request *request, struct nh_choice *choice, int capacity) {
    int count = 0;
    for (int i = 0; request->table[i]; i++) {
        const struct nh_solver *solver = request->table[i];
        if (!nh_asked(request, solver) || solver->refuse(request->problem, request->device))
            continue;
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
        if (nh_asked(request, request->table[i]))
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
