/* Canonicalisation: the one place where a problem's fields are checked. */
#include "problem.h"

#include "dtype.h"

#include <math.h>
#include <string.h>

static const char *const tensor_names[NHOOD_TENSOR_COUNT] = {
    "q",   "k",     "v",   "o",   "lse", "a",      "bias",      "extra_k",  "extra_v",
    "d_o", "d_lse", "d_q", "d_k", "d_v", "d_bias", "d_extra_k", "d_extra_v"};
static const char *const op_names[] = {"fwd", "bwd", "pn", "nn", "in"};

const char *nh_tensor_name(int32_t tensor) {
    return tensor >= 0 && tensor < NHOOD_TENSOR_COUNT ? tensor_names[tensor] : "?";
}

const char *nh_op_name(int32_t op) {
    return op >= NHOOD_OP_FWD && op <= NHOOD_OP_IN ? op_names[op - NHOOD_OP_FWD] : "?";
}

enum nh_role nh_problem_role(const struct nh_problem *problem, int32_t tensor) {
    bool bwd = problem->op == NHOOD_OP_BWD;
    bool softmax = bwd || problem->op == NHOOD_OP_FWD;
    bool extra = softmax && problem->extra_tokens > 0;
    switch (tensor) {
    case NHOOD_Q:
    case NHOOD_K: return softmax || problem->op == NHOOD_OP_PN ? NH_INPUT : NH_UNUSED;
    case NHOOD_V: return softmax || problem->op == NHOOD_OP_NN ? NH_INPUT : NH_UNUSED;
    case NHOOD_O:
        if (bwd) return NH_INPUT;
        return problem->op == NHOOD_OP_FWD || problem->op == NHOOD_OP_NN ? NH_OUTPUT : NH_UNUSED;
    case NHOOD_LSE: return bwd ? NH_INPUT : softmax ? NH_OPTIONAL_OUTPUT : NH_UNUSED;
    case NHOOD_A:
        if (problem->op == NHOOD_OP_PN) return NH_OUTPUT;
        return softmax ? NH_UNUSED : NH_INPUT;
    case NHOOD_BIAS: return problem->has_bias ? NH_INPUT : NH_UNUSED;
    case NHOOD_EXTRA_K:
    case NHOOD_EXTRA_V: return extra ? NH_INPUT : NH_UNUSED;
    case NHOOD_D_O: return bwd || problem->op == NHOOD_OP_IN ? NH_INPUT : NH_UNUSED;
    case NHOOD_D_LSE: return bwd ? NH_OPTIONAL_INPUT : NH_UNUSED;
    case NHOOD_D_V:
        return bwd ? NH_OPTIONAL_OUTPUT : problem->op == NHOOD_OP_IN ? NH_OUTPUT : NH_UNUSED;
    case NHOOD_D_Q:
    case NHOOD_D_K: return bwd ? NH_OPTIONAL_OUTPUT : NH_UNUSED;
    case NHOOD_D_BIAS: return bwd && problem->has_bias ? NH_OPTIONAL_OUTPUT : NH_UNUSED;
    case NHOOD_D_EXTRA_K:
    case NHOOD_D_EXTRA_V: return bwd && extra ? NH_OPTIONAL_OUTPUT : NH_UNUSED;
    default: return NH_UNUSED;
    }
}

void nhood_problem_init_sized(nhood_problem *problem, size_t struct_size, int32_t op, int32_t dtype,
                              int32_t rank) {
    if (!problem || struct_size < NH_PROBLEM_BYTES_0_1) return;
    memset(problem, 0, struct_size);
    problem->struct_size = struct_size;
    problem->op = op;
    problem->dtype = dtype;
    problem->rank = rank;
    for (int a = 0; a < NH_AXES; a++)
        problem->axis[a] = (nhood_axis){1, 1, 1, 1, 0, 0};
    problem->batch = problem->heads = 1;
    problem->dim = 32;
    problem->scale = NAN;
}

#undef nhood_problem_init
void nhood_problem_init(nhood_problem *problem, int32_t op, int32_t dtype, int32_t rank) {
    nhood_problem_init_sized(problem, NH_PROBLEM_BYTES_0_1, op, dtype, rank);
}

static bool is_output(enum nh_role role) {
    return role == NH_OUTPUT || role == NH_OPTIONAL_OUTPUT;
}

/* The packed shape of a tensor as {batch, axis0, axis1, axis2, head, contiguous}. */
static void tensor_shape(const struct nh_problem *problem, int32_t tensor, int64_t shape[6]) {
    bool kv = tensor == NHOOD_K || tensor == NHOOD_V || tensor == NHOOD_D_K || tensor == NHOOD_D_V;
    bool extra = tensor == NHOOD_EXTRA_K || tensor == NHOOD_EXTRA_V || tensor == NHOOD_D_EXTRA_K ||
                 tensor == NHOOD_D_EXTRA_V;
    bool bias = tensor == NHOOD_BIAS || tensor == NHOOD_D_BIAS;
    bool values = tensor == NHOOD_V || tensor == NHOOD_O || tensor == NHOOD_EXTRA_V ||
                  tensor == NHOOD_D_O || tensor == NHOOD_D_V || tensor == NHOOD_D_EXTRA_V;
    shape[0] = bias ? 1 : problem->batch;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        shape[1 + a] = extra || bias ? 1 : kv ? axis->key.length : axis->query.length;
    }
    if (extra) shape[1 + NH_AXES - problem->rank] = problem->extra_tokens;
    shape[4] = kv || extra ? problem->kv_heads : problem->heads;
    shape[5] = values ? problem->dim_v : problem->dim;
    if (bias) shape[5] = problem->bias_count;
    if (tensor == NHOOD_A) shape[5] = problem->window_count;
    if (tensor == NHOOD_LSE || tensor == NHOOD_D_LSE) shape[5] = 1;
}

bool nh_problem_strided(const struct nh_problem *problem) {
    const struct nh_axis *axis = problem->axis;
    return axis[0].stride > 1 || axis[1].stride > 1 || axis[2].stride > 1;
}

bool nh_problem_dilated(const struct nh_problem *problem) {
    const struct nh_axis *axis = problem->axis;
    return axis[0].dilation > 1 || axis[1].dilation > 1 || axis[2].dilation > 1;
}

bool nh_problem_causal(const struct nh_problem *problem) {
    const struct nh_axis *axis = problem->axis;
    return axis[0].causal || axis[1].causal || axis[2].causal;
}

bool nh_problem_periodic(const struct nh_problem *problem) {
    const struct nh_axis *axis = problem->axis;
    return axis[0].periodic || axis[1].periodic || axis[2].periodic;
}

bool nh_problem_partial(const struct nh_problem *problem) {
    bool whole = true;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        whole &= nh_is_whole(axis, &axis->query) && nh_is_whole(axis, &axis->key);
    }
    return !whole;
}

int64_t nh_tensor_elements(const struct nh_problem *problem, int32_t tensor) {
    if (nh_problem_role(problem, tensor) == NH_UNUSED) return 0;
    int64_t shape[6], elements = 1;
    tensor_shape(problem, tensor, shape);
    for (int i = 0; i < 6; i++)
        elements *= shape[i];
    return elements;
}

static nhood_status check_axis(const nhood_axis *given, int index, bool clamp,
                               struct nh_axis *axis) {
    if (given->length < 1 || given->length > INT64_C(1) << 40)
        return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].length = %lld is not in [1, 2^40]", index,
                        (long long)given->length);
    if (given->window < 1)
        return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].window = %lld is less than 1", index,
                        (long long)given->window);
    if (given->dilation < 1)
        return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].dilation = %lld is less than 1", index,
                        (long long)given->dilation);
    if (given->stride < 1)
        return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].stride = %lld is less than 1", index,
                        (long long)given->stride);
    if (given->stride > given->window)
        return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].stride = %lld exceeds window %lld", index,
                        (long long)given->stride, (long long)given->window);
    if (given->causal != 0 && given->causal != 1)
        return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].causal = %d is not 0 or 1", index,
                        (int)given->causal);
    if (given->periodic != 0 && given->periodic != 1)
        return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].periodic = %d is not 0 or 1", index,
                        (int)given->periodic);
    *axis =
        nh_whole_axis(given->length, given->window, given->stride, given->dilation, given->causal);
    if (given->dilation <= given->length && given->window <= given->length / given->dilation)
        return NHOOD_OK;
    if (!clamp) {
        if (given->dilation == 1)
            return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].window = %lld exceeds length %lld", index,
                            (long long)given->window, (long long)given->length);
        return nh_error(
            NHOOD_ERR_ARGUMENT, "axis[%d].window = %lld times dilation %lld exceeds length %lld",
            index, (long long)given->window, (long long)given->dilation, (long long)given->length);
    }
    axis->window = nh_max(1, given->length / given->dilation);
    axis->stride = nh_min(axis->stride, axis->window);
    /* Groups beyond the length would be empty; every token is then alone in its group either way. */
    axis->dilation = nh_min(axis->dilation, axis->length);
    return NHOOD_OK;
}

static nhood_status check_periodic(const nhood_axis *given, int index, struct nh_axis *axis) {
    axis->periodic = given->periodic;
    if (!axis->periodic) return NHOOD_OK;
    if (axis->causal)
        return nh_error(NHOOD_ERR_ARGUMENT, "axis[%d].periodic = 1: a causal axis cannot wrap",
                        index);
    if (axis->length % axis->dilation)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "axis[%d].dilation = %lld does not divide length %lld of a periodic axis",
                        index, (long long)axis->dilation, (long long)axis->length);
    if (axis->length / axis->dilation % axis->stride)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "axis[%d].stride = %lld does not divide length / dilation %lld of a "
                        "periodic axis",
                        index, (long long)axis->stride, (long long)(axis->length / axis->dilation));
    return NHOOD_OK;
}

/* Side is "query" or "key". */
static nhood_status check_box(const char *side, int index, int64_t offset, int64_t length,
                              const struct nh_axis *axis, struct nh_box *box) {
    if (offset == 0 && length == 0) return NHOOD_OK;
    if (offset < 0 || offset >= axis->length)
        return nh_error(NHOOD_ERR_ARGUMENT, "region[%d].%s_offset = %lld is not in [0, %lld)",
                        index, side, (long long)offset, (long long)axis->length);
    int64_t most = axis->periodic ? axis->length : axis->length - offset;
    if (length < 1 || length > most)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "region[%d].%s_length = %lld is not in [1, %lld] (offset %lld, axis length "
                        "%lld)",
                        index, side, (long long)length, (long long)most, (long long)offset,
                        (long long)axis->length);
    *box = (struct nh_box){offset, length};
    return NHOOD_OK;
}

static nhood_status check_region(const nhood_region *given, int index, struct nh_axis *axis) {
    nhood_status status =
        check_box("query", index, given->query_offset, given->query_length, axis, &axis->query);
    if (status) return status;
    return check_box("key", index, given->key_offset, given->key_length, axis, &axis->key);
}

static bool all_zero(const nhood_strides *strides) {
    return !strides->batch && !strides->head && !strides->axis[0] && !strides->axis[1] &&
           !strides->axis[2];
}

/* The strides of batch, axes and head of a packed tensor. */
static nhood_status pack(const char *name, const int64_t shape[6], int64_t packed[5]) {
    int64_t step = 1;
    for (int i = 5; i >= 0; i--) {
        if (!nh_multiply(step, shape[i], &step) || step > INT64_MAX / 16)
            return nh_error(NHOOD_ERR_ARGUMENT, "tensor %s has more than 2^59 elements", name);
        if (i > 0) packed[i - 1] = step;
    }
    return NHOOD_OK;
}

nhood_status nh_fill_strides(const char *before, const char *name, const char *after,
                             const int64_t shape[6], int rank, bool output,
                             const nhood_strides *given, nhood_strides *strides) {
    int64_t *const slot[5] = {&strides->batch, &strides->axis[0], &strides->axis[1],
                              &strides->axis[2], &strides->head};
    int64_t packed[5], reach = shape[5];
    nhood_status status = pack(name, shape, packed);
    if (status) return status;
    if (all_zero(given)) {
        for (int i = 0; i < 5; i++)
            *slot[i] = packed[i];
        return NHOOD_OK;
    }
    int shift = NH_AXES - rank;
    strides->batch = given->batch;
    strides->head = given->head;
    for (int a = 0; a < rank; a++)
        strides->axis[a + shift] = given->axis[a];
    for (int i = 0; i < 5; i++) {
        int64_t size = *slot[i] < 0 ? -nh_max(*slot[i], -INT64_MAX) : *slot[i], part;
        if (shape[i] > 1 && size == 0 && output)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "%s%s%s 0 on an axis of %lld: outputs would overlap", before, name,
                            after, (long long)shape[i]);
        if (*slot[i] == INT64_MIN || !nh_multiply(size, shape[i] - 1, &part) ||
            !nh_add(reach, part, &reach) || reach > INT64_MAX / 16)
            return nh_error(NHOOD_ERR_ARGUMENT, "%s%s%s %lld reaches beyond 2^59 elements", before,
                            name, after, (long long)*slot[i]);
    }
    return NHOOD_OK;
}

static nhood_status check_strides(struct nh_problem *problem, int32_t tensor,
                                  const nhood_strides *given) {
    nhood_strides *strides = &problem->strides[tensor];
    enum nh_role role = nh_problem_role(problem, tensor);
    if (role == NH_UNUSED) return NHOOD_OK;
    const char *name = nh_tensor_name(tensor);
    int64_t shape[6], packed[5];
    tensor_shape(problem, tensor, shape);
    if (tensor == NHOOD_BIAS || tensor == NHOOD_D_BIAS) {
        nhood_status status = pack(name, shape, packed);
        if (!status && !all_zero(given))
            status = nh_error(NHOOD_ERR_ARGUMENT,
                              "strides[%s] must be zero: bias tables are packed", name);
        strides->head = problem->bias_count;
        return status;
    }
    return nh_fill_strides("strides[", name, "] =", shape, problem->rank, is_output(role), given,
                           strides);
}

nhood_status nh_check_range(const char *field, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return NHOOD_OK;
    return nh_error(NHOOD_ERR_ARGUMENT, "problem.%s = %lld is not in [%lld, %lld]", field,
                    (long long)value, (long long)low, (long long)high);
}

static nhood_status check_scalars(const nhood_problem *given, struct nh_problem *problem) {
    const int64_t many = INT64_C(1) << 40;
    nhood_status status;
    if ((status = nh_check_range("op", given->op, NHOOD_OP_FWD, NHOOD_OP_IN)) ||
        (status = nh_check_range("dtype", given->dtype, NHOOD_DTYPE_F64, NHOOD_DTYPE_BF16)) ||
        (status = nh_check_range("rank", given->rank, 1, 3)) ||
        (status = nh_check_range("flags", given->flags, 0, 31)) ||
        (status = nh_check_range("batch", given->batch, 1, many)) ||
        (status = nh_check_range("heads", given->heads, 1, many)) ||
        (status = nh_check_range("kv_heads", given->kv_heads, 0, given->heads)) ||
        (status = nh_check_range("dim", given->dim, 1, NH_MAX_DIM)) ||
        (status = nh_check_range("dim_v", given->dim_v, 0, NH_MAX_DIM)) ||
        (status = nh_check_range("extra_tokens", given->extra_tokens, 0, INT32_MAX)) ||
        (status = nh_check_range("has_bias", given->has_bias, 0, 1)))
        return status;
    problem->op = given->op;
    problem->dtype = given->dtype;
    problem->rank = given->rank;
    problem->flags = given->flags;
    problem->batch = given->batch;
    problem->heads = given->heads;
    problem->kv_heads = given->kv_heads ? given->kv_heads : given->heads;
    problem->dim = given->dim;
    problem->dim_v = given->dim_v ? given->dim_v : given->dim;
    problem->extra_tokens = given->extra_tokens;
    problem->has_bias = given->has_bias == 1;
    if (problem->heads % problem->kv_heads)
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.kv_heads = %lld does not divide heads %lld",
                        (long long)problem->kv_heads, (long long)problem->heads);
    if (isinf(given->scale))
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.scale = %g is not finite", given->scale);
    problem->scale = given->scale;
    if (isnan(given->scale))
        problem->scale = problem->op == NHOOD_OP_PN ? 1.0 : 1.0 / sqrt((double)problem->dim);
    bool softmax = problem->op == NHOOD_OP_FWD || problem->op == NHOOD_OP_BWD;
    if (problem->extra_tokens > 0 && !softmax)
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.extra_tokens = %lld: operation %s takes none",
                        (long long)problem->extra_tokens, nh_op_name(problem->op));
    if (problem->has_bias && !softmax && problem->op != NHOOD_OP_PN)
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.has_bias = 1: operation %s takes no bias",
                        nh_op_name(problem->op));
    return NHOOD_OK;
}

static double bytes_of(const struct nh_problem *problem) {
    double bytes = 0;
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        bytes += (double)nh_tensor_elements(problem, tensor) *
                 (double)nh_dtype_bytes(nh_tensor_dtype(problem, tensor));
    return bytes;
}

nhood_status nh_problem_canonical(const nhood_problem *given, struct nh_problem *problem) {
    if (!given) return nh_error(NHOOD_ERR_ARGUMENT, "problem is NULL");
    if (given->struct_size != sizeof(nhood_problem) && given->struct_size != NH_PROBLEM_BYTES_0_1)
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.struct_size = %zu, this library knows %zu",
                        given->struct_size, sizeof(nhood_problem));
    const bool has_region = given->struct_size == sizeof(nhood_problem);
    memset(problem, 0, sizeof *problem);
    nhood_status status = check_scalars(given, problem);
    if (status) return status;
    int shift = NH_AXES - problem->rank;
    for (int a = 0; a < shift; a++)
        problem->axis[a] = nh_whole_axis(1, 1, 1, 1, 0);
    for (int a = 0; a < problem->rank; a++) {
        struct nh_axis *axis = &problem->axis[a + shift];
        status = check_axis(&given->axis[a], a, problem->flags & NHOOD_FLAG_CLAMP_WINDOW, axis);
        if (!status) status = check_periodic(&given->axis[a], a, axis);
        if (!status && has_region) status = check_region(&given->region[a], a, axis);
        if (status) return status;
        if (given->axis[a].causal && problem->has_bias)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "axis[%d].causal = 1: a relative bias needs axes that are not causal",
                            a);
    }
    int64_t tokens = 1;
    problem->query_tokens = problem->key_tokens = 1;
    problem->window_count = problem->bias_count = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (!nh_multiply(tokens, axis->length, &tokens) ||
            !nh_multiply(problem->window_count, axis->window, &problem->window_count) ||
            !nh_multiply(problem->bias_count, 2 * axis->window - 1, &problem->bias_count))
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "the product of the axis lengths overflows at axis[%d].length = %lld",
                            a - shift, (long long)axis->length);
        problem->query_tokens *= axis->query.length;
        problem->key_tokens *= axis->key.length;
    }
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        status = check_strides(problem, tensor, &given->strides[tensor]);
        if (status) return status;
    }
    problem->bytes = bytes_of(problem);
    return NHOOD_OK;
}

/* Keys that a query of the box attends along an axis, on average. Causal windows count whole. Of long boxes, evenly spaced
 * queries stand for all. */
static double mean_keys(const struct nh_axis *axis) {
    enum { MOST_QUERIES = 4096 };
    if (nh_is_whole(axis, &axis->key)) return (double)axis->window;
    int64_t step = nh_ceil_div(axis->query.length, MOST_QUERIES), queries = 0, absent = 0;
    for (int64_t i = 0; i < axis->query.length; i += step, queries++) {
        const int64_t token = (axis->query.offset + i) % axis->length;
        const struct nh_range all = nh_axis_window(axis, token);
        const struct nh_range covered = nh_axis_covered(axis, &axis->key, token % axis->dilation);
        /* A box of a periodic axis is met three times: as it is, and a turn before and behind. */
        const int64_t turn = axis->periodic ? axis->length / axis->dilation : 0;
        int64_t met = 0;
        for (int64_t shift = -turn; shift <= turn; shift += turn ? turn : 1) {
            const int64_t begin = nh_max(all.begin, covered.begin + shift);
            met += nh_max(0, nh_min(all.end, covered.end + shift) - begin);
        }
        absent += all.end - all.begin - met;
    }
    return (double)axis->window - (double)absent / (double)queries;
}

double nh_problem_flops(const struct nh_problem *problem) {
    double rows = (double)problem->batch * (double)problem->heads * (double)problem->query_tokens;
    double window =
        mean_keys(&problem->axis[0]) * mean_keys(&problem->axis[1]) * mean_keys(&problem->axis[2]);
    double keys = window + (double)problem->extra_tokens;
    double dims = (double)problem->dim + (double)problem->dim_v;
    switch (problem->op) {
    case NHOOD_OP_FWD: return 2.0 * rows * keys * dims;
    case NHOOD_OP_BWD: return 5.0 * rows * keys * dims;
    case NHOOD_OP_PN: return 2.0 * rows * keys * (double)problem->dim;
    default: return 2.0 * rows * keys * (double)problem->dim_v;
    }
}

nhood_status nh_check_workspace(const void *workspace, size_t bytes, size_t needed_bytes) {
    if (!needed_bytes) return NHOOD_OK;
    if (bytes < needed_bytes)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.workspace_bytes = %zu is less than the plan's %zu",
                        bytes, needed_bytes);
    if (!workspace || (uintptr_t)workspace % NH_ALIGNMENT)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.workspace = %p is not a %d-byte aligned pointer",
                        workspace, NH_ALIGNMENT);
    return NHOOD_OK;
}

nhood_status nh_problem_check_io(const struct nh_problem *problem, const nhood_io *io,
                                 size_t workspace_bytes) {
    if (!io) return nh_error(NHOOD_ERR_ARGUMENT, "io is NULL");
    if (io->struct_size != sizeof(nhood_io))
        return nh_error(NHOOD_ERR_ARGUMENT, "io.struct_size = %zu, this library knows %zu",
                        io->struct_size, sizeof(nhood_io));
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        enum nh_role role = nh_problem_role(problem, tensor);
        if (role == NH_UNUSED) continue;
        uintptr_t address = (uintptr_t)io->data[tensor];
        if (!address) {
            if (role == NH_INPUT || role == NH_OUTPUT)
                return nh_error(NHOOD_ERR_ARGUMENT, "io.data[%s] is NULL", nh_tensor_name(tensor));
            continue;
        }
        size_t alignment = nh_dtype_bytes(nh_tensor_dtype(problem, tensor));
        if (address % alignment)
            return nh_error(NHOOD_ERR_ARGUMENT, "io.data[%s] = %p is not aligned to %zu bytes",
                            nh_tensor_name(tensor), io->data[tensor], alignment);
    }
    return nh_check_workspace(io->workspace, io->workspace_bytes, workspace_bytes);
}
