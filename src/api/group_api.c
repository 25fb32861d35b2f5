/* Public functions on plans of groups. */
#include "plan.h"

#include "arena.h"
#include "empty.h"
#include "hash.h"
#include "window_table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- equal problems ---- */

/* The distinct problems by their hashes: an open table of indices + 1, 0 for none, with a power of two of places. */
struct table {
    int64_t *place, places;
};

/* Returns the index of the problem among the distinct ones, behind which it lies. It is one of them if it is new. */
static int64_t intern(struct nh_members *members, const struct table *table) {
    const struct nh_problem *problem = &members->problem[members->distinct];
    const uint64_t mask = (uint64_t)table->places - 1;
    uint64_t at = nh_hash_words(problem, sizeof *problem) & mask;
    for (; table->place[at]; at = (at + 1) & mask)
        if (!memcmp(&members->problem[table->place[at] - 1], problem, sizeof *problem))
            return table->place[at] - 1;
    table->place[at] = ++members->distinct;
    return members->distinct - 1;
}

/* ---- planning ---- */

/* What is needed only while a plan is made. */
struct draft {
    struct table table;
    int64_t *index_of;              /* of each member: which of the distinct problems it has */
    int64_t *first_of;              /* of each distinct problem: the first member that has it */
    int64_t *members_of;            /* of each distinct problem: how many members have it */
    struct nh_choice *choice;       /* of each distinct problem */
    bool *apart;                    /* of each distinct problem: see nh_planner_choose_group */
    const struct nh_device *device; /* that choices are for: kernels may be collected for a twin */
};

/* All but the members themselves are in their arena, a draft's part of it, too: it is small. */
static nhood_status allocate(nhood_context *context, int64_t count, struct nh_members **created,
                             struct draft *draft) {
    const struct nh_host *host = &context->host;
    const size_t room = (size_t)nh_max(count, 1);
    struct nh_members *members = *created = nh_allocate(host, sizeof *members);
    if (!members) return NHOOD_ERR_MEMORY;
    members->host = host;
    members->spare = &context->spare;
    members->group.count = count;
    const nhood_status status = nh_arena_take(members->spare, host, &members->arena);
    if (status) return status;
    struct nh_arena *arena = members->arena;
    for (draft->table.places = 2; draft->table.places < 2 * count;)
        draft->table.places *= 2;
    members->problem = nh_arena_allocate_unset(arena, room * sizeof *members->problem);
    members->tables = nh_arena_allocate(arena, room * sizeof *members->tables);
    members->built = nh_arena_allocate(arena, room * sizeof(struct nh_operation *));
    members->group.member = nh_arena_allocate(arena, room * sizeof *members->group.member);
    draft->table.place = nh_arena_allocate(arena, (size_t)draft->table.places * sizeof(int64_t));
    draft->index_of = nh_arena_allocate_unset(arena, room * sizeof *draft->index_of);
    draft->first_of = nh_arena_allocate_unset(arena, room * sizeof *draft->first_of);
    draft->members_of = nh_arena_allocate(arena, room * sizeof *draft->members_of);
    draft->choice = nh_arena_allocate(arena, room * sizeof *draft->choice);
    draft->apart = nh_arena_allocate(arena, room * sizeof *draft->apart);
    return members->problem && members->tables && members->built && members->group.member &&
                   draft->table.place && draft->index_of && draft->first_of && draft->members_of &&
                   draft->choice && draft->apart
               ? NHOOD_OK
               : NHOOD_ERR_MEMORY;
}

/* Checks all problems before anything is built. *request is that of the last one. */
static nhood_status read_problems(nhood_context *context, int32_t device,
                                  const nhood_problem *problems, const nhood_plan_options *options,
                                  struct nh_members *members, struct draft *draft,
                                  struct nh_request *request) {
    nhood_status status = NHOOD_OK;
    for (int64_t i = 0; !status && i < members->group.count; i++) {
        const int64_t known = members->distinct;
        struct nh_problem *problem = &members->problem[known];
        status = nh_problem_canonical(&problems[i], problem);
        if (status) return nh_group_member_error(status, i);
        if (i) status = nh_group_check_shared(&members->problem[0], problem, i);
        if (status) break;
        draft->index_of[i] = intern(members, &draft->table);
        if (members->distinct > known) draft->first_of[known] = i;
        draft->members_of[draft->index_of[i]]++;
        /* checks the device and the options, which are the same for all */
        if (i == 0)
            status = nh_context_request(context, device, &problems[0], options, problem, request);
    }
    return status;
}

/* Seconds to measure the next of so many members: an equal part of what is left. Not 0, which would be without a limit. */
static double share_of_budget(double left_s, int64_t members) {
    return left_s > 0 ? left_s / (double)members : 1e-9;
}

/* Chooses for each distinct problem as for a plan of its own; of a group on CUDA only for those that `options` or wisdom say
 * something about. */
static nhood_status choose_each(nhood_context *context, struct nh_request *request,
                                const nhood_plan_options *options, bool all,
                                const struct nh_members *members, struct draft *draft) {
    const double start_s = nh_steady_s();
    const bool measures = options && options->effort != NHOOD_EFFORT_ESTIMATE;
    nhood_plan_options own = {.struct_size = sizeof own};
    if (options) own = *options;
    for (int64_t i = 0; i < members->distinct; i++) {
        request->problem = &members->problem[i];
        if (!all && !measures && members->problem[i].batch &&
            !nh_wisdom_knows(request->wisdom, request->device, request->problem))
            continue;
        if (options && options->budget_s > 0)
            own.budget_s = share_of_budget(options->budget_s - (nh_steady_s() - start_s),
                                           members->distinct - i);
        const nhood_status status =
            nh_context_choose(context, request, options ? &own : NULL, &draft->choice[i]);
        if (status) return nh_group_member_error(status, draft->first_of[i]);
    }
    return NHOOD_OK;
}

/* Whether members may share launches. */
static bool launches_together(const struct nh_device *device, const struct nh_members *members) {
    return device->info.kind == NHOOD_DEVICE_CUDA && members->group.count > 1;
}

/* Keeps the window tables of all distinct problems, and chooses for these. */
static nhood_status choose(nhood_context *context, struct nh_request *request,
                           const nhood_plan_options *options, struct nh_members *members,
                           struct draft *draft) {
    draft->device = request->device;
    const bool together = launches_together(request->device, members);
    int64_t failed;
    for (int64_t i = 0; i < members->distinct; i++) {
        const nhood_status status =
            nh_windows_keep(members->host, members->problem[i].axis, &members->tables[i]);
        if (status) return nh_group_member_error(status, draft->first_of[i]);
    }
    nhood_status status = choose_each(context, request, options, !together, members, draft);
    for (int64_t i = 0; !together && i < members->distinct; i++)
        draft->apart[i] = true;
    if (status || !together) return status;
    status = nh_planner_choose_group(context->group_choices, request, members->problem,
                                     draft->members_of, members->distinct, draft->choice,
                                     draft->apart, &failed);
    return status ? nh_group_member_error(status, draft->first_of[failed]) : NHOOD_OK;
}

static nhood_status build_one(struct nh_request *request, const struct nh_device *device,
                              struct nh_choice *choice, struct nh_operation **operation) {
    struct nh_built built; /* its text is large, so it is not cleared */
    built.operation = NULL;
    if (!request->problem->batch)
        return nh_empty_build(request->problem, request->device, operation);
    struct nh_request own = *request;
    own.device = device;
    nhood_status status = nh_planner_build(&own, choice, &built);
    *operation = built.operation;
    *choice = built.choice;
    return status;
}

static void destroy_built(struct nh_members *members) {
    for (int64_t i = 0; members->built && i < members->distinct; i++)
        if (members->built[i]) {
            members->built[i]->destroy(members->built[i]);
            members->built[i] = NULL;
        }
}

/* Builds the operations of the distinct problems on `device`, for a single problem where launches are not shared, and that of the group by
 * `group_build`. */
static nhood_status build_with(struct nh_request *request, const struct nh_device *device,
                               nh_group_build_fn *group_build, struct nh_members *members,
                               struct draft *draft) {
    struct nh_device alone = *device;
    alone.for_group = false;
    for (int64_t i = 0; i < members->distinct; i++) {
        request->problem = &members->problem[i];
        nhood_status status = build_one(request, draft->apart[i] ? &alone : device,
                                        &draft->choice[i], &members->built[i]);
        if (status) return nh_group_member_error(status, draft->first_of[i]);
    }
    for (int64_t i = 0; i < members->group.count; i++) {
        const int64_t index = draft->index_of[i];
        const struct nh_choice *choice = &draft->choice[index];
        const double ns = choice->samples ? (double)choice->measured_ns : choice->estimate_ns;
        members->group.member[i] =
            (struct nh_group_member){.problem = &members->problem[index],
                                     .operation = members->built[index],
                                     .ns = members->problem[index].batch ? ns : 0};
    }
    nh_group_pack(&members->group);
    return group_build(device, &members->group, &members->operation);
}

/* Members whose launches cannot be those of all, as the compiler, the device or a solver refuses one, are launched one by one, by what
 * their own plans would launch. */
static nhood_status build(nhood_context *context, struct nh_request *request,
                          struct nh_members *members, struct draft *draft) {
    if (request->device->info.kind != NHOOD_DEVICE_CUDA)
        return build_with(request, request->device, nh_registry_group, members, draft);
    struct nh_device device = *request->device;
    device.kernels_later = device.for_group = true;
    device.arena = members->arena;
    nhood_status status = build_with(request, &device, nh_registry_group, members, draft);
    if (status != NHOOD_ERR_COMPILE && status != NHOOD_ERR_DEVICE &&
        status != NHOOD_ERR_UNSUPPORTED)
        return status;
    nh_log(members->host, NHOOD_LOG_WARNING, "a group has launches for each member: %s",
           nhood_last_error());
    destroy_built(members);
    const struct nh_device *built_on = request->device;
    request->device = draft->device;
    status = choose_each(context, request, NULL, true, members, draft);
    request->device = built_on;
    return status ? status : build_with(request, built_on, nh_group_loop_build, members, draft);
}

/* Appends to the description. */
static void append(nhood_plan *plan, const char *format, ...) NH_PRINTF(2, 3);
static void append(nhood_plan *plan, const char *format, ...) {
    const size_t used = strlen(plan->description);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(plan->description + used, sizeof plan->description - used, format, arguments);
    va_end(arguments);
}

/* Which solvers there are, with the number of their members, and the time of all members one after the other. */
static void describe(nhood_plan *plan, const struct nh_device *device, const struct draft *draft) {
    const struct nh_members *members = plan->members;
    char first[512] = "";
    double ns = 0;
    if (members->distinct) nh_problem_text(&members->problem[0], first, sizeof first);
    append(plan, "group of %lld, %lld different%s%s, on %s:", (long long)members->group.count,
           (long long)members->distinct, *first ? ", first " : "", first, device->info.name);
    for (int s = 0; nh_registry_solvers[s]; s++) {
        int64_t count = 0;
        for (int64_t i = 0; i < members->group.count; i++)
            count += members->group.member[i].problem->batch &&
                     draft->choice[draft->index_of[i]].solver == nh_registry_solvers[s];
        if (count) append(plan, " %s for %lld,", nh_registry_solvers[s]->name, (long long)count);
    }
    for (int64_t i = 0; i < members->group.count; i++)
        ns += members->group.member[i].ns;
    if (members->operation->launches)
        append(plan, " %lld launch%s,", (long long)members->operation->launches,
               members->operation->launches > 1 ? "es" : "");
    if (ns > 0)
        append(plan, " %.3g ms expected", ns * 1e-6);
    else
        append(plan, " nothing to compute");
}

/* collecting: NULL, or where kernels go that are only compiled, and then nothing remains of the members. */
static nhood_status fill(nhood_plan *plan, int32_t device, const nhood_problem *problems,
                         int64_t count, const nhood_plan_options *options,
                         struct nh_cuda *collecting) {
    struct nh_device twin = {.backend = NULL};
    const struct nh_host *host = &plan->context->host;
    struct draft draft = {.index_of = NULL};
    struct nh_request request = {.table = NULL};
    nhood_status status = allocate(plan->context, count, &plan->members, &draft);
    if (!status && count == 0) status = nh_context_device(plan->context, device, &request.device);
    if (!status)
        status = read_problems(plan->context, device, problems, options, plan->members, &draft,
                               &request);
    if (!status && !collecting) status = nh_context_present(request.device);
    if (!status) status = choose(plan->context, &request, options, plan->members, &draft);
    if (!status && collecting) {
        status = nh_registry_collect_twin(collecting, request.device, &twin);
        request.device = &twin;
    }
    if (!status) status = build(plan->context, &request, plan->members, &draft);
    if (!status) describe(plan, request.device, &draft);
    if (!collecting || !twin.backend) return status;
    nh_members_destroy(plan->members);
    plan->members = NULL;
    nh_release(host, twin.backend);
    return status;
}

nhood_status nh_members_collect(nhood_context *context, struct nh_cuda *cuda, int32_t device,
                                const nhood_problem *problems, int64_t count,
                                const nhood_plan_options *options) {
    nhood_plan *plan = nh_plan_new(context);
    if (!plan) return NHOOD_ERR_MEMORY;
    const nhood_status status = fill(plan, device, problems, count, options, cuda);
    nhood_plan_release(plan);
    return status;
}

nhood_status nh_members_check_count(const nhood_problem *problems, int64_t count) {
    if (count < 0 || count > NHOOD_MOST_MEMBERS)
        return nh_error(NHOOD_ERR_ARGUMENT, "count = %lld is not in [0, %d]", (long long)count,
                        NHOOD_MOST_MEMBERS);
    if (count && !problems) return nh_error(NHOOD_ERR_ARGUMENT, "problems is NULL");
    return NHOOD_OK;
}

nhood_status nhood_plan_create_group(nhood_context *context, int32_t device,
                                     const nhood_problem *problems, int64_t count,
                                     const nhood_plan_options *options, nhood_plan **plan) {
    NH_NOT_CANCELLED;
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    *plan = NULL;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    nhood_status status = nh_members_check_count(problems, count);
    if (status) return status;
    nhood_plan *created = nh_plan_new(context);
    if (!created) return NHOOD_ERR_MEMORY;
    status = fill(created, device, problems, count, options, NULL);
    if (status) {
        nhood_plan_release(created);
        return status;
    }
    *plan = created;
    return NHOOD_OK;
}

/* ---- executing ---- */

nhood_status nhood_plan_execute_group(const nhood_plan *plan, const nhood_group_io *io) {
    NH_NOT_CANCELLED;
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    if (plan->bounded) return nh_bounded_execute(plan, io);
    if (!plan->members)
        return nh_error(NHOOD_ERR_ARGUMENT, "plan is not one of a group: use nhood_plan_execute");
    const struct nh_group_operation *operation = plan->members->operation;
    const nhood_status status =
        nh_group_check_io(&plan->members->group, io, operation->workspace_bytes);
    if (status) return status;
    struct nh_interruption call;
    nh_interruption_begin(&call, &plan->context->host);
    return nh_interruption_end(&call, operation->run(operation, io));
}

void nh_members_destroy(struct nh_members *members) {
    if (!members) return;
    if (members->operation) members->operation->destroy(members->operation);
    for (int64_t i = 0; members->built && i < members->distinct; i++)
        if (members->built[i]) members->built[i]->destroy(members->built[i]);
    for (int64_t i = 0; members->tables && i < members->distinct; i++)
        nh_release(members->host, members->tables[i]);
    nh_arena_give_back(members->spare, members->arena);
    nh_release(members->host, members);
}
