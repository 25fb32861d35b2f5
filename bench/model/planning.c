/* What choosing a plan costs: microseconds in which the planner chooses for problems that it meets for the first time, in a
 * process that has planned others.
 *
 *     nhood suite paper-3d --sample 300 | build/planning h200 [--wisdom | --choices | --list]
 *
 * GPU: one that `nhood simulate --gpu` knows. The context's memory of choices takes no part, nor does wisdom but with
 * --wisdom, which has the estimate for its time of every candidate that MEASURE would time. --choices prints the
 * candidate of the least estimate, --list all with their estimates, to compare versions of the search. */
#include "cuda.h"
#include "device_spec.h"
#include "measure.h"
#include "planner.h"
#include "registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PROBLEMS = 20000, MOST_LISTED = 512, LINE_BYTES = 512 };

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static nhood_status parse(char *line, struct nh_problem *problem) {
    nhood_problem given;
    line[strcspn(line, "\r\n")] = '\0';
    nhood_status status = nhood_problem_parse(line, &given);
    return status ? status : nh_problem_canonical(&given, problem);
}

static void print(const struct nh_request *request, const struct nh_choice *choice) {
    char text[LINE_BYTES], config[NH_CONFIG_BYTES];
    nh_problem_text(request->problem, text, sizeof text);
    nh_config_text(choice->solver, &choice->config, config, sizeof config);
    printf("%s %s %s %.6g\n", text, choice->solver->name, config, choice->estimate_ns);
}

static void list(const struct nh_request *request) {
    static struct nh_choice choice[MOST_LISTED];
    int count = nh_planner_list(request, choice, MOST_LISTED);
    for (int i = 0; i < count; i++)
        print(request, &choice[i]);
}

static double choose_us(const struct nh_request *request, struct nh_choice *choice) {
    double start = now_us();
    nhood_status status = nh_planner_choose(request, choice);
    double us = now_us() - start;
    if (status) fprintf(stderr, "planning: %s\n", nhood_last_error());
    if (status) choice->solver = NULL;
    return us;
}

/* Times as if they had been measured. */
static void learn(const struct nh_request *request) {
    static struct nh_choice choice[MOST_LISTED];
    int count = nh_planner_list(request, choice, MOST_LISTED);
    struct nh_wisdom_key key;
    nh_wisdom_key(request->device, request->problem, &key);
    for (int i = 0;
         i < count && choice[i].estimate_ns <= NH_MEASURE_UNLIKELY * choice[0].estimate_ns; i++) {
        char config[NH_CONFIG_BYTES];
        nh_config_text(choice[i].solver, &choice[i].config, config, sizeof config);
        const struct nh_wisdom_record record = {
            key.device, key.problem, choice[i].solver->name, config, (int64_t)choice[i].estimate_ns,
            7};
        if (nh_wisdom_add(request->wisdom, &record))
            fprintf(stderr, "planning: %s\n", nhood_last_error());
    }
}

static void summarise(double *us, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += us[i];
    qsort(us, count, sizeof *us, ascending);
    printf("%zu problems, microseconds each: mean %.1f, median %.1f, nine of ten within %.1f, most "
           "%.1f\n",
           count, sum / (double)count, us[count / 2], us[count * 9 / 10], us[count - 1]);
}

/* What to do with each problem: time the choice, maybe by wisdom; print it; or print all candidates. */
enum mode { TIME, WISDOM, CHOICES, LIST };

static bool mode_of(int argc, char **argv, enum mode *mode) {
    static const char *const option[] = {NULL, "--wisdom", "--choices", "--list"};
    *mode = TIME;
    for (enum mode m = WISDOM; argc == 3 && m <= LIST; m++)
        if (!strcmp(argv[2], option[m])) *mode = m;
    return argc == 2 || (argc == 3 && *mode != TIME);
}

int main(int argc, char **argv) {
    static struct nh_problem problem[MOST_PROBLEMS];
    static double us[MOST_PROBLEMS];
    const struct nh_host host = {0};
    struct nh_device device[NH_MOST_DESCRIBED];
    int32_t described = 0;
    struct nh_wisdom *wisdom;
    char line[LINE_BYTES];
    enum mode mode;
    size_t count = 0;
    if (!mode_of(argc, argv, &mode)) {
        fprintf(stderr, "usage: planning GPU [--wisdom | --choices | --list] < problems\n");
        return EXIT_FAILURE;
    }
    if (nh_cuda_describe(argv[1], &host, device, &described) || nh_wisdom_create(&host, &wisdom)) {
        fprintf(stderr, "planning: %s\n", nhood_last_error());
        return EXIT_FAILURE;
    }
    for (; count < MOST_PROBLEMS && fgets(line, sizeof line, stdin); count++)
        if (parse(line, &problem[count])) {
            fprintf(stderr, "planning: %s: %s\n", line, nhood_last_error());
            return EXIT_FAILURE;
        }
    for (size_t i = 0; mode == WISDOM && i < count; i++) {
        const struct nh_request request = {nh_registry_solvers, device, &problem[i], NULL, wisdom};
        learn(&request);
    }
    for (size_t i = 0; i < count; i++) {
        const struct nh_request request = {nh_registry_solvers, device, &problem[i], NULL, wisdom};
        struct nh_choice choice;
        us[i] = choose_us(&request, &choice);
        if (mode == CHOICES && choice.solver) print(&request, &choice);
        if (mode == LIST) list(&request);
    }
    if (mode <= WISDOM && count) summarise(us, count);
    nh_wisdom_destroy(wisdom);
    return EXIT_SUCCESS;
}
