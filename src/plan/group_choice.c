/* Choices of a group's members, made together, so that few searches are needed and one kernel serves many. */
#include "group_memory.h"

#include <math.h>
#include <string.h>

/* What a launch of its own costs a member: 32 images of 14x14 to 64x64 take 0.30 ms in a CUDA graph as 32 launches and 0.08 ms as
 * one problem of as many tokens (H200, bf16, 12 heads of 64). */
#define LAUNCH_NS 7e3

/* A different problem of the group. */
struct member {
    struct nh_class class;
    bool done; /* it leads, or follows a leader */
    /* the leader by which it is fastest, of those that it was compared with; -1: none */
    int64_t best;
    double best_ns;
    /* by the leader that is looking for followers, infinity if it was not compared with that; and whether it would follow */
    double ns;
    bool gathers;
};

/* A problem whose choice others may take. */
struct leader {
    int64_t index;
    struct nh_lead lead;
    bool led; /* others took it */
};

/* A group while its members' choices are made. */
struct together {
    const struct nh_request *request;
    struct nh_device grouped; /* the request's device, for members of a group */
    struct nh_group_choices *choices;
    const struct nh_problem *problem;
    const int64_t *members; /* how many of the group have the problem */
    struct nh_choice *choice;
    bool *apart;
    struct member *member;
    struct leader *leader;
    int64_t count, leaders;
    double work; /* of the whole group */
};

/* ---- estimates ---- */

static double work_of(const struct nh_problem *problem) {
    return (double)problem->batch * (double)problem->heads * (double)problem->query_tokens *
           (double)(problem->window_count + problem->extra_tokens);
}

/* What takes at most so long is about as fast as what takes `ns`. */
static double about(double ns) {
    return ns * nh_about_as_long(ns);
}

/* Makes a batch out of the problem that is as much work as the whole group, and returns how often it has the problem: so many members
 * the device is told of. What would leave most of the device idle by itself does not in a launch for all. */
static double fill(const struct together *together, const struct nh_problem *problem,
                   struct nh_problem *filled, struct nh_device *grouped) {
    const double times = fmax(1, rint(together->work / work_of(problem)));
    *filled = *problem;
    filled->batch = (int64_t)((double)problem->batch * times);
    filled->bytes *= times;
    *grouped = together->grouped;
    grouped->members = times;
    return times;
}

/* What a problem adds to the group's time by a leader's choice. */
static double ns_by(const struct together *together, const struct nh_lead *lead,
                    const struct nh_problem *problem) {
    struct nh_problem filled;
    struct nh_device grouped;
    if (lead->apart) return nh_choice_estimate(&lead->choice, problem, together->request->device);
    const double times = fill(together, problem, &filled, &grouped);
    return nh_choice_estimate(&lead->choice, &filled, &grouped) / times;
}

static bool same(const struct nh_choice *a, const struct nh_choice *b) {
    return a->solver == b->solver && !memcmp(&a->config, &b->config, sizeof a->config);
}

/* Whether the solver proposes the choice's config for the problem. */
static bool is_candidate(const struct nh_choice *choice, const struct nh_problem *problem,
                         const struct nh_device *device) {
    enum { MOST = 16 };
    struct nh_config config[MOST];
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(choice->solver, problem, &room);
    memset(config, 0, sizeof config);
    if (nh_solver_refusal(choice->solver, view, device)) return false;
    const int count = choice->solver->candidates(view, device, config, MOST);
    for (int i = 0; i < count; i++)
        if (!memcmp(&config[i], &choice->config, sizeof config[i])) return true;
    return false;
}

/* The same, asked once for each class. */
static bool is_proposed(const struct together *together, const struct nh_choice *choice,
                        int64_t index) {
    struct nh_known known;
    nh_group_recall(together->choices, &together->member[index].class, &known);
    for (int i = 0; i < nh_known_verdicts(&known); i++) {
        const struct nh_verdict *verdict = &known.verdict[i];
        if (verdict->solver == choice->solver &&
            !memcmp(&verdict->config, &choice->config, sizeof choice->config))
            return verdict->proposed;
    }
    const bool proposed = is_candidate(choice, &together->problem[index], &together->grouped);
    known.verdict[known.verdicts++ % NH_KNOWN_VERDICTS] =
        (struct nh_verdict){choice->solver, choice->config, proposed};
    nh_group_keep(together->choices, &known);
    return proposed;
}

/* Whether two problems differ in lengths and batch alone. A window as long as an axis is like another one, and like itself on a longer
 * axis. */
static bool same_class(const struct together *together, int64_t a, int64_t b) {
    const struct nh_class *other = &together->member[b].class;
    if (nh_class_same(&together->member[a].class, other)) return true;
    struct nh_class class = together->member[a].class;
    for (int i = 0; i < NH_AXES; i++)
        if (together->problem[a].axis[i].window == together->problem[b].axis[i].window)
            class.axis[i].window = other->axis[i].window;
    return nh_class_same(&class, other);
}

/* ---- choices that were measured, or are made as for plans of their own ---- */

static double own_ns(const struct nh_choice *choice) {
    return choice->samples ? (double)choice->measured_ns : choice->estimate_ns;
}

/* Gives the choice of member `first` to another that is about as fast by it. */
static bool joins(const struct together *together, int64_t first, int64_t index) {
    struct nh_choice *own = &together->choice[index];
    const struct nh_choice *choice = &together->choice[first];
    if (same(choice, own)) return true;
    const double ns =
        nh_choice_estimate(choice, &together->problem[index], together->request->device);
    if (!(ns <= about(own_ns(own)) + LAUNCH_NS)) return false;
    if (!same_class(together, first, index) && !is_proposed(together, choice, index)) return false;
    *own =
        (struct nh_choice){.solver = choice->solver, .config = choice->config, .estimate_ns = ns};
    return true;
}

/* Has those whose choices are made join the one that takes longest, then those left the next one. */
static void share(struct together *together) {
    for (;;) {
        int64_t first = -1;
        double most = -1;
        for (int64_t i = 0; i < together->count; i++) {
            const double ns = own_ns(&together->choice[i]) * (double)together->members[i];
            if (together->member[i].done || !together->choice[i].solver || ns <= most) continue;
            first = i;
            most = ns;
        }
        if (first < 0) return;
        for (int64_t i = 0; i < together->count; i++)
            if (!together->member[i].done && together->choice[i].solver)
                together->member[i].done = i == first || joins(together, first, i);
    }
}

/* ---- a leader's choice ---- */

static bool within(double a, double b, double factor) {
    return a <= factor * b && b <= factor * a;
}

/* Whether the choice was made for about these lengths, in a group of about as much work. */
static bool is_near(const struct together *together, const struct nh_lead *lead,
                    const struct nh_problem *problem) {
    bool near = within((double)problem->batch, (double)lead->batch, 1.25) &&
                within(together->work, lead->group_work, 1.5);
    for (int a = 0; a < NH_AXES; a++)
        near = near && within((double)problem->axis[a].length, (double)lead->length[a], 1.25);
    return near;
}

/* What the problem takes if it is computed as fast, for its work, as the one that the choice was made for. */
static double expected_ns(const struct nh_lead *lead, const struct nh_problem *problem) {
    return lead->ns * work_of(problem) / lead->work;
}

static bool same_lead(const struct nh_lead *a, const struct nh_lead *b) {
    return a->apart == b->apart && same(&a->choice, &b->choice);
}

/* Finds the best of the choices that were made near the problem and are about as fast for it. Many of them are one choice. */
static bool find_near(const struct together *together, const struct nh_known *known,
                      const struct nh_problem *problem, struct nh_lead *lead) {
    double least = INFINITY, asked[NH_KNOWN_LEADS]; /* asked: what the problem takes; -1: unknown */
    for (int i = 0; i < nh_known_leads(known); i++) {
        const struct nh_lead *found = &known->lead[i];
        int before = 0;
        asked[i] = -1;
        if (!is_near(together, found, problem)) continue;
        while (before < i && !(asked[before] >= 0 && same_lead(&known->lead[before], found)))
            before++;
        const double ns = asked[i] = before < i ? asked[before] : ns_by(together, found, problem);
        if (!(ns < least) || !(ns <= about(expected_ns(found, problem)))) continue;
        *lead = *found;
        lead->ns = least = ns;
    }
    return least < INFINITY;
}

/* Searches, for a plan of its own and for a group of such problems. For a group only the time counts, as its kernels serve many sizes
 * anyway. Takes the choice of an earlier leader instead if that is about as fast, as it has kernels. */
static nhood_status search(const struct together *together, const struct nh_known *known,
                           const struct nh_problem *problem, struct nh_lead *lead) {
    struct nh_request request = *together->request;
    struct nh_problem filled;
    struct nh_device grouped;
    request.problem = problem;
    nhood_status status = nh_planner_choose(&request, &lead->alone);
    if (status) return status;
    fill(together, problem, &filled, &grouped);
    request.problem = &filled;
    request.device = &grouped;
    lead->apart = false;
    status = nh_planner_choose_fastest(&request, &lead->choice);
    lead->ns = status ? INFINITY : ns_by(together, lead, problem);
    lead->apart = about(lead->alone.estimate_ns) < lead->ns;
    if (lead->apart) {
        lead->choice = lead->alone;
        lead->ns = lead->alone.estimate_ns;
    }
    const double most = about(lead->ns);
    for (int i = 0; i < nh_known_leads(known); i++) {
        const struct nh_lead *other = &known->lead[i];
        const double ns = other->apart == lead->apart ? ns_by(together, other, problem) : INFINITY;
        if (!(ns <= most)) continue;
        lead->choice = other->choice;
        lead->ns = ns;
        break;
    }
    return NHOOD_OK;
}

static nhood_status choose_lead(const struct together *together, int64_t index,
                                struct nh_lead *lead) {
    const struct nh_problem *problem = &together->problem[index];
    struct nh_known known;
    nh_group_recall(together->choices, &together->member[index].class, &known);
    const bool found = find_near(together, &known, problem, lead);
    const nhood_status status = found ? NHOOD_OK : search(together, &known, problem, lead);
    if (status) return status;
    for (int a = 0; a < NH_AXES; a++)
        lead->length[a] = problem->axis[a].length;
    lead->batch = problem->batch;
    lead->work = work_of(problem);
    lead->group_work = together->work;
    if (found) return NHOOD_OK;
    known.lead[known.leads++ % NH_KNOWN_LEADS] = *lead;
    nh_group_keep(together->choices, &known);
    return NHOOD_OK;
}

/* ---- followers ---- */

/* Notes how fast a member is by a leader. */
static void note(struct member *member, int64_t leader, double ns) {
    if (!(ns < member->best_ns)) return;
    member->best = leader;
    member->best_ns = ns;
}

/* Compares with the leaders of other classes. */
static void ask_others(const struct together *together, int64_t index) {
    for (int64_t l = 0; l < together->leaders; l++) {
        const struct leader *leader = &together->leader[l];
        if (!same_class(together, leader->index, index) &&
            is_proposed(together, &leader->lead.choice, index))
            note(&together->member[index], l,
                 ns_by(together, &leader->lead, &together->problem[index]));
    }
}

/* What a member that knows how fast it is by some leader adds to the group's time by this one, which may have chosen the same. */
static double ns_of_follower(const struct together *together, const struct leader *leader,
                             const struct member *member, const struct nh_problem *problem) {
    const struct nh_lead *lead = &leader->lead,
                         *best = member->best < 0 ? NULL : &together->leader[member->best].lead;
    return best && same_lead(best, lead) ? member->best_ns : ns_by(together, lead, problem);
}

/* Gathers those of the leader's class that are computed about as fast, for their work, by its choice, or faster than by any other
 * leader's. Returns how much faster they all are than by others': infinity if some have none. */
static double gather(const struct together *together, const struct leader *leader) {
    double gain = 0;
    for (int64_t i = 0; i < together->count; i++) {
        struct member *member = &together->member[i];
        const struct nh_problem *problem = &together->problem[i];
        const bool itself = i == leader->index;
        member->ns = INFINITY;
        member->gathers = false;
        if (member->done || !(itself || same_class(together, leader->index, i))) continue;
        if (!itself && member->best < 0) ask_others(together, i);
        member->ns = itself ? leader->lead.ns : ns_of_follower(together, leader, member, problem);
        member->gathers = itself || member->ns <= about(expected_ns(&leader->lead, problem)) ||
                          (member->best >= 0 && member->ns < member->best_ns);
        if (member->gathers) gain += (double)together->members[i] * (member->best_ns - member->ns);
    }
    return gain;
}

/* Gives the member the choice by which it is fastest. */
static void follow(const struct together *together, int64_t index) {
    struct member *member = &together->member[index];
    struct leader *leader = &together->leader[member->best];
    leader->led |= leader->index != index;
    member->done = true;
    together->choice[index] = (struct nh_choice){.solver = leader->lead.choice.solver,
                                                 .config = leader->lead.choice.config,
                                                 .estimate_ns = member->best_ns};
    together->apart[index] = leader->lead.apart;
}

/* What must be gained by one more choice: a launch takes as long and, as estimates err, a small part of what the whole group takes. */
static double least_gain(const struct together *together) {
    const double least_share = 0.03;
    if (!together->leaders) return 0;
    const struct nh_lead *first = &together->leader[0].lead;
    return fmax(LAUNCH_NS, least_share * first->ns * together->work / first->work);
}

/* What those of a problem's class that are left would gain at most by choices of their own, if no choice is better for its work than
 * those of leaders are for theirs; infinity if some have no leader of their class. */
static double most_gain(const struct together *together, int64_t index) {
    double gain = 0;
    for (int64_t i = 0; i < together->count; i++) {
        const struct member *member = &together->member[i];
        if (member->done || !(i == index || same_class(together, index, i))) continue;
        if (member->best < 0) return INFINITY;
        const struct leader *best = &together->leader[member->best];
        if (!same_class(together, best->index, i)) return INFINITY;
        gain += (double)together->members[i] *
                (member->best_ns - expected_ns(&best->lead, &together->problem[i]));
    }
    return gain;
}

/* Those of a problem's class that are left follow the leaders there are. */
static void follow_all(const struct together *together, int64_t index) {
    for (int64_t i = 0; i < together->count; i++)
        if (i != index && !together->member[i].done && same_class(together, index, i))
            follow(together, i);
    follow(together, index);
}

/* Has a problem lead those that gather. If they gain too little by that, all follow the leaders there are. */
static nhood_status take(struct together *together, int64_t index) {
    struct leader *leader = &together->leader[together->leaders];
    *leader = (struct leader){.index = index, .led = together->members[index] > 1};
    if (most_gain(together, index) <= least_gain(together)) {
        follow_all(together, index);
        return NHOOD_OK;
    }
    const nhood_status status = choose_lead(together, index, &leader->lead);
    if (status) return status;
    ask_others(together, index);
    const bool leads = gather(together, leader) > least_gain(together);
    for (int64_t i = 0; i < together->count; i++) {
        struct member *member = &together->member[i];
        if (leads) note(member, together->leaders, member->ns);
        if (member->gathers) follow(together, i);
    }
    together->leaders += leads;
    return NHOOD_OK;
}

/* The problem with the most work among those that are left, or -1. */
static int64_t next_leader(const struct together *together) {
    int64_t next = -1;
    double most = -1;
    for (int64_t i = 0; i < together->count; i++) {
        const double work = work_of(&together->problem[i]) * (double)together->members[i];
        if (together->member[i].done || work <= most) continue;
        next = i;
        most = work;
    }
    return next;
}

/* Nobody shares a launch with the leader: it takes its choice for a plan of its own. */
static void leave_alone(const struct together *together, const struct leader *leader) {
    struct nh_choice alone = leader->lead.alone;
    alone.estimate_ns =
        nh_choice_estimate(&alone, &together->problem[leader->index], together->request->device);
    if (!(alone.estimate_ns < INFINITY)) return;
    together->choice[leader->index] = alone;
    together->apart[leader->index] = true;
}

static nhood_status choose(struct together *together, int64_t *failed) {
    nhood_status status = NHOOD_OK;
    for (int64_t i = 0; i < together->count; i++) {
        struct member *member = &together->member[i];
        member->done = !together->problem[i].batch;
        member->best = -1;
        member->best_ns = INFINITY;
        nh_class_of(together->request, &together->problem[i], &member->class);
        together->work += work_of(&together->problem[i]) * (double)together->members[i];
    }
    share(together);
    while (!status && (*failed = next_leader(together)) >= 0)
        status = take(together, *failed);
    for (int64_t l = 0; !status && l < together->leaders; l++)
        if (!together->leader[l].led) leave_alone(together, &together->leader[l]);
    return status;
}

nhood_status nh_planner_choose_group(struct nh_group_choices *choices,
                                     const struct nh_request *request,
                                     const struct nh_problem *problem, const int64_t *members,
                                     int64_t count, struct nh_choice *choice, bool *apart,
                                     int64_t *failed) {
    const struct nh_host *host = request->device->host;
    struct together together = {.request = request,
                                .grouped = *request->device,
                                .choices = choices,
                                .problem = problem,
                                .members = members,
                                .choice = choice,
                                .apart = apart,
                                .count = count};
    together.grouped.for_group = true;
    together.member = nh_allocate_unset(host, (size_t)nh_max(count, 1) * sizeof *together.member);
    together.leader = nh_allocate_unset(host, (size_t)nh_max(count, 1) * sizeof *together.leader);
    *failed = 0;
    const nhood_status status =
        together.member && together.leader ? choose(&together, failed) : NHOOD_ERR_MEMORY;
    nh_release(host, together.member);
    nh_release(host, together.leader);
    return status;
}
