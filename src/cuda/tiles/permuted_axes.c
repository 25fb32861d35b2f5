#include "permuted_axes.h"

#include "tile_count.h"

enum { LINE = 8 };

/* ---- merging ---- */

/* Whether every query sees every token, and the tensors have them all. */
static bool is_whole(const struct nh_axis *axis) {
    return axis->window == axis->length && !axis->causal && axis->dilation == 1 && !nh_is_cut(axis);
}

/* Turns every token of an axis into `inner` tokens; false if windows would move. A partial window stays in place only
 * when window / 2 and stride / 2 round the same way, that is, when both are odd or both even. */
static bool widen(const struct nh_axis *axis, int64_t inner, struct nh_axis *wide) {
    if (axis->causal || axis->periodic || axis->windows.kind || axis->dilation > 1 ||
        axis->length > INT32_MAX / inner)
        return false;
    *wide = *axis;
    wide->length *= inner;
    wide->query = (struct nh_box){axis->query.offset * inner, axis->query.length * inner};
    wide->key = (struct nh_box){axis->key.offset * inner, axis->key.length * inner};
    wide->key_tensor =
        (struct nh_box){axis->key_tensor.offset * inner, axis->key_tensor.length * inner};
    wide->window *= inner;
    wide->stride = is_whole(axis) ? 1 : axis->stride * inner;
    return is_whole(axis) ||
           wide->stride / 2 - wide->window / 2 == (axis->stride / 2 - axis->window / 2) * inner;
}

/* Whether, in every tensor of the grid, an axis continues in memory where the one after it ends. */
static bool follow(const struct nh_problem *problem, int axis) {
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        const int64_t *stride = problem->strides[tensor].axis;
        if (nh_tensor_of_grid(tensor) &&
            stride[axis] != stride[axis + 1] * problem->axis[axis + 1].length)
            return false;
    }
    return true;
}

/* Puts `wide` in place of `axis` and the axis after it. The axes before them move up by one place. So does the stride
 * of extra tokens, which is kept at the problem's first axis. */
static void merge(struct nh_problem *problem, int axis, const struct nh_axis *wide) {
    int first = NH_AXES - problem->rank--;
    problem->axis[axis + 1] = *wide;
    for (int a = axis; a > first; a--)
        problem->axis[a] = problem->axis[a - 1];
    problem->axis[first] = nh_whole_axis(1, 1, 1, 1, 0);
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        int64_t *stride = problem->strides[tensor].axis;
        if (!nh_tensor_of_grid(tensor)) stride[first + 1] = stride[first];
        for (int a = axis; a > first; a--)
            if (nh_tensor_of_grid(tensor)) stride[a] = stride[a - 1];
        stride[first] = 0;
    }
}

bool nh_merged_axes(const struct nh_problem *problem, struct nh_problem *merged) {
    struct nh_axis wide;
    if (problem->has_bias) return false;
    *merged = *problem;
    for (int a = NH_AXES - 2; a >= NH_AXES - merged->rank; a--) {
        const struct nh_axis *inner = &merged->axis[a + 1];
        if (!is_whole(inner) || !widen(&merged->axis[a], inner->length, &wide) ||
            !follow(merged, a))
            continue;
        merge(merged, a, &wide);
        a++; /* the outer axis has moved there */
    }
    return merged->rank < problem->rank;
}

/* ---- permuting ---- */

static int64_t in_lines(int64_t tokens) {
    return nh_ceil_div(tokens, LINE) * LINE;
}

/* Tokens in lines along the axis per token that is needed: for the keys that 8 consecutive queries see, relative to one
 * window, times the same for the queries. */
static double line_tokens(const struct nh_axis *axis) {
    int64_t rows = nh_longest_rows(axis, false), columns = nh_longest_rows(axis, true);
    int64_t window = nh_min(axis->window, columns), seen = nh_min(columns, window + LINE - 1);
    return (double)in_lines(seen) / (double)window * (double)in_lines(rows) / (double)rows;
}

/* The last axis, unless another one is at least a line long and wastes clearly less. In two dimensions tiles reach the
 * same extents in either order, so only problems of three axes are permuted. */
static int best_axis(const struct nh_problem *problem) {
    const double worth = 0.9;
    int best = NH_AXES - 1;
    for (int a = best - 1; a >= 0 && problem->rank == 3; a--) {
        const struct nh_axis *axis = &problem->axis[a];
        if (nh_longest_rows(axis, true) >= LINE &&
            line_tokens(axis) < worth * line_tokens(&problem->axis[best]))
            best = a;
    }
    return best;
}

static const struct nh_problem *permuted_axes(const struct nh_problem *problem,
                                              struct nh_problem *permuted) {
    if (nh_merged_axes(problem, permuted)) return permuted;
    int best = best_axis(problem);
    if (best == NH_AXES - 1 || problem->has_bias) return problem;
    *permuted = *problem;
    for (int a = best; a < NH_AXES; a++) {
        int from = a + 1 < NH_AXES ? a + 1 : best;
        permuted->axis[a] = problem->axis[from];
        for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
            if (nh_tensor_of_grid(tensor))
                permuted->strides[tensor].axis[a] = problem->strides[tensor].axis[from];
    }
    return permuted;
}

const struct nh_problem *nh_permuted_axes(const struct nh_problem *problem,
                                          struct nh_problem *permuted) {
    struct nh_problem room;
    const struct nh_problem *attended = nh_attended_keys(problem, &room);
    const struct nh_problem *found = permuted_axes(attended, permuted);
    if (found != &room) return found;
    *permuted = room;
    return permuted;
}
