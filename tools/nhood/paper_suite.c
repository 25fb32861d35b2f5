#include "paper_suite.h"

#include "message.h"
#include "random.h"

#include <stdlib.h>
#include <string.h>

/* Lists end with 0. Lengths and windows have one entry per axis. */
struct grid {
    const char *name;
    int32_t rank;
    size_t problems; /* the number of problems of the study */
    int32_t batch[10], heads[10], dim[10];
    int32_t length[48][3], window[24][3];
};

static const struct grid grids[] = {
    {"paper-1d",
     1,
     6150,
     {1, 2, 4, 8, 16, 32, 64},
     {1, 2, 4, 8, 16, 24},
     {32, 64, 128},
     {{64},   {96},   {128},  {196},  {256},   {384},   {512},   {784},   {1024},  {1536}, {2048},
      {3072}, {4096}, {6144}, {8192}, {12288}, {16384}, {24576}, {32768}, {49152}, {65536}},
     {{3},
      {7},
      {13},
      {31},
      {49},
      {63},
      {127},
      {128},
      {169},
      {255},
      {256},
      {511},
      {512},
      {1023},
      {2048},
      {4096}}},
    {"paper-2d",
     2,
     5676,
     {1, 2, 4, 8, 16, 32, 64, 128},
     {1, 2, 4, 6, 8, 12, 16, 32},
     {32, 64, 128},
     {{7, 7},   {8, 8},   {14, 14}, {16, 16},   {24, 24},   {28, 28},   {32, 32},   {48, 48},
      {56, 56}, {64, 64}, {96, 96}, {112, 112}, {128, 128}, {192, 192}, {224, 224}, {256, 256},
      {16, 32}, {32, 64}, {30, 40}, {48, 80},   {60, 80},   {64, 128},  {90, 160},  {128, 256}},
     {{3, 3},
      {5, 5},
      {7, 7},
      {9, 9},
      {11, 11},
      {13, 13},
      {15, 15},
      {17, 17},
      {21, 21},
      {25, 25},
      {33, 33},
      {49, 49},
      {63, 63},
      {80, 80},
      {7, 13},
      {16, 16},
      {32, 32}}},
    {"paper-3d",
     3,
     2448,
     {1, 2, 4, 8, 16, 32},
     {1, 2, 4, 8, 16, 24},
     {32, 64, 128},
     {{8, 7, 7},
      {8, 8, 8},
      {8, 14, 14},
      {8, 28, 28},
      {8, 56, 56},
      {16, 7, 7},
      {16, 14, 14},
      {16, 16, 16},
      {16, 28, 28},
      {16, 56, 56},
      {24, 24, 24},
      {32, 32, 32},
      {48, 48, 48},
      {64, 64, 64},
      {21, 30, 40},
      {30, 48, 80}},
     {{3, 3, 3},
      {3, 5, 5},
      {3, 7, 7},
      {5, 5, 5},
      {5, 7, 7},
      {7, 7, 7},
      {8, 7, 7},
      {9, 9, 9},
      {8, 13, 13},
      {11, 11, 11},
      {13, 13, 13},
      {16, 16, 16},
      {16, 7, 7},
      {18, 24, 24}}},
};
enum { GRIDS = sizeof grids / sizeof grids[0] };

/* Limits, so that unfused solvers, which keep every weight in memory, and small devices can compute every problem: weights of
 * 2 GiB and tensors of 256 MiB in 16 bits. The least size keeps a device busy. */
static const double most_weights = 0x1p30, most_elements = 0x1p27, least_elements = 0x1p14;

/* The seed of the draw. Rank r uses SEED + r. */
enum { SEED = 20240307 };

static const struct grid *find_grid(const char *name) {
    for (int i = 0; i < GRIDS; i++)
        if (strcmp(grids[i].name, name) == 0) return &grids[i];
    return NULL;
}

bool paper_suite_exists(const char *name) {
    return find_grid(name) != NULL;
}

/* ---- every problem of a grid ---- */

struct list {
    nhood_problem *problem;
    size_t count, capacity;
};

static bool add(struct list *list, const nhood_problem *problem) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 1024;
        nhood_problem *grown = realloc(list->problem, capacity * sizeof *grown);
        if (!grown) return false;
        list->problem = grown;
        list->capacity = capacity;
    }
    list->problem[list->count++] = *problem;
    return true;
}

static bool fits(const nhood_problem *problem) {
    double tokens = (double)problem->batch * (double)problem->heads, weights = 1;
    for (int a = 0; a < problem->rank; a++) {
        if (problem->axis[a].window * problem->axis[a].dilation > problem->axis[a].length)
            return false;
        tokens *= (double)problem->axis[a].length;
        weights *= (double)problem->axis[a].window;
    }
    double elements = tokens * (double)problem->dim;
    return tokens * weights <= most_weights && elements <= most_elements &&
           elements >= least_elements;
}

/* Adds the problem without dilation, with dilation 2, and with the largest that the axes allow. Networks alternate between the
 * first and the last. */
static bool add_dilations(struct list *list, nhood_problem *problem) {
    int64_t most = INT64_MAX;
    for (int a = 0; a < problem->rank; a++) {
        int64_t room = problem->axis[a].length / problem->axis[a].window;
        most = room < most ? room : most;
    }
    const int64_t dilation[] = {1, 2, most};
    for (int i = 0; i < (most > 2 ? 3 : 2); i++) {
        for (int a = 0; a < problem->rank; a++)
            problem->axis[a].dilation = dilation[i];
        if (fits(problem) && !add(list, problem)) return false;
    }
    return true;
}

static bool add_windows(struct list *list, const struct grid *grid, nhood_problem *problem) {
    for (const int32_t(*length)[3] = grid->length; (*length)[0]; length++)
        for (const int32_t(*window)[3] = grid->window; (*window)[0]; window++) {
            for (int a = 0; a < grid->rank; a++) {
                problem->axis[a].length = (*length)[a];
                problem->axis[a].window = (*window)[a];
            }
            if (!add_dilations(list, problem)) return false;
        }
    return true;
}

static bool add_grid(struct list *list, const struct grid *grid,
                     const struct paper_options *options) {
    nhood_problem problem;
    nhood_problem_init(&problem, options->op, options->dtype, grid->rank);
    for (const int32_t *batch = grid->batch; *batch; batch++)
        for (const int32_t *heads = grid->heads; *heads; heads++)
            for (const int32_t *dim = grid->dim; *dim; dim++) {
                problem.batch = *batch;
                problem.heads = *heads;
                problem.dim = *dim;
                if (!add_windows(list, grid, &problem)) return false;
            }
    return true;
}

/* ---- the draw ---- */

/* Moves `count` random entries of `place` to the front, in the order in which they were drawn. All are equally likely. */
static void draw(struct random *random, size_t *place, size_t places, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t other = (size_t)random_integer(random, (int64_t)i, (int64_t)places - 1);
        size_t drawn = place[other];
        place[other] = place[i];
        place[i] = drawn;
    }
}

static int ascending(const void *left, const void *right) {
    size_t a = *(const size_t *)left, b = *(const size_t *)right;
    return (a > b) - (a < b);
}

/* Keeps the sample's entries of the suite's, which are in the order in which they were drawn. */
static size_t take_sample(const struct list *list, size_t *place, size_t count,
                          const struct paper_options *options) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        double flops = 0;
        if (options->sample && kept == (size_t)options->sample) break;
        nhood_problem_cost(&list->problem[place[i]], &flops, NULL);
        if (options->most_gflop <= 0 || flops <= options->most_gflop * 1e9)
            place[kept++] = place[i];
    }
    return kept;
}

static int add_drawn(struct suite *suite, const struct grid *grid, const struct list *list,
                     const struct paper_options *options) {
    struct random random = {SEED + (uint64_t)grid->rank};
    size_t *place = malloc(list->count * sizeof *place);
    if (!place) return complain(EXIT_FAILURE, "no memory for %zu problems", list->count);
    for (size_t i = 0; i < list->count; i++)
        place[i] = i;
    draw(&random, place, list->count, grid->problems);
    size_t count = take_sample(list, place, grid->problems, options);
    qsort(place, count, sizeof *place, ascending);
    int failed = 0;
    for (size_t i = 0; !failed && i < count; i++) {
        char text[PROBLEM_BYTES];
        nhood_status status =
            nhood_problem_format(&list->problem[place[i]], text, sizeof text, NULL);
        failed = status ? complain_library(status, grid->name) : suite_add(suite, text, text);
    }
    free(place);
    return failed;
}

int paper_suite_add(struct suite *suite, const char *name, const struct paper_options *options) {
    const struct grid *grid = find_grid(name);
    struct list list = {.count = 0};
    int failed = 0;
    if (!add_grid(&list, grid, options))
        failed = complain(EXIT_FAILURE, "no memory for %zu problems", list.capacity * 2);
    else if (list.count < grid->problems)
        failed = complain(EXIT_FAILURE, "%s: the grid has only %zu problems", name, list.count);
    if (!failed) failed = add_drawn(suite, grid, &list, options);
    free(list.problem);
    return failed;
}
