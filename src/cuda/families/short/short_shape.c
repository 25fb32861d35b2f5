#include "short_shape.h"

#include "dtype.h"
#include "launch.h"

#include <stdlib.h>

NH_OWN_ARGS_FIT(nh_short_args, nh_short_tiling);

int64_t nh_short_group_tokens(const struct nh_problem *problem) {
    int64_t tokens = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        tokens *= nh_min(nh_longest_group(axis), NH_SHORT_MOST_ROWS + 1);
    }
    return tokens;
}

/* The first row that a row sees or, with `end`, the one after the last. */
static int64_t edge_of(const struct nh_problem *problem, const struct nh_short_shape *shape,
                       int64_t row, bool end) {
    int64_t rest = row % shape->group_tokens, size = shape->group_tokens, edge = row - rest;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        size /= shape->extent[a];
        const struct nh_range range = nh_window_range(shape->extent[a], axis->window, axis->stride,
                                                      axis->causal, rest / size);
        rest %= size;
        edge += size * (end ? range.end - 1 : range.begin);
    }
    return edge + end;
}

/* The mean number of rows that a warp tile is multiplied with, from a sample of a work tile's warp tiles. What it sees
 * reaches from what its first row sees to what its last row sees. */
static double columns_of(const struct nh_problem *problem, const struct nh_short_shape *shape) {
    enum { SAMPLES = 6 };
    int64_t step = 16 * nh_max(1, shape->rows / 16 / SAMPLES), warp_tiles = 0, columns = 0;
    for (int64_t row = 0; row < shape->rows; row += step, warp_tiles++) {
        int64_t last = nh_min(row + 15, shape->groups * shape->group_tokens - 1);
        columns += nh_ceil_div(edge_of(problem, shape, last, true), 16) * 16 -
                   edge_of(problem, shape, nh_min(row, last), false) / 16 * 16;
    }
    return (double)columns / (double)warp_tiles;
}

/* With SHORT_BY_RESIDUE, work tiles of shorter groups have fewer rows instead of padding rows. Sets the mean share
 * of rows and tokens, over all kinds of residues: those of long or short groups on each axis. */
static void set_shares(const struct nh_problem *problem, struct nh_short_shape *shape) {
    shape->rows_share = shape->tokens_share = 0;
    for (int kind = 0; kind < 1 << NH_AXES; kind++) {
        int64_t tokens = 1;
        double share = 1;
        for (int a = 0; a < NH_AXES; a++) {
            const struct nh_axis *axis = &problem->axis[a];
            int64_t shorter = kind >> a & 1;
            int64_t longest = axis->length - (shape->extent[a] - 1) * axis->dilation;
            int64_t residues = shorter ? axis->dilation - longest : longest;
            tokens *= shape->extent[a] - shorter;
            share *= (double)residues / (double)axis->dilation;
        }
        double rows = (double)(nh_ceil_div(shape->groups * tokens, 16) * 16);
        shape->rows_share += share * rows / (double)shape->rows;
        shape->tokens_share += share * (double)tokens / (double)shape->group_tokens;
    }
}

bool nh_short_shape_of(const struct nh_problem *problem, int64_t rows,
                       struct nh_short_shape *shape) {
    enum { MOST_GROUPS = 1 << 30 };
    int64_t total = problem->batch, residues = 1;
    bool fits = nh_multiply(total, problem->kv_heads, &total), even = true, inside = false;
    *shape = (struct nh_short_shape){.group_tokens = nh_short_group_tokens(problem),
                                     .contiguous = true,
                                     .rows_share = 1,
                                     .tokens_share = 1};
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        bool equally_long = axis->length % axis->dilation == 0;
        int64_t extent = nh_longest_group(axis);
        fits = fits && nh_multiply(total, axis->dilation, &total);
        residues *= fits ? axis->dilation : 1;
        shape->extent[a] = (int32_t)extent;
        even = even && equally_long;
        /* on all axes after the first one longer than a token, windows must be whole and groups equally long */
        if (inside && (axis->causal || axis->window != extent || !equally_long))
            shape->contiguous = false;
        inside = inside || extent > 1;
    }
    if (!fits || total > MOST_GROUPS || shape->group_tokens > NH_SHORT_MOST_ROWS) return false;
    shape->groups = nh_max(1, nh_min(rows / shape->group_tokens, total));
    /* Groups of one residue are equally long. Work tiles of one residue pay off if there are enough such groups to fill
     * them. */
    bool many = problem->batch * problem->kv_heads >= shape->groups;
    shape->order = even ? SHORT_EVEN : many ? SHORT_BY_RESIDUE : SHORT_UNEVEN;
    shape->rows = nh_ceil_div(shape->groups * shape->group_tokens, 16) * 16;
    shape->total = shape->order == SHORT_BY_RESIDUE ? total / residues : total;
    shape->chunks = nh_ceil_div(shape->total, shape->groups);
    shape->work_tiles = shape->chunks * (total / shape->total);
    shape->columns = columns_of(problem, shape);
    if (shape->order == SHORT_BY_RESIDUE) set_shares(problem, shape);
    return true;
}

bool nh_short_offsets_fit(const struct nh_problem *problem) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        int64_t span = 0;
        if (nh_problem_role(problem, t) == NH_UNUSED) continue;
        for (int a = 0; a < NH_AXES; a++) {
            int64_t axis, stride = llabs(problem->strides[t].axis[a]);
            if (!nh_multiply(problem->axis[a].length - 1, stride, &axis) || axis > INT32_MAX)
                return false;
            span += axis;
        }
        if (span > INT32_MAX) return false;
    }
    return true;
}

static int64_t work_tiles_of(const struct nh_problem *problem, const struct nh_short_shape *shape,
                             int32_t parts) {
    return problem->op == NHOOD_OP_BWD
               ? shape->work_tiles
               : shape->work_tiles * (problem->heads / problem->kv_heads) * parts;
}

int64_t nh_short_work_tiles(const struct nh_short_launch *of) {
    return work_tiles_of(of->problem, of->shape, of->tiling.parts);
}

nhood_status nh_short_check(const struct nh_short_launch *of) {
    if (of->problem->op == NHOOD_OP_FWD && nh_short_work_tiles(of) > INT32_MAX / 2)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^30 work tiles");
    return NHOOD_OK;
}

struct nh_short_tiling nh_short_tiling_of(const struct nh_problem *problem,
                                          const struct nh_short_shape *shape, int32_t parts) {
    return (struct nh_short_tiling){
        .work_tiles = (int)nh_min(work_tiles_of(problem, shape, parts), INT32_MAX),
        .tiles = {shape->extent[0], shape->extent[1], shape->extent[2]},
        .tokens = (int)shape->group_tokens,
        .groups = (int)shape->groups,
        .rows = (int)shape->rows,
        .parts = parts,
        .total = (int)shape->total,
        .chunks = (int)shape->chunks,
        .heads = (int)(problem->heads / problem->kv_heads)};
}

struct short_config nh_short_config(const struct nh_problem *problem,
                                    const struct nh_short_shape *shape, enum short_pass pass) {
    return (struct short_config){.pass = (int)pass,
                                 .order = (int)shape->order,
                                 .rank = problem->rank,
                                 .element_bytes = (int)nh_dtype_bytes(problem->dtype),
                                 .dim = (int)problem->dim,
                                 .dim_v = (int)problem->dim_v,
                                 .strided = nh_problem_strided(problem),
                                 .dilated = nh_problem_dilated(problem),
                                 .contiguous = pass != SHORT_BACKWARD && shape->contiguous,
                                 .split = 1};
}

struct nh_kernel_spec nh_short_spec(const struct nh_short_launch *of) {
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(SHORT_CONFIG);
    static const char *const sources[] = {[SHORT_FORWARD] = "short_forward.cu",
                                          [SHORT_BACKWARD] = "short_backward.cu",
                                          [SHORT_RING] = "short90_forward.cu"},
                             *const passes[] = {NH_NAMED(SHORT_FORWARD), NH_NAMED(SHORT_BACKWARD),
                                                NH_NAMED(SHORT_RING)},
                             *const orders[] = {NH_NAMED(SHORT_UNEVEN), NH_NAMED(SHORT_EVEN),
                                                NH_NAMED(SHORT_BY_RESIDUE), NH_NAMED(SHORT_BOXES)};
    const struct nh_problem *problem = of->problem;
    struct nh_kernel_spec spec = {.source = sources[of->config.pass]};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_TF32", (problem->flags & NHOOD_FLAG_ALLOW_TF32) != 0);
    nh_cuda_define_long_sums(&spec, problem,
                             problem->op == NHOOD_OP_BWD ? NH_SUMS_OF_QUERY | NH_SUMS_OF_KEY
                                                         : NH_SUMS_OF_QUERY);
    nh_kernel_configure(&spec, fields, &of->config);
    nh_kernel_name_value(&spec, "pass", passes[of->config.pass]);
    nh_kernel_name_value(&spec, "order", orders[of->config.order]);
    return spec;
}
