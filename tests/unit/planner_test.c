/* The planner with solvers made for the purpose. */
#include "planner.h"
#include "test.h"

#include <string.h>

static const char *never(const struct nh_problem *problem, const struct nh_device *device) {
    (void)problem;
    (void)device;
    return "it never does";
}

static const char *always(const struct nh_problem *problem, const struct nh_device *device) {
    (void)problem;
    (void)device;
    return NULL;
}

/* Configs 0, 1, 2. */
static int three(const struct nh_problem *problem, const struct nh_device *device,
                 struct nh_config *config, int capacity) {
    (void)problem;
    (void)device;
    for (int i = 0; i < 3 && i < capacity; i++) {
        memset(&config[i], 0, sizeof config[i]);
        config[i].value[0] = i;
    }
    return 3;
}

static double middle_is_best(const struct nh_problem *problem, const struct nh_device *device,
                             const struct nh_config *config) {
    (void)problem;
    (void)device;
    return config->value[0] == 1 ? 10 : 20;
}

static const char *const knobs[] = {"size", NULL};
static const struct nh_solver refusing = {"refusing", 0, knobs, never, three, middle_is_best, NULL};
static const struct nh_solver first = {"first", 0, knobs, always, three, middle_is_best, NULL};
static const struct nh_solver second = {"second", 0, knobs, always, three, middle_is_best, NULL};
static const struct nh_solver elsewhere = {"elsewhere",    1,   knobs, always, three,
                                           middle_is_best, NULL};

static void count_rows(void *user, const nhood_candidate *row) {
    int *count = user;
    count[0]++;
    count[1] += row->chosen;
    count[2] += row->refusal != NULL;
    if (row->chosen)
        CHECK(!strcmp(row->solver, "first") && !strcmp(row->config, "size=1"), "%s", row->config);
}

int main(void) {
    struct nh_problem problem = {0};
    struct nh_device device = {.info = {.kind = 0, .name = "test"}};
    struct nh_choice choice;
    const struct nh_solver *const table[] = {&refusing, &elsewhere, &first, &second, NULL};
    int rows[3] = {0};
    CHECK(!nh_planner_choose(table, &device, &problem, NULL, count_rows, rows, &choice),
          "no choice");
    CHECK(choice.solver == &first && choice.config.value[0] == 1 && choice.estimate_ns == 10,
          "ties go to the first");
    CHECK(rows[0] == 7 && rows[1] == 1 && rows[2] == 1, "%d rows, %d chosen, %d refused", rows[0],
          rows[1], rows[2]);
    CHECK(!nh_planner_choose(table, &device, &problem, "second", NULL, NULL, &choice) &&
              choice.solver == &second,
          "by name");
    CHECK(nh_planner_choose(table, &device, &problem, "elsewhere", NULL, NULL, &choice) ==
              NHOOD_ERR_ARGUMENT,
          "a solver of another device");
    const struct nh_solver *const none[] = {&refusing, NULL};
    CHECK(nh_planner_choose(none, &device, &problem, NULL, NULL, NULL, &choice) ==
                  NHOOD_ERR_UNSUPPORTED &&
              strstr(nhood_last_error(), "refusing: it never does"),
          "%s", nhood_last_error());
    return test_result();
}
