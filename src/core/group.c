#include "group.h"

#include "dtype.h"

#include <stdio.h>
#include <string.h>

nhood_status nh_group_member_error(nhood_status status, int64_t index) {
    char text[4096];
    snprintf(text, sizeof text, "%s", nhood_last_error());
    return nh_error(status, "member %lld: %s", (long long)index, text);
}

static nhood_status differs(int64_t index, const char *field, long long value, long long first) {
    return nh_error(NHOOD_ERR_ARGUMENT,
                    "member %lld: problem.%s = %lld, that of member 0 is %lld: a group shares it",
                    (long long)index, field, value, first);
}

nhood_status nh_group_check_shared(const struct nh_problem *first, const struct nh_problem *problem,
                                   int64_t index) {
    if (problem->op != first->op) return differs(index, "op", problem->op, first->op);
    if (problem->dtype != first->dtype)
        return differs(index, "dtype", problem->dtype, first->dtype);
    if (problem->rank != first->rank) return differs(index, "rank", problem->rank, first->rank);
    if (problem->flags != first->flags)
        return differs(index, "flags", problem->flags, first->flags);
    if (problem->dim != first->dim) return differs(index, "dim", problem->dim, first->dim);
    if (problem->dim_v != first->dim_v)
        return differs(index, "dim_v", problem->dim_v, first->dim_v);
    if (problem->has_bias != first->has_bias)
        return differs(index, "has_bias", problem->has_bias, first->has_bias);
    if (problem->scale != first->scale)
        return nh_error(
            NHOOD_ERR_ARGUMENT,
            "member %lld: problem.scale = %g, that of member 0 is %g: a group shares it",
            (long long)index, problem->scale, first->scale);
    return NHOOD_OK;
}

/* ---- packed tensors ---- */

/* Whether a tensor's tokens follow each other at one distance, that of its last axis. */
static bool in_a_row(const struct nh_problem *problem, int32_t tensor) {
    const nhood_strides *s = &problem->strides[tensor];
    int64_t step = s->axis[NH_AXES - 1];
    for (int a = NH_AXES - 1; a >= 0; a--) {
        const struct nh_axis *axis = &problem->axis[a];
        const int64_t length = nh_tensor_of_keys(tensor) ? axis->key.length : axis->query.length;
        if (length > 1 && s->axis[a] != step) return false;
        if (!nh_multiply(step, length, &step)) return false;
    }
    return problem->batch <= 1 || s->batch == step;
}

static void refuse_packed(struct nh_group *group, int64_t index, const char *why) {
    snprintf(group->not_packed, sizeof group->not_packed, "member %lld %s", (long long)index, why);
}

static void pack_tensor(struct nh_group *group, int64_t index, int32_t tensor) {
    const struct nh_problem *problem = group->member[index].problem;
    const int64_t element = (int64_t)nh_dtype_bytes(nh_tensor_dtype(problem, tensor));
    int64_t bytes;
    char why[128];
    if (!in_a_row(problem, tensor) ||
        !nh_multiply(problem->strides[tensor].axis[NH_AXES - 1], element, &bytes)) {
        snprintf(why, sizeof why, "has strides[%s] that are not those of tokens in a row",
                 nh_tensor_name(tensor));
        refuse_packed(group, index, why);
    } else if (index == 0) {
        group->token_bytes[tensor] = bytes;
    } else if (group->token_bytes[tensor] != bytes) {
        snprintf(why, sizeof why, "has tokens of %s %lld bytes apart, member 0 has them %lld apart",
                 nh_tensor_name(tensor), (long long)bytes, (long long)group->token_bytes[tensor]);
        refuse_packed(group, index, why);
    }
}

void nh_group_pack(struct nh_group *group) {
    for (int64_t i = 0; i < group->count; i++) {
        struct nh_group_member *member = &group->member[i];
        const struct nh_problem *problem = member->problem;
        member->first_query = group->query_tokens;
        member->first_key = group->key_tokens;
        if (!nh_add(group->query_tokens, problem->batch * problem->query_tokens,
                    &group->query_tokens) ||
            !nh_add(group->key_tokens, problem->batch * problem->key_tokens, &group->key_tokens))
            refuse_packed(group, i, "ends beyond 2^63 tokens");
        if (problem->has_bias) refuse_packed(group, i, "has a bias");
        if (problem->extra_tokens) refuse_packed(group, i, "has extra tokens");
        const uint32_t tensors = nh_problem_tensors(problem);
        for (int32_t t = 0; t < NHOOD_TENSOR_COUNT && !*group->not_packed; t++)
            if ((tensors >> t & 1) && nh_tensor_of_grid(t)) pack_tensor(group, i, t);
        if (*group->not_packed) return;
    }
}

/* Members follow each other without overlaps and gaps, so that given offsets can only repeat what the problems say. */
static nhood_status check_offsets(const struct nh_group *group, const char *name,
                                  const int64_t *offset, bool keys, int64_t tokens) {
    for (int64_t i = 0; offset && i <= group->count; i++) {
        const struct nh_group_member *member = &group->member[i];
        const int64_t at = i == group->count ? tokens
                           : keys            ? member->first_key
                                             : member->first_query;
        if (offset[i] != at)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "io.%s_offset[%lld] = %lld: %s, which has %lld tokens before it", name,
                            (long long)i, (long long)offset[i],
                            i == group->count ? "this is the end of all members"
                            : offset[i] < at  ? "the members overlap at this one"
                                              : "there is a gap before this member",
                            (long long)at);
    }
    return NHOOD_OK;
}

static nhood_status check_tokens(const char *name, int64_t given, int64_t tokens) {
    if (given == tokens) return NHOOD_OK;
    return nh_error(NHOOD_ERR_ARGUMENT, "io.%s_tokens = %lld, the members have %lld", name,
                    (long long)given, (long long)tokens);
}

static nhood_status check_packed(const struct nh_group *group, const nhood_group_io *io) {
    if (*group->not_packed)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.member is NULL, but %s: give io.member",
                        group->not_packed);
    nhood_status status = check_tokens("query", io->query_tokens, group->query_tokens);
    if (!status) status = check_tokens("key", io->key_tokens, group->key_tokens);
    if (!status)
        status = check_offsets(group, "query", io->query_offset, false, group->query_tokens);
    if (!status) status = check_offsets(group, "key", io->key_offset, true, group->key_tokens);
    return status;
}

nhood_status nh_group_check_io(const struct nh_group *group, const nhood_group_io *io,
                               size_t workspace_bytes) {
    if (!io) return nh_error(NHOOD_ERR_ARGUMENT, "io is NULL");
    if (io->struct_size != sizeof *io)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.struct_size = %zu, this library knows %zu",
                        io->struct_size, sizeof *io);
    if (io->count != group->count)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.count = %lld, the plan has %lld members",
                        (long long)io->count, (long long)group->count);
    nhood_status status = io->member ? NHOOD_OK : check_packed(group, io);
    for (int64_t i = 0; !status && i < group->count; i++) {
        const nhood_io *given = io->member ? &io->member[i] : NULL;
        const nhood_io own = given ? *given : nh_group_member_io(group, io, i);
        status = nh_problem_check_io(group->member[i].problem, &own, 0);
        if (status) status = nh_group_member_error(status, i);
    }
    return status ? status
                  : nh_check_workspace(io->workspace, io->workspace_bytes, workspace_bytes);
}

nhood_io nh_group_member_io(const struct nh_group *group, const nhood_group_io *io, int64_t index) {
    const struct nh_group_member *member = &group->member[index];
    nhood_io own = {.struct_size = sizeof own,
                    .workspace = io->workspace,
                    .workspace_bytes = io->workspace_bytes,
                    .stream = io->stream};
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        const int64_t first = nh_tensor_of_keys(t) ? member->first_key : member->first_query;
        own.data[t] = io->member ? io->member[index].data[t] : io->data[t];
        if (own.data[t] && !io->member)
            own.data[t] = (char *)own.data[t] + first * group->token_bytes[t];
    }
    return own;
}

nhood_status nh_group_run_member(const struct nh_group *group, const nhood_group_io *io,
                                 int64_t index) {
    const struct nh_operation *operation = group->member[index].operation;
    const nhood_io own = nh_group_member_io(group, io, index);
    const nhood_status status = operation->run(operation, &own);
    return status ? nh_group_member_error(status, index) : NHOOD_OK;
}

/* ---- one after the other ---- */

struct loop {
    struct nh_group_operation base;
    const struct nh_host *host;
    const struct nh_group *group;
};

static nhood_status loop_run(const struct nh_group_operation *operation, const nhood_group_io *io) {
    const struct nh_group *group = ((const struct loop *)operation)->group;
    nhood_status status = NHOOD_OK;
    for (int64_t i = 0; !status && i < group->count; i++)
        status = nh_group_run_member(group, io, i);
    return status;
}

static void loop_destroy(struct nh_group_operation *operation) {
    nh_release(((struct loop *)operation)->host, operation);
}

nhood_status nh_group_loop_build(const struct nh_device *device, const struct nh_group *group,
                                 struct nh_group_operation **operation) {
    struct loop *loop = nh_allocate(device->host, sizeof *loop);
    if (!loop) return NHOOD_ERR_MEMORY;
    *loop = (struct loop){
        .base = {.run = loop_run, .destroy = loop_destroy}, .host = device->host, .group = group};
    for (int64_t i = 0; i < group->count; i++)
        if (group->member[i].operation->workspace_bytes > loop->base.workspace_bytes)
            loop->base.workspace_bytes = group->member[i].operation->workspace_bytes;
    *operation = &loop->base;
    return NHOOD_OK;
}
