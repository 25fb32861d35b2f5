/* The naive family: ROW.group lanes share one row (a query or a key with a head). Each lane holds ROW.vectors vectors
 * of ROW.vector elements of it in registers, lane l the vectors l, l + ROW.group, .. A product is a sum over the lane's
 * elements and log2(ROW.group) shuffles.
 *
 * Rows that do not fit registers (ROW.resident 0) are read from memory again for every product; their results are
 * computed one chunk of ROW_CHUNK columns at a time, and blockIdx.y is the number of the chunk.
 *
 * The including file defines ROW before, of its own configuration or by row_of_config.cuh. */
#pragma once
#include "lanes.cuh"
#include "region.cuh"
#include "row_config.h"

constexpr int ROW_CHUNK = row_chunk(&ROW), ROW_ELEMENTS = row_lane_elements(&ROW);

struct nh_query {
    long long batch, head, at[3];
};

/* The first row of this group; and the step from a row of a group to its next, the number of all groups. */
NH_DEVICE long long nh_first_row(void) {
    return (long long)NH_OWN_BLOCK * (ROW.threads / ROW.group) + threadIdx.x / ROW.group;
}

NH_DEVICE long long nh_row_step(void) {
    return (long long)NH_OWN_BLOCKS * (ROW.threads / ROW.group);
}

NH_DEVICE int nh_lane(void) {
    return threadIdx.x % ROW.group;
}

/* Args: struct nh_cuda_args, of which kernels that are not told regions do not have all. */
template <class Args> NH_DEVICE const nh_cuda_box &nh_rows_box(const Args &args, int axis, bool keys) {
    return keys ? args.region[axis].key : args.region[axis].query;
}

/* Splits a row number: heads are fastest, then the last axis, so that neighboring groups share keys. keys: rows are
 * those of keys. */
template <class Args>
NH_DEVICE nh_query nh_query_of(const Args &args, long long row, long long heads, bool keys = false) {
    nh_query query;
    NH_UNROLL for (int a = 2; a >= 0; a--) {
        query.at[a] = row;
        if constexpr (NH_REGIONS) {
            const nh_cuda_box &box = nh_rows_box(args, a, keys);
            row = nh_split(&query.at[a], box.length);
            query.at[a] += box.offset;
        } else {
            row = nh_split(&query.at[a], args.axis[a].length);
        }
        if (a != 2) continue;
        query.head = row;
        row = nh_split(&query.head, heads);
    }
    query.batch = row;
    return query;
}

template <class Args> NH_DEVICE long long nh_token_count(const Args &args, bool keys = false) {
    long long tokens = 1;
    NH_UNROLL for (int a = 0; a < 3; a++)
        if constexpr (NH_REGIONS) {
            tokens *= nh_rows_box(args, a, keys).length;
        } else {
            tokens *= args.axis[a].length;
        }
    return tokens;
}

/* Calls visit(row) for the queries or, with KEYS, the keys of this group. */
template <bool KEYS = false, class Visit> NH_DEVICE void nh_for_rows(const nh_cuda_args &args, Visit visit) {
    const long long rows = args.batch * (KEYS ? args.kv_heads : args.heads) * nh_token_count(args, KEYS);
    for (long long row = nh_first_row(); row < rows; row += nh_row_step())
        visit(nh_query_of(args, row, KEYS ? args.kv_heads : args.heads, KEYS));
}

/* Loads the columns of one chunk that this lane holds. */
NH_DEVICE void nh_load_row(const elem *row, int first, int dim, real to[ROW_ELEMENTS]) {
    NH_UNROLL for (int v = 0; v < ROW.vectors; v++) {
        int column = first + (v * ROW.group + nh_lane()) * ROW.vector;
        if (ROW.whole || column < dim) {
            nh_load_vector<ROW.vector>(row + column, to + v * ROW.vector);
        } else {
            NH_UNROLL for (int i = 0; i < ROW.vector; i++)
                to[v * ROW.vector + i] = 0;
        }
    }
}

NH_DEVICE void nh_store_row(elem *row, int first, int dim, const real from[ROW_ELEMENTS]) {
    NH_UNROLL for (int v = 0; v < ROW.vectors; v++) {
        int column = first + (v * ROW.group + nh_lane()) * ROW.vector;
        if (ROW.whole || column < dim) nh_store_vector<ROW.vector>(row + column, from + v * ROW.vector);
    }
}

NH_DEVICE void nh_clear(real to[ROW_ELEMENTS]) {
    NH_UNROLL for (int i = 0; i < ROW_ELEMENTS; i++)
        to[i] = 0;
}

NH_DEVICE void nh_add_scaled(real to[ROW_ELEMENTS], real factor, const real row[ROW_ELEMENTS]) {
    NH_UNROLL for (int i = 0; i < ROW_ELEMENTS; i++)
        to[i] += factor * row[i];
}

/* Whether sums over many terms are added up in two levels. */
constexpr bool ROW_LEVELS = NH_LONG_SUMS && (!ROW.tiled || ROW.extra);

/* A row of sums over keys or queries. In a long running sum, later terms would lose more and more accuracy: every
 * ROW_PART_TERMS terms are added up separately, and then these few sums. Tiles are for small windows and short of
 * registers, so they do without `part` and `terms`. */
constexpr int ROW_PART_TERMS = 64;
struct nh_long_row {
    real sum[ROW_ELEMENTS], part[ROW_ELEMENTS];
    int terms;
};

NH_DEVICE void nh_long_clear(nh_long_row &row) {
    nh_clear(row.sum);
    if (!ROW_LEVELS) return;
    nh_clear(row.part);
    row.terms = 0;
}

NH_DEVICE void nh_long_end(nh_long_row &row) {
    if (!ROW_LEVELS) return;
    nh_add_scaled(row.sum, 1, row.part);
    nh_clear(row.part);
    row.terms = 0;
}

NH_DEVICE void nh_long_add(nh_long_row &row, real factor, const real term[ROW_ELEMENTS]) {
    nh_add_scaled(ROW_LEVELS ? row.part : row.sum, factor, term);
    if (ROW_LEVELS && ++row.terms == ROW_PART_TERMS) nh_long_end(row);
}

NH_DEVICE void nh_long_scale(nh_long_row &row, real factor) {
    NH_UNROLL for (int i = 0; i < ROW_ELEMENTS; i++) {
        row.sum[i] *= factor;
        if (ROW_LEVELS) row.part[i] *= factor;
    }
}

/* Sums over a group of lanes. Groups of one warp may be at different keys, so only the lanes of this group take
 * part. */
NH_DEVICE real nh_group_sum(real x) {
    return nh_lanes_sum<ROW.group>(x, nh_lanes_mask<ROW.group>());
}

NH_DEVICE real nh_part(const real a[ROW_ELEMENTS], const real b[ROW_ELEMENTS]) {
    real sum = 0;
    NH_UNROLL for (int i = 0; i < ROW_ELEMENTS; i++)
        sum += a[i] * b[i];
    return sum;
}

/* A row that is multiplied with others: in registers or, if it is too wide for them, in memory. */
struct nh_operand {
    const elem *row;
    int dim;
    real value[ROW_ELEMENTS]; /* in registers */
};

NH_DEVICE void nh_operand_set(nh_operand &operand, const elem *row, long long dim) {
    operand.row = row;
    operand.dim = (int)dim;
    if (ROW.resident) nh_load_row(row, 0, operand.dim, operand.value);
}

/* This lane's part of a product. The caller sums over the group, for several products at a time if it can. */
NH_DEVICE real nh_product_part(const nh_operand &operand, const elem *other) {
    real a[ROW_ELEMENTS], b[ROW_ELEMENTS], sum = 0;
    if (ROW.resident) {
        nh_load_row(other, 0, operand.dim, b);
        return nh_part(operand.value, b);
    }
    for (int first = 0; first < operand.dim; first += ROW_CHUNK) {
        nh_load_row(operand.row, first, operand.dim, a);
        nh_load_row(other, first, operand.dim, b);
        sum += nh_part(a, b);
    }
    return sum;
}

/* P of a score. LSE is rounded, an f32 of 1e10 by hundreds, but a weight is never more than 1. */
NH_DEVICE real nh_weight_of(real score, real lse) {
    const real above = score - lse;
    return nh_exp(above > 0 ? 0 : above);
}

/* rowsum(dO * O) - dLSE of a query, which the softmax's gradient needs. d_o: its row of dO. */
NH_DEVICE real nh_delta_of(const nh_cuda_args &args, const nh_query &query, const nh_operand &d_o) {
    const nh_cuda_tensor &d_lse = args.tensor[NH_D_LSE];
    real delta = nh_group_sum(nh_product_part(d_o, nh_row(args.tensor[NH_O], query.batch, query.at, query.head)));
    if (d_lse.data) delta -= *nh_scalar(d_lse, query.batch, query.at, query.head);
    return delta;
}

/* The first column of this block's chunk of a result. */
NH_DEVICE int nh_chunk_first(void) {
    return ROW.resident ? 0 : (int)blockIdx.y * ROW_CHUNK;
}

/* A box of positions in one dilation group, as tokens of the grid. */
struct nh_box {
    int count[3];
    long long first[3], step[3]; /* tokens */
    long long position[3];       /* position of the first token inside its dilation group */
    int slot[3];                 /* with NH_REGIONS its slot, per axis, in the window in the whole grid */
};

/* The number of boxes that a row may see: one or, on each periodic axis, up to two. */
constexpr int ROW_PIECES = NH_PERIODIC ? 8 : 1;

/* What a row sees: the keys of a query or, with INVERSE, the queries of a key. */
template <bool INVERSE, class Args> NH_DEVICE nh_box nh_seen_box(const Args &args, const long long at[3], int piece) {
    nh_box box;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        const nh_cuda_axis &axis = args.axis[a];
        long long group = at[a], position = at[a];
        nh_range part;
        if constexpr (NH_REGIONS) {
            /* The part of what tensors have in one lap; bit `a` of `piece` selects the second lap. */
            const bool second = piece >> a & 1;
            position = nh_split(&group, axis.dilation);
            long long length = nh_axis_group_length(axis.length, axis.dilation, group);
            const nh_range covered = nh_covered(nh_rows_box(args, a, !INVERSE), axis.dilation, group);
            const nh_range seen = nh_seen_of_grid(axis, nh_wraps(a), INVERSE, length, position);
            long long shift = 0;
            if (nh_wraps(a)) shift = (nh_laps(seen.begin, covered.begin, length) + second) * length;
            part = nh_part_of_range(seen, covered.begin + shift, covered.end + shift);
            box.count[a] = second && !nh_wraps(a) ? 0 : (int)(part.end - part.begin);
            box.slot[a] = (int)(part.begin - seen.begin);
            box.first[a] = (part.begin - shift) * axis.dilation + group;
        } else {
            if (!INVERSE && axis.dilation == 1) {
                group = 0;
            } else {
                position = nh_split(&group, axis.dilation);
            }
            part = nh_seen_range(nh_axis_group_length(axis.length, axis.dilation, group), axis.window, axis.stride,
                                 axis.causal, false, INVERSE, position);
            box.count[a] = (int)(part.end - part.begin);
            box.first[a] = part.begin * axis.dilation + group;
        }
        box.position[a] = part.begin;
        box.step[a] = axis.dilation;
    }
    return box;
}

/* The keys of a query. */
NH_DEVICE nh_box nh_window_box(const nh_cuda_args &args, const long long at[3], int piece = 0) {
    return nh_seen_box<false>(args, at, piece);
}

/* The queries of a key. */
NH_DEVICE nh_box nh_inverse_box(const nh_cuda_args &args, const long long at[3], int piece = 0) {
    return nh_seen_box<true>(args, at, piece);
}

/* A tensor's rows in a box: row(x, y, z) = base + x * step[0] + y * step[1] + z * step[2]. */
struct nh_box_rows {
    const elem *base;
    long long step[3];
};

NH_DEVICE nh_box_rows nh_box_rows_of(const nh_cuda_tensor &t, const nh_box &box, long long batch, long long head) {
    nh_box_rows rows;
    rows.base = nh_row(t, batch, box.first, head);
    NH_UNROLL for (int a = 0; a < 3; a++)
        rows.step[a] = t.axis[a] * box.step[a];
    return rows;
}

/* Offset of a token of a box from the box's first, in elements of a tensor of scalars. */
NH_DEVICE long long nh_offset(const nh_cuda_tensor &t, const nh_box &box, int x, int y, int z) {
    return x * t.axis[0] * box.step[0] + y * t.axis[1] * box.step[1] + z * t.axis[2] * box.step[2];
}

/* The slot of A of a box's first token. */
NH_DEVICE long long nh_first_slot(const nh_cuda_args &args, const nh_box &box) {
    if (!NH_REGIONS) return 0;
    return (box.slot[0] * args.axis[1].window + box.slot[1]) * args.axis[2].window + box.slot[2];
}

/* The bias of one query's window: entry(x, y, z) = base + x * step[0] + y * step[1] + z. */
struct nh_bias {
    const elem *base;
    long long step[2];
};

NH_DEVICE nh_bias nh_bias_of(const nh_cuda_args &args, const nh_query &query, const nh_box &box) {
    nh_bias bias = {0};
    if (!ROW.biased) return bias;
    long long extent[3], entry[3];
    NH_UNROLL for (int a = 0; a < 3; a++) {
        extent[a] = 2 * args.axis[a].window - 1;
        entry[a] = box.position[a] - query.at[a] / args.axis[a].dilation + args.axis[a].window - 1;
    }
    bias.step[1] = extent[2];
    bias.step[0] = extent[1] * extent[2];
    bias.base = (const elem *)args.tensor[NH_BIAS].data + query.head * extent[0] * bias.step[0] +
                entry[0] * bias.step[0] + entry[1] * bias.step[1] + entry[2];
    return bias;
}
