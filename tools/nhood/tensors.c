#include "tensors.h"

#include "message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FWD = 1 << NHOOD_OP_FWD, BWD = 1 << NHOOD_OP_BWD, PN = 1 << NHOOD_OP_PN };
enum { NN = 1 << NHOOD_OP_NN, IN = 1 << NHOOD_OP_IN };

/* What the rows of a tensor belong to: tokens of the grid, extra tokens, or a bias table. */
enum rows { GRID, EXTRA, TABLE };

static const struct {
    const char *name;
    /* the operations that read it, and those that write it */
    int inputs, outputs;
    enum rows rows;
    bool kv_heads;
} tensors[NHOOD_TENSOR_COUNT] = {
    [NHOOD_Q] = {"q", FWD | BWD | PN, 0, GRID, false},
    [NHOOD_K] = {"k", FWD | BWD | PN, 0, GRID, true},
    [NHOOD_V] = {"v", FWD | BWD | NN, 0, GRID, true},
    [NHOOD_O] = {"o", BWD, FWD | NN, GRID, false},
    [NHOOD_LSE] = {"lse", BWD, FWD, GRID, false},
    [NHOOD_A] = {"a", NN | IN, PN, GRID, false},
    [NHOOD_BIAS] = {"bias", FWD | BWD | PN, 0, TABLE, false},
    [NHOOD_EXTRA_K] = {"extra_k", FWD | BWD, 0, EXTRA, true},
    [NHOOD_EXTRA_V] = {"extra_v", FWD | BWD, 0, EXTRA, true},
    [NHOOD_D_O] = {"d_o", BWD | IN, 0, GRID, false},
    [NHOOD_D_LSE] = {"d_lse", BWD, 0, GRID, false},
    [NHOOD_D_Q] = {"d_q", 0, BWD, GRID, false},
    [NHOOD_D_K] = {"d_k", 0, BWD, GRID, true},
    [NHOOD_D_V] = {"d_v", 0, BWD | IN, GRID, true},
    [NHOOD_D_BIAS] = {"d_bias", 0, BWD, TABLE, false},
    [NHOOD_D_EXTRA_K] = {"d_extra_k", 0, BWD, EXTRA, true},
    [NHOOD_D_EXTRA_V] = {"d_extra_v", 0, BWD, EXTRA, true},
};

enum tensor_role tensor_role(const nhood_problem *problem, int32_t tensor) {
    if (tensors[tensor].rows == TABLE && !problem->has_bias) return TENSOR_UNUSED;
    if (tensors[tensor].rows == EXTRA && !problem->extra_tokens) return TENSOR_UNUSED;
    int op = 1 << problem->op;
    if (tensors[tensor].inputs & op) return TENSOR_INPUT;
    return tensors[tensor].outputs & op ? TENSOR_OUTPUT : TENSOR_UNUSED;
}

const char *tensor_name(int32_t tensor) {
    return tensors[tensor].name;
}

int32_t tensor_dtype(const nhood_problem *problem, int32_t tensor) {
    bool lse = tensor == NHOOD_LSE || tensor == NHOOD_D_LSE;
    return lse && problem->dtype != NHOOD_DTYPE_F64 ? NHOOD_DTYPE_F32 : problem->dtype;
}

int64_t grid_length(const nhood_problem *problem, int axis, bool keys) {
    const nhood_windows *windows = &problem->windows[axis];
    return keys && windows->keys ? windows->keys : problem->axis[axis].length;
}

int64_t covered_length(const nhood_problem *problem, int axis, bool keys) {
    const nhood_region *region = &problem->region[axis];
    int64_t length = keys ? region->key_length : region->query_length;
    return length ? length : grid_length(problem, axis, keys);
}

/* Sets the extents of all axes but the innermost, which follows from the number of elements. */
static void set_extents(const nhood_problem *problem, int32_t tensor, struct view *view) {
    enum rows rows = tensors[tensor].rows;
    int64_t kv_heads = problem->kv_heads ? problem->kv_heads : problem->heads;
    for (int a = 0; a < VIEW_AXES; a++)
        view->extent[a] = 1;
    if (rows != TABLE) view->extent[VIEW_BATCH] = problem->batch;
    for (int a = 0; rows == GRID && a < problem->rank; a++)
        view->extent[VIEW_AXIS + a] = covered_length(problem, a, tensors[tensor].kv_heads);
    if (rows == EXTRA) view->extent[VIEW_AXIS] = problem->extra_tokens;
    view->extent[VIEW_HEAD] = tensors[tensor].kv_heads ? kv_heads : problem->heads;
}

static void set_strides(const nhood_strides *given, struct view *view) {
    const int64_t strides[VIEW_AXES] = {given->batch,   given->axis[0], given->axis[1],
                                        given->axis[2], given->head,    1};
    bool packed = true;
    for (int a = 0; a < VIEW_INNER; a++)
        packed = packed && strides[a] == 0;
    int64_t step = 1;
    for (int a = VIEW_INNER; a >= 0; a--) {
        view->stride[a] = packed ? step : strides[a];
        step *= view->extent[a];
    }
}

bool view_create(const nhood_problem *problem, int32_t tensor, struct view *view) {
    *view = (struct view){.rows = 0};
    if (tensor_role(problem, tensor) == TENSOR_UNUSED) return true;
    int64_t elements;
    nhood_status status = nhood_problem_elements(problem, tensor, &elements);
    if (status) {
        complain_library(status, "problem");
        return false;
    }
    set_extents(problem, tensor, view);
    view->rows = 1;
    for (int a = 0; a < VIEW_INNER; a++)
        view->rows *= view->extent[a];
    if (view->rows == 0) return true; /* an empty batch */
    view->extent[VIEW_INNER] = elements / view->rows;
    set_strides(&problem->strides[tensor], view);
    view->span = 1;
    for (int a = 0; a < VIEW_AXES; a++) {
        int64_t reach = (view->extent[a] - 1) * view->stride[a];
        if (reach < 0) view->origin -= reach;
        view->span += llabs(reach);
    }
    return true;
}

int64_t view_row(const struct view *view, int64_t row) {
    int64_t offset = view->origin;
    for (int a = VIEW_HEAD; a >= 0; a--) {
        offset += row % view->extent[a] * view->stride[a];
        row /= view->extent[a];
    }
    return offset;
}

const char *view_place(const struct view *view, int32_t rank, int64_t row, int64_t inner,
                       char text[PLACE_BYTES]) {
    int64_t index[VIEW_AXES];
    for (int a = VIEW_HEAD; a >= 0; a--) {
        index[a] = row % view->extent[a];
        row /= view->extent[a];
    }
    index[VIEW_INNER] = inner;
    size_t used = 0;
    for (int a = 0; a < VIEW_AXES; a++) {
        if (a >= VIEW_AXIS + rank && a < VIEW_HEAD) continue;
        used += (size_t)snprintf(text + used, PLACE_BYTES - used, "%c%lld", a ? ',' : '[',
                                 (long long)index[a]);
    }
    snprintf(text + used, PLACE_BYTES - used, "]");
    return text;
}
