/* What the configs of a sample ask of a device, for fit.py: lines "problem solver config" in; out, a line each of the
 * estimate in nanoseconds, then struct nh_work's and its launches' quantities. "-": the solver tells no work.
 *
 *     build/work h200 < candidates
 */
#include "cuda.h"
#include "device_spec.h"
#include "registry.h"
#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1024 };

static bool parse(const char *line, struct nh_problem *problem, const struct nh_solver **solver,
                  struct nh_config *config) {
    char text[LINE_BYTES], name[64], knobs[LINE_BYTES] = "";
    nhood_problem given;
    *solver = NULL;
    if (sscanf(line, "%1023s %63s %1023s", text, name, knobs) < 2) return false;
    for (const struct nh_solver *const *row = nh_registry_solvers; *row; row++)
        if (!strcmp((*row)->name, name)) *solver = *row;
    memset(config, 0, sizeof *config);
    return *solver && !nhood_problem_parse(text, &given) &&
           !nh_problem_canonical(&given, problem) && nh_config_parse(*solver, knobs, config);
}

static void print_launch(const struct nh_launch_work *launch) {
    printf(" %d %.9g %g %g %g %.9g %.9g %.9g %g %g %.9g", (int)launch->kernel, launch->blocks,
           launch->residents, launch->warps, launch->in_flight, launch->steps, launch->longest,
           launch->serial, launch->fetchers, launch->boxes, launch->code);
    for (int unit = 0; unit < NH_WORK_UNITS; unit++)
        printf(" %.9g", launch->unit[unit]);
}

static void print(const struct nh_problem *given, const struct nh_device *device,
                  const struct nh_solver *solver, const struct nh_config *config) {
    struct nh_problem view;
    const struct nh_problem *problem = nh_solver_view(solver, given, &view);
    struct nh_work work;
    printf("%.9g", solver->estimate(solver, problem, device, config, NULL));
    if (!solver->work || !solver->work(problem, device, config, &work)) {
        printf(" -\n");
        return;
    }
    printf(" %d %d %d %.9g %.9g %d", (int)work.operation, work.overlaps, work.helpers, work.bytes,
           work.helper_bytes, work.launches);
    for (int i = 0; i < work.launches; i++)
        print_launch(&work.launch[i]);
    printf("\n");
}

int main(int argc, char **argv) {
    const struct nh_host host = {0};
    struct nh_device device[NH_MOST_DESCRIBED];
    int32_t described;
    char line[LINE_BYTES];
    if (argc != 2 || nh_cuda_describe(argv[1], &host, device, &described)) {
        fprintf(stderr, "usage: work GPU < candidates\n");
        return EXIT_FAILURE;
    }
    const struct nh_cuda_device *cuda = device[0].backend;
    printf("%d %.9g %.9g %d\n", cuda->multiprocessors, cuda->clock_hz, cuda->memory_bytes_per_s,
           NH_WORK_UNITS);
    while (fgets(line, sizeof line, stdin)) {
        struct nh_problem problem;
        const struct nh_solver *solver;
        struct nh_config config;
        if (!parse(line, &problem, &solver, &config)) {
            fprintf(stderr, "work: no candidate: %s", line);
            return EXIT_FAILURE;
        }
        print(&problem, &device[0], solver, &config);
    }
    return EXIT_SUCCESS;
}
