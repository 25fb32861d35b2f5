/* Chooses, explains and builds candidates. The least estimate wins unless wisdom has measured times. */
#include "planner.h"

#include "scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_CANDIDATES = 64 };

static bool is_asked(const struct nh_request *request, const struct nh_solver *solver) {
    return solver->device_kind == request->device->info.kind &&
           (!request->only || strcmp(request->only, solver->name) == 0);
}

/* Appends "name: reason"; several of them are separated by semicolons. */
static void join(char *text, size_t capacity, const char *name, const char *reason) {
    size_t used = strlen(text);
    snprintf(text + used, capacity - used, "%s%s: %s", used ? "; " : "", name, reason);
}

/* Values beyond a solver's knobs are set to 0, so that configs can be compared as a whole. */
static int candidates_of(const struct nh_request *request, const struct nh_solver *solver,
                         const struct nh_problem *view, struct nh_config *config, int capacity) {
    memset(config, 0, (size_t)capacity * sizeof *config);
    return solver->candidates(view, request->device, config, capacity);
}

static bool is_row(const struct nh_request *request, int row) {
    return row < NH_MOST_SOLVERS && request->table[row];
}

/* The row of a solver that the request asks, or -1. */
static int row_of(const struct nh_request *request, const char *name) {
    int row = 0;
    while (is_row(request, row) && strcmp(request->table[row]->name, name) != 0)
        row++;
    return is_row(request, row) && is_asked(request, request->table[row]) ? row : -1;
}

static const char *refusal_of(const struct nh_request *request, const struct nh_solver *solver) {
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, request->problem, &room);
    return nh_solver_refusal(solver, view, request->device);
}

/* NULL, or why the solver is not asked even if it takes the problem. A request for this solver alone asks it. */
static const char *left_to_another(const struct nh_request *request,
                                   const struct nh_solver *solver) {
    if (!solver->left_to || request->only) return NULL;
    const int row = row_of(request, solver->left_to);
    return row >= 0 && !refusal_of(request, request->table[row])
               ? "left to a solver that is never slower here"
               : NULL;
}

/* ---- the best of each solver ---- */

/* The answers of the solvers, by rows of the table. */
struct survey {
    bool fastest; /* whether preferences decide only where estimates are nearly equal */
    uint32_t asked;
    const char *refusal[NH_MOST_SOLVERS];   /* NULL: it takes the problem */
    struct nh_choice best[NH_MOST_SOLVERS]; /* without a solver: no config was found */
};

/* Replaces *best by the config that the solver prefers among those that take at most most_ns. */
static void take_preferred(const struct nh_request *request, const struct nh_problem *view,
                           const struct nh_config *config, int count, double most_ns,
                           struct nh_choice *best) {
    const struct nh_solver *solver = best->solver;
    int least = solver->preference(solver, &best->config);
    for (int i = 0; i < count; i++) {
        int preference = solver->preference(solver, &config[i]);
        if (preference >= least) continue;
        double ns = solver->estimate(solver, view, request->device, &config[i], NULL);
        if (ns > most_ns) continue;
        *best = (struct nh_choice){.solver = solver, .config = config[i], .estimate_ns = ns};
        least = preference;
    }
}

/* Asks a solver for its best config. Returns how many configs it wrote: with `all`, all that the solver proposes. */
static int ask(const struct nh_request *request, int row, bool all,
               struct nh_config config[MOST_CANDIDATES], struct survey *survey) {
    const struct nh_solver *solver = request->table[row];
    struct nh_choice *best = &survey->best[row];
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, request->problem, &room);
    best->solver = NULL;
    survey->asked |= UINT32_C(1) << row;
    survey->refusal[row] = nh_solver_refusal(solver, view, request->device);
    if (survey->refusal[row]) return 0;
    int count = candidates_of(request, solver, view, config,
                              all || solver->preference ? MOST_CANDIDATES : 1);
    if (count < 1) {
        survey->refusal[row] = "no config fits";
        return 0;
    }
    *best = (struct nh_choice){.solver = solver, .config = config[0]};
    best->estimate_ns = solver->estimate(solver, view, request->device, &best->config, NULL);
    const double most_ns =
        best->estimate_ns * (survey->fastest ? NH_NEARLY : nh_about_as_long(best->estimate_ns));
    if (solver->preference) take_preferred(request, view, config, count, most_ns, best);
    return count;
}

/* Whether the solver has a config. A solver that was asked before is not asked again. */
static bool offers(const struct nh_request *request, int row, struct survey *survey) {
    if (!is_asked(request, request->table[row])) return false;
    struct nh_config config[MOST_CANDIDATES];
    if (!(survey->asked >> row & 1)) ask(request, row, false, config, survey);
    return survey->best[row].solver;
}

/* Whether the row's estimate is less than the other's. Ties go to the earlier row. */
static bool precedes(const struct survey *survey, int row, int other) {
    double ns = survey->best[row].estimate_ns, other_ns = survey->best[other].estimate_ns;
    return ns < other_ns || (ns == other_ns && row < other);
}

/* Returns the row with the least estimate among those whose bits are set in `rows`, or -1 if none takes the problem. */
static int least_of(const struct nh_request *request, uint32_t rows, struct survey *survey) {
    int least = -1;
    for (int row = 0; is_row(request, row); row++)
        if (rows >> row & 1 && !left_to_another(request, request->table[row]) &&
            offers(request, row, survey) && (least < 0 || precedes(survey, row, least)))
            least = row;
    return least;
}

/* ---- what wisdom knows ---- */

/* Whether the solver with the least estimate is one of `rows`. */
static bool have_least(const struct nh_request *request, uint32_t rows, struct survey *survey) {
    int other = least_of(request, ~rows, survey);
    if (other < 0) return true;
    for (int row = 0; is_row(request, row); row++)
        if (rows >> row & 1 && offers(request, row, survey) && precedes(survey, row, other))
            return true;
    return false;
}

/* The records of one key. The first visit finds the fastest one of each row of the table, of those whose config its solver can
 * read. A further one finds the best choice so far among the records of `row` whose config is one of those proposed. However many
 * records there are, there are at most as many visits as rows and one more. */
struct wise {
    const struct nh_request *request;
    struct nh_wisdom_key key;
    uint32_t rows; /* that have records, as bits */
    struct nh_choice fastest[NH_MOST_SOLVERS];
    int row, proposals;
    struct nh_config proposed[MOST_CANDIDATES];
    struct nh_choice best; /* without a solver: none */
};

/* Equal times are ordered by names, so that the result does not depend on the order of records. */
static bool comes_before(const struct nh_choice *choice, const struct nh_choice *other) {
    char text[NH_CONFIG_BYTES], other_text[NH_CONFIG_BYTES];
    if (choice->measured_ns != other->measured_ns) return choice->measured_ns < other->measured_ns;
    int order = strcmp(choice->solver->name, other->solver->name);
    if (order) return order < 0;
    nh_config_text(choice->solver, &choice->config, text, sizeof text);
    nh_config_text(other->solver, &other->config, other_text, sizeof other_text);
    return strcmp(text, other_text) < 0;
}

/* Replaces *first by the choice, unless that is not before it. */
static void keep_first(const struct nh_choice *choice, struct nh_choice *first) {
    if (!first->solver || comes_before(choice, first)) *first = *choice;
}

/* Reads a record. Returns its row, or -1 if it is about no solver that is asked or the solver cannot read its config. */
static int read_record(struct wise *wise, const struct nh_wisdom_record *record,
                       struct nh_choice *choice) {
    const int row = row_of(wise->request, record->solver);
    if (row < 0) return -1;
    wise->rows |= UINT32_C(1) << row;
    *choice = (struct nh_choice){.solver = wise->request->table[row],
                                 .measured_ns = record->median_ns,
                                 .samples = record->samples};
    return nh_config_parse(choice->solver, record->config, &choice->config) ? row : -1;
}

static void note_fastest(void *user, const struct nh_wisdom_record *record) {
    struct wise *wise = user;
    struct nh_choice choice;
    const int row = read_record(wise, record, &choice);
    if (row >= 0) keep_first(&choice, &wise->fastest[row]);
}

static void consider(void *user, const struct nh_wisdom_record *record) {
    struct wise *wise = user;
    struct nh_choice choice;
    if (read_record(wise, record, &choice) != wise->row) return;
    for (int i = 0; i < wise->proposals; i++)
        if (!memcmp(&wise->proposed[i], &choice.config, sizeof choice.config)) {
            keep_first(&choice, &wise->best);
            return;
        }
}

/* The row, of those whose bits are set, with the fastest record of all, or -1. */
static int fastest_row(const struct wise *wise, uint32_t rows) {
    int first = -1;
    for (int row = 0; is_row(wise->request, row); row++)
        if (rows >> row & 1 && wise->fastest[row].solver &&
            (first < 0 || comes_before(&wise->fastest[row], &wise->fastest[first])))
            first = row;
    return first;
}

/* Chooses the fastest candidate in wisdom that its solver still proposes, as wisdom may be older than the solver. If wisdom
 * has no record of the solver with the least estimate, it is not used: its records then come from measuring one solver
 * alone, or are older than that solver. */
static bool choose_by_wisdom(const struct nh_request *request, struct survey *survey,
                             struct nh_choice *choice) {
    struct wise wise = {.request = request};
    if (!nh_wisdom_has_any(request->wisdom)) return false;
    nh_wisdom_key(request->device, request->problem, &wise.key);
    nh_wisdom_visit(request->wisdom, &wise.key, note_fastest, &wise);
    for (uint32_t left = wise.rows; left; left &= ~(UINT32_C(1) << wise.row)) {
        wise.row = fastest_row(&wise, left);
        if (wise.row < 0) break;
        if (wise.best.solver && comes_before(&wise.best, &wise.fastest[wise.row])) break;
        wise.proposals = ask(request, wise.row, true, wise.proposed, survey);
        nh_wisdom_visit(request->wisdom, &wise.key, consider, &wise);
    }
    if (!wise.best.solver || !have_least(request, wise.rows, survey)) return false;
    *choice = wise.best;
    return true;
}

/* ---- choosing ---- */

static nhood_status choose_by_estimate(const struct nh_request *request, struct survey *survey,
                                       struct nh_choice *choice) {
    char refusals[3072] = "";
    int least = least_of(request, UINT32_MAX, survey);
    if (least >= 0) {
        *choice = survey->best[least];
        return NHOOD_OK;
    }
    if (!survey->asked)
        return nh_error(NHOOD_ERR_ARGUMENT, "options.solver = '%s': no such solver runs on %s",
                        request->only ? request->only : "", request->device->info.name);
    for (int row = 0; is_row(request, row); row++)
        if (survey->asked >> row & 1)
            join(refusals, sizeof refusals, request->table[row]->name, survey->refusal[row]);
    if (request->device->info.kind == NHOOD_DEVICE_CUDA && nh_scale_refusal(request->problem))
        return nh_error(NHOOD_ERR_UNSUPPORTED, "scale = %g: %s", request->problem->scale,
                        nh_scale_refusal(request->problem));
    return nh_error(NHOOD_ERR_UNSUPPORTED, "no solver takes it: %s", refusals);
}

static nhood_status choose(const struct nh_request *request, bool fastest,
                           struct nh_choice *choice) {
    struct survey survey;
    survey.asked = 0;
    survey.fastest = fastest;
    if (choose_by_wisdom(request, &survey, choice)) return NHOOD_OK;
    return choose_by_estimate(request, &survey, choice);
}

nhood_status nh_planner_choose(const struct nh_request *request, struct nh_choice *choice) {
    return choose(request, false, choice);
}

nhood_status nh_planner_choose_fastest(const struct nh_request *request, struct nh_choice *choice) {
    return choose(request, true, choice);
}

/* Inserts into a list of the least estimates, and returns its new length. Of equal ones, the one inserted first precedes. */
static int insert(struct nh_choice *list, int count, int capacity, const struct nh_choice *choice) {
    int at = count;
    while (at > 0 && list[at - 1].estimate_ns > choice->estimate_ns)
        at--;
    if (at == capacity) return count;
    count += count < capacity;
    memmove(&list[at + 1], &list[at], (size_t)(count - 1 - at) * sizeof *list);
    list[at] = *choice;
    return count;
}

int nh_planner_list(const struct nh_request *request, struct nh_choice *choice, int capacity) {
    int count = 0;
    for (int i = 0; request->table[i]; i++) {
        const struct nh_solver *solver = request->table[i];
        if (!is_asked(request, solver) || left_to_another(request, solver)) continue;
        struct nh_problem room;
        const struct nh_problem *view = nh_solver_view(solver, request->problem, &room);
        if (nh_solver_refusal(solver, view, request->device)) continue;
        struct nh_config config[MOST_CANDIDATES];
        int configs = candidates_of(request, solver, view, config, MOST_CANDIDATES);
        for (int c = 0; c < configs; c++) {
            double ns = solver->estimate(solver, view, request->device, &config[c], NULL);
            const struct nh_choice found = {
                .solver = solver, .config = config[c], .estimate_ns = ns};
            count = insert(choice, count, capacity, &found);
        }
    }
    return count;
}

/* ---- explaining ---- */

static void predict(const struct nh_request *request, const struct nh_solver *solver,
                    const struct nh_problem *view, const struct nh_config *config,
                    nhood_candidate *row) {
    struct nh_count count = {.tiles = 0};
    row->estimate_ns = solver->estimate(solver, view, request->device, config, &count);
    row->tiles = count.tiles;
    row->masked_tiles = count.masked_tiles;
    row->product_flops = count.flops;
    memcpy(row->limit_ns, count.limit_ns, sizeof row->limit_ns);
}

static void explain_solver(const struct nh_request *request, const struct nh_solver *solver,
                           const struct nh_choice *chosen, nhood_candidate_fn report, void *user) {
    nhood_candidate row = {.struct_size = sizeof row, .solver = solver->name, .config = ""};
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, request->problem, &room);
    row.refusal = nh_solver_refusal(solver, view, request->device);
    if (!row.refusal && solver != chosen->solver) row.refusal = left_to_another(request, solver);
    if (row.refusal) {
        report(user, &row);
        return;
    }
    struct nh_wisdom_key key;
    struct nh_config config[MOST_CANDIDATES];
    bool reported = false; /* two candidates may have the same config */
    int count = candidates_of(request, solver, view, config, MOST_CANDIDATES);
    nh_wisdom_key(request->device, request->problem, &key);
    for (int i = 0; i < count; i++) {
        char text[NH_CONFIG_BYTES];
        int64_t median_ns = 0, samples = 0;
        nh_config_text(solver, &config[i], text, sizeof text);
        nh_wisdom_look_up(request->wisdom, &key, solver->name, text, &median_ns, &samples);
        row.config = text;
        predict(request, solver, view, &config[i], &row);
        row.measured_ns = (double)median_ns;
        row.samples = samples;
        row.chosen = !reported && solver == chosen->solver &&
                     memcmp(&config[i], &chosen->config, sizeof config[i]) == 0;
        reported |= row.chosen != 0;
        report(user, &row);
    }
}

void nh_planner_explain(const struct nh_request *request, const struct nh_choice *chosen,
                        nhood_candidate_fn report, void *user) {
    static const struct nh_choice none = {.solver = NULL};
    for (int i = 0; request->table[i]; i++)
        if (is_asked(request, request->table[i]))
            explain_solver(request, request->table[i], chosen ? chosen : &none, report, user);
}

/* ---- building ---- */

/* The choices that could not be built. nhood_last_error has the reason of the last one. */
struct failures {
    nhood_status first;
    const char *last; /* its solver's name */
    char text[3072];
};

static bool gives_way(nhood_status status) {
    return status == NHOOD_ERR_COMPILE || status == NHOOD_ERR_DEVICE;
}

double nh_choice_estimate(const struct nh_choice *choice, const struct nh_problem *problem,
                          const struct nh_device *device) {
    const struct nh_solver *solver = choice->solver;
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, problem, &room);
    if (nh_solver_first_refusal(solver, view, device)) return INFINITY;
    return solver->estimate(solver, view, device, &choice->config, NULL);
}

nhood_status nh_choice_build(const struct nh_choice *choice, const struct nh_problem *problem,
                             const struct nh_device *device, struct nh_operation **operation) {
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(choice->solver, problem, &room);
    return choice->solver->build(choice->solver, view, device, &choice->config, operation);
}

static nhood_status build_one(const struct nh_request *request, const struct nh_choice *choice,
                              struct failures *failures, struct nh_built *built) {
    const char *name = choice->solver->name;
    if (failures->last)
        nh_log(request->device->host, NHOOD_LOG_WARNING, "%s gives way to %s: %s", failures->last,
               name, nhood_last_error());
    nhood_status status =
        nh_choice_build(choice, request->problem, request->device, &built->operation);
    built->choice = *choice;
    if (!gives_way(status)) return status;
    if (!failures->first) failures->first = status;
    failures->last = name;
    join(failures->text, sizeof failures->text, name, nhood_last_error());
    join(built->failures, sizeof built->failures, name, nhood_last_error());
    return status;
}

/* Lists the best candidate of each solver except `solver`, the one with the least estimate first. Returns their number. */
static int rank_others(const struct nh_request *request, const struct nh_solver *solver,
                       struct nh_choice *choice) {
    struct survey survey;
    int count = 0;
    survey.asked = 0;
    survey.fastest = false;
    for (int row = 0; is_row(request, row); row++)
        if (request->table[row] != solver && offers(request, row, &survey))
            count = insert(choice, count, NH_MOST_SOLVERS, &survey.best[row]);
    return count;
}

nhood_status nh_planner_build(const struct nh_request *request, const struct nh_choice *choice,
                              struct nh_built *built) {
    struct failures failures; /* its text is large, so it is not cleared */
    struct nh_choice other[NH_MOST_SOLVERS];
    failures.first = NHOOD_OK;
    failures.last = NULL;
    failures.text[0] = built->failures[0] = '\0';
    nhood_status status = build_one(request, choice, &failures, built);
    int others = gives_way(status) ? rank_others(request, choice->solver, other) : 0;
    for (int i = 0; i < others && gives_way(status); i++)
        status = build_one(request, &other[i], &failures, built);
    return gives_way(status) ? nh_error(failures.first, "%s", failures.text) : status;
}
