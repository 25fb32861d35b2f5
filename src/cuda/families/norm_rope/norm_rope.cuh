/* RMS norm and rotary positions: what forward and backward pass share.
 *
 * NH_GROUP lanes share a row, that is, the channels of one norm: those of a head (a warp then has several rows) or of a
 * whole token (with more than 32 lanes, the block has one row). A lane holds NH_UNITS units of NH_PAIRS pairs of
 * channels, lane l the units l, l + NH_GROUP, ..; both channels of a pair are in the same lane. A unit is one run of
 * channels if pairs are interleaved and two if they are halves, and is moved by loads of NH_VECTOR elements. Cosines
 * and sines of a lane's pairs are read once per token for all of its heads, NH_TABLE pairs at a time, which belong to
 * one axis; NH_ROWS heads are in flight at once.
 *
 * Knobs: NH_DTYPE, NH_THREADS, the ones above, NH_HALVES, NH_NORM (NHOOD_NORM_*), NH_WEIGHT (0: none, 1: of the
 * tensors' type, 2: of the type of arithmetic), NH_WHOLE (1: all units of all lanes exist), NH_FULL (1: items have
 * whole multiples of NH_ROWS heads), NH_INDEX32 (1: there are fewer than 2^31 items), NH_MIN_BLOCKS (blocks per
 * multiprocessor, which limits registers), NH_UNALIGNED (1: tables may start anywhere).
 *
 * If a block has one long row (NH_LAZY), weights and tables are read when they are needed, after the barriers of the
 * sums: keeping them in registers would leave room for fewer blocks, and so for fewer loads in flight. */
#pragma once
#include "lanes.cuh"
#include "norm_rope_args.h"
#include "prelude.cuh"

#define NH_NORM_TOKEN 2
#define NH_LAZY (NH_GROUP > 32)
#define NH_RUNS (NH_HALVES ? 2 : 1)
#define NH_RUN (2 * NH_PAIRS / NH_RUNS) /* channels per run */
#define NH_LOADS (2 * NH_PAIRS / NH_VECTOR)
#define NH_CHUNKS (NH_PAIRS / NH_TABLE)
#define NH_TABLE_REALS (NH_UNALIGNED ? 1 : 2 * NH_TABLE * sizeof(real) < 16 ? 2 : 16 / sizeof(real)) /* per load */

/* Indices of a pair's channels in a unit's array. */
#define NH_FIRST(pair) (NH_HALVES ? (pair) : 2 * (pair))
#define NH_SECOND(pair) (NH_HALVES ? (pair) + NH_PAIRS : 2 * (pair) + 1)

struct nh_unit {
    bool there;
    int head;          /* 0 unless a norm is over a whole token */
    int channel[NH_RUNS]; /* where its runs begin in the head */
    struct {
        const real *table; /* NULL: not rotated */
        int axis, step;
    } chunk[NH_CHUNKS];
};

struct nh_item {
    long long batch, at[3];
    int head, end;
};

struct nh_raw {
    nh_vector<NH_VECTOR> load[NH_LOADS];
};

__device__ __forceinline__ int nh_lane(void) {
    return NH_LAZY ? threadIdx.x : threadIdx.x % NH_GROUP;
}

__device__ __forceinline__ void nh_chunk_set(const nh_norm_rope_args &args, nh_unit &unit, int chunk, int pair) {
    const real *table = 0;
    int axis = 0, step = 0;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        const int first = args.first_pair[a], end = args.first_pair[a + 1];
        if (pair < first || pair >= end) continue;
        axis = a;
        step = 2 * (end - first);
        table = (const real *)args.table[a] + 2 * (pair - first);
    }
    unit.chunk[chunk].table = unit.there ? table : 0;
    unit.chunk[chunk].axis = axis;
    unit.chunk[chunk].step = step;
}

__device__ __forceinline__ void nh_units_set(const nh_norm_rope_args &args, nh_unit unit[NH_UNITS]) {
    const int head_pairs = args.dim / 2, rotated = args.first_pair[3];
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++) {
        int pair = (nh_lane() + j * NH_GROUP) * NH_PAIRS;
        unit[j].there = NH_WHOLE || pair < args.row_pairs;
        unit[j].head = NH_NORM == NH_NORM_TOKEN ? pair / head_pairs : 0;
        pair -= unit[j].head * head_pairs;
        if (NH_HALVES) {
            unit[j].channel[0] = pair < rotated ? pair : pair + rotated;
            unit[j].channel[NH_RUNS - 1] = pair + (pair < rotated ? rotated : head_pairs);
        } else {
            unit[j].channel[0] = 2 * pair;
        }
#pragma unroll
        for (int k = 0; k < NH_CHUNKS; k++)
            nh_chunk_set(args, unit[j], k, pair + k * NH_TABLE);
    }
}

/* The index of channel i of a unit in the weight. */
__device__ __forceinline__ int nh_weight_at(const nh_norm_rope_args &args, const nh_unit &unit, int i) {
    return unit.head * args.dim + unit.channel[i / NH_RUN] + i % NH_RUN;
}

/* Sets weight times scale for a unit's channels. */
__device__ __forceinline__ void nh_factors_set(const nh_norm_rope_args &args, const nh_unit &unit,
                                               real factor[2 * NH_PAIRS]) {
#pragma unroll
    for (int i = 0; i < 2 * NH_PAIRS; i++) {
        const int at = nh_weight_at(args, unit, i);
        real weight = 1;
        if (NH_WEIGHT == 1 && unit.there) weight = nh_load(((const elem *)args.weight)[at]);
        if (NH_WEIGHT == 2 && unit.there) weight = ((const real *)args.weight)[at];
        factor[i] = weight * (real)args.scale;
    }
}

__device__ __forceinline__ long long nh_first_item(void) {
    return NH_LAZY ? blockIdx.x : (long long)blockIdx.x * (NH_THREADS / NH_GROUP) + threadIdx.x / NH_GROUP;
}

__device__ __forceinline__ long long nh_item_step(void) {
    return (long long)gridDim.x * (NH_THREADS / NH_GROUP);
}

__device__ __forceinline__ nh_item nh_item_of(const nh_norm_rope_args &args, long long index) {
    nh_item item;
    item.head = 0;
    item.end = 1;
    if (NH_NORM != NH_NORM_TOKEN) {
        long long chunk = index;
        if (args.chunks == 1) {
            chunk = 0;
        } else if (NH_INDEX32) {
            index = (unsigned)chunk / (unsigned)args.chunks;
            chunk -= index * args.chunks;
        } else {
            index = nh_split(&chunk, args.chunks);
        }
        item.head = (int)chunk * args.heads_each;
        item.end = min(item.head + args.heads_each, args.heads);
    }
#if NH_INDEX32
    unsigned rest = (unsigned)index;
#pragma unroll
    for (int a = 2; a >= 0; a--) {
        const unsigned length = (unsigned)args.length[a], quotient = rest / length;
        item.at[a] = rest - quotient * length;
        rest = quotient;
    }
    item.batch = rest;
#else
#pragma unroll
    for (int a = 2; a >= 0; a--) {
        item.at[a] = index;
        index = nh_split(&item.at[a], args.length[a]);
    }
    item.batch = index;
#endif
    return item;
}

/* Loads cosines and sines of a unit's pairs for the item's token. */
__device__ __forceinline__ void nh_angles_set(const nh_unit &unit, const nh_item &item, real cosine[NH_PAIRS],
                                              real sine[NH_PAIRS]) {
    struct alignas(NH_TABLE_REALS * sizeof(real)) part {
        real at[NH_TABLE_REALS];
    };
#pragma unroll
    for (int k = 0; k < NH_CHUNKS; k++) {
        const int axis = unit.chunk[k].axis;
        const long long position = axis == 0 ? item.at[0] : axis == 1 ? item.at[1] : item.at[2];
        const real *from = unit.chunk[k].table;
        real both[2 * NH_TABLE];
#pragma unroll
        for (int i = 0; i < 2 * NH_TABLE; i++)
            both[i] = i % 2 ? 0 : 1;
        if (from) {
            from += position * unit.chunk[k].step;
#pragma unroll
            for (int i = 0; i < 2 * NH_TABLE; i += NH_TABLE_REALS) {
                const part loaded = *(const part *)(from + i);
#pragma unroll
                for (int l = 0; l < NH_TABLE_REALS; l++)
                    both[i + l] = loaded.at[l];
            }
        }
#pragma unroll
        for (int i = 0; i < NH_TABLE; i++) {
            cosine[k * NH_TABLE + i] = both[2 * i];
            sine[k * NH_TABLE + i] = both[2 * i + 1];
        }
    }
}

/* What the rows of a token have in common, unless it is read when needed (NH_LAZY). */
struct nh_token {
#if !NH_LAZY
    real cosine[NH_UNITS][NH_PAIRS], sine[NH_UNITS][NH_PAIRS];
#endif
    nh_item item;
};

__device__ __forceinline__ void nh_token_set(const nh_norm_rope_args &args, const nh_unit unit[NH_UNITS],
                                             long long index, nh_token &token) {
    token.item = nh_item_of(args, index);
#if !NH_LAZY
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++)
        nh_angles_set(unit[j], token.item, token.cosine[j], token.sine[j]);
#endif
}

/* Cosines and sines of a unit's pairs. */
struct nh_angles {
    real cosine[NH_PAIRS], sine[NH_PAIRS];
};

__device__ __forceinline__ nh_angles nh_angles_of(const nh_unit unit[NH_UNITS], const nh_token &token, int j) {
    nh_angles angles;
#if NH_LAZY
    nh_angles_set(unit[j], token.item, angles.cosine, angles.sine);
#else
#pragma unroll
    for (int p = 0; p < NH_PAIRS; p++) {
        angles.cosine[p] = token.cosine[j][p];
        angles.sine[p] = token.sine[j][p];
    }
#endif
    return angles;
}

/* Weight times scale of all units, unless it is read when needed (NH_LAZY). */
struct nh_factors {
#if !NH_LAZY
    real of[NH_UNITS][2 * NH_PAIRS];
#endif
};

__device__ __forceinline__ void nh_all_factors_set(const nh_norm_rope_args &args, const nh_unit unit[NH_UNITS],
                                                   nh_factors &factors) {
#if !NH_LAZY
#pragma unroll
    for (int j = 0; j < NH_UNITS; j++)
        nh_factors_set(args, unit[j], factors.of[j]);
#endif
}

__device__ __forceinline__ void nh_factors_of(const nh_norm_rope_args &args, const nh_unit unit[NH_UNITS],
                                              const nh_factors &factors, int j, real factor[2 * NH_PAIRS]) {
#if NH_LAZY
    nh_factors_set(args, unit[j], factor);
#else
#pragma unroll
    for (int i = 0; i < 2 * NH_PAIRS; i++)
        factor[i] = factors.of[j][i];
#endif
}

/* The first of the item's rows in a tensor. */
__device__ __forceinline__ elem *nh_item_row(const nh_cuda_tensor &t, const nh_item &item) {
    return nh_row(t, item.batch, item.at, item.head);
}

__device__ __forceinline__ elem *nh_unit_run(const nh_cuda_tensor &t, elem *row, const nh_unit &unit, int run) {
    return row + (NH_NORM == NH_NORM_TOKEN ? unit.head * t.head : 0) + unit.channel[run];
}

__device__ __forceinline__ void nh_unit_load(const nh_cuda_tensor &t, elem *row, const nh_unit &unit, bool there,
                                             nh_raw &raw) {
#pragma unroll
    for (int i = 0; i < NH_LOADS; i++) {
#pragma unroll
        for (int l = 0; l < NH_VECTOR; l++)
            raw.load[i].at[l] = 0;
        const int run = i * NH_VECTOR / NH_RUN, at = i * NH_VECTOR % NH_RUN;
        if (there) raw.load[i] = *(const nh_vector<NH_VECTOR> *)(nh_unit_run(t, row, unit, run) + at);
    }
}

/* Loads the first `rows` of NH_ROWS rows of a tensor; the others are zeros. */
__device__ __forceinline__ void nh_rows_load(const nh_cuda_tensor &t, const nh_unit unit[NH_UNITS], elem *row, int rows,
                                             nh_raw raw[NH_ROWS][NH_UNITS]) {
#pragma unroll
    for (int r = 0; r < NH_ROWS; r++)
#pragma unroll
        for (int j = 0; j < NH_UNITS; j++)
            nh_unit_load(t, row + r * t.head, unit[j], unit[j].there && (NH_FULL || r < rows), raw[r][j]);
}

__device__ __forceinline__ void nh_unit_store(const nh_cuda_tensor &t, elem *row, const nh_unit &unit,
                                              const real value[2 * NH_PAIRS]) {
#pragma unroll
    for (int i = 0; i < NH_LOADS; i++) {
        const int run = i * NH_VECTOR / NH_RUN, at = i * NH_VECTOR % NH_RUN;
        nh_store_vector<NH_VECTOR>(nh_unit_run(t, row, unit, run) + at, value + i * NH_VECTOR);
    }
}

__device__ __forceinline__ real nh_raw_at(const nh_raw &raw, int i) {
    return nh_load(raw.load[i / NH_VECTOR].at[i % NH_VECTOR]);
}

#if NH_GROUP > 32
__shared__ real nh_warp_sum[2][NH_GROUP / 32];
#endif

/* Sums over the lanes of the row, each of which gets the results. */
template <int COUNT> __device__ __forceinline__ void nh_row_sums(real sum[COUNT]) {
#if NH_GROUP <= 32
#pragma unroll
    for (int s = 0; s < COUNT; s++)
        sum[s] = nh_lanes_sum<NH_GROUP>(sum[s], nh_lanes_mask<NH_GROUP>());
#else
    __syncthreads(); /* everyone has read the sums of the row before */
#pragma unroll
    for (int s = 0; s < COUNT; s++) {
        sum[s] = nh_lanes_sum<32>(sum[s]);
        if (threadIdx.x % 32 == 0) nh_warp_sum[s][threadIdx.x / 32] = sum[s];
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < COUNT; s++) {
        sum[s] = 0;
        for (int w = 0; w < NH_GROUP / 32; w++)
            sum[s] += nh_warp_sum[s][w];
    }
#endif
}

/* 1 / root mean square. */
__device__ __forceinline__ real nh_norm_of(const nh_norm_rope_args &args, real sum_of_squares) {
    const real mean = sum_of_squares * (real)args.inverse_channels + (real)args.eps;
#if NH_DTYPE == NH_F64
    return rsqrt(mean);
#else
    return rsqrtf(mean);
#endif
}
