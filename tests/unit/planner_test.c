/* The planner with solvers made for the purpose. */
#include "planner.h"

#include "test.h"

#include "fake_solvers.h"

#include <math.h>

static double middle_is_best(const struct nh_solver *solver, const struct nh_problem *problem,
                             const struct nh_device *device, const struct nh_config *config,
                             struct nh_count *count) {
    (void)solver;
    (void)problem;
    (void)device;
    (void)count;
    return config->value[0] == 1 ? 10 : 20;
}

static double slow(const struct nh_solver *solver, const struct nh_problem *problem,
                   const struct nh_device *device, const struct nh_config *config,
                   struct nh_count *count) {
    (void)solver;
    (void)problem;
    (void)device;
    (void)count;
    return config->value[0] == 1 ? 100 : 101;
}

/* What the estimates below are multiplied by. */
static double longer = 1;

/* 10, second_ns and 11 for sizes 0, 1 and 2: the second takes about as long as the first. */
static double second_ns = 10.4;
static double alike(const struct nh_solver *solver, const struct nh_problem *problem,
                    const struct nh_device *device, const struct nh_config *config,
                    struct nh_count *count) {
    (void)solver;
    const double ns[FAKE_CONFIGS] = {10, second_ns, 11};
    (void)problem;
    (void)device;
    (void)count;
    return longer * ns[config->value[0]];
}

static int candidates_in_order(const struct nh_problem *problem, const struct nh_device *device,
                               struct nh_config *config, int capacity) {
    (void)problem;
    (void)device;
    int count = capacity < FAKE_CONFIGS ? capacity : FAKE_CONFIGS;
    for (int i = 0; i < count; i++)
        config[i].value[0] = i;
    return count;
}

static int larger_first(const struct nh_solver *solver, const struct nh_config *config) {
    return strcmp(solver->name, "choosy") ? 0 : FAKE_CONFIGS - config->value[0];
}

/* What the next builds answer. */
static nhood_status first_answer, second_answer;

static nhood_status build_first(const struct nh_solver *solver, const struct nh_problem *problem,
                                const struct nh_device *device, const struct nh_config *config,
                                struct nh_operation **operation) {
    (void)solver;
    (void)problem;
    (void)device;
    if (first_answer) return nh_error(first_answer, "line 1: no such thing");
    return fake_build("first", config, operation);
}

static nhood_status build_second(const struct nh_solver *solver, const struct nh_problem *problem,
                                 const struct nh_device *device, const struct nh_config *config,
                                 struct nh_operation **operation) {
    (void)solver;
    (void)problem;
    (void)device;
    if (second_answer) return nh_error(second_answer, "out of registers");
    return fake_build("second", config, operation);
}

static double middle_is_best_of_tiles(const struct nh_solver *solver,
                                      const struct nh_problem *problem,
                                      const struct nh_device *device,
                                      const struct nh_config *config, struct nh_count *count) {
    int32_t size = config->value[0];
    if (count)
        *count = (struct nh_count){
            size + 1, size, 100, {[NHOOD_LIMIT_TENSOR] = 7, [NHOOD_LIMIT_MEMORY] = 3}};
    return middle_is_best(solver, problem, device, config, NULL);
}

static const struct nh_solver refusing = {
    "refusing",     0,    0,    fake_knobs, NULL, fake_refuses, fake_candidates,
    middle_is_best, NULL, NULL, NULL,       NULL, NULL,         NULL};
static const struct nh_solver first = {
    "first",     0,    0,    fake_knobs, NULL, fake_takes, fake_candidates, middle_is_best_of_tiles,
    build_first, NULL, NULL, NULL,       NULL, NULL};
static const struct nh_solver second = {
    "second",     0,    0,    fake_knobs, NULL, fake_takes, fake_candidates, middle_is_best,
    build_second, NULL, NULL, NULL,       NULL, NULL};
static const struct nh_solver last = {
    "last", 0,    0,    fake_knobs, NULL, fake_takes, fake_candidates,
    slow,   NULL, NULL, NULL,       NULL, NULL,       NULL};
static const struct nh_solver elsewhere = {
    "elsewhere",    1,    0,    fake_knobs, NULL, fake_takes, fake_candidates,
    middle_is_best, NULL, NULL, NULL,       NULL, NULL,       NULL};

static const struct nh_solver *const table[] = {&refusing, &elsewhere, &last,
                                                &first,    &second,    NULL};

static struct nh_host host;
static struct nh_device device = {
    .info = {.kind = 0, .name = "test", .description = "a chip, 2 cores"}, .host = &host};
static struct nh_problem problem;

struct rows {
    int all, chosen, refused, measured, counted;
    double tiles;
    char solver[16], config[16];
};

static void count_rows(void *user, const nhood_candidate *row) {
    struct rows *rows = user;
    rows->all++;
    rows->chosen += row->chosen;
    rows->refused += row->refusal != NULL;
    rows->measured += row->samples > 0 && row->measured_ns > 0;
    rows->counted += row->masked_tiles == row->tiles - 1 && row->product_flops == 100 &&
                     row->limit_ns[NHOOD_LIMIT_TENSOR] == 7 &&
                     row->limit_ns[NHOOD_LIMIT_MEMORY] == 3;
    rows->tiles += row->tiles;
    if (!row->chosen) return;
    snprintf(rows->solver, sizeof rows->solver, "%s", row->solver);
    snprintf(rows->config, sizeof rows->config, "%s", row->config);
}

/* The planner takes the config that the solver prefers among those that take about as long as the least estimate, and the
 * first of as good ones. */
static void preferences(struct nh_wisdom *wisdom) {
    static const struct nh_solver choosy = {.name = "choosy",
                                            .knob = fake_knobs,
                                            .refuse = fake_takes,
                                            .candidates = candidates_in_order,
                                            .estimate = alike,
                                            .preference = larger_first},
                                  easy = {.name = "easy",
                                          .knob = fake_knobs,
                                          .refuse = fake_takes,
                                          .candidates = candidates_in_order,
                                          .estimate = alike,
                                          .preference = larger_first};
    const struct nh_solver *const choosy_table[] = {&choosy, NULL}, *const easy_table[] = {&easy,
                                                                                           NULL};
    struct nh_request request = {choosy_table, &device, &problem, NULL, wisdom};
    struct nh_choice choice;
    CHECK(!nh_planner_choose(&request, &choice) && choice.config.value[0] == 1 &&
              choice.estimate_ns == 10.4,
          "size %d, not what is preferred of sizes 0 and 1", (int)choice.config.value[0]);
    /* For the fastest, 4 % decide, and less than 1 % do not. */
    CHECK(!nh_planner_choose_fastest(&request, &choice) && choice.config.value[0] == 0,
          "size %d, not the fastest", (int)choice.config.value[0]);
    second_ns = 10.09;
    CHECK(!nh_planner_choose_fastest(&request, &choice) && choice.config.value[0] == 1,
          "size %d, not the preferred one of two that are as fast", (int)choice.config.value[0]);
    second_ns = 10.4;
    request.table = easy_table;
    CHECK(!nh_planner_choose(&request, &choice) && choice.config.value[0] == 0 &&
              choice.estimate_ns == 10,
          "size %d, though none is preferred", (int)choice.config.value[0]);
    /* 4.9 ms, and 5.1 ms, which are worth a kernel of their own. */
    request.table = choosy_table;
    longer = 0.49e6;
    CHECK(!nh_planner_choose(&request, &choice) && choice.config.value[0] == 1,
          "size %d of less than 5 ms", (int)choice.config.value[0]);
    longer = 0.51e6;
    CHECK(!nh_planner_choose(&request, &choice) && choice.config.value[0] == 0,
          "size %d of more than 5 ms", (int)choice.config.value[0]);
    longer = 1;
}

/* Solvers leave values alone that they have no knobs for: the planner must not compare what was there before. */
static void dirty_the_stack(int byte) {
    unsigned char scratch[1 << 15];
    unsigned char *volatile escaped = scratch; /* or the compiler drops it */
    memset(escaped, byte, sizeof scratch);
}

static void estimates(struct nh_wisdom *wisdom) {
    struct nh_request request = {table, &device, &problem, NULL, wisdom};
    struct nh_choice choice;
    struct rows rows = {0};
    dirty_the_stack(0x5a);
    CHECK(!nh_planner_choose(&request, &choice), "%s", nhood_last_error());
    CHECK(choice.solver == &first && choice.config.value[0] == 1 && choice.estimate_ns == 10 &&
              choice.samples == 0,
          "ties go to the first");
    dirty_the_stack(0xa5);
    nh_planner_explain(&request, &choice, count_rows, &rows);
    CHECK(rows.all == 10 && rows.chosen == 1 && rows.refused == 1 && rows.measured == 0 &&
              !strcmp(rows.solver, "first") && !strcmp(rows.config, "size=1"),
          "%d rows, %d chosen, %d refused, %s %s", rows.all, rows.chosen, rows.refused, rows.solver,
          rows.config);
    CHECK(rows.counted == 3 && rows.tiles == 1 + 2 + 3,
          "%d rows count, %g tiles: those of the first solver alone", rows.counted, rows.tiles);
    struct nh_choice list[4];
    CHECK(nh_planner_list(&request, list, 4) == 4 && list[0].solver == &first &&
              list[1].solver == &second && list[2].solver == &first && list[2].estimate_ns == 20 &&
              list[2].config.value[0] == 0 && list[3].config.value[0] == 2,
          "the four least estimates");
    request.only = "second";
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &second, "by name");
    request.only = "elsewhere";
    CHECK(nh_planner_choose(&request, &choice) == NHOOD_ERR_ARGUMENT, "a solver of another device");
    const struct nh_solver *const none[] = {&refusing, NULL};
    request.only = NULL;
    request.table = none;
    CHECK(nh_planner_choose(&request, &choice) == NHOOD_ERR_UNSUPPORTED &&
              strstr(nhood_last_error(), "refusing: it never does"),
          "%s", nhood_last_error());
}

static void learn(struct nh_wisdom *wisdom, const char *solver, const char *config,
                  int64_t median_ns) {
    struct nh_wisdom_key key;
    nh_wisdom_key(&device, &problem, &key);
    struct nh_wisdom_record record = {key.device, key.problem, solver, config, median_ns, 7};
    CHECK(!nh_wisdom_add(wisdom, &record), "%s", nhood_last_error());
}

static void wisdom_decides(struct nh_wisdom *wisdom) {
    struct nh_request request = {table, &device, &problem, NULL, wisdom};
    struct nh_choice choice;
    learn(wisdom, "last", "size=2", 9);
    nh_planner_choose(&request, &choice);
    CHECK(choice.solver == &first && !choice.samples,
          "records that lack the expected solver do not count");
    learn(wisdom, "first", "size=1", 40);
    nh_planner_choose(&request, &choice);
    CHECK(choice.solver == &last && choice.config.value[0] == 2 && choice.measured_ns == 9 &&
              choice.samples == 7,
          "the measured one");
    struct rows rows = {0};
    nh_planner_explain(&request, &choice, count_rows, &rows);
    CHECK(rows.measured == 2 && !strcmp(rows.solver, "last") && !strcmp(rows.config, "size=2"),
          "%d measured, %s %s", rows.measured, rows.solver, rows.config);
    /* None of these can be built today, however fast they were. */
    learn(wisdom, "refusing", "size=0", 1);
    learn(wisdom, "elsewhere", "size=0", 1);
    learn(wisdom, "forgotten", "size=0", 1);
    learn(wisdom, "first", "size=3", 1);
    learn(wisdom, "first", "size=1,more=2", 1);
    learn(wisdom, "first", "", 1);
    nh_planner_choose(&request, &choice);
    CHECK(choice.solver == &last, "unusable records");
    /* However many there are, each solver is asked once for what it proposes, and once for its estimate. */
    for (int i = 0; i < 10000; i++) {
        char config[32];
        snprintf(config, sizeof config, "size=%d", 100 + i);
        learn(wisdom, i % 2 ? "first" : "last", config, 1 + i % 7);
    }
    fake_asked = 0;
    nh_planner_choose(&request, &choice);
    CHECK(choice.solver == &last && choice.measured_ns == 9 && fake_asked < 8,
          "candidates were asked for %d times", fake_asked);
    learn(wisdom, "second", "size=0", 9);
    learn(wisdom, "last", "size=1", 9);
    nh_planner_choose(&request, &choice);
    CHECK(choice.solver == &last && choice.config.value[0] == 1,
          "equal times: by name, whatever the order");
    request.only = "first";
    nh_planner_choose(&request, &choice);
    CHECK(choice.measured_ns == 40, "wisdom of one solver");
}

/* If the best solver's code cannot be built, those behind it follow in the order of their estimates. */
static void passing_over(struct nh_wisdom *wisdom) {
    struct nh_solver slow_last = last, slowest = second;
    slow_last.build = build_second;
    slowest.name = "slowest";
    slowest.estimate = slow;
    const struct nh_solver *const behind[] = {&slowest, &first, &slow_last, NULL};
    struct nh_request request = {behind, &device, &problem, NULL, wisdom};
    struct nh_choice choice;
    struct nh_built built = {.operation = NULL};
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &first, "%s",
          choice.solver->name);
    first_answer = NHOOD_ERR_COMPILE;
    CHECK(!nh_planner_build(&request, &choice, &built) && built.choice.solver == &slowest &&
              !strcmp(built.failures, "first: line 1: no such thing"),
          "the first of two equal ones: %s", built.failures);
    built.operation->destroy(built.operation);
    slowest.build = build_first;
    CHECK(
        !nh_planner_build(&request, &choice, &built) && built.choice.solver == &slow_last &&
            !strcmp(built.failures, "first: line 1: no such thing; slowest: line 1: no such thing"),
        "%s", built.failures);
    built.operation->destroy(built.operation);
    first_answer = NHOOD_OK;
}

static void building(struct nh_wisdom *wisdom) {
    const struct nh_solver *const both[] = {&first, &second, NULL};
    struct nh_request request = {both, &device, &problem, NULL, wisdom};
    struct nh_choice choice;
    struct nh_built built = {.operation = NULL};
    nh_planner_choose(&request, &choice);
    CHECK(!nh_planner_build(&request, &choice, &built) && built.choice.solver == &first &&
              !*built.failures,
          "%s", built.failures);
    built.operation->destroy(built.operation);
    const nhood_status gives_way[] = {NHOOD_ERR_COMPILE, NHOOD_ERR_DEVICE};
    for (int i = 0; i < 2; i++) {
        first_answer = gives_way[i];
        CHECK(!nh_planner_build(&request, &choice, &built) && built.choice.solver == &second &&
                  !strcmp(built.failures, "first: line 1: no such thing"),
              "%s", built.failures);
        built.operation->destroy(built.operation);
    }
    second_answer = NHOOD_ERR_COMPILE;
    CHECK(nh_planner_build(&request, &choice, &built) == NHOOD_ERR_DEVICE &&
              !strcmp(nhood_last_error(), "first: line 1: no such thing; second: out of registers"),
          "%s", nhood_last_error());
    second_answer = NHOOD_OK;
    first_answer = NHOOD_ERR_MEMORY;
    CHECK(nh_planner_build(&request, &choice, &built) == NHOOD_ERR_MEMORY,
          "a lack of memory is nobody's fault");
    CHECK(fake_live == 0, "%d operations kept", (int)fake_live);
}

static bool no_memory;

static void *allocate_some(void *user, size_t bytes, size_t alignment) {
    (void)user;
    (void)alignment;
    return no_memory ? NULL : test_allocate(bytes);
}

static void release_some(void *user, void *memory) {
    (void)user;
    test_free(memory);
}

static int asked_for_candidates;

static int counted_candidates(const struct nh_problem *given, const struct nh_device *on,
                              struct nh_config *config, int capacity) {
    asked_for_candidates++;
    return fake_candidates(given, on, config, capacity);
}

/* Was the solver asked, and did the choice come out as without a cache? */
static bool asks(struct nh_choice_cache *cache, const struct nh_request *request) {
    struct nh_choice expected, choice;
    CHECK(!nh_planner_choose(request, &expected), "%s", nhood_last_error());
    asked_for_candidates = 0;
    CHECK(!nh_choice_cache_choose(cache, request, &choice) && choice.solver == expected.solver &&
              choice.measured_ns == expected.measured_ns &&
              !memcmp(&choice.config, &expected.config, sizeof choice.config),
          "another choice");
    return asked_for_candidates > 0;
}

static void remembering(struct nh_wisdom *wisdom) {
    struct nh_solver counted = first;
    counted.candidates = counted_candidates;
    const struct nh_solver *const counting[] = {&refusing, &counted, &second, NULL};
    const struct nh_host some = {.allocate = allocate_some, .release = release_some};
    struct nh_request request = {counting, &device, &problem, NULL, wisdom};
    struct nh_choice_cache *cache = NULL;
    struct nh_choice choice;
    CHECK(!nh_choice_cache_create(&some, &cache), "%s", nhood_last_error());
    no_memory = true;
    CHECK(asks(cache, &request) && asks(cache, &request), "without memory nothing is remembered");
    no_memory = false;
    CHECK(asks(cache, &request) && !asks(cache, &request), "remembered");
    request.only = "first";
    CHECK(asks(cache, &request) && !asks(cache, &request), "another solver, another choice");
    struct nh_problem other = problem;
    other.strides[NHOOD_Q].batch += 8;
    request.problem = &other;
    CHECK(asks(cache, &request), "another layout");
    request.problem = &problem;
    request.only = NULL;
    asks(cache, &request);
    learn(wisdom, "first", "size=0", 3);
    CHECK(asks(cache, &request) && !asks(cache, &request), "what is learned makes it old");
    nh_wisdom_forget(wisdom, NULL, NULL);
    CHECK(asks(cache, &request), "and what is forgotten");
    request.only = "refusing";
    CHECK(nh_choice_cache_choose(cache, &request, &choice) == NHOOD_ERR_UNSUPPORTED &&
              nh_choice_cache_choose(cache, &request, &choice) == NHOOD_ERR_UNSUPPORTED,
          "refusals come every time");
    for (int64_t batch = 1; batch <= 1000; batch++) {
        other.batch = batch;
        request.problem = &other;
        request.only = NULL;
        asks(cache, &request);
        CHECK(!asks(cache, &request), "the latest is always remembered");
    }
    nh_choice_cache_destroy(cache);
    nh_choice_cache_destroy(NULL);
}

/* However many of its records there are, in whatever order: listing candidates is what planning takes its time for. */
static void asked_once(struct nh_wisdom *wisdom) {
    struct nh_solver counted = first;
    counted.candidates = counted_candidates;
    const struct nh_solver *const counting[] = {&counted, &second, NULL};
    struct nh_request request = {counting, &device, &problem, NULL, wisdom};
    struct nh_choice choice;
    learn(wisdom, "first", "size=1", 20);
    learn(wisdom, "first", "size=2", 10);
    learn(wisdom, "second", "size=0", 15);
    learn(wisdom, "first", "size=0", 30);
    asked_for_candidates = 0;
    CHECK(!nh_planner_choose(&request, &choice) && choice.config.value[0] == 2 &&
              choice.measured_ns == 10,
          "%s", nhood_last_error());
    CHECK(asked_for_candidates == 1, "asked %d times", asked_for_candidates);
    learn(wisdom, "second", "size=2", 5);
    asked_for_candidates = 0;
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &second &&
              asked_for_candidates == 0,
          "asked %d times, though all that take the problem have been timed", asked_for_candidates);
}

/* A slower one that wisdom knows nothing of does not change what it chooses, one that is preferred does. */
static void unknown_solvers(struct nh_wisdom *wisdom) {
    struct nh_request request = {table, &device, &problem, NULL, wisdom};
    struct nh_choice choice;
    learn(wisdom, "second", "size=0", 50);
    CHECK(!nh_planner_choose(&request, &choice) && !choice.samples && choice.solver == &first,
          "the first of two equal estimates is not among the records");
    const struct nh_solver *const other_way[] = {&second, &first, &last, NULL};
    request.table = other_way;
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &second &&
              choice.measured_ns == 50,
          "it is");
    /* The fastest record is of a solver whose estimate is worse than one that was not timed; another's is better. */
    learn(wisdom, "last", "size=0", 30);
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &last &&
              choice.measured_ns == 30,
          "the preferred one has been timed, and was slower");
}

/* What wisdom chose, then the others by estimate. */
static void building_by_wisdom(struct nh_wisdom *wisdom) {
    const struct nh_solver *const both[] = {&second, &first, NULL};
    struct nh_request request = {both, &device, &problem, NULL, wisdom};
    struct nh_choice choice;
    struct nh_built built = {.operation = NULL};
    learn(wisdom, "first", "size=2", 10);
    learn(wisdom, "second", "size=0", 30);
    first_answer = NHOOD_ERR_COMPILE;
    second_answer = NHOOD_OK;
    CHECK(!nh_planner_choose(&request, &choice) && choice.samples, "%s", nhood_last_error());
    CHECK(!nh_planner_build(&request, &choice, &built) && built.choice.solver == &second &&
              built.choice.config.value[0] == 1 && !built.choice.samples &&
              !strcmp(built.failures, "first: line 1: no such thing"),
          "%s", built.failures);
    built.operation->destroy(built.operation);
    second_answer = NHOOD_ERR_DEVICE;
    CHECK(nh_planner_build(&request, &choice, &built) == NHOOD_ERR_COMPILE &&
              !strcmp(nhood_last_error(), "first: line 1: no such thing; second: out of registers"),
          "%s", nhood_last_error());
    request.only = "first";
    CHECK(nh_planner_build(&request, &choice, &built) == NHOOD_ERR_COMPILE &&
              !strcmp(nhood_last_error(), "first: line 1: no such thing"),
          "%s", nhood_last_error());
    first_answer = second_answer = NHOOD_OK;
    CHECK(fake_live == 0, "%d operations kept", (int)fake_live);
}

/* A solver that sees half the axis, and takes only what it sees so; its functions count how often they do not. */
static int other_views;

static const struct nh_problem *half_of(const struct nh_problem *given, struct nh_problem *view) {
    *view = *given;
    struct nh_axis *axis = &view->axis[NH_AXES - 1];
    *axis = nh_whole_axis(axis->length / 2, axis->window, 1, 1, 0);
    return view;
}

static void look(const struct nh_problem *seen) {
    other_views += seen->axis[NH_AXES - 1].length != problem.axis[NH_AXES - 1].length / 2;
}

static const char *half_takes(const struct nh_problem *seen, const struct nh_device *on) {
    look(seen);
    return fake_takes(seen, on);
}

static int half_candidates(const struct nh_problem *seen, const struct nh_device *on,
                           struct nh_config *config, int capacity) {
    look(seen);
    return fake_candidates(seen, on, config, capacity);
}

static double half_estimate(const struct nh_solver *solver, const struct nh_problem *seen,
                            const struct nh_device *on, const struct nh_config *config,
                            struct nh_count *count) {
    look(seen);
    return middle_is_best(solver, seen, on, config, count);
}

static nhood_status half_build(const struct nh_solver *solver, const struct nh_problem *seen,
                               const struct nh_device *on, const struct nh_config *config,
                               struct nh_operation **operation) {
    look(seen);
    return build_first(solver, seen, on, config, operation);
}

static void views(struct nh_wisdom *wisdom) {
    static const struct nh_solver half = {.name = "half",
                                          .knob = fake_knobs,
                                          .view = half_of,
                                          .refuse = half_takes,
                                          .candidates = half_candidates,
                                          .estimate = half_estimate,
                                          .build = half_build,
                                          NULL};
    const struct nh_solver *const only_half[] = {&half, NULL};
    struct nh_request request = {only_half, &device, &problem, NULL, wisdom};
    struct nh_choice choice, list[4];
    struct nh_built built;
    struct rows rows = {0};
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &half, "%s",
          nhood_last_error());
    CHECK(nh_planner_list(&request, list, 4) == FAKE_CONFIGS, "all configs");
    nh_planner_explain(&request, &choice, count_rows, &rows);
    CHECK(!nh_planner_build(&request, &choice, &built), "%s", nhood_last_error());
    built.operation->destroy(built.operation);
    CHECK(other_views == 0, "%d calls were handed another problem than the solver's view",
          other_views);
}

/* A solver that is left to another one is asked only where that one refuses, is asked for by name, or cannot be built. */
static void leaving(struct nh_wisdom *wisdom) {
    struct nh_solver left = second, taking = last, unable = refusing;
    left.left_to = "last";
    unable.name = "last";
    taking.build = build_first;
    const struct nh_solver *const table_taking[] = {&taking, &left, NULL};
    const struct nh_solver *const table_unable[] = {&unable, &left, NULL};
    struct nh_request request = {table_taking, &device, &problem, NULL, wisdom};
    struct nh_choice choice, list[4];
    struct nh_built built;
    struct rows rows = {0};
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &taking,
          "left to one that is slower");
    CHECK(nh_planner_list(&request, list, 4) == FAKE_CONFIGS && list[0].solver == &taking,
          "only its configs are listed");
    nh_planner_explain(&request, &choice, count_rows, &rows);
    CHECK(rows.refused == 1, "%d rows say that they are not asked", rows.refused);
    first_answer = NHOOD_ERR_COMPILE;
    CHECK(!nh_planner_build(&request, &choice, &built) && built.choice.solver == &left,
          "where it cannot be built");
    if (built.operation) built.operation->destroy(built.operation);
    first_answer = NHOOD_OK;
    request.only = "second";
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &left, "by name");
    request.only = NULL;
    request.table = table_unable;
    CHECK(!nh_planner_choose(&request, &choice) && choice.solver == &left, "the other refuses");
}

int main(void) {
    struct nh_wisdom *wisdom = NULL;
    nhood_problem text;
    CHECK(!nhood_problem_parse("fwd:f32:b1h1d8:9:w3", &text) &&
              !nh_problem_canonical(&text, &problem) && !nh_wisdom_create(&host, &wisdom),
          "%s", nhood_last_error());
    estimates(wisdom);
    preferences(wisdom);
    views(wisdom);
    leaving(wisdom);
    passing_over(wisdom);
    building(wisdom);
    wisdom_decides(wisdom);
    nh_wisdom_forget(wisdom, NULL, NULL);
    remembering(wisdom);
    nh_wisdom_forget(wisdom, NULL, NULL);
    asked_once(wisdom);
    nh_wisdom_forget(wisdom, NULL, NULL);
    unknown_solvers(wisdom);
    nh_wisdom_forget(wisdom, NULL, NULL);
    building_by_wisdom(wisdom);
    nh_wisdom_destroy(wisdom);
    return test_result();
}
