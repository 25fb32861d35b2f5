#include "permuted_axes.h"

#include "merged_axes.h"
#include "tile_count.h"

enum { LINE = 8 };

static int64_t in_lines(int64_t tokens) {
    return nh_ceil_div(tokens, LINE) * LINE;
}

/* Tokens that lines along an axis have for one that is needed: of the keys that 8 queries in a row see, over a window, and
 * of the queries. */
static double line_tokens(const struct nh_axis *axis) {
    int64_t rows = nh_longest_rows(axis, false), columns = nh_longest_rows(axis, true);
    int64_t window = nh_min(axis->window, columns), seen = nh_min(columns, window + LINE - 1);
    return (double)in_lines(seen) / (double)window * (double)in_lines(rows) / (double)rows;
}

/* The last, unless another is clearly better and as long as a line. Tiles in two dimensions find their extents in either
 * order. */
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

const struct nh_problem *nh_permuted_axes(const struct nh_problem *problem,
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
