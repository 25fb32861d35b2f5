/* The tensors of a problem: which ones it has, their shapes and strides, and checks of an execute's memory. */
#include "problem.h"

#include "dtype.h"

#include <string.h>

static const char *const tensor_names[NHOOD_TENSOR_COUNT] = {
    "q",   "k",     "v",   "o",   "lse", "a",      "bias",      "extra_k",  "extra_v",
    "d_o", "d_lse", "d_q", "d_k", "d_v", "d_bias", "d_extra_k", "d_extra_v"};

const char *nh_tensor_name(int32_t tensor) {
    return tensor >= 0 && tensor < NHOOD_TENSOR_COUNT ? tensor_names[tensor] : "?";
}

#define BIT(tensor) (UINT32_C(1) << NHOOD_##tensor)

uint32_t nh_problem_tensors(const struct nh_problem *problem) {
    static const uint32_t of_op[] = {[NHOOD_OP_FWD] = BIT(Q) | BIT(K) | BIT(V) | BIT(O) | BIT(LSE),
                                     [NHOOD_OP_BWD] = BIT(Q) | BIT(K) | BIT(V) | BIT(O) | BIT(LSE) |
                                                      BIT(D_O) | BIT(D_LSE) | BIT(D_Q) | BIT(D_K) |
                                                      BIT(D_V),
                                     [NHOOD_OP_PN] = BIT(Q) | BIT(K) | BIT(A),
                                     [NHOOD_OP_NN] = BIT(A) | BIT(V) | BIT(O),
                                     [NHOOD_OP_IN] = BIT(A) | BIT(D_O) | BIT(D_V)};
    const bool bwd = problem->op == NHOOD_OP_BWD, softmax = bwd || problem->op == NHOOD_OP_FWD;
    uint32_t tensors = of_op[problem->op];
    if (problem->has_bias) tensors |= BIT(BIAS) | (bwd ? BIT(D_BIAS) : 0);
    if (softmax && problem->extra_tokens > 0)
        tensors |= BIT(EXTRA_K) | BIT(EXTRA_V) | (bwd ? BIT(D_EXTRA_K) | BIT(D_EXTRA_V) : 0);
    return tensors;
}

enum nh_role nh_problem_role(const struct nh_problem *problem, int32_t tensor) {
    const bool bwd = problem->op == NHOOD_OP_BWD;
    if (tensor < 0 || tensor >= NHOOD_TENSOR_COUNT || !(nh_problem_tensors(problem) >> tensor & 1))
        return NH_UNUSED;
    switch (tensor) {
    case NHOOD_O: return bwd ? NH_INPUT : NH_OUTPUT;
    case NHOOD_LSE: return bwd ? NH_INPUT : NH_OPTIONAL_OUTPUT;
    case NHOOD_A: return problem->op == NHOOD_OP_PN ? NH_OUTPUT : NH_INPUT;
    case NHOOD_D_LSE: return NH_OPTIONAL_INPUT;
    case NHOOD_D_V: return bwd ? NH_OPTIONAL_OUTPUT : NH_OUTPUT;
    case NHOOD_D_Q:
    case NHOOD_D_K:
    case NHOOD_D_BIAS:
    case NHOOD_D_EXTRA_K:
    case NHOOD_D_EXTRA_V: return NH_OPTIONAL_OUTPUT;
    default: return NH_INPUT;
    }
}

static bool is_output(enum nh_role role) {
    return role == NH_OUTPUT || role == NH_OPTIONAL_OUTPUT;
}

static const uint32_t of_kv = BIT(K) | BIT(V) | BIT(D_K) | BIT(D_V),
                      of_bias = BIT(BIAS) | BIT(D_BIAS),
                      of_extra = BIT(EXTRA_K) | BIT(EXTRA_V) | BIT(D_EXTRA_K) | BIT(D_EXTRA_V),
                      of_values =
                          BIT(V) | BIT(O) | BIT(EXTRA_V) | BIT(D_O) | BIT(D_V) | BIT(D_EXTRA_V),
                      of_rows = BIT(Q) | BIT(O) | BIT(D_O) | BIT(D_Q) | of_kv;

/* The packed shape of a tensor as {batch, axis0, axis1, axis2, head, contiguous}. */
static void tensor_shape(const struct nh_problem *problem, int32_t tensor, int64_t shape[6]) {
    const bool kv = of_kv >> tensor & 1, extra = of_extra >> tensor & 1,
               bias = of_bias >> tensor & 1, values = of_values >> tensor & 1;
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

/* The tensors that have Q's shape. */
static uint32_t tensors_like_q(const struct nh_problem *problem) {
    bool keys = problem->heads == problem->kv_heads;
    for (int a = 0; a < NH_AXES; a++)
        keys = keys && problem->axis[a].key.length == problem->axis[a].query.length;
    return of_rows & ~(keys ? 0 : of_kv) & ~(problem->dim == problem->dim_v ? 0 : of_values);
}

static int64_t count_elements(const int64_t shape[6]) {
    int64_t elements = 1;
    for (int i = 0; i < 6; i++)
        elements *= shape[i];
    return elements;
}

int64_t nh_tensor_elements(const struct nh_problem *problem, int32_t tensor) {
    if (nh_problem_role(problem, tensor) == NH_UNUSED) return 0;
    int64_t shape[6];
    tensor_shape(problem, tensor, shape);
    return count_elements(shape);
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
        if (*slot[i] == INT64_MIN || !nh_multiply(size, nh_max(shape[i] - 1, 0), &part) ||
            !nh_add(reach, part, &reach) || reach > INT64_MAX / 16)
            return nh_error(NHOOD_ERR_ARGUMENT, "%s%s%s %lld reaches beyond 2^59 elements", before,
                            name, after, (long long)*slot[i]);
    }
    return NHOOD_OK;
}

/* shape: the tensor's. */
static nhood_status set_strides(struct nh_problem *problem, int32_t tensor, const int64_t shape[6],
                                const nhood_strides *given) {
    nhood_strides *strides = &problem->strides[tensor];
    const char *name = nh_tensor_name(tensor);
    if (tensor == NHOOD_BIAS || tensor == NHOOD_D_BIAS) {
        int64_t packed[5];
        nhood_status status = pack(name, shape, packed);
        if (!status && !all_zero(given))
            status = nh_error(NHOOD_ERR_ARGUMENT,
                              "strides[%s] must be zero: bias tables are packed", name);
        strides->head = problem->bias_count;
        return status;
    }
    return nh_fill_strides("strides[", name, "] =", shape, problem->rank,
                           is_output(nh_problem_role(problem, tensor)), given, strides);
}

nhood_status nh_problem_set_strides(struct nh_problem *problem, int32_t tensor,
                                    const nhood_strides *given) {
    int64_t shape[6];
    if (nh_problem_role(problem, tensor) == NH_UNUSED) return NHOOD_OK;
    tensor_shape(problem, tensor, shape);
    return set_strides(problem, tensor, shape, given);
}

nhood_status nh_problem_set_all_strides(struct nh_problem *problem,
                                        const nhood_strides given[NHOOD_TENSOR_COUNT]) {
    const uint32_t tensors = nh_problem_tensors(problem), alike = tensors_like_q(problem);
    const bool q_packed = tensors & BIT(Q) && all_zero(&given[NHOOD_Q]);
    double q_elements = 0;
    problem->bytes = 0;
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        if (!(tensors >> tensor & 1)) continue;
        double elements = q_elements;
        if (tensor != NHOOD_Q && q_packed && alike >> tensor & 1 && all_zero(&given[tensor])) {
            problem->strides[tensor] = problem->strides[NHOOD_Q];
        } else {
            int64_t shape[6];
            tensor_shape(problem, tensor, shape);
            const nhood_status status = set_strides(problem, tensor, shape, &given[tensor]);
            if (status) return status;
            elements = (double)count_elements(shape);
            if (tensor == NHOOD_Q) q_elements = elements;
        }
        problem->bytes += elements * (double)nh_dtype_bytes(nh_tensor_dtype(problem, tensor));
    }
    return NHOOD_OK;
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
        if (role == NH_UNUSED || nh_tensor_elements(problem, tensor) == 0) continue;
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
