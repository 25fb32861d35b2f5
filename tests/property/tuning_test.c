/* Plans and wisdom: the same wisdom, however it was put together, makes the same plans; measuring happens once;
 * what was chosen by measuring computes what was asked for. */
#include "case.h"

#include <pthread.h>
#include <time.h>

static const char *const problems[] = {
    "fwd:f32:b1h2d16:20x20:w7x7",         "bwd:f32:b1h2d16:20x20:w7x7",
    "fwd:bf16:b1h4k2d32:300:w31:c1",      "pn:f32:b2h1d8:70:w5:d3",
    "fwd:f64:b1h1d8:6x7x8:w3x3x3:s1x2x1",
};
enum { PROBLEMS = sizeof problems / sizeof problems[0], TEXT_BYTES = 1 << 16 };

static nhood_context *create(void) {
    nhood_context_options options = {.struct_size = sizeof options, .threads = 2, .cache = ""};
    nhood_context *context = NULL;
    if (nhood_context_create(&options, &context)) exit(EXIT_FAILURE);
    return context;
}

static void describe(nhood_context *context, const nhood_problem *problem, int32_t effort,
                     char description[512]) {
    nhood_plan_options options = {
        .struct_size = sizeof options, .effort = effort, .budget_s = 0.03};
    nhood_plan *plan = NULL;
    nhood_status status = nhood_plan_create(context, 0, problem, &options, &plan);
    CHECK(!status, "%s", nhood_last_error());
    snprintf(description, 512, "%s", nhood_plan_description(plan));
    nhood_plan_release(plan);
}

static void export(nhood_context *context, char text[TEXT_BYTES]) {
    CHECK(!nhood_wisdom_export(context, text, TEXT_BYTES, NULL), "%s", nhood_last_error());
}

/* Imports the text's lines one by one in random order, some of them twice. */
static void import_shuffled(nhood_context *context, const char *text, uint64_t seed) {
    const char *line[1024];
    int count = 0;
    for (const char *at = strchr(text, '\n') + 1; *at; at = strchr(at, '\n') + 1)
        line[count++] = at;
    for (int i = count - 1; i > 0; i--) {
        int other = (int)test_between(&seed, 0, i);
        const char *moved = line[i];
        line[i] = line[other];
        line[other] = moved;
    }
    for (int i = 0; i < count + count / 2; i++) {
        char one[1200];
        int64_t accepted = 0;
        const char *start = line[i % count];
        snprintf(one, sizeof one, "nhood-wisdom 1\n%.*s", (int)strcspn(start, "\n"), start);
        CHECK(!nhood_wisdom_import(context, one, &accepted) && accepted == 1, "%s", one);
    }
}

static void same_wisdom_same_plans(void) {
    static char wisdom[TEXT_BYTES], other[TEXT_BYTES];
    nhood_context *tuned = create();
    nhood_problem problem[PROBLEMS];
    char measured[PROBLEMS][512], description[512];
    for (int i = 0; i < PROBLEMS; i++) {
        nhood_problem_parse(problems[i], &problem[i]);
        describe(tuned, &problem[i], NHOOD_EFFORT_MEASURE, measured[i]);
        CHECK(strstr(measured[i], "sample"), "%s", measured[i]);
    }
    export(tuned, wisdom);
    for (uint64_t seed = 1; seed <= 5; seed++) {
        nhood_context *given = create();
        import_shuffled(given, wisdom, seed);
        export(given, other);
        CHECK(!strcmp(wisdom, other), "wisdom differs:\n%s--\n%s", wisdom, other);
        for (int32_t effort = NHOOD_EFFORT_ESTIMATE; effort <= NHOOD_EFFORT_WISDOM_ONLY; effort++)
            for (int i = 0; i < PROBLEMS; i++) {
                describe(given, &problem[i], effort, description);
                CHECK(!strcmp(description, measured[i]), "%s, not %s", description, measured[i]);
            }
        export(given, other);
        CHECK(!strcmp(wisdom, other), "planning changed wisdom");
        nhood_context_destroy(given);
    }
    /* Heads first: another layout, the same wisdom. */
    nhood_problem layout = problem[0];
    for (int t = NHOOD_Q; t <= NHOOD_O; t++)
        layout.strides[t] =
            (nhood_strides){.batch = 400 * 32, .axis = {20 * 16, 16}, .head = 400 * 16};
    describe(tuned, &layout, NHOOD_EFFORT_WISDOM_ONLY, description);
    CHECK(!strcmp(description, measured[0]), "%s, not %s", description, measured[0]);
    nhood_context_destroy(tuned);
}

/* A solver that was measured on request alone does not become everyone's choice: measuring is still due. (Which solver is
 * the faster one, a busy machine may get wrong.) */
static void one_solver_measured(void) {
    nhood_context *context = create();
    nhood_problem problem;
    nhood_plan *plan = NULL;
    static char wisdom[TEXT_BYTES];
    char before[512], after[512];
    nhood_plan_options options = {.struct_size = sizeof options,
                                  .solver = "reference",
                                  .effort = NHOOD_EFFORT_MEASURE,
                                  .budget_s = 0.01};
    nhood_problem_parse(problems[0], &problem);
    describe(context, &problem, NHOOD_EFFORT_ESTIMATE, before);
    CHECK(!nhood_plan_create(context, 0, &problem, &options, &plan) &&
              strstr(nhood_plan_description(plan), "reference") &&
              strstr(nhood_plan_description(plan), "sample"),
          "%s", nhood_plan_description(plan));
    nhood_plan_release(plan);
    describe(context, &problem, NHOOD_EFFORT_ESTIMATE, after);
    CHECK(!strcmp(before, after), "%s", after);
    describe(context, &problem, NHOOD_EFFORT_MEASURE, after);
    export(context, wisdom);
    CHECK(strstr(wisdom, "cpu.fused") && strstr(after, "sample"), "%s:\n%s", after, wisdom);
    nhood_context_destroy(context);
}

/* Gives a backward the output and the log-sum-exps of its forward, which has the same queries, keys and values. */
static void take_results(struct test_case *backward, const struct test_case *forward) {
    for (int t = NHOOD_O; t <= NHOOD_LSE; t++)
        for (int64_t i = 0; i < forward->elements[t]; i++)
            case_set(backward, t, i, case_get(forward, t, i));
}

/* Every config that measuring may choose computes the same, up to rounding. */
static void measured_results(void) {
    nhood_context *context = create();
    char description[512];
    struct test_case forward;
    case_create(&forward, problems[0], 5);
    CHECK(!case_run(context, &forward, "reference"), "%s", nhood_last_error());
    for (int i = 0; i < 2; i++) {
        struct test_case expected, tuned;
        case_create(&expected, problems[i], 5);
        case_create(&tuned, problems[i], 5);
        if (i) take_results(&expected, &forward);
        if (i) take_results(&tuned, &forward);
        CHECK(!case_run(context, &expected, "reference"), "%s", nhood_last_error());
        describe(context, &tuned.problem, NHOOD_EFFORT_MEASURE, description);
        CHECK(!case_run(context, &tuned, NULL), "%s", nhood_last_error());
        for (int t = i ? NHOOD_D_Q : NHOOD_O; t <= (i ? NHOOD_D_V : NHOOD_O); t++)
            CHECK(case_difference(&expected, &tuned, t) < 1e-4, "%s: %g", description,
                  case_difference(&expected, &tuned, t));
        case_destroy(&expected);
        case_destroy(&tuned);
    }
    case_destroy(&forward);
    nhood_context_destroy(context);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Each different member of a group gets lines of wisdom, which its own plan takes. The budget is for all of them: what the first
 * member leaves is shared by the others, and the last ones are timed even if nothing is left. */
static void group_measured(void) {
    enum { MEMBERS = 24 };
    static char wisdom[TEXT_BYTES], again[TEXT_BYTES];
    nhood_context *context = create();
    nhood_problem member[MEMBERS + 1];
    nhood_plan *plan = NULL;
    nhood_plan_options options = {
        .struct_size = sizeof options, .effort = NHOOD_EFFORT_WISDOM_ONLY, .budget_s = 0.25};
    for (int i = 0; i <= MEMBERS; i++) {
        char text[64];
        /* small, so that a run takes no time beside the budget, however slow the kernels are */
        snprintf(text, sizeof text, "fwd:f32:b1h1d8:%dx10:w3x3", 10 + i % MEMBERS);
        nhood_problem_parse(text, &member[i]);
    }
    CHECK(nhood_plan_create_group(context, 0, member, MEMBERS + 1, &options, &plan) ==
                  NHOOD_ERR_CACHE_MISS &&
              strstr(nhood_last_error(), "member 0: wisdom knows nothing"),
          "%s", nhood_last_error());
    options.effort = NHOOD_EFFORT_MEASURE;
    const double start = seconds();
    CHECK(!nhood_plan_create_group(context, 0, member, MEMBERS + 1, &options, &plan), "%s",
          nhood_last_error());
    const double took = seconds() - start;
    nhood_plan_release(plan);
    /* Members of their own budgets would take 24 times as long. */
    CHECK(took < 8 * options.budget_s, "%g s, of a budget of %g s", took, options.budget_s);
    export(context, wisdom);
    options.effort = NHOOD_EFFORT_WISDOM_ONLY;
    CHECK(!nhood_plan_create_group(context, 0, member, MEMBERS + 1, &options, &plan), "%s",
          nhood_last_error());
    nhood_plan_release(plan);
    for (int i = 0; i < MEMBERS; i++) {
        char description[512], line[64];
        describe(context, &member[i], NHOOD_EFFORT_WISDOM_ONLY, description);
        snprintf(line, sizeof line, " fwd:f32:b1h1d8:%dx10:w3x3 ", 10 + i);
        CHECK(strstr(wisdom, line) && strstr(description, "sample"), "%s: %s", line, description);
    }
    /* Measured once. */
    options.effort = NHOOD_EFFORT_MEASURE;
    CHECK(!nhood_plan_create_group(context, 0, member, MEMBERS + 1, &options, &plan), "%s",
          nhood_last_error());
    nhood_plan_release(plan);
    export(context, again);
    CHECK(!strcmp(wisdom, again), "known members were measured again");
    nhood_context_destroy(context);
}

struct worker {
    nhood_context *context;
    char description[512];
};

static void *measure_in_thread(void *argument) {
    struct worker *worker = argument;
    nhood_problem problem;
    nhood_problem_parse(problems[0], &problem);
    describe(worker->context, &problem, NHOOD_EFFORT_MEASURE, worker->description);
    return NULL;
}

/* Threads that ask for the same at once wait for one measurement, and agree. */
static void threads_agree(void) {
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    struct worker worker[THREADS];
    nhood_context *context = create();
    for (int i = 0; i < THREADS; i++) {
        worker[i].context = context;
        pthread_create(&thread[i], NULL, measure_in_thread, &worker[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 1; i < THREADS; i++)
        CHECK(!strcmp(worker[0].description, worker[i].description), "%s, %s",
              worker[0].description, worker[i].description);
    nhood_context_destroy(context);
}

int main(void) {
    same_wisdom_same_plans();
    one_solver_measured();
    measured_results();
    group_measured();
    threads_agree();
    return test_result();
}
