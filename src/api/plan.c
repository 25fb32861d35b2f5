/* Plans: a chosen solver, built; the context kept alive behind it. */
#include "context.h"
#include "planner.h"

#include <stdio.h>
#include <string.h>

struct nhood_plan {
    struct nh_problem problem;
    struct nh_operation *operation;
    nhood_context *context; /* a reference */
    atomic_int references;
    char description[1024];
};

const char *nhood_solver_name(int32_t index, int32_t *device_kind) {
    for (int32_t i = 0; index >= 0 && nh_registry_solvers[i]; i++) {
        if (i != index) continue;
        if (device_kind) *device_kind = nh_registry_solvers[i]->device_kind;
        return nh_registry_solvers[i]->name;
    }
    return NULL;
}

/* What plan_create and plan_explain check alike. */
static nhood_status choose(nhood_context *context, int32_t device, const nhood_problem *given,
                           const nhood_plan_options *options, nhood_candidate_fn report, void *user,
                           const struct nh_device **found, struct nh_problem *problem,
                           struct nh_choice *choice) {
    nhood_status status = nh_context_device(context, device, found);
    if (status || (status = nh_problem_canonical(given, problem))) return status;
    if (options && options->struct_size != sizeof *options)
        return nh_error(NHOOD_ERR_ARGUMENT, "options.struct_size = %zu, this library knows %zu",
                        options->struct_size, sizeof *options);
    return nh_planner_choose(nh_registry_solvers, *found, problem, options ? options->solver : NULL,
                             report, user, choice);
}

nhood_status nhood_plan_explain(nhood_context *context, int32_t device, const nhood_problem *given,
                                const nhood_plan_options *options, nhood_candidate_fn report,
                                void *user) {
    const struct nh_device *found = NULL;
    struct nh_problem problem;
    struct nh_choice choice;
    return choose(context, device, given, options, report, user, &found, &problem, &choice);
}

static void describe(nhood_plan *plan, const struct nh_device *device,
                     const struct nh_choice *choice) {
    char problem[512], config[256];
    nh_problem_text(&plan->problem, problem, sizeof problem);
    nh_config_text(choice->solver, &choice->config, config, sizeof config);
    snprintf(plan->description, sizeof plan->description,
             "%s on %s: %s%s%s, %.3g ms expected, by estimate", problem, device->info.name,
             choice->solver->name, *config ? " " : "", config, choice->estimate_ns * 1e-6);
}

nhood_status nhood_plan_create(nhood_context *context, int32_t device, const nhood_problem *given,
                               const nhood_plan_options *options, nhood_plan **plan) {
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    *plan = NULL;
    const struct nh_device *found = NULL;
    struct nh_problem problem;
    struct nh_choice choice;
    nhood_status status =
        choose(context, device, given, options, NULL, NULL, &found, &problem, &choice);
    if (status) return status;
    nhood_plan *created = nh_allocate(&context->host, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    created->problem = problem;
    atomic_init(&created->references, 1);
    created->context = context;
    nh_context_retain(context);
    status = choice.solver->build(&problem, found, &choice.config, &created->operation);
    if (status) {
        nhood_plan_release(created);
        return status;
    }
    describe(created, found, &choice);
    *plan = created;
    return NHOOD_OK;
}

void nhood_plan_retain(nhood_plan *plan) {
    if (plan) atomic_fetch_add(&plan->references, 1);
}

void nhood_plan_release(nhood_plan *plan) {
    if (!plan || atomic_fetch_sub(&plan->references, 1) != 1) return;
    if (plan->operation) plan->operation->destroy(plan->operation);
    nhood_context *context = plan->context;
    nh_release(&context->host, plan);
    nh_context_drop(context);
}

size_t nhood_plan_workspace_bytes(const nhood_plan *plan) {
    return plan ? plan->operation->workspace_bytes : 0;
}

const char *nhood_plan_description(const nhood_plan *plan) {
    return plan ? plan->description : "";
}

nhood_status nhood_plan_execute(const nhood_plan *plan, const nhood_io *io) {
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    nhood_status status = nh_problem_check_io(&plan->problem, io, plan->operation->workspace_bytes);
    if (status) return status;
    return plan->operation->run(plan->operation, io);
}
