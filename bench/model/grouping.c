/* What choosing for groups costs and loses: microseconds in which the planner chooses for random groups of members that it meets for
 * the first time, how many different choices they get, and how much longer than by searched ones the whole group takes by its choices,
 * by the estimates of which they are made.
 *
 *     build/grouping h200 'fwd:bf16:b1h12d64:14..64x14..64:w7x7' 32 300
 *
 * GPU: one that `nhood simulate --gpu` knows. The problem's ranges are drawn from for each member; w0 is a window as long as its axis. */
#include "cuda.h"
#include "device_spec.h"
#include "drawn.h"
#include "planner.h"
#include "registry.h"

#include <math.h>

enum { MOST_MEMBERS = 1024 };

static nhood_status draw_problem(const char *text, struct nh_problem *problem) {
    nhood_problem given;
    const nhood_status status = draw_given(text, &given);
    return status ? status : nh_problem_canonical(&given, problem);
}

/* What the members take by these choices, each as often as makes it as much work as the whole group: how groups are estimated. */
static double filled_ns(const struct nh_device *device, const struct nh_problem *problem,
                        double work, const struct nh_choice *choice, struct nh_request *request) {
    struct nh_problem filled = *problem, room;
    struct nh_choice searched;
    const double own = (double)(problem->batch * problem->heads * problem->query_tokens *
                                problem->window_count),
                 times = fmax(1, rint(work / own));
    filled.batch = (int64_t)((double)problem->batch * times);
    filled.bytes *= times;
    request->problem = &filled;
    if (!choice && nh_planner_choose(request, &searched)) return NAN;
    const struct nh_solver *solver = (choice ? choice : &searched)->solver;
    return solver->estimate(solver, nh_solver_view(solver, &filled, &room), device,
                            &(choice ? choice : &searched)->config, NULL) /
           times;
}

int main(int argc, char **argv) {
    static struct nh_problem problem[MOST_MEMBERS];
    static struct nh_choice choice[MOST_MEMBERS];
    static bool apart[MOST_MEMBERS];
    static int64_t members[MOST_MEMBERS];
    const struct nh_host host = {0};
    struct nh_device device[NH_MOST_DESCRIBED];
    struct nh_group_choices *choices;
    struct nh_wisdom *wisdom;
    int32_t described = 0;
    int64_t failed, different = 0;
    double first_us = 0, us = 0, chosen_ns = 0, searched_ns = 0;
    const int count = argc == 5 ? atoi(argv[3]) : 0, groups = argc == 5 ? atoi(argv[4]) : 0;
    if (count < 1 || count > MOST_MEMBERS || groups < 2) {
        fprintf(stderr, "usage: grouping GPU PROBLEM MEMBERS GROUPS\n");
        return EXIT_FAILURE;
    }
    if (nh_cuda_describe(argv[1], &host, device, &described) || nh_wisdom_create(&host, &wisdom) ||
        nh_group_choices_create(&host, &choices))
        goto failure;
    struct nh_device grouped = *device;
    grouped.kernels_later = true;
    for (int g = 0; g < groups; g++) {
        struct nh_request request = {nh_registry_solvers, device, NULL, NULL, wisdom};
        double work = 0;
        memset(choice, 0, sizeof choice);
        for (int i = 0; i < count; i++) {
            members[i] = 1;
            if (draw_problem(argv[2], &problem[i])) goto failure;
            work += (double)(problem[i].batch * problem[i].heads * problem[i].query_tokens *
                             problem[i].window_count);
        }
        const double start = now_us();
        if (nh_planner_choose_group(choices, &request, problem, members, count, choice, apart,
                                    &failed))
            goto failure;
        *(g ? &us : &first_us) += now_us() - start;
        request.device = &grouped;
        for (int i = 0; i < count; i++) {
            bool known = false;
            for (int k = 0; k < i; k++)
                known |= choice[k].solver == choice[i].solver &&
                         !memcmp(&choice[k].config, &choice[i].config, sizeof choice->config);
            different += !known;
            chosen_ns +=
                filled_ns(apart[i] ? device : &grouped, &problem[i], work, &choice[i], &request);
            searched_ns += filled_ns(&grouped, &problem[i], work, NULL, &request);
        }
    }
    printf("%d groups of %d: %.0f us at first, then %.1f us each, %.2f choices each, %.2f %% "
           "longer than searched\n",
           groups, count, first_us, us / (groups - 1), (double)different / groups,
           100 * (chosen_ns / searched_ns - 1));
    nh_group_choices_destroy(choices);
    nh_wisdom_destroy(wisdom);
    return EXIT_SUCCESS;
failure:
    fprintf(stderr, "grouping: %s\n", nhood_last_error());
    return EXIT_FAILURE;
}
