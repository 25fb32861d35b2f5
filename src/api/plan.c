/* Public functions on plans. A plan is the built operation of a chosen solver, and keeps its context alive. */
#include "plan.h"

#include "empty.h"
#include "measure.h"
#include "window_table.h"

#include <stdio.h>
#include <string.h>

const char *nhood_solver_name(int32_t index, int32_t *device_kind) {
    for (int32_t i = 0; index >= 0 && nh_registry_solvers[i]; i++) {
        if (i != index) continue;
        if (device_kind) *device_kind = nh_registry_solvers[i]->device_kind;
        return nh_registry_solvers[i]->name;
    }
    return NULL;
}

nhood_status nh_context_request(nhood_context *context, int32_t device, const nhood_problem *given,
                                const nhood_plan_options *options, struct nh_problem *problem,
                                struct nh_request *request) {
    const struct nh_device *found = NULL;
    nhood_status status = nh_context_device(context, device, &found);
    if (status || (status = nh_problem_canonical(given, problem))) return status;
    if (options && options->struct_size != sizeof *options)
        return nh_error(NHOOD_ERR_ARGUMENT, "options.struct_size = %zu, this library knows %zu",
                        options->struct_size, sizeof *options);
    if (options &&
        (options->effort < NHOOD_EFFORT_ESTIMATE || options->effort > NHOOD_EFFORT_WISDOM_ONLY))
        return nh_error(NHOOD_ERR_ARGUMENT, "options.effort = %d is not in [0, 2]",
                        (int)options->effort);
    if (options && !(options->budget_s >= 0))
        return nh_error(NHOOD_ERR_ARGUMENT, "options.budget_s = %g is less than 0",
                        options->budget_s);
    *request = (struct nh_request){.table = nh_registry_solvers,
                                   .device = found,
                                   .problem = problem,
                                   .only = options ? options->solver : NULL,
                                   .wisdom = context->wisdom};
    return NHOOD_OK;
}

/* The choice for a problem without batch entries is not built. It is made as for one entry, so that the same problems and solvers
 * are refused. */
static nhood_status choose_for_one(const struct nh_request *request, struct nh_choice *choice) {
    struct nh_problem one = *request->problem;
    struct nh_request for_one = *request;
    one.batch = 1;
    for_one.problem = &one;
    return nh_planner_choose(&for_one, choice);
}

nhood_status nhood_plan_explain(nhood_context *context, int32_t device, const nhood_problem *given,
                                const nhood_plan_options *options, nhood_candidate_fn report,
                                void *user) {
    NH_NOT_CANCELLED;
    struct nh_problem problem;
    struct nh_request request;
    struct nh_choice choice;
    nhood_status status = nh_context_request(context, device, given, options, &problem, &request);
    if (status) return status;
    if (problem.batch == 0) return choose_for_one(&request, &choice);
    status = nh_planner_choose(&request, &choice);
    if (report) nh_planner_explain(&request, status ? NULL : &choice, report, user);
    return status;
}

nhood_status nh_context_choose(nhood_context *context, const struct nh_request *request,
                               const nhood_plan_options *options, struct nh_choice *choice) {
    if (request->problem->batch == 0) return choose_for_one(request, choice);
    nhood_status status = nh_choice_cache_choose(context->choices, request, choice);
    if (status || !options || choice->samples) return status;
    if (options->effort == NHOOD_EFFORT_WISDOM_ONLY)
        return nh_error(NHOOD_ERR_CACHE_MISS, "wisdom knows nothing of this problem on %s (%s)",
                        request->device->info.name, request->device->info.description);
    if (options->effort != NHOOD_EFFORT_MEASURE) return NHOOD_OK;
    struct nh_interruption call;
    nh_interruption_begin(&call, &context->host);
    status = nh_measure(request, options->budget_s, &context->measuring);
    const nhood_status interrupted = nh_interruption_end(&call, NHOOD_OK);
    if (interrupted) return interrupted;
    if (status) nh_log(&context->host, NHOOD_LOG_WARNING, "not measured: %s", nhood_last_error());
    status = nh_choice_cache_choose(context->choices, request, choice);
    return status;
}

static void describe(nhood_plan *plan, const struct nh_device *device,
                     const struct nh_built *built) {
    char problem[512], config[NH_CONFIG_BYTES];
    const struct nh_choice *choice = &built->choice;
    nh_problem_text(&plan->problem, problem, sizeof problem);
    if (plan->problem.batch == 0) {
        snprintf(plan->description, sizeof plan->description, "%s on %s: nothing to compute",
                 problem, device->info.name);
        return;
    }
    nh_config_text(choice->solver, &choice->config, config, sizeof config);
    double ns = choice->samples ? (double)choice->measured_ns : choice->estimate_ns;
    int used = snprintf(plan->description, sizeof plan->description,
                        "%s on %s: %s%s%s, %.3g ms expected, ", problem, device->info.name,
                        choice->solver->name, *config ? " " : "", config, ns * 1e-6);
    if (used < 0 || (size_t)used >= sizeof plan->description) return;
    char *end = plan->description + used;
    size_t room = sizeof plan->description - (size_t)used;
    if (choice->samples) {
        used = snprintf(end, room, "by %lld sample%s", (long long)choice->samples,
                        choice->samples == 1 ? "" : "s");
    } else {
        used = snprintf(end, room, "by estimate");
    }
    if (*built->failures && (size_t)used < room)
        snprintf(end + used, room - (size_t)used, "; gave way: %s", built->failures);
}

nhood_plan *nh_plan_new(nhood_context *context) {
    nhood_plan *created = nh_allocate(&context->host, sizeof *created);
    if (!created) return NULL;
    atomic_init(&created->references, 1);
    created->context = context;
    nh_context_retain(context);
    return created;
}

nhood_status nhood_plan_create(nhood_context *context, int32_t device, const nhood_problem *given,
                               const nhood_plan_options *options, nhood_plan **plan) {
    NH_NOT_CANCELLED;
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    *plan = NULL;
    struct nh_problem problem;
    struct nh_request request;
    struct nh_choice choice;
    nhood_status status = nh_context_request(context, device, given, options, &problem, &request);
    if (!status) status = nh_context_present(request.device);
    if (!status) status = nh_context_choose(context, &request, options, &choice);
    if (status) return status;
    nhood_plan *created = nh_plan_new(context);
    if (!created) return NHOOD_ERR_MEMORY;
    struct nh_built built = {.operation = NULL};
    /* On CUDA the operation copies them to the device. */
    const bool keeps = request.device->info.kind != NHOOD_DEVICE_CUDA;
    status = keeps ? nh_windows_keep(&context->host, problem.axis, &created->tables) : NHOOD_OK;
    created->problem = problem;
    for (int a = 0; a < NH_AXES && !keeps; a++)
        created->problem.axis[a].windows.range = NULL; /* the caller's */
    if (!status)
        status = problem.batch ? nh_planner_build(&request, &choice, &built)
                               : nh_empty_build(&problem, request.device, &built.operation);
    created->operation = built.operation;
    if (status) {
        nhood_plan_release(created);
        return status;
    }
    describe(created, request.device, &built);
    *plan = created;
    return NHOOD_OK;
}

void nhood_plan_retain(nhood_plan *plan) {
    if (plan) atomic_fetch_add(&plan->references, 1);
}

void nhood_plan_release(nhood_plan *plan) {
    NH_NOT_CANCELLED;
    if (!plan || atomic_fetch_sub(&plan->references, 1) != 1) return;
    if (plan->operation) plan->operation->destroy(plan->operation);
    nh_members_destroy(plan->members);
    nh_bounded_destroy(plan->bounded);
    nh_release(&plan->context->host, plan->tables);
    nhood_context *context = plan->context;
    nh_release(&context->host, plan);
    nh_context_drop(context);
}

size_t nhood_plan_workspace_bytes(const nhood_plan *plan) {
    if (!plan) return 0;
    if (plan->bounded) return nh_bounded_workspace_bytes(plan->bounded);
    return plan->members ? plan->members->operation->workspace_bytes
                         : plan->operation->workspace_bytes;
}

const char *nhood_plan_description(const nhood_plan *plan) {
    return plan ? plan->description : "";
}

nhood_status nhood_plan_execute(const nhood_plan *plan, const nhood_io *io) {
    NH_NOT_CANCELLED;
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    if (plan->members || plan->bounded)
        return nh_error(NHOOD_ERR_ARGUMENT, "plan is one of a group: use nhood_plan_execute_group");
    nhood_status status = nh_problem_check_io(&plan->problem, io, plan->operation->workspace_bytes);
    if (status) return status;
    struct nh_interruption call;
    nh_interruption_begin(&call, &plan->context->host);
    return nh_interruption_end(&call, plan->operation->run(plan->operation, io));
}
