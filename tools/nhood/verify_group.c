#include "verify_group.h"

#include "message.h"
#include "random.h"
#include "random_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int group_case_create(struct group_case *group, const struct target *target,
                      const struct suite_problem *first, uint64_t seed) {
    const size_t count = first->members;
    *group = (struct group_case){.count = count,
                                 .problem = calloc(count, sizeof *group->problem),
                                 .data = calloc(count, sizeof *group->data),
                                 .oracle = calloc(count, sizeof *group->oracle),
                                 .member = calloc(count, sizeof *group->member)};
    if (!group->problem || !group->data || !group->oracle || !group->member)
        return complain(EXIT_FAILURE, "no memory for a group of %zu", count);
    for (size_t i = 0; i < count; i++) {
        group->problem[i] = first[i].problem;
        if (!data_create(&group->data[i], &target->info, &group->problem[i])) return EXIT_FAILURE;
        int failed = oracle_create(&group->oracle[i], target, &group->data[i], seed + i);
        if (failed) return failed;
    }
    return 0;
}

/* Marks all outputs and the workspace. False after a message. */
static bool mark(struct group_case *group, const struct target *target, const nhood_plan *plan,
                 nhood_group_io *io) {
    bool ready = true;
    buffer_free(&group->workspace);
    io->workspace_bytes = nhood_plan_workspace_bytes(plan);
    if (!buffer_allocate(&group->workspace, &target->info, io->workspace_bytes, "the workspace"))
        return false;
    io->workspace = group->workspace.data;
    for (size_t i = 0; ready && i < group->count; i++) {
        for (int32_t t = 0; ready && t < NHOOD_TENSOR_COUNT; t++)
            if (tensor_role(&group->problem[i], t) == TENSOR_OUTPUT)
                ready = data_mark(&group->data[i], t);
        group->member[i] = group->data[i].io;
    }
    return ready;
}

int group_case_run(struct group_case *group, const struct target *target, const char *solver,
                   struct comparison *worst, size_t *index) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_group_io io = {
        .struct_size = sizeof io, .count = (int64_t)group->count, .member = group->member};
    nhood_plan *plan;
    const long long warnings = atomic_load(&target->warnings);
    *worst = (struct comparison){.tensor = -1, .spoiled = -1};
    *index = 0;
    nhood_status status = nhood_plan_create_group(target->context, target->device, group->problem,
                                                  io.count, &options, &plan);
    if (status) return complain_library(status, "group");
    int failed = mark(group, target, plan, &io) ? 0 : EXIT_FAILURE;
    if (!failed && atomic_load(&target->warnings) != warnings)
        failed = complain(EXIT_FAILURE, "the library warned of the group's plan");
    if (!failed && (status = nhood_plan_execute_group(plan, &io)))
        failed = complain_library(status, "group");
    if (!failed && !buffer_wait(&target->info))
        failed = complain(EXIT_FAILURE, "the group failed on the device");
    nhood_plan_release(plan);
    for (size_t i = 0; !failed && i < group->count; i++) {
        struct comparison now;
        failed = oracle_compare(&group->oracle[i], &group->data[i], &now);
        if (failed || (now.share <= worst->share && now.spoiled < 0)) continue;
        *worst = now;
        *index = i;
        if (now.spoiled >= 0) break;
    }
    return failed;
}

void group_case_free(struct group_case *group) {
    for (size_t i = 0; group->data && group->oracle && i < group->count; i++) {
        oracle_free(&group->oracle[i]);
        data_free(&group->data[i]);
    }
    buffer_free(&group->workspace);
    free(group->problem);
    free(group->data);
    free(group->oracle);
    free(group->member);
}

/* ---- random groups ---- */

static bool takes_bias(const nhood_problem *problem) {
    bool takes = true;
    for (int a = 0; a < problem->rank; a++)
        takes &= !problem->axis[a].causal && !problem->windows[a].kind;
    return takes;
}

/* Whether a drawn problem can be made one of the group: what is shared and not taken over is equal. */
static bool fits(const nhood_problem *first, const nhood_problem *drawn) {
    const bool clamped = (first->flags | drawn->flags) & NHOOD_FLAG_CLAMP_WINDOW;
    return drawn->op == first->op && drawn->rank == first->rank && !clamped &&
           (takes_bias(drawn) || !first->has_bias);
}

int random_group(struct suite *suite, uint64_t seed) {
    enum { MOST_MEMBERS = 9, MOST_DRAWS = 4000 };
    struct random random = {seed};
    const int64_t members = random_integer(&random, 1, MOST_MEMBERS);
    const size_t begin = suite->count;
    nhood_problem first, drawn;
    uint64_t next = seed * MOST_DRAWS;
    do
        random_problem(next++, 1, &first, NULL);
    while (first.flags & NHOOD_FLAG_CLAMP_WINDOW);
    drawn = first;
    for (int64_t i = 0, draws = 0; i < members && draws < MOST_DRAWS; draws++) {
        char text[PROBLEM_BYTES];
        if (i) random_problem(next++, 1, &drawn, NULL);
        if (!fits(&first, &drawn)) continue;
        drawn.dtype = first.dtype;
        drawn.flags = first.flags;
        drawn.dim = first.dim;
        drawn.dim_v = first.dim_v;
        drawn.scale = first.scale;
        drawn.has_bias = first.has_bias;
        memset(drawn.strides, 0, sizeof drawn.strides); /* they were of other head dims */
        nhood_status status = nhood_problem_format(&drawn, text, sizeof text, NULL);
        if (status) return complain_library(status, "random group");
        int failed = suite_add(suite, text, text);
        if (failed) return failed;
        suite->problem[suite->count - 1].members = 0;
        i++;
    }
    suite->problem[begin].members = suite->count - begin;
    return 0;
}
