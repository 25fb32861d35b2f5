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

/* Whether two problems on whole grids differ in lengths and batch alone: a config of one is then one of the other, if it fits. */
static bool differ_in_lengths(const struct nh_problem *a, const struct nh_problem *b) {
    if (a->heads != b->heads || a->kv_heads != b->kv_heads || a->extra_tokens != b->extra_tokens)
        return false;
    if (nh_problem_partial(a) || nh_problem_partial(b)) return false;
    if (nh_problem_has_tables(a) || nh_problem_has_tables(b)) return false;
    for (int i = 0; i < NH_AXES; i++) {
        const struct nh_axis *x = &a->axis[i], *y = &b->axis[i];
        if (x->window != y->window || x->stride != y->stride || x->dilation != y->dilation ||
            x->causal != y->causal || x->periodic || y->periodic)
            return false;
    }
    return true;
}

/* Whether the solver proposes the choice's config for the problem. */
static bool is_candidate(const struct nh_choice *choice, const struct nh_problem *view,
                         const struct nh_device *device) {
    enum { MOST = 16 };
    struct nh_config config[MOST];
    memset(config, 0, sizeof config);
    const int count = choice->solver->candidates(view, device, config, MOST);
    for (int i = 0; i < count; i++)
        if (!memcmp(&config[i], &choice->config, sizeof config[i])) return true;
    return false;
}

/* What a member would take by the choice of another one, whose problem is given; infinity if it cannot take it. */
static double ns_by(const struct nh_choice *choice, const struct nh_problem *leader,
                    const struct nh_problem *problem, const struct nh_device *device) {
    const struct nh_solver *solver = choice->solver;
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, problem, &room);
    if (nh_solver_refusal(solver, view, device)) return INFINITY;
    if (!differ_in_lengths(leader, problem) && !is_candidate(choice, view, device)) return INFINITY;
    return solver->estimate(solver, view, device, &choice->config, NULL);
}

static bool same(const struct nh_choice *a, const struct nh_choice *b) {
    return a->solver == b->solver && !memcmp(&a->config, &b->config, sizeof a->config);
}

/* Gives the leader's choice to a member that has not joined another one and is about as fast by it. */
static bool join(const struct nh_choice *leader, const struct nh_problem *leaders,
                 const struct nh_problem *problem, const struct nh_device *device,
                 struct nh_choice *choice) {
    if (same(leader, choice)) return true;
    const double own = own_ns(choice), ns = ns_by(leader, leaders, problem, device);
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
                joined[i] = i == leader || join(&choice[leader], &problem[leader], &problem[i],
                                                device, &choice[i]);
    }
}
