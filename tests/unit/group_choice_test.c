/* Choices of groups, with a solver made for the purpose: how often it is searched, and who takes whose choice. */
#include "planner.h"

#include "test.h"

#include "fake_solvers.h"

#include <math.h>

enum { MOST = 64 };

static int searches, fails;

/* By size 0 large problems are fast, by size 1 those with an odd window, by size 2 nothing. What takes long rows takes twice as long by
 * size 0 as by size 1. */
static double by_size(const struct nh_solver *solver, const struct nh_problem *problem,
                      const struct nh_device *device, const struct nh_config *config,
                      struct nh_count *count) {
    (void)solver;
    (void)device;
    (void)count;
    const double work =
        (double)problem->batch * (double)problem->query_tokens * (double)problem->window_count;
    const bool slow = problem->axis[2].length > 1000;
    static const double size[] = {1, 1.3, 9};
    return 1000 + work * size[config->value[0]] * (slow && config->value[0] == 0 ? 3 : 1);
}

static int search(const struct nh_problem *problem, const struct nh_device *device,
                  struct nh_config *config, int capacity) {
    (void)device;
    searches++;
    if (fails) return 0;
    const int count = capacity < FAKE_CONFIGS ? capacity : FAKE_CONFIGS;
    const int first = problem->axis[2].length > 1000;
    for (int i = 0; i < count; i++)
        config[i].value[0] = i == 0 ? first : i == 1 ? !first : 2;
    return count;
}

static const struct nh_solver solver = {.name = "sized",
                                        .device_kind = NHOOD_DEVICE_CUDA,
                                        .takes = NH_TAKES_PARTS,
                                        .knob = fake_knobs,
                                        .refuse = fake_takes,
                                        .candidates = search,
                                        .estimate = by_size};
static const struct nh_solver *const table[] = {&solver, NULL};
static const struct nh_host host = {.allocate = NULL};
static const struct nh_device device = {.info = {.kind = NHOOD_DEVICE_CUDA}, .host = &host};

static struct nh_wisdom *wisdom;
static struct nh_group_choices *choices;
static struct nh_choice choice[MOST];
static bool apart[MOST];

/* Chooses for a group of such problems. Returns how often the solver was searched. */
static int choose(const char *const *text, int count) {
    static struct nh_problem problem[MOST];
    static int64_t members[MOST];
    const struct nh_request request = {table, &device, NULL, NULL, wisdom};
    int64_t failed;
    memset(choice, 0, sizeof choice);
    memset(apart, 0, sizeof apart);
    for (int i = 0; i < count; i++) {
        nhood_problem given;
        members[i] = 1;
        CHECK(!nhood_problem_parse(text[i], &given) && !nh_problem_canonical(&given, &problem[i]),
              "%s", nhood_last_error());
    }
    searches = 0;
    const nhood_status status =
        nh_planner_choose_group(choices, &request, problem, members, count, choice, apart, &failed);
    if (fails)
        CHECK(status == NHOOD_ERR_UNSUPPORTED && failed == 1, "member %d, %s", (int)failed,
              nhood_last_error());
    else
        CHECK(!status, "%s", nhood_last_error());
    return searches;
}

static void expect_sizes(const char *what, int count, const int *size) {
    for (int i = 0; i < count; i++)
        CHECK(choice[i].config.value[0] == size[i], "%s: member %d has size %d", what, i,
              (int)choice[i].config.value[0]);
}

/* The largest is searched for, alone and for the group; the others take its choice; the next group takes what this one found. */
static void check_lengths(void) {
    static const char *const some[] = {"fwd:f16:b1h1d64:20x30:w7x7", "fwd:f16:b1h1d64:64x60:w7x7",
                                       "fwd:f16:b1h1d64:14x14:w7x7", "fwd:f16:b1h1d64:50x20:w7x7"};
    static const char *const next[] = {"fwd:f16:b1h1d64:22x30:w7x7", "fwd:f16:b1h1d64:60x62:w7x7",
                                       "fwd:f16:b1h1d64:15x14:w7x7", "fwd:f16:b1h1d64:50x23:w7x7"};
    static const char *const far[] = {"fwd:f16:b1h1d64:22x30:w7x7", "fwd:f16:b1h1d64:600x62:w7x7"};
    const int n = choose(some, 4);
    CHECK(n == 2, "%d searches for the first group", n);
    expect_sizes("the first group", 4, (const int[]){0, 0, 0, 0});
    CHECK(choose(next, 4) == 0, "%d searches for new sizes", searches);
    expect_sizes("new sizes", 4, (const int[]){0, 0, 0, 0});
    CHECK(choose(far, 2) == 2, "%d searches for sizes far from those", searches);
    nh_wisdom_add(wisdom, &(struct nh_wisdom_record){"another device", "x", "sized", "", 1, 1});
    CHECK(choose(next, 4) == 2, "%d searches after wisdom changed", searches);
}

/* What would be slow by the leader's choice has a choice of its own, if that is worth a launch. */
static void check_slow(void) {
    static const char *const large[] = {"fwd:f16:b1h1d64:900x900:w3x3",
                                        "fwd:f16:b1h1d64:9x1100:w3x3",
                                        "fwd:f16:b1h1d64:9x1200:w3x3"};
    static const char *const little[] = {"fwd:f16:b1h1d64:90x90:w1x1",
                                         "fwd:f16:b1h1d64:1x1001:w1x1"};
    choose(large, 3);
    expect_sizes("long rows", 3, (const int[]){0, 1, 1});
    CHECK(!apart[1] && !apart[2], "long rows are launched together");
    choose(little, 2);
    CHECK(choice[1].config.value[0] == choice[0].config.value[0],
          "a launch is not worth a few microseconds");
}

/* Other windows are compared by a search, once. */
static void check_windows(void) {
    static const char *const heads[] = {"fwd:f16:b1h1d64:300x300:w7x7",
                                        "fwd:f16:b1h1d64:300x300:w9x9",
                                        "fwd:f16:b1h1d64:300x300:w11x11"};
    static const char *const more[] = {"fwd:f16:b1h1d64:310x300:w7x7",
                                       "fwd:f16:b1h1d64:310x300:w9x9",
                                       "fwd:f16:b1h1d64:310x300:w11x11"};
    const int n = choose(heads, 3);
    expect_sizes("windows", 3, (const int[]){0, 0, 0});
    CHECK(n >= 6 && choose(more, 3) == 0, "%d searches, then %d", n, searches);
}

/* Sequences that attend all of themselves are of one class, though their windows differ. */
static void check_dense(void) {
    static const char *const dense[] = {"fwd:f16:b1h1d64:300:w300", "fwd:f16:b1h1d64:900:w900",
                                        "fwd:f16:b1h1d64:77:w77"};
    CHECK(choose(dense, 3) == 2, "%d searches", searches);
}

static void check_failure(void) {
    static const char *const two[] = {"fwd:f16:b1h1d32:20x30:w7x7", "fwd:f16:b1h1d32:64x60:w7x7"};
    fails = 1;
    choose(two, 2);
    fails = 0;
}

int main(void) {
    CHECK(!nh_wisdom_create(&host, &wisdom) && !nh_group_choices_create(&host, &choices), "%s",
          nhood_last_error());
    check_lengths();
    check_slow();
    check_windows();
    check_dense();
    check_failure();
    nh_group_choices_destroy(choices);
    nh_group_choices_destroy(NULL);
    nh_wisdom_destroy(wisdom);
    return test_result();
}
