/* Public functions on RMS norm and rotary positions. */
#include "context.h"
#include "empty.h"
#include "norm_rope.h"

struct nhood_norm_rope_plan {
    struct nh_norm_rope problem;
    struct nh_norm_rope_operation *operation;
    nhood_context *context; /* holds a reference */
};

nhood_status nhood_norm_rope_plan_create(nhood_context *context, int32_t device,
                                         const nhood_norm_rope_problem *given,
                                         nhood_norm_rope_plan **plan) {
    NH_NOT_CANCELLED;
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    *plan = NULL;
    struct nh_norm_rope problem;
    const struct nh_device *found = NULL;
    nhood_status status = nh_context_device(context, device, &found);
    if (!status) status = nh_context_present(found);
    if (!status) status = nh_norm_rope_canonical(given, &problem);
    if (status) return status;
    nhood_norm_rope_plan *created = nh_allocate(&context->host, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    created->problem = problem;
    created->context = context;
    nh_context_retain(context);
    status = problem.tokens ? nh_registry_norm_rope(&problem, found, &created->operation)
                            : nh_empty_norm_rope(&problem, found, &created->operation);
    if (status) {
        nhood_norm_rope_plan_destroy(created);
        return status;
    }
    *plan = created;
    return NHOOD_OK;
}

void nhood_norm_rope_plan_destroy(nhood_norm_rope_plan *plan) {
    NH_NOT_CANCELLED;
    if (!plan) return;
    if (plan->operation) plan->operation->destroy(plan->operation);
    nhood_context *context = plan->context;
    nh_release(&context->host, plan);
    nh_context_drop(context);
}

size_t nhood_norm_rope_workspace_bytes(const nhood_norm_rope_plan *plan) {
    return plan ? plan->operation->workspace_bytes : 0;
}

nhood_status nhood_norm_rope_execute(const nhood_norm_rope_plan *plan,
                                     const nhood_norm_rope_io *io) {
    NH_NOT_CANCELLED;
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    nhood_status status =
        nh_norm_rope_check_io(&plan->problem, io, plan->operation->workspace_bytes);
    if (status) return status;
    struct nh_interruption call;
    nh_interruption_begin(&call, &plan->context->host);
    return nh_interruption_end(&call, plan->operation->run(plan->operation, io));
}
