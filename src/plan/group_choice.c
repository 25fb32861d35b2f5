/* Choices of a group's members, made alike where that costs little, so that one kernel serves many. */
#include "planner.h"

#include <math.h>
#include <string.h>

/* What a launch of its own costs a member: 32 images of 14x14 to 64x64 take 0.30 ms in a CUDA graph as 32 launches and 0.08 ms as
 * one problem of as many tokens (H200, bf16, 12 heads of 64). */
#define LAUNCH_NS 7e3

/* What a member takes by its own choice. */
static double own_ns(const struct nh_choice *choice) {
    return choice->samples ? (double)choice->measured_ns : choice->estimate_ns;
}

/* What a member would take by another one's choice; infinity if it cannot take it. */
static double ns_by(const struct nh_choice *choice, const struct nh_problem *problem,
                    const struct nh_device *device) {
    const struct nh_solver *solver = choice->solver;
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, problem, &room);
    if (nh_solver_refusal(solver, view, device)) return INFINITY;
    return solver->estimate(solver, view, device, &choice->config, NULL);
}

static bool same(const struct nh_choice *a, const struct nh_choice *b) {
    return a->solver == b->solver && !memcmp(&a->config, &b->config, sizeof a->config);
}

/* Gives the leader's choice to a member that has not joined another one and is about as fast by it. */
static bool join(const struct nh_choice *leader, const struct nh_problem *problem,
                 const struct nh_device *device, struct nh_choice *choice) {
    if (same(leader, choice)) return true;
    const double own = own_ns(choice), ns = ns_by(leader, problem, device);
    if (!(ns <= own * nh_about_as_long(own) + LAUNCH_NS)) return false;
    *choice =
        (struct nh_choice){.solver = leader->solver, .config = leader->config, .estimate_ns = ns};
    return true;
}

void nh_planner_share(const struct nh_device *device, const struct nh_problem *problem,
                      const int64_t *members, int64_t count, struct nh_choice *choice,
                      bool *joined) {
    for (;;) {
        int64_t leader = -1;
        double most = -1;
        for (int64_t i = 0; i < count; i++) {
            const double ns = own_ns(&choice[i]) * (double)members[i];
            if (joined[i] || !problem[i].batch || ns <= most) continue;
            leader = i;
            most = ns;
        }
        if (leader < 0) return;
        for (int64_t i = 0; i < count; i++)
            if (!joined[i] && problem[i].batch)
                joined[i] = i == leader || join(&choice[leader], &problem[i], device, &choice[i]);
    }
}
