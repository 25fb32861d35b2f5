/* Checks the problems of RMS norm and rotary positions. Their fields are checked nowhere else. */
#include "norm_rope.h"

#include "dtype.h"

#include <math.h>
#include <string.h>

void nhood_norm_rope_problem_init_sized(nhood_norm_rope_problem *problem, size_t struct_size,
                                        int32_t op, int32_t dtype, int32_t rank) {
    if (!problem || struct_size < sizeof *problem) return;
    memset(problem, 0, struct_size);
    problem->struct_size = struct_size;
    problem->op = op;
    problem->dtype = dtype;
    problem->rank = rank;
    for (int a = 0; a < NH_AXES; a++)
        problem->length[a] = 1;
    problem->batch = problem->heads = 1;
    problem->dim = 32;
    problem->eps = 1e-6;
    problem->scale = 1;
}

static nhood_status check_scalars(const nhood_norm_rope_problem *given,
                                  struct nh_norm_rope *problem) {
    const int64_t many = INT64_C(1) << 40;
    nhood_status status;
    if ((status = nh_check_range("op", given->op, NHOOD_OP_FWD, NHOOD_OP_BWD)) ||
        (status = nh_check_range("dtype", given->dtype, NHOOD_DTYPE_F64, NHOOD_DTYPE_BF16)) ||
        (status = nh_check_range("rank", given->rank, 1, NH_AXES)) ||
        (status = nh_check_range("norm", given->norm, NHOOD_NORM_NONE, NHOOD_NORM_TOKEN)) ||
        (status =
             nh_check_range("pairs", given->pairs, NHOOD_PAIRS_INTERLEAVED, NHOOD_PAIRS_HALVES)) ||
        (status = nh_check_range("has_weight", given->has_weight, 0, given->norm ? 1 : 0)) ||
        (status = nh_check_range("batch", given->batch, 0, many)) ||
        (status = nh_check_range("heads", given->heads, 1, INT32_MAX)) ||
        (status = nh_check_range("dim", given->dim, 2, NHOOD_NORM_ROPE_MOST_DIM)))
        return status;
    if (given->dim % 2)
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.dim = %lld is not even",
                        (long long)given->dim);
    if (given->flags & ~(uint32_t)NHOOD_FLAG_UNALIGNED)
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.flags = %u has others than %d",
                        (unsigned)given->flags, NHOOD_FLAG_UNALIGNED);
    if (!(given->eps >= 0) || isinf(given->eps))
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.eps = %g is not in [0, infinity)", given->eps);
    if (!isfinite(given->scale))
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.scale = %g is not finite", given->scale);
    problem->op = given->op;
    problem->dtype = given->dtype;
    problem->rank = given->rank;
    problem->norm = given->norm;
    problem->pairs = given->pairs;
    problem->unaligned = given->flags & NHOOD_FLAG_UNALIGNED;
    problem->batch = given->batch;
    problem->heads = given->heads;
    problem->dim = given->dim;
    problem->eps = given->eps;
    problem->scale = given->scale;
    problem->channels = given->norm == NHOOD_NORM_TOKEN ? given->heads * given->dim : given->dim;
    if (problem->channels > NHOOD_NORM_ROPE_MOST_CHANNELS)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "problem.heads = %lld times dim %lld exceeds %d, the most channels that a "
                        "mean is over",
                        (long long)given->heads, (long long)given->dim,
                        NHOOD_NORM_ROPE_MOST_CHANNELS);
    return NHOOD_OK;
}

static nhood_status check_weight(const nhood_norm_rope_problem *given,
                                 struct nh_norm_rope *problem) {
    if (!given->has_weight) return NHOOD_OK;
    int32_t dtype = given->weight_dtype ? given->weight_dtype : given->dtype;
    bool half = given->dtype == NHOOD_DTYPE_F16 || given->dtype == NHOOD_DTYPE_BF16;
    if (dtype != given->dtype && !(half && dtype == NHOOD_DTYPE_F32))
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "problem.weight_dtype = %d is neither dtype %d nor f32 beside 16 bits",
                        (int)given->weight_dtype, (int)given->dtype);
    problem->weight_dtype = dtype;
    return NHOOD_OK;
}

static nhood_status check_axes(const nhood_norm_rope_problem *given, struct nh_norm_rope *problem) {
    const int64_t many = INT64_C(1) << 40;
    int shift = NH_AXES - given->rank;
    int64_t rotated = 0;
    problem->tokens = given->batch;
    for (int a = 0; a < shift; a++)
        problem->length[a] = 1;
    for (int a = 0; a < given->rank; a++) {
        int64_t length = given->length[a], offset = given->offset[a], dim = given->rotated[a];
        if (length < 1 || length > many)
            return nh_error(NHOOD_ERR_ARGUMENT, "problem.length[%d] = %lld is not in [1, 2^40]", a,
                            (long long)length);
        if (offset < 0 || offset > many)
            return nh_error(NHOOD_ERR_ARGUMENT, "problem.offset[%d] = %lld is not in [0, 2^40]", a,
                            (long long)offset);
        if (dim < 0 || dim % 2 || dim > given->dim - rotated)
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "problem.rotated[%d] = %lld is not an even number in [0, %lld], the "
                            "channels of dim %lld that the axes before it leave",
                            a, (long long)dim, (long long)(given->dim - rotated),
                            (long long)given->dim);
        problem->length[a + shift] = length;
        problem->offset[a + shift] = offset;
        rotated += dim;
        problem->first_pair[a + shift + 1] = rotated / 2;
        if (!nh_multiply(problem->tokens, length, &problem->tokens) ||
            problem->tokens > INT64_MAX / 16)
            return nh_error(NHOOD_ERR_ARGUMENT, "problem.length: more than 2^59 tokens");
    }
    return NHOOD_OK;
}

static nhood_status check_strides(struct nh_norm_rope *problem, enum nh_norm_rope_tensor tensor,
                                  const nhood_strides *given) {
    static const char *const names[NH_ROPE_TENSORS] = {"x", "y", "d_y", "d_x"};
    const bool output = tensor == NH_ROPE_Y || tensor == NH_ROPE_D_X;
    const int64_t shape[6] = {problem->batch,     problem->length[0], problem->length[1],
                              problem->length[2], problem->heads,     problem->dim};
    return nh_fill_strides("problem.", names[tensor], ": a stride of", shape, problem->rank, output,
                           given, &problem->strides[tensor]);
}

nhood_status nh_norm_rope_canonical(const nhood_norm_rope_problem *given,
                                    struct nh_norm_rope *problem) {
    if (!given) return nh_error(NHOOD_ERR_ARGUMENT, "problem is NULL");
    if (given->struct_size != sizeof *given)
        return nh_error(NHOOD_ERR_ARGUMENT, "problem.struct_size = %zu, this library knows %zu",
                        given->struct_size, sizeof *given);
    *problem = (struct nh_norm_rope){.op = 0};
    nhood_status status = check_scalars(given, problem);
    if (!status) status = check_weight(given, problem);
    if (!status) status = check_axes(given, problem);
    if (!status) status = check_strides(problem, NH_ROPE_X, &given->x);
    if (status) return status;
    if (problem->op == NHOOD_OP_FWD) return check_strides(problem, NH_ROPE_Y, &given->y);
    status = check_strides(problem, NH_ROPE_D_Y, &given->d_y);
    return status ? status : check_strides(problem, NH_ROPE_D_X, &given->d_x);
}

static nhood_status check_pointer(const char *name, const void *pointer, bool required,
                                  int32_t dtype) {
    if (!pointer && required) return nh_error(NHOOD_ERR_ARGUMENT, "io.%s is NULL", name);
    if ((uintptr_t)pointer % nh_dtype_bytes(dtype))
        return nh_error(NHOOD_ERR_ARGUMENT, "io.%s = %p is not aligned to its %zu-byte elements",
                        name, pointer, nh_dtype_bytes(dtype));
    return NHOOD_OK;
}

nhood_status nh_norm_rope_check_io(const struct nh_norm_rope *problem, const nhood_norm_rope_io *io,
                                   size_t workspace_bytes) {
    if (!io) return nh_error(NHOOD_ERR_ARGUMENT, "io is NULL");
    if (io->struct_size != sizeof *io)
        return nh_error(NHOOD_ERR_ARGUMENT, "io.struct_size = %zu, this library knows %zu",
                        io->struct_size, sizeof *io);
    if (problem->tokens == 0) return NHOOD_OK; /* the workspace, too, is empty */
    const bool forward = problem->op == NHOOD_OP_FWD;
    const int32_t real = problem->dtype == NHOOD_DTYPE_F64 ? NHOOD_DTYPE_F64 : NHOOD_DTYPE_F32;
    nhood_status status = check_pointer("x", io->x, true, problem->dtype);
    if (!status && problem->weight_dtype)
        status = check_pointer("weight", io->weight, true, problem->weight_dtype);
    for (int a = NH_AXES - problem->rank; !status && a < NH_AXES; a++) {
        char name[16] = "table[0]";
        int given = a - (NH_AXES - problem->rank);
        name[6] = (char)('0' + given);
        if (nh_norm_rope_pairs(problem, a))
            status = check_pointer(name, io->table[given], true, real);
    }
    if (!status && forward) status = check_pointer("y", io->y, true, problem->dtype);
    if (!status && !forward) status = check_pointer("d_y", io->d_y, true, problem->dtype);
    if (!status && !forward) status = check_pointer("d_x", io->d_x, false, problem->dtype);
    if (!status && !forward && problem->weight_dtype)
        status = check_pointer("d_weight", io->d_weight, false, problem->weight_dtype);
    return status ? status
                  : nh_check_workspace(io->workspace, io->workspace_bytes, workspace_bytes);
}
