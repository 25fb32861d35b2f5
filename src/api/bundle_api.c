/* Bundles: the kernels that plans would compile, compiled for a device that need not be present. */
#include "norm_rope.h"
#include "plan.h"

struct nhood_bundle {
    nhood_context *context; /* holds a reference */
    struct nh_cuda *cuda;
};

nhood_status nhood_bundle_create(nhood_context *context, nhood_bundle **bundle) {
    NH_NOT_CANCELLED;
    if (!bundle) return nh_error(NHOOD_ERR_ARGUMENT, "bundle is NULL");
    *bundle = NULL;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    nhood_bundle *created = nh_allocate(&context->host, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    created->context = context;
    nh_context_retain(context);
    const nhood_context_options options = {.struct_size = sizeof options,
                                           .cache = context->cache,
                                           .nvrtc = context->nvrtc,
                                           .line_info = context->line_info};
    nhood_status status = nh_registry_collect_open(&options, &context->host, &created->cuda);
    if (status) {
        nhood_bundle_destroy(created);
        return status;
    }
    *bundle = created;
    return NHOOD_OK;
}

static nhood_status refuse_measuring(const nhood_plan_options *options) {
    return nh_error(NHOOD_ERR_ARGUMENT,
                    "options.effort = %d: what goes into a bundle is chosen without measuring",
                    (int)options->effort);
}

/* report: NULL, or gets the launches. */
static nhood_status add(nhood_bundle *bundle, int32_t device, const nhood_problem *given,
                        const nhood_plan_options *options, nhood_launch_fn report, void *user) {
    if (!bundle) return nh_error(NHOOD_ERR_ARGUMENT, "bundle is NULL");
    struct nh_problem problem;
    struct nh_request request;
    struct nh_choice choice;
    struct nh_device twin;
    struct nh_built built = {.operation = NULL};
    nhood_status status =
        nh_context_request(bundle->context, device, given, options, &problem, &request);
    if (status) return status;
    if (options && options->effort == NHOOD_EFFORT_MEASURE) return refuse_measuring(options);
    status = nh_context_choose(bundle->context, &request, options, &choice);
    if (!status) status = nh_registry_collect_twin(bundle->cuda, request.device, &twin);
    if (status) return status;
    request.device = &twin;
    if (problem.batch) status = nh_planner_build(&request, &choice, &built);
    if (!status && built.operation && report)
        nh_registry_collect_launches(built.operation, report, user);
    if (built.operation) built.operation->destroy(built.operation);
    nh_release(&bundle->context->host, twin.backend);
    return status;
}

nhood_status nhood_bundle_add(nhood_bundle *bundle, int32_t device, const nhood_problem *problem,
                              const nhood_plan_options *options) {
    NH_NOT_CANCELLED;
    return add(bundle, device, problem, options, NULL, NULL);
}

nhood_status nhood_bundle_add_group(nhood_bundle *bundle, int32_t device,
                                    const nhood_problem *problems, int64_t count,
                                    const nhood_plan_options *options) {
    NH_NOT_CANCELLED;
    if (!bundle) return nh_error(NHOOD_ERR_ARGUMENT, "bundle is NULL");
    nhood_status status = nh_members_check_count(problems, count);
    if (status) return status;
    if (options && options->effort == NHOOD_EFFORT_MEASURE) return refuse_measuring(options);
    status = nh_members_collect(bundle->context, bundle->cuda, device, problems, count, options);
    /* Their own kernels, too: in other groups, a member may be the only one that has its kernel. */
    for (int64_t i = 0; !status && i < count; i++) {
        status = add(bundle, device, &problems[i], options, NULL, NULL);
        if (status) status = nh_group_member_error(status, i);
    }
    return status;
}

nhood_status nhood_bundle_add_bounded(nhood_bundle *bundle, int32_t device,
                                      const nhood_problem *problem, const nhood_bound *bound,
                                      const nhood_plan_options *options) {
    NH_NOT_CANCELLED;
    if (!bundle) return nh_error(NHOOD_ERR_ARGUMENT, "bundle is NULL");
    return nh_bounded_collect(bundle->context, bundle->cuda, device, problem, bound, options);
}

nhood_status nhood_bundle_launches(nhood_bundle *bundle, int32_t device,
                                   const nhood_problem *problem, const nhood_plan_options *options,
                                   nhood_launch_fn report, void *user) {
    NH_NOT_CANCELLED;
    if (!report) return nh_error(NHOOD_ERR_ARGUMENT, "report is NULL");
    return add(bundle, device, problem, options, report, user);
}

nhood_status nhood_bundle_add_norm_rope(nhood_bundle *bundle, int32_t device,
                                        const nhood_norm_rope_problem *given) {
    NH_NOT_CANCELLED;
    if (!bundle) return nh_error(NHOOD_ERR_ARGUMENT, "bundle is NULL");
    struct nh_norm_rope problem;
    struct nh_norm_rope_operation *operation = NULL;
    const struct nh_device *found = NULL;
    struct nh_device twin;
    nhood_status status = nh_context_device(bundle->context, device, &found);
    if (!status) status = nh_norm_rope_canonical(given, &problem);
    if (!status) status = nh_registry_collect_twin(bundle->cuda, found, &twin);
    if (status) return status;
    if (problem.tokens) status = nh_registry_norm_rope(&problem, &twin, &operation);
    if (operation) operation->destroy(operation);
    nh_release(&bundle->context->host, twin.backend);
    return status;
}

nhood_status nhood_bundle_save(nhood_bundle *bundle, const char *path) {
    NH_NOT_CANCELLED;
    if (!bundle) return nh_error(NHOOD_ERR_ARGUMENT, "bundle is NULL");
    if (!path) return nh_error(NHOOD_ERR_ARGUMENT, "path is NULL");
    return nh_registry_collect_write(bundle->cuda, path);
}

nhood_status nhood_bundle_kernels(const nhood_bundle *bundle, nhood_kernel_counts *counts) {
    NH_NOT_CANCELLED;
    if (!bundle) return nh_error(NHOOD_ERR_ARGUMENT, "bundle is NULL");
    if (!counts) return nh_error(NHOOD_ERR_ARGUMENT, "counts is NULL");
    nhood_kernel_counts whole = {.struct_size = sizeof whole};
    nh_registry_count_kernels(bundle->cuda, &whole);
    return nh_context_counts(&whole, counts);
}

void nhood_bundle_destroy(nhood_bundle *bundle) {
    NH_NOT_CANCELLED;
    if (!bundle) return;
    nhood_context *context = bundle->context;
    nh_registry_collect_close(bundle->cuda);
    nh_release(&context->host, bundle);
    nh_context_drop(context);
}
