/* The canonical problem: three axes (unit axes in front), every default made explicit, every extent checked. */
#ifndef NH_PROBLEM_H
#define NH_PROBLEM_H

#include "base.h"
#include "window.h"

#define NH_AXES 3
#define NH_MAX_DIM 65536

/* Tokens [offset, offset + length) of an axis, modulo its length where it is periodic. */
struct nh_box {
    int64_t offset, length;
};

/* Windows that are not by formula: nhood_windows, checked and with its defaults made explicit. All fields are 0 for others. */
struct nh_windows {
    int32_t kind; /* NHOOD_WINDOWS_* */
    int64_t keys, window, shift;
    int64_t valid;            /* only keys before this one are attended */
    const nhood_range *range; /* of a TABLE */
    int64_t most;             /* the most keys of a query, at least 1 */
    uint64_t hash;            /* of a TABLE's ranges */
};

struct nh_axis {
    int64_t
        length; /* of the grid, which alone decides windows; of the grid of queries, if keys have another one */
    int64_t window, stride, dilation;
    int32_t causal, periodic;
    struct nh_box query, key; /* what the tensors of queries and of keys cover */
    /* the same as `key`, unless that is only the part of it that queries attend (nh_attended_keys) */
    struct nh_box key_tensor;
    /* Windows that are not by formula. `window` is then the most keys of a query, and the fields after it are 1 or 0. */
    struct nh_windows windows;
};

struct nh_problem {
    int32_t op, dtype, rank;
    uint32_t flags;
    struct nh_axis axis[NH_AXES];
    int64_t batch, heads, kv_heads, dim, dim_v, extra_tokens;
    bool has_bias;
    double scale;
    struct nhood_strides strides[NHOOD_TENSOR_SLOTS]; /* axis strides shifted like the axes */
    /* derived */
    int64_t query_tokens; /* product of the lengths of the query boxes */
    int64_t key_tokens;   /* product of the lengths of the key boxes */
    int64_t window_count; /* product of the windows: the slots of a query in A */
    int64_t bias_count;   /* product of 2*window - 1 over the axes */
    double bytes;         /* of all tensors */
};

/* The role of a tensor in an operation. */
enum nh_role { NH_UNUSED, NH_INPUT, NH_OPTIONAL_INPUT, NH_OUTPUT, NH_OPTIONAL_OUTPUT };

/* Checks a problem and makes it canonical. ARGUMENT, with a text that names the field, its value and the limit. */
nhood_status nh_problem_canonical(const nhood_problem *given, struct nh_problem *problem);

enum nh_role nh_problem_role(const struct nh_problem *problem, int32_t tensor);

/* The tensors whose role is not NH_UNUSED, as bits 1 << NHOOD_Q .. */
uint32_t nh_problem_tensors(const struct nh_problem *problem);
const char *nh_tensor_name(int32_t tensor);
const char *nh_op_name(int32_t op);

/* The dtype of a tensor. LSE and D_LSE are f32 in problems of 16-bit types, too. */
static inline int32_t nh_tensor_dtype(const struct nh_problem *problem, int32_t tensor) {
    bool lse = tensor == NHOOD_LSE || tensor == NHOOD_D_LSE;
    return lse && problem->dtype != NHOOD_DTYPE_F64 ? NHOOD_DTYPE_F32 : problem->dtype;
}

/* Whether a tensor's axis strides are those of the grid: neither biases nor extra tokens. */
static inline bool nh_tensor_of_grid(int32_t tensor) {
    const uint32_t others = 1u << NHOOD_BIAS | 1u << NHOOD_D_BIAS | 1u << NHOOD_EXTRA_K |
                            1u << NHOOD_EXTRA_V | 1u << NHOOD_D_EXTRA_K | 1u << NHOOD_D_EXTRA_V;
    return !(others >> tensor & 1);
}

/* Whether a tensor of the grid has the tokens of keys, not those of queries. */
static inline bool nh_tensor_of_keys(int32_t tensor) {
    const uint32_t keys = 1u << NHOOD_K | 1u << NHOOD_V | 1u << NHOOD_D_K | 1u << NHOOD_D_V;
    return keys >> tensor & 1;
}

/* Whether some axis has a stride above 1, has a dilation above 1, is causal, is periodic, or has windows that are not by
 * formula. */
bool nh_problem_strided(const struct nh_problem *problem);
bool nh_problem_dilated(const struct nh_problem *problem);
bool nh_problem_causal(const struct nh_problem *problem);
bool nh_problem_periodic(const struct nh_problem *problem);
bool nh_problem_has_tables(const struct nh_problem *problem);

/* Coordinates of the grid of keys. */
static inline int64_t nh_axis_keys(const struct nh_axis *axis) {
    return axis->windows.kind ? axis->windows.keys : axis->length;
}

/* Whether a box is the whole axis, if queries and keys have the same grid. */
static inline bool nh_is_whole(const struct nh_axis *axis, const struct nh_box *box) {
    return box->offset == 0 && box->length == axis->length;
}

/* Whether the tensors of keys cover their whole grid. */
static inline bool nh_has_all_keys(const struct nh_axis *axis) {
    return axis->key.offset == 0 && axis->key.length == nh_axis_keys(axis);
}

/* Whether a row's place among all rows does not tell what it sees of the tensors: these cover less than the axis, it is
 * periodic, or its windows are not by formula. */
static inline bool nh_is_cut(const struct nh_axis *axis) {
    return axis->periodic || axis->windows.kind || !nh_is_whole(axis, &axis->query) ||
           !nh_has_all_keys(axis);
}

/* Whether the tensors cover less than the grid or, on a periodic axis, begin at another token than 0. */
bool nh_problem_partial(const struct nh_problem *problem);

/* Whether some axis is cut (nh_is_cut). */
bool nh_problem_cut(const struct nh_problem *problem);

/* An axis that the tensors cover completely and that is not periodic. */
static inline struct nh_axis nh_whole_axis(int64_t length, int64_t window, int64_t stride,
                                           int64_t dilation, int32_t causal) {
    const struct nh_box whole = {0, length};
    return (struct nh_axis){.length = length,
                            .window = window,
                            .stride = stride,
                            .dilation = dilation,
                            .causal = causal,
                            .query = whole,
                            .key = whole,
                            .key_tensor = whole};
}

/* Number of elements of a tensor, 0 if the problem does not use it. */
int64_t nh_tensor_elements(const struct nh_problem *problem, int32_t tensor);

/* Returns the problem with key boxes cut down to the keys that some query attends, written to *attended, or the problem
 * itself where none can be left out. Keys are left out of forwards and backwards, on axes that are not periodic. Kernels
 * neither read them nor store their gradients, which are zero: whoever runs such a backward has to store these. */
const struct nh_problem *nh_attended_keys(const struct nh_problem *problem,
                                          struct nh_problem *attended);

/* Whether nh_attended_keys left keys out of this problem. */
bool nh_leaves_out_keys(const struct nh_problem *problem);

double nh_problem_flops(const struct nh_problem *problem);

/* Checks the pointers and the workspace that an execute is given. ARGUMENT. */
nhood_status nh_problem_check_io(const struct nh_problem *problem, const nhood_io *io,
                                 size_t workspace_bytes);

/* ARGUMENT, naming the problem's field, unless low <= value <= high. */
static inline nhood_status nh_check_range(const char *field, int64_t value, int64_t low,
                                          int64_t high) {
    return nh_check_field("problem", field, value, low, high);
}

/* Writes the strides of a tensor of the shape {batch, three axes, head, contiguous}: packed ones if all given strides are
 * zero, else the given ones, shifted behind the unit axes. Checks the number of elements, how far the strides reach, and
 * that no stride of an output is 0. ARGUMENT; errors about a stride begin with `before`, the tensor's name and `after`. */
nhood_status nh_fill_strides(const char *before, const char *name, const char *after,
                             const int64_t shape[6], int rank, bool output,
                             const nhood_strides *given, nhood_strides *strides);

/* The same for a tensor of a problem whose other fields are complete. Bias tables must be packed. */
nhood_status nh_problem_set_strides(struct nh_problem *problem, int32_t tensor,
                                    const nhood_strides *given);

/* Sets those of all its tensors, and the bytes that these have. */
nhood_status nh_problem_set_all_strides(struct nh_problem *problem,
                                        const nhood_strides given[NHOOD_TENSOR_COUNT]);

/* Checks the workspace of an execute that needs needed_bytes. ARGUMENT. */
nhood_status nh_check_workspace(const void *workspace, size_t bytes, size_t needed_bytes);

/* Writes the problem text of a canonical problem. Returns its length without the terminating zero, as snprintf does. */
size_t nh_problem_text(const struct nh_problem *problem, char *text, size_t capacity);

/* Tokens of the longest dilation groups of an axis; group 0 is always one of them. */
static inline int64_t nh_longest_group(const struct nh_axis *axis) {
    return nh_axis_group_length(axis->length, axis->dilation, 0);
}

/* Positions of dilation group `group` whose tokens a box covers. On a periodic axis they may exceed the group's length. */
static inline struct nh_range nh_axis_covered(const struct nh_axis *axis, const struct nh_box *box,
                                              int64_t group) {
    const int64_t first = box->offset - group + axis->dilation - 1;
    return (struct nh_range){first / axis->dilation, (first + box->length) / axis->dilation};
}

/* Keys that query `index` of an axis of `length` queries attends, whose windows are not by formula; and the queries that
 * attend a key, or the empty range between those that see only keys before it and those that see only keys behind it. */
struct nh_range nh_windows_range(const struct nh_windows *windows, int64_t length, int64_t index);
struct nh_range nh_windows_queries(const struct nh_windows *windows, int64_t length, int64_t key);

/* Keys that token `index` of an axis of the grid attends, as positions of its dilation group; on a periodic axis modulo the
 * group's length. Keys that the tensors do not cover are included. */
static inline struct nh_range nh_axis_window(const struct nh_axis *axis, int64_t index) {
    if (axis->windows.kind) return nh_windows_range(&axis->windows, axis->length, index);
    int64_t group = index % axis->dilation;
    if (axis->periodic)
        return nh_periodic_range(axis->window, axis->stride, index / axis->dilation);
    return nh_window_range(nh_axis_group_length(axis->length, axis->dilation, group), axis->window,
                           axis->stride, axis->causal, index / axis->dilation);
}

/* What the row at a position of a dilation group with so many tokens sees in the whole grid: nh_seen_range, also of axes
 * whose windows are not by formula. */
static inline struct nh_range nh_axis_seen(const struct nh_axis *axis, int64_t group_length,
                                           bool inverse, int64_t position) {
    if (axis->windows.kind)
        return inverse ? nh_windows_queries(&axis->windows, axis->length, position)
                       : nh_windows_range(&axis->windows, axis->length, position);
    return nh_seen_range(group_length, axis->window, axis->stride, axis->causal, axis->periodic,
                         inverse, position);
}

#endif
