/* Makes problems canonical. Their fields are checked nowhere else. */
#include "problem.h"

#include "dtype.h"
#include "window_table.h"

#include <math.h>
#include <string.h>

static const char *const op_names[] = {"fwd", "bwd", "pn", "nn", "in"};

const char *nh_op_name(int32_t op) {
    return op >= NHOOD_OP_FWD && op <= NHOOD_OP_IN ? op_names[op - NHOOD_OP_FWD] : "?";
}

void nhood_problem_init_sized(nhood_problem *problem, size_t struct_size, int32_t op, int32_t dtype,
                              int32_t rank) {
    if (!problem || struct_size != sizeof *problem) return;
    memset(problem, 0, sizeof *problem);
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

bool nh_problem_has_tables(const struct nh_problem *problem) {
    const struct nh_axis *axis = problem->axis;
    return axis[0].windows.kind || axis[1].windows.kind || axis[2].windows.kind;
}

bool nh_problem_partial(const struct nh_problem *problem) {
    bool whole = true;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        whole &= nh_is_whole(axis, &axis->query) && nh_has_all_keys(axis);
    }
    return !whole;
}

bool nh_problem_cut(const struct nh_problem *problem) {
    const struct nh_axis *axis = problem->axis;
    return nh_is_cut(&axis[0]) || nh_is_cut(&axis[1]) || nh_is_cut(&axis[2]);
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

/* The axis has the windows given, not those of its own fields. Where they are what a formula says it is one by formula, which every
 * solver takes, and whose kernels know more of it. */
static nhood_status check_windows(const nhood_windows *given, const nhood_axis *of, int index,
                                  struct nh_axis *axis) {
    static const char *const where[NH_AXES] = {"windows[0]", "windows[1]", "windows[2]"};
    nhood_status status = nh_windows_canonical(where[index], given, of->length, &axis->windows);
    if (status || !axis->windows.kind) return status;
    if (of->window != 1 || of->stride != 1 || of->dilation != 1 || of->causal || of->periodic)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "axis[%d] has window %lld, stride %lld, dilation %lld, causal %d, periodic "
                        "%d, but its windows are those of windows[%d], which need 1, 1, 1, 0, 0",
                        index, (long long)of->window, (long long)of->stride,
                        (long long)of->dilation, (int)of->causal, (int)of->periodic, index);
    axis->window = axis->windows.most;
    if (nh_windows_are_formula(&axis->windows, of->length))
        memset(&axis->windows, 0, sizeof axis->windows);
    else
        axis->key = axis->key_tensor = (struct nh_box){0, axis->windows.keys};
    return NHOOD_OK;
}

/* `side` is "query" or "key", whose grid has `all` coordinates. */
static nhood_status check_box(const char *side, int index, int64_t offset, int64_t length,
                              int64_t all, bool periodic, struct nh_box *box) {
    if (offset == 0 && length == 0) return NHOOD_OK;
    if (offset < 0 || offset >= all)
        return nh_error(NHOOD_ERR_ARGUMENT, "region[%d].%s_offset = %lld is not in [0, %lld)",
                        index, side, (long long)offset, (long long)all);
    int64_t most = periodic ? all : all - offset;
    if (length < 1 || length > most)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "region[%d].%s_length = %lld is not in [1, %lld] (offset %lld, axis length "
                        "%lld)",
                        index, side, (long long)length, (long long)most, (long long)offset,
                        (long long)all);
    *box = (struct nh_box){offset, length};
    return NHOOD_OK;
}

static nhood_status check_region(const nhood_region *given, int index, struct nh_axis *axis) {
    const bool periodic = axis->periodic;
    nhood_status status = check_box("query", index, given->query_offset, given->query_length,
                                    axis->length, periodic, &axis->query);
    if (status) return status;
    status = check_box("key", index, given->key_offset, given->key_length, nh_axis_keys(axis),
                       periodic, &axis->key);
    axis->key_tensor = axis->key;
    return status;
}

static nhood_status check_scalars(const nhood_problem *given, struct nh_problem *problem) {
    const int64_t many = INT64_C(1) << 40;
    nhood_status status;
    if ((status = nh_check_range("op", given->op, NHOOD_OP_FWD, NHOOD_OP_IN)) ||
        (status = nh_check_range("dtype", given->dtype, NHOOD_DTYPE_F64, NHOOD_DTYPE_BF16)) ||
        (status = nh_check_range("rank", given->rank, 1, 3)) ||
        (status = nh_check_range("flags", given->flags, 0, 31)) ||
        (status = nh_check_range("batch", given->batch, 0, many)) ||
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
    const uint32_t tensors = nh_problem_tensors(problem);
    double bytes = 0;
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        if (tensors >> tensor & 1)
            bytes += (double)nh_tensor_elements(problem, tensor) *
                     (double)nh_dtype_bytes(nh_tensor_dtype(problem, tensor));
    return bytes;
}

static void count_tokens(struct nh_problem *problem) {
    problem->query_tokens = problem->key_tokens = 1;
    for (int a = 0; a < NH_AXES; a++) {
        problem->query_tokens *= problem->axis[a].query.length;
        problem->key_tokens *= problem->axis[a].key.length;
    }
}

nhood_status nh_problem_canonical(const nhood_problem *given, struct nh_problem *problem) {
    if (!given) return nh_error(NHOOD_ERR_ARGUMENT, "problem is NULL");
    if (given->struct_size != sizeof(nhood_problem))
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.struct_size = %zu, this library knows %zu",
                        given->struct_size, sizeof(nhood_problem));
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
        if (!status) status = check_windows(&given->windows[a], &given->axis[a], a, axis);
        if (!status) status = check_region(&given->region[a], a, axis);
        if (status) return status;
        if (given->axis[a].causal && problem->has_bias)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "axis[%d].causal = 1: a relative bias needs axes that are not causal",
                            a);
        if (given->windows[a].kind && problem->has_bias)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "windows[%d].kind = %d: a relative bias needs windows by formula", a,
                            (int)given->windows[a].kind);
    }
    int64_t tokens = 1;
    problem->window_count = problem->bias_count = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        const int64_t longest = nh_max(axis->length, nh_axis_keys(axis));
        if (!nh_multiply(tokens, longest, &tokens) ||
            !nh_multiply(problem->window_count, axis->window, &problem->window_count) ||
            !nh_multiply(problem->bias_count, 2 * axis->window - 1, &problem->bias_count))
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "the product of the axis lengths overflows at axis[%d].length = %lld",
                            a - shift, (long long)longest);
    }
    count_tokens(problem);
    return nh_problem_set_all_strides(problem, given->strides);
}

/* The keys of an axis from the first to the last that queries attend, whole dilation steps from where the box begins. At
 * least one step: also where no query attends a key. */
static struct nh_box attended_part(const struct nh_axis *axis) {
    const int64_t key_end = axis->key.offset + axis->key.length, dilation = axis->dilation;
    const int64_t queries_end = axis->query.offset + axis->query.length;
    int64_t begin = key_end, end = axis->key.offset;
    /* in each dilation group the first query attends the first key of all, the last query the last */
    for (int64_t i = 0; i < nh_min(dilation, axis->query.length); i++) {
        const int64_t first = axis->query.offset + i, last = queries_end - 1 - i;
        begin = nh_min(begin, nh_axis_window(axis, first).begin * dilation + first % dilation);
        end = nh_max(end, (nh_axis_window(axis, last).end - 1) * dilation + last % dilation + 1);
    }
    begin = nh_max(axis->key.offset, nh_min(begin, key_end - 1));
    begin -= (begin - axis->key.offset) % dilation;
    int64_t length = nh_ceil_div(nh_max(end - begin, 1), dilation) * dilation;
    return (struct nh_box){begin, nh_min(length, key_end - begin)};
}

const struct nh_problem *nh_attended_keys(const struct nh_problem *problem,
                                          struct nh_problem *attended) {
    if (problem->op != NHOOD_OP_FWD && problem->op != NHOOD_OP_BWD) return problem;
    struct nh_box key[NH_AXES];
    bool all = true;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        const bool all_attended = nh_is_whole(axis, &axis->query) && !axis->windows.kind;
        bool may_lack = !axis->periodic && !all_attended;
        key[a] = may_lack ? attended_part(axis) : axis->key;
        all = all && key[a].length == axis->key.length;
    }
    if (all) return problem;
    *attended = *problem;
    for (int a = 0; a < NH_AXES; a++)
        attended->axis[a].key = key[a];
    count_tokens(attended);
    attended->bytes = bytes_of(attended);
    return attended;
}

bool nh_leaves_out_keys(const struct nh_problem *problem) {
    bool all = true;
    for (int a = 0; a < NH_AXES; a++)
        all = all && problem->axis[a].key.length == problem->axis[a].key_tensor.length;
    return !all;
}

/* Mean number of keys that a query of the box attends along an axis. Causal windows count as whole ones. In long boxes only
 * MOST_QUERIES evenly spaced queries are looked at. */
static double mean_keys(const struct nh_axis *axis) {
    enum { MOST_QUERIES = 4096 };
    if (nh_has_all_keys(axis) && !axis->windows.kind) return (double)axis->window;
    int64_t step = nh_ceil_div(axis->query.length, MOST_QUERIES), queries = 0, absent = 0;
    for (int64_t i = 0; i < axis->query.length; i += step, queries++) {
        const int64_t token = (axis->query.offset + i) % axis->length;
        const struct nh_range all = nh_axis_window(axis, token);
        const struct nh_range covered = nh_axis_covered(axis, &axis->key, token % axis->dilation);
        /* A window may meet the key box of a periodic axis where it is, one lap before and one lap behind. */
        const int64_t turn = axis->periodic ? axis->length / axis->dilation : 0;
        int64_t met = 0;
        for (int64_t shift = -turn; shift <= turn; shift += turn ? turn : 1) {
            const int64_t begin = nh_max(all.begin, covered.begin + shift);
            met += nh_max(0, nh_min(all.end, covered.end + shift) - begin);
        }
        /* windows that are not by formula have fewer keys than the longest one, too */
        absent += (axis->windows.kind ? axis->window : all.end - all.begin) - met;
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
