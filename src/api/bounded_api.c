/* Plans of any members within a bound. On CUDA they are one operation that reads lengths on the device. On the CPU, whose kernels
 * need the geometry of each size, an execute reads them, and makes a plan of the group of these members, which it keeps for the next
 * one. */
#include "bound.h"
#include "dtype.h"
#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct nh_bounded {
    const struct nh_host *host;
    struct nh_bound bound;
    struct nh_group_operation *operation; /* on CUDA; the rest is the CPU's */
    int32_t device;
    nhood_problem problem; /* as it was given */
    char *solver;          /* of the options, NULL: any */
    pthread_mutex_t lock;  /* of what follows: the last plan of members, and their lengths */
    struct nh_fork_guard guard;
    nhood_plan *last;
    int64_t count, *length;
};

size_t nh_bounded_workspace_bytes(const struct nh_bounded *bounded) {
    return bounded->operation ? bounded->operation->workspace_bytes : 0;
}

void nh_bounded_destroy(struct nh_bounded *bounded) {
    if (!bounded) return;
    if (bounded->operation) bounded->operation->destroy(bounded->operation);
    nhood_plan_release(bounded->last);
    nh_release(bounded->host, bounded->length);
    nh_release(bounded->host, bounded->solver);
    nh_guarded_lock_end(&bounded->lock, &bounded->guard);
    nh_release(bounded->host, bounded);
}

/* ---- making ---- */

/* Estimates are of grids whose axes have these eighths of the longest length, and are odd: few tiles divide them, as they divide few
 * members'. */
enum { LEAST_EIGHTHS = 4, SIZES = 4, OF_SIZE = 16 };

/* The problem of a size, which has as many tokens as the bound. Axes that are periodic have the longest length. */
static nhood_status problem_of_size(const nhood_problem *given, const struct nh_bound *bound,
                                    int64_t eighths, struct nh_problem *problem) {
    nhood_problem own = *given;
    int64_t tokens = 1;
    memset(own.strides, 0, sizeof own.strides);
    for (int a = 0; a < given->rank; a++) {
        const struct nh_axis *longest = &bound->problem.axis[NH_AXES - given->rank + a];
        const int64_t least = longest->window * longest->dilation,
                      length = nh_max(least, longest->length * eighths / 8 | 1);
        own.axis[a].length = longest->periodic ? longest->length : nh_min(length, longest->length);
        tokens *= own.axis[a].length;
    }
    own.batch = nh_max(1, bound->tokens / tokens);
    return nh_problem_canonical(&own, problem);
}

static bool listed(const struct nh_choice *choice, int count, const struct nh_choice *one) {
    for (int i = 0; i < count; i++)
        if (choice[i].solver == one->solver &&
            !memcmp(&choice[i].config, &one->config, sizeof one->config))
            return true;
    return false;
}

static int compare(const void *left, const void *right) {
    const double a = ((const struct nh_choice *)left)->estimate_ns,
                 b = ((const struct nh_choice *)right)->estimate_ns;
    return (a > b) - (a < b);
}

/* The configs of the fastest candidates of each size, the fastest for all sizes first. */
static int list(const struct nh_request *request, const struct nh_problem size[SIZES],
                struct nh_choice choice[SIZES * OF_SIZE]) {
    struct nh_request own = *request;
    struct nh_choice of_size[OF_SIZE];
    int count = 0;
    for (int i = 0; i < SIZES; i++) {
        own.problem = &size[i];
        const int found = nh_planner_list(&own, of_size, OF_SIZE);
        for (int k = 0; k < found; k++)
            if (!listed(choice, count, &of_size[k])) choice[count++] = of_size[k];
    }
    for (int i = 0; i < count; i++) {
        choice[i].estimate_ns = 0;
        for (int k = 0; k < SIZES; k++)
            choice[i].estimate_ns += nh_choice_estimate(&choice[i], &size[k], request->device);
    }
    qsort(choice, (size_t)count, sizeof *choice, compare);
    return count;
}

/* Builds the config with the least estimate whose launches serve all lengths. */
static nhood_status build(nhood_plan *plan, const nhood_problem *given,
                          const struct nh_request *request) {
    struct nh_bounded *bounded = plan->bounded;
    struct nh_problem longest = bounded->bound.problem, size[SIZES];
    const struct nh_device device = nh_device_for_any_length(request->device);
    struct nh_request asked = *request;
    struct nh_choice choice[SIZES * OF_SIZE];
    nhood_status status = NHOOD_OK;
    for (int i = 0; !status && i < SIZES; i++)
        status = problem_of_size(given, &bounded->bound, LEAST_EIGHTHS + i, &size[i]);
    longest.batch = nh_max(1, bounded->bound.tokens / longest.query_tokens);
    asked.problem = &longest;
    asked.device = &device;
    asked.table = nh_registry_bounded_solvers;
    if (!status) status = nh_planner_choose(&asked, &choice[0]); /* for its refusal */
    if (status) return status;
    int count = list(&asked, size, choice);
    if (!count) count = nh_planner_list(&asked, choice, OF_SIZE);
    for (int i = 0; i < count; i++) {
        status = nh_registry_bounded(choice[i].solver, &choice[i].config, &device, &bounded->bound,
                                     &bounded->operation);
        if (status == NHOOD_OK) {
            snprintf(plan->description + strlen(plan->description),
                     sizeof plan->description - strlen(plan->description), ": %s, %lld launches",
                     choice[i].solver->name, (long long)bounded->operation->launches);
            return NHOOD_OK;
        }
        if (status == NHOOD_ERR_MEMORY) break;
    }
    return status;
}

static nhood_status collect(nhood_plan *plan, const nhood_problem *given,
                            struct nh_request *request, struct nh_cuda *cuda) {
    struct nh_bounded *bounded = plan->bounded;
    struct nh_device twin;
    nhood_status status = nh_registry_collect_twin(cuda, request->device, &twin);
    if (status) return status;
    request->device = &twin;
    status = build(plan, given, request);
    if (bounded->operation) bounded->operation->destroy(bounded->operation);
    bounded->operation = NULL;
    nh_release(bounded->host, twin.backend);
    return status;
}

/* collecting: NULL, or where kernels go that are only compiled, and then no operation remains. */
static nhood_status fill(nhood_plan *plan, int32_t device, const nhood_problem *problem,
                         const nhood_bound *bound, const nhood_plan_options *options,
                         struct nh_cuda *collecting) {
    struct nh_bounded *bounded = plan->bounded;
    struct nh_problem checked;
    struct nh_request request;
    char text[512];
    nhood_status status =
        nh_context_request(plan->context, device, problem, options, &checked, &request);
    if (!status) status = nh_bound_canonical(problem, bound, &bounded->bound);
    if (!status && options && options->effort != NHOOD_EFFORT_ESTIMATE)
        status = nh_error(NHOOD_ERR_ARGUMENT,
                          "options.effort = %d: a plan within a bound is chosen by estimate",
                          (int)options->effort);
    if (!status && collecting) return collect(plan, problem, &request, collecting);
    if (!status) status = nh_context_present(request.device);
    if (status) return status;
    nh_problem_text(&bounded->bound.problem, text, sizeof text);
    snprintf(plan->description, sizeof plan->description,
             "any %lld members of %lld tokens, at most %s, on %s", (long long)bound->members,
             (long long)bound->tokens, text, request.device->info.name);
    if (request.device->info.kind == NHOOD_DEVICE_CUDA) return build(plan, problem, &request);
    struct nh_choice choice;
    status = nh_planner_choose(&request, &choice); /* for its refusal */
    bounded->device = device;
    bounded->problem = *problem;
    if (!status && options && options->solver &&
        !(bounded->solver = nh_copy_text(bounded->host, options->solver)))
        status = NHOOD_ERR_MEMORY;
    return status;
}

static nhood_status create(nhood_context *context, int32_t device, const nhood_problem *problem,
                           const nhood_bound *bound, const nhood_plan_options *options,
                           struct nh_cuda *collecting, nhood_plan **plan) {
    nhood_plan *created = nh_plan_new(context);
    if (!created) return NHOOD_ERR_MEMORY;
    struct nh_bounded *bounded = nh_allocate(&context->host, sizeof *bounded);
    nhood_status status = bounded ? NHOOD_OK : NHOOD_ERR_MEMORY;
    if (bounded) {
        bounded->host = &context->host;
        created->bounded = bounded;
        status = nh_guarded_lock_start(&bounded->lock, &bounded->guard);
    }
    if (!status) status = fill(created, device, problem, bound, options, collecting);
    if (status) {
        nhood_plan_release(created);
        return status;
    }
    *plan = created;
    return NHOOD_OK;
}

nhood_status nhood_plan_create_bounded(nhood_context *context, int32_t device,
                                       const nhood_problem *problem, const nhood_bound *bound,
                                       const nhood_plan_options *options, nhood_plan **plan) {
    NH_NOT_CANCELLED;
    if (!plan) return nh_error(NHOOD_ERR_ARGUMENT, "plan is NULL");
    *plan = NULL;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    return create(context, device, problem, bound, options, NULL, plan);
}

nhood_status nh_bounded_collect(nhood_context *context, struct nh_cuda *cuda, int32_t device,
                                const nhood_problem *problem, const nhood_bound *bound,
                                const nhood_plan_options *options) {
    nhood_plan *plan = NULL;
    const nhood_status status = create(context, device, problem, bound, options, cuda, &plan);
    nhood_plan_release(plan);
    return status;
}

/* ---- executing on the CPU ---- */

/* Reads all lengths, and counts the tokens. ARGUMENT. */
static nhood_status read_all(const struct nh_bounded *bounded, const nhood_group_io *io,
                             int64_t *length, int64_t *tokens) {
    *tokens = 0;
    for (int64_t i = 0; i < io->count; i++, length += NH_AXES) {
        const nhood_status status = nh_bound_read(&bounded->bound, io, i, length);
        if (status) return status;
        *tokens += length[0] * length[1] * length[2];
        if (*tokens > io->query_tokens)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "member %lld ends behind io.query_tokens = %lld, at token %lld",
                            (long long)i, (long long)io->query_tokens, (long long)*tokens);
    }
    return NHOOD_OK;
}

/* The problem of a member. */
static nhood_problem problem_of(const struct nh_bounded *bounded, const int64_t length[NH_AXES]) {
    nhood_problem problem = bounded->problem;
    const int first = NH_AXES - problem.rank;
    if (length[NH_AXES - 1] == 0) {
        problem.batch = 0;
        return problem;
    }
    for (int a = 0; a < problem.rank; a++)
        problem.axis[a].length = length[a + first];
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        if (nh_problem_role(&bounded->bound.problem, t) == NH_UNUSED) continue;
        const nhood_strides *whole = &bounded->bound.problem.strides[t];
        nhood_strides *own = &problem.strides[t];
        *own = (nhood_strides){.head = whole->head};
        int64_t step = whole->axis[NH_AXES - 1];
        for (int a = problem.rank - 1; a >= 0; a--) {
            own->axis[a] = step;
            step *= problem.axis[a].length;
        }
        own->batch = step;
    }
    return problem;
}

/* A plan of the members, with a reference for the caller. Takes the lengths, which are the caller's no more. */
static nhood_status plan_of(const nhood_plan *plan, int64_t count, int64_t *length,
                            nhood_plan **members) {
    struct nh_bounded *bounded = plan->bounded;
    const size_t bytes = (size_t)count * NH_AXES * sizeof *length;
    pthread_mutex_lock(&bounded->lock);
    *members = bounded->count == count && bounded->last && !memcmp(bounded->length, length, bytes)
                   ? bounded->last
                   : NULL;
    nhood_plan_retain(*members);
    pthread_mutex_unlock(&bounded->lock);
    nhood_plan *old = NULL;
    int64_t *old_length = length;
    nhood_status status = NHOOD_OK;
    if (!*members) {
        nhood_problem *problem =
            nh_allocate(bounded->host, (size_t)nh_max(count, 1) * sizeof *problem);
        const nhood_plan_options options = {.struct_size = sizeof options,
                                            .solver = bounded->solver};
        for (int64_t i = 0; problem && i < count; i++)
            problem[i] = problem_of(bounded, length + i * NH_AXES);
        status = problem ? nhood_plan_create_group(plan->context, bounded->device, problem, count,
                                                   &options, members)
                         : NHOOD_ERR_MEMORY;
        nh_release(bounded->host, problem);
        if (!status) {
            nhood_plan_retain(*members);
            pthread_mutex_lock(&bounded->lock);
            old = bounded->last;
            old_length = bounded->length;
            bounded->last = *members;
            bounded->length = length;
            bounded->count = count;
            pthread_mutex_unlock(&bounded->lock);
        }
    }
    nhood_plan_release(old);
    nh_release(bounded->host, old_length);
    return status;
}

/* Sets the tokens of an output that belong to no member. */
static void set_rest(const struct nh_bound *bound, const nhood_group_io *io, int32_t tensor,
                     int64_t first) {
    const struct nh_problem *problem = &bound->problem;
    const int32_t dtype = nh_tensor_dtype(problem, tensor);
    const bool keys = tensor == NHOOD_D_K || tensor == NHOOD_D_V;
    const bool of_dim = tensor == NHOOD_D_Q || tensor == NHOOD_D_K;
    const int64_t heads = keys ? problem->kv_heads : problem->heads;
    const int64_t width = tensor == NHOOD_LSE ? 1 : of_dim ? problem->dim : problem->dim_v;
    const nhood_strides *strides = &problem->strides[tensor];
    for (int64_t token = first; io->data[tensor] && token < io->query_tokens; token++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t c = 0; c < width; c++)
                nh_store_f64(dtype, io->data[tensor],
                             token * strides->axis[NH_AXES - 1] + h * strides->head + c,
                             tensor == NHOOD_LSE ? -(double)INFINITY : 0);
}

static nhood_status run_members(const nhood_plan *plan, const nhood_plan *members,
                                const nhood_group_io *io, int64_t tokens) {
    const struct nh_bounded *bounded = plan->bounded;
    nhood_group_io own = *io;
    own.lengths = NULL;
    own.length_bytes = 0;
    own.query_tokens = own.key_tokens = tokens;
    own.workspace_bytes = nhood_plan_workspace_bytes(members);
    own.workspace = own.workspace_bytes ? nh_allocate(bounded->host, own.workspace_bytes) : NULL;
    if (own.workspace_bytes && !own.workspace) return NHOOD_ERR_MEMORY;
    const nhood_status status = nhood_plan_execute_group(members, &own);
    nh_release(bounded->host, own.workspace);
    for (int32_t t = 0; !status && t < NHOOD_TENSOR_COUNT; t++)
        if (nh_bound_writes(&bounded->bound, t)) set_rest(&bounded->bound, io, t, tokens);
    return status;
}

static nhood_status execute_on_cpu(const nhood_plan *plan, const nhood_group_io *io) {
    const struct nh_bounded *bounded = plan->bounded;
    nhood_plan *members = NULL;
    int64_t tokens;
    int64_t *length =
        nh_allocate(bounded->host, (size_t)nh_max(io->count, 1) * NH_AXES * sizeof *length);
    if (!length) return NHOOD_ERR_MEMORY;
    nhood_status status = read_all(bounded, io, length, &tokens);
    if (status)
        nh_release(bounded->host, length);
    else
        status = plan_of(plan, io->count, length, &members);
    if (!status) status = run_members(plan, members, io, tokens);
    nhood_plan_release(members);
    return status;
}

nhood_status nh_bounded_execute(const nhood_plan *plan, const nhood_group_io *io) {
    const struct nh_bounded *bounded = plan->bounded;
    const nhood_status status =
        nh_bound_check_io(&bounded->bound, io, nh_bounded_workspace_bytes(bounded));
    if (status || !io->query_tokens) return status;
    if (bounded->operation) return bounded->operation->run(bounded->operation, io);
    return execute_on_cpu(plan, io);
}
