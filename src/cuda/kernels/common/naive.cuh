/* The naive family: NH_GROUP lanes share one row (a query or a key with a head). Each lane holds NH_VECTORS vectors of
 * NH_VECTOR elements of it in registers, lane l the vectors l, l + NH_GROUP, .. A product is a sum over the lane's
 * elements and log2(NH_GROUP) shuffles.
 *
 * Rows that do not fit registers (NH_RESIDENT 0) are read from memory again for every product; their results are
 * computed one chunk of NH_CHUNK columns at a time, and blockIdx.y is the number of the chunk. */
#pragma once
#include "lanes.cuh"
#include "region.cuh"

#define NH_CHUNK (NH_GROUP * NH_VECTORS * NH_VECTOR)
#define NH_LANE_ELEMENTS (NH_VECTORS * NH_VECTOR)
#ifndef NH_THREADS
#define NH_THREADS 128
#endif

/* 1: every row is as long as a chunk, so that no column needs a test */
#ifndef NH_WHOLE
#define NH_WHOLE 0
#endif

/* 1: with tiles, see naive_tile.cuh */
#ifndef NH_TILED
#define NH_TILED 0
#endif

/* 0: there are no extra tokens */
#ifndef NH_EXTRA
#define NH_EXTRA 1
#endif

struct nh_query {
    long long batch, head, at[3];
};

/* The first row of this group; and the step from a row of a group to its next, the number of all groups. */
__device__ __forceinline__ long long nh_first_row(void) {
    return (long long)blockIdx.x * (NH_THREADS / NH_GROUP) + threadIdx.x / NH_GROUP;
}

__device__ __forceinline__ long long nh_row_step(void) {
    return (long long)gridDim.x * (NH_THREADS / NH_GROUP);
}

__device__ __forceinline__ int nh_lane(void) {
    return threadIdx.x % NH_GROUP;
}

#if NH_REGIONS
__device__ __forceinline__ const nh_cuda_box &nh_rows_box(const nh_cuda_args &args, int axis, bool keys) {
    return keys ? args.region[axis].key : args.region[axis].query;
}
#endif

/* Splits a row number: heads are fastest, then the last axis, so that neighboring groups share keys. keys: rows are
 * those of keys. */
__device__ __forceinline__ nh_query nh_query_of(const nh_cuda_args &args, long long row,
                                                long long heads, bool keys = false) {
    nh_query query;
#if NH_REGIONS
#pragma unroll
    for (int a = 2; a >= 0; a--) {
        const nh_cuda_box &box = nh_rows_box(args, a, keys);
        query.at[a] = row;
        row = nh_split(&query.at[a], box.length);
        query.at[a] += box.offset;
        if (a != 2) continue;
        query.head = row;
        row = nh_split(&query.head, heads);
    }
    query.batch = row;
#else
    long long rest = row;
    rest = nh_split(&row, args.axis[2].length);
    query.at[2] = row;
    row = rest;
    rest = nh_split(&row, heads);
    query.head = row;
    row = rest;
    rest = nh_split(&row, args.axis[1].length);
    query.at[1] = row;
    row = rest;
    query.batch = nh_split(&row, args.axis[0].length);
    query.at[0] = row;
#endif
    return query;
}

__device__ __forceinline__ long long nh_token_count(const nh_cuda_args &args, bool keys = false) {
#if NH_REGIONS
    return nh_rows_box(args, 0, keys).length * nh_rows_box(args, 1, keys).length * nh_rows_box(args, 2, keys).length;
#else
    return args.axis[0].length * args.axis[1].length * args.axis[2].length;
#endif
}

/* Calls visit(row) for the queries or, with KEYS, the keys of this group. */
template <bool KEYS = false, class Visit>
__device__ __forceinline__ void nh_for_rows(const nh_cuda_args &args, Visit visit) {
    const long long rows = args.batch * (KEYS ? args.kv_heads : args.heads) * nh_token_count(args, KEYS);
    for (long long row = nh_first_row(); row < rows; row += nh_row_step())
        visit(nh_query_of(args, row, KEYS ? args.kv_heads : args.heads, KEYS));
}

/* Loads the columns of one chunk that this lane holds. */
__device__ __forceinline__ void nh_load_row(const elem *row, int first, int dim, real to[NH_LANE_ELEMENTS]) {
#pragma unroll
    for (int v = 0; v < NH_VECTORS; v++) {
        int column = first + (v * NH_GROUP + nh_lane()) * NH_VECTOR;
        if (NH_WHOLE || column < dim) {
            nh_load_vector<NH_VECTOR>(row + column, to + v * NH_VECTOR);
        } else {
#pragma unroll
            for (int i = 0; i < NH_VECTOR; i++)
                to[v * NH_VECTOR + i] = 0;
        }
    }
}

__device__ __forceinline__ void nh_store_row(elem *row, int first, int dim, const real from[NH_LANE_ELEMENTS]) {
#pragma unroll
    for (int v = 0; v < NH_VECTORS; v++) {
        int column = first + (v * NH_GROUP + nh_lane()) * NH_VECTOR;
        if (NH_WHOLE || column < dim) nh_store_vector<NH_VECTOR>(row + column, from + v * NH_VECTOR);
    }
}

__device__ __forceinline__ void nh_clear(real to[NH_LANE_ELEMENTS]) {
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        to[i] = 0;
}

__device__ __forceinline__ void nh_add_scaled(real to[NH_LANE_ELEMENTS], real factor,
                                              const real row[NH_LANE_ELEMENTS]) {
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        to[i] += factor * row[i];
}

/* 1: sums over many terms are added up in two levels */
#if NH_TILED
#define NH_LEVELS (NH_LONG_SUMS && NH_EXTRA)
#else
#define NH_LEVELS NH_LONG_SUMS
#endif

/* A row of sums over keys or queries. In a long running sum, later terms would lose more and more accuracy: every
 * NH_PART_TERMS terms are added up separately, and then these few sums. Tiles are for small windows and short of
 * registers, so they do without. */
struct nh_long_row {
    real sum[NH_LANE_ELEMENTS];
#if NH_LEVELS
    real part[NH_LANE_ELEMENTS];
    int terms;
#endif
};
#define NH_PART_TERMS 64

__device__ __forceinline__ void nh_long_clear(nh_long_row &row) {
    nh_clear(row.sum);
#if NH_LEVELS
    nh_clear(row.part);
    row.terms = 0;
#endif
}

__device__ __forceinline__ void nh_long_end(nh_long_row &row) {
#if NH_LEVELS
    nh_add_scaled(row.sum, 1, row.part);
    nh_clear(row.part);
    row.terms = 0;
#endif
}

__device__ __forceinline__ void nh_long_add(nh_long_row &row, real factor, const real term[NH_LANE_ELEMENTS]) {
#if NH_LEVELS
    nh_add_scaled(row.part, factor, term);
    if (++row.terms == NH_PART_TERMS) nh_long_end(row);
#else
    nh_add_scaled(row.sum, factor, term);
#endif
}

__device__ __forceinline__ void nh_long_scale(nh_long_row &row, real factor) {
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        row.sum[i] *= factor;
#if NH_LEVELS
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        row.part[i] *= factor;
#endif
}

/* Sums over a group of lanes. Groups of one warp may be at different keys, so only the lanes of this group take
 * part. */
__device__ __forceinline__ real nh_group_sum(real x) {
    return nh_lanes_sum<NH_GROUP>(x, nh_lanes_mask<NH_GROUP>());
}

__device__ __forceinline__ real nh_part(const real a[NH_LANE_ELEMENTS], const real b[NH_LANE_ELEMENTS]) {
    real sum = 0;
#pragma unroll
    for (int i = 0; i < NH_LANE_ELEMENTS; i++)
        sum += a[i] * b[i];
    return sum;
}

/* A row that is multiplied with others: in registers or, if it is too wide for them, in memory. */
struct nh_operand {
    const elem *row;
    int dim;
#if NH_RESIDENT
    real value[NH_LANE_ELEMENTS];
#endif
};

__device__ __forceinline__ void nh_operand_set(nh_operand &operand, const elem *row, long long dim) {
    operand.row = row;
    operand.dim = (int)dim;
#if NH_RESIDENT
    nh_load_row(row, 0, operand.dim, operand.value);
#endif
}

/* This lane's part of a product. The caller sums over the group, for several products at a time if it can. */
__device__ __forceinline__ real nh_product_part(const nh_operand &operand, const elem *other) {
    real b[NH_LANE_ELEMENTS];
#if NH_RESIDENT
    nh_load_row(other, 0, operand.dim, b);
    return nh_part(operand.value, b);
#else
    real a[NH_LANE_ELEMENTS], sum = 0;
    for (int first = 0; first < operand.dim; first += NH_CHUNK) {
        nh_load_row(operand.row, first, operand.dim, a);
        nh_load_row(other, first, operand.dim, b);
        sum += nh_part(a, b);
    }
    return sum;
#endif
}

/* rowsum(dO * O) - dLSE of a query, which the softmax's gradient needs. d_o: its row of dO. */
__device__ __forceinline__ real nh_delta_of(const nh_cuda_args &args, const nh_query &query, const nh_operand &d_o) {
    const nh_cuda_tensor &d_lse = args.tensor[NH_D_LSE];
    real delta = nh_group_sum(nh_product_part(d_o, nh_row(args.tensor[NH_O], query.batch, query.at, query.head)));
    if (d_lse.data) delta -= *nh_scalar(d_lse, query.batch, query.at, query.head);
    return delta;
}

/* The first column of this block's chunk of a result. */
__device__ __forceinline__ int nh_chunk_first(void) {
    return NH_RESIDENT ? 0 : (int)blockIdx.y * NH_CHUNK;
}

/* A box of positions in one dilation group, as tokens of the grid. */
struct nh_box {
    int count[3];
    long long first[3], step[3]; /* tokens */
    long long position[3];       /* position of the first token inside its dilation group */
#if NH_REGIONS
    int slot[3]; /* its slot, per axis, in the window in the whole grid */
#endif
};

/* The number of boxes that a row may see: one or, on each periodic axis, up to two. */
#define NH_PIECES (NH_PERIODIC ? 8 : 1)

/* What a row sees: the keys of a query or, with INVERSE, the queries of a key. */
template <bool INVERSE>
__device__ __forceinline__ nh_box nh_seen_box(const nh_cuda_args &args, const long long at[3], int piece) {
    nh_box box;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        const nh_cuda_axis &axis = args.axis[a];
        long long group = at[a], position = at[a];
#if NH_REGIONS
        /* The part of what tensors have in one lap; bit `a` of `piece` selects the second lap. */
        const bool second = piece >> a & 1;
        position = nh_split(&group, axis.dilation);
        long long length = nh_axis_group_length(axis.length, axis.dilation, group);
        const nh_range covered = nh_covered(nh_rows_box(args, a, !INVERSE), axis.dilation, group);
        const nh_range seen = nh_seen_of_grid(axis, nh_wraps(a), INVERSE, length, position);
        long long shift = 0;
        if (nh_wraps(a)) shift = (nh_laps(seen.begin, covered.begin, length) + second) * length;
        const nh_range part = nh_part_of_range(seen, covered.begin + shift, covered.end + shift);
        box.count[a] = second && !nh_wraps(a) ? 0 : (int)(part.end - part.begin);
        box.slot[a] = (int)(part.begin - seen.begin);
        box.first[a] = (part.begin - shift) * axis.dilation + group;
#else
        if (!INVERSE && axis.dilation == 1) {
            group = 0;
        } else {
            position = nh_split(&group, axis.dilation);
        }
        const nh_range part = nh_seen_range(nh_axis_group_length(axis.length, axis.dilation, group), axis.window,
                                            axis.stride, axis.causal, false, INVERSE, position);
        box.count[a] = (int)(part.end - part.begin);
        box.first[a] = part.begin * axis.dilation + group;
#endif
        box.position[a] = part.begin;
        box.step[a] = axis.dilation;
    }
    return box;
}

/* The keys of a query. */
__device__ __forceinline__ nh_box nh_window_box(const nh_cuda_args &args, const long long at[3], int piece = 0) {
    return nh_seen_box<false>(args, at, piece);
}

/* The queries of a key. */
__device__ __forceinline__ nh_box nh_inverse_box(const nh_cuda_args &args, const long long at[3], int piece = 0) {
    return nh_seen_box<true>(args, at, piece);
}

/* A tensor's rows in a box: row(x, y, z) = base + x * step[0] + y * step[1] + z * step[2]. */
struct nh_box_rows {
    const elem *base;
    long long step[3];
};

__device__ __forceinline__ nh_box_rows nh_box_rows_of(const nh_cuda_tensor &t, const nh_box &box, long long batch,
                                                      long long head) {
    nh_box_rows rows;
    rows.base = nh_row(t, batch, box.first, head);
#pragma unroll
    for (int a = 0; a < 3; a++)
        rows.step[a] = t.axis[a] * box.step[a];
    return rows;
}

/* Offset of a token of a box from the box's first, in elements of a tensor of scalars. */
__device__ __forceinline__ long long nh_offset(const nh_cuda_tensor &t, const nh_box &box, int x, int y, int z) {
    return x * t.axis[0] * box.step[0] + y * t.axis[1] * box.step[1] + z * t.axis[2] * box.step[2];
}

/* The slot of A of a box's first token. */
__device__ __forceinline__ long long nh_first_slot(const nh_cuda_args &args, const nh_box &box) {
#if NH_REGIONS
    return (box.slot[0] * args.axis[1].window + box.slot[1]) * args.axis[2].window + box.slot[2];
#else
    return 0;
#endif
}

/* The bias of one query's window: entry(x, y, z) = base + x * step[0] + y * step[1] + z. */
struct nh_bias {
    const elem *base;
    long long step[2];
};

__device__ __forceinline__ nh_bias nh_bias_of(const nh_cuda_args &args, const nh_query &query,
                                              const nh_box &box) {
    nh_bias bias = {0};
    if (!NH_BIASED) return bias;
    long long extent[3], entry[3];
#pragma unroll
    for (int a = 0; a < 3; a++) {
        extent[a] = 2 * args.axis[a].window - 1;
        entry[a] = box.position[a] - query.at[a] / args.axis[a].dilation + args.axis[a].window - 1;
    }
    bias.step[1] = extent[2];
    bias.step[0] = extent[1] * extent[2];
    bias.base = (const elem *)args.tensor[NH_BIAS].data + query.head * extent[0] * bias.step[0] +
                entry[0] * bias.step[0] + entry[1] * bias.step[1] + entry[2];
    return bias;
}
