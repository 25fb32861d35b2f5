/* Executes a plan so many times, for tools that count instructions: bench/cpu/instructions.py.
 *
 *     instructions ISA CALLS CANDIDATE PROBLEM
 *
 * ISA: as NHOOD_ISA. CANDIDATE: its place in the list that `nhood plan` prints, from 0 on, which is the planner's choice.
 * One thread. Prints solver and config, the CPU with the instruction set in use, the useful multiply-adds of a call, how many
 * candidates there are, and the estimate in nanoseconds. */
#include "cpu.h"
#include "planner.h"
#include "registry.h"
#include "scratch.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_LISTED = 64 };

static nhood_status count_calls(const struct nh_device *device, const char *text, int candidate,
                                int calls) {
    nhood_problem given;
    struct nh_problem problem;
    static struct nh_choice choice[MOST_LISTED];
    struct nh_operation *operation = NULL;
    struct nh_scratch scratch;
    nhood_status status = nhood_problem_parse(text, &given);
    if (!status) status = nh_problem_canonical(&given, &problem);
    if (status) return status;
    const struct nh_request request = {nh_registry_solvers, device, &problem, NULL, NULL};
    const int count = nh_planner_list(&request, choice, MOST_LISTED);
    if (candidate >= count) return nh_error(NHOOD_ERR_ARGUMENT, "there are %d candidates", count);
    const struct nh_choice *chosen = &choice[candidate];
    char config[NH_CONFIG_BYTES];
    nh_config_text(chosen->solver, &chosen->config, config, sizeof config);
    printf("%s:%s %s %.0f %d %.0f\n", chosen->solver->name, config, device->info.description,
           nh_problem_flops(&problem) / 2, count, chosen->estimate_ns);
    status = chosen->solver->build(chosen->solver, &problem, device, &chosen->config, &operation);
    if (status) return status;
    status = nh_scratch_create(device, &problem, &scratch);
    if (!status) status = nh_scratch_reserve(&scratch, operation->workspace_bytes);
    for (int i = 0; !status && i < calls; i++) {
        double ns;
        status = nh_scratch_run(&scratch, operation, &ns);
    }
    nh_scratch_free(&scratch);
    operation->destroy(operation);
    return status;
}

int main(int argc, char **argv) {
    const struct nh_host host = {0};
    struct nh_device device;
    if (argc != 5) {
        fprintf(stderr, "usage: instructions ISA CALLS CANDIDATE PROBLEM\n");
        return EXIT_FAILURE;
    }
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .isa = argv[1]};
    nhood_status status = nh_cpu_open(&options, &host, &device);
    if (!status) {
        status = count_calls(&device, argv[4], atoi(argv[3]), atoi(argv[2]));
        nh_cpu_close(&device);
    }
    if (status) fprintf(stderr, "instructions: %s\n", nhood_last_error());
    return status ? EXIT_FAILURE : EXIT_SUCCESS;
}
