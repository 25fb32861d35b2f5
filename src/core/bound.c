#include "bound.h"

static nhood_status refuse(const char *field, long long value, const char *why) {
    return nh_error(NHOOD_ERR_ARGUMENT, "problem.%s = %lld: %s", field, value, why);
}

static nhood_status check_problem(const struct nh_problem *problem) {
    if (problem->op != NHOOD_OP_FWD && problem->op != NHOOD_OP_BWD)
        return refuse("op", problem->op, "a plan within a bound is of fwd or bwd");
    if (problem->batch != 1)
        return refuse("batch", problem->batch, "a member of a plan within a bound is one sample");
    if (problem->has_bias) return refuse("has_bias", 1, "a plan within a bound takes no bias");
    if (problem->extra_tokens)
        return refuse("extra_tokens", problem->extra_tokens,
                      "a plan within a bound takes no extra tokens");
    if (nh_problem_periodic(problem) && problem->flags & NHOOD_FLAG_CLAMP_WINDOW)
        return refuse("flags", problem->flags,
                      "a plan within a bound clamps no windows of periodic axes");
    for (int a = 0; a < NH_AXES; a++) {
        const int index = a - (NH_AXES - problem->rank);
        if (problem->axis[a].windows.kind)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "windows[%d].kind = %d: a plan within a bound has windows by formula",
                            index, (int)problem->axis[a].windows.kind);
        if (!nh_is_whole(&problem->axis[a], &problem->axis[a].query) ||
            !nh_has_all_keys(&problem->axis[a]))
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "region[%d] is a part of the axis: a plan within a bound has all of it",
                            index);
    }
    return NHOOD_OK;
}

nhood_status nh_bound_canonical(const nhood_problem *problem, const nhood_bound *given,
                                struct nh_bound *bound) {
    nhood_status status = nh_problem_canonical(problem, &bound->problem);
    if (!status) status = check_problem(&bound->problem);
    if (status) return status;
    if (!given) return nh_error(NHOOD_ERR_ARGUMENT, "bound is NULL");
    if (given->struct_size != sizeof *given)
        return nh_error(NHOOD_ERR_ARGUMENT, "bound.struct_size = %zu, this library knows %zu",
                        given->struct_size, sizeof *given);
    if ((status = nh_check_field("bound", "members", given->members, 0, NHOOD_MOST_MEMBERS)) ||
        (status = nh_check_field("bound", "tokens", given->tokens, 0, INT64_C(1) << 40)))
        return status;
    bound->members = given->members;
    bound->tokens = given->tokens;
    struct nh_group_member one = {.problem = &bound->problem};
    struct nh_group group = {.count = 1, .member = &one};
    nh_group_pack(&group);
    if (*group.not_packed)
        return nh_error(NHOOD_ERR_ARGUMENT, "a plan within a bound: %s", group.not_packed);
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        const int64_t most_bytes = INT64_C(1) << 60;
        bound->token_bytes[t] = group.token_bytes[t];
        if (bound->tokens > most_bytes / nh_max(1, bound->token_bytes[t]))
            return nh_error(NHOOD_ERR_ARGUMENT, "bound.tokens = %lld: %s has more than 2^60 bytes",
                            (long long)bound->tokens, nh_tensor_name(t));
    }
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &bound->problem.axis[a];
        const bool clamps = bound->problem.flags & NHOOD_FLAG_CLAMP_WINDOW;
        bound->least[a] = clamps ? 1 : axis->window * axis->dilation;
    }
    return NHOOD_OK;
}

bool nh_bound_writes(const struct nh_bound *bound, int32_t tensor) {
    const enum nh_role role = nh_problem_role(&bound->problem, tensor);
    return role == NH_OUTPUT || role == NH_OPTIONAL_OUTPUT;
}

nhood_status nh_bound_check_io(const struct nh_bound *bound, const nhood_group_io *io,
                               size_t workspace_bytes) {
    nhood_status status;
    if (!io) return nh_error(NHOOD_ERR_ARGUMENT, "io is NULL");
    if (io->struct_size != sizeof *io)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.struct_size = %zu, this library knows %zu",
                        io->struct_size, sizeof *io);
    if ((status = nh_check_field("io", "count", io->count, 0, bound->members)) ||
        (status = nh_check_field("io", "query_tokens", io->query_tokens, 0, bound->tokens)) ||
        (status = nh_check_field("io", "key_tokens", io->key_tokens, io->query_tokens,
                                 io->query_tokens)))
        return status;
    if (io->member || io->query_offset || io->key_offset)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "io.%s is not NULL: the plan's members lie in packed tensors, by lengths",
                        io->member         ? "member"
                        : io->query_offset ? "query_offset"
                                           : "key_offset");
    if (io->length_bytes != 4 && io->length_bytes != 8)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.length_bytes = %lld is not 4 or 8",
                        (long long)io->length_bytes);
    if (io->count && !io->lengths) return nh_error(NHOOD_ERR_ARGUMENT, "io.lengths is NULL");
    if ((uintptr_t)io->lengths % (uintptr_t)io->length_bytes)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.lengths = %p is not aligned to %lld bytes",
                        io->lengths, (long long)io->length_bytes);
    if (!io->query_tokens) return NHOOD_OK;
    nhood_io all = {.struct_size = sizeof all,
                    .workspace = io->workspace,
                    .workspace_bytes = io->workspace_bytes};
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        all.data[t] = io->data[t];
    return nh_problem_check_io(&bound->problem, &all, workspace_bytes);
}

/* ARGUMENT, for lengths that are not all 0. */
static nhood_status check_axis(const struct nh_bound *bound, int a, int64_t index, int64_t length) {
    const struct nh_axis *axis = &bound->problem.axis[a];
    const int own = a - (NH_AXES - bound->problem.rank);
    const long long value = length, least = bound->least[a], most = axis->length;
    if (length < bound->least[a] || length > axis->length)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "member %lld: lengths[%lld][%d] = %lld is not in [%lld, %lld]",
                        (long long)index, (long long)index, own, value, least, most);
    if (axis->periodic && (length % axis->dilation || length / axis->dilation % axis->stride))
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "member %lld: lengths[%lld][%d] = %lld of a periodic axis is no multiple "
                        "of dilation %lld and stride %lld",
                        (long long)index, (long long)index, own, value, (long long)axis->dilation,
                        (long long)axis->stride);
    return NHOOD_OK;
}

nhood_status nh_bound_read(const struct nh_bound *bound, const nhood_group_io *io, int64_t index,
                           int64_t length[NH_AXES]) {
    const int rank = bound->problem.rank, first = NH_AXES - rank;
    bool none = true;
    for (int a = 0; a < NH_AXES; a++) {
        const int64_t at = index * rank + a - first;
        length[a] = a < first               ? 1
                    : io->length_bytes == 4 ? ((const int32_t *)io->lengths)[at]
                                            : ((const int64_t *)io->lengths)[at];
        none = none && (a < first || length[a] == 0);
    }
    for (int a = 0; none && a < first; a++)
        length[a] = 0;
    nhood_status status = NHOOD_OK;
    for (int a = first; !none && !status && a < NH_AXES; a++)
        status = check_axis(bound, a, index, length[a]);
    return status;
}
