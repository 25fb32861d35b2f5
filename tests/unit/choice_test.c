/* Planning asks each solver for its best candidate alone, a search that passes over whatever cannot win: no candidate that
 * the same solver lists when it is asked for all may have a smaller estimate, nor one of another solver. On a GPU, where
 * some configs are preferred to others that take about as long, none may have one that is smaller by more than a twentieth. */
#include "nhood.h"
#include "random_problem.h"
#include "test.h"

#include <math.h>

enum { MOST_SOLVERS = 16 };

/* On the CPU rounding alone, on a GPU nh_about_as_long of core/solver.h. */
static const double most_of_least[] = {1 + 1e-9, 1.05 + 1e-9};

struct solver {
    char name[32];
    double least_ns;
};

struct rows {
    struct solver solver[MOST_SOLVERS];
    int solvers;
    double least_ns, chosen_ns;
};

static struct solver *find(struct rows *rows, const char *name) {
    struct solver *solver = rows->solver, *end = rows->solver + rows->solvers;
    while (solver < end && strcmp(solver->name, name) != 0)
        solver++;
    if (solver < end) return solver;
    rows->solvers++;
    snprintf(solver->name, sizeof solver->name, "%s", name);
    solver->least_ns = INFINITY;
    return solver;
}

static void add_row(void *user, const nhood_candidate *row) {
    struct rows *rows = user;
    if (row->refusal || rows->solvers == MOST_SOLVERS) return;
    struct solver *solver = find(rows, row->solver);
    solver->least_ns = fmin(solver->least_ns, row->estimate_ns);
    rows->least_ns = fmin(rows->least_ns, row->estimate_ns);
    if (row->chosen) rows->chosen_ns = row->estimate_ns;
}

/* solver: NULL for any. Returns what is listed. */
static struct rows check_choice(nhood_context *context, int32_t device, const char *text,
                                const char *solver) {
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    struct rows rows = {.least_ns = INFINITY, .chosen_ns = NAN};
    nhood_problem problem;
    nhood_status status = nhood_problem_parse(text, &problem);
    if (!status) status = nhood_plan_explain(context, device, &problem, &options, add_row, &rows);
    CHECK(!status, "%s: %s", text, nhood_last_error());
    CHECK(status || rows.chosen_ns <= rows.least_ns * most_of_least[device > 0],
          "%s, device %d, %s: %g ns were chosen, %g are listed", text, device,
          solver ? solver : "any solver", rows.chosen_ns, rows.least_ns);
    return rows;
}

static void check_device(const char *gpu, uint64_t *state, int problems) {
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .cache = "", .describe = gpu};
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    int32_t device = gpu ? nhood_device_count(context) - 1 : 0;
    for (int i = 0; i < problems; i++) {
        char text[512];
        random_problem(state, text, sizeof text);
        struct rows rows = check_choice(context, device, text, NULL);
        for (int s = 0; s < rows.solvers; s++)
            check_choice(context, device, text, rows.solver[s].name);
    }
    nhood_context_destroy(context);
}

/* Where f32 does not take the scale, the error names it and its limits, and each CUDA solver refuses. */
static void check_scale(void) {
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .cache = "", .describe = "h200"};
    nhood_context *context = NULL;
    nhood_problem problem;
    struct rows rows = {.least_ns = INFINITY};
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    CHECK(!nhood_problem_parse("fwd:f32:b1h1d32:64:w7:scale1e+39", &problem), "%s",
          nhood_last_error());
    nhood_status status = nhood_plan_explain(context, nhood_device_count(context) - 1, &problem,
                                             NULL, add_row, &rows);
    CHECK(status == NHOOD_ERR_UNSUPPORTED && strstr(nhood_last_error(), "scale = 1e+39: ") &&
              strstr(nhood_last_error(), "[2^-100, 2^100]"),
          "%s", status ? nhood_last_error() : "taken");
    CHECK(!rows.solvers, "%d solvers take it", rows.solvers);
    nhood_context_destroy(context);
}

int main(void) {
    uint64_t state = 20240307;
    check_device(NULL, &state, 40);
    check_device("a100", &state, 60);
    check_device("h200", &state, 120);
    check_scale();
    return test_result();
}
