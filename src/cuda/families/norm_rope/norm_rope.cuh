/* RMS norm and rotary positions: what forward and backward pass share. C.group lanes share a row, that is, the channels
 * of one norm: those of a head (a warp then has several rows) or of a whole token (with more than 32 lanes, the block
 * has one row). A lane holds C.units units of C.pairs pairs of channels, lane l the units l, l + C.group, ..; both
 * channels of a pair are in the same lane. A unit is one run of channels if pairs are interleaved and two if they are
 * halves, and is moved by loads of C.vector elements. Cosines and sines of a lane's pairs are read once per token for
 * all of its heads, C.table pairs at a time, which belong to one axis; C.rows heads are in flight at once.
 * norm_rope_config.h has the rest.
 *
 * If a block has one long row (LAZY), weights and tables are read when they are needed, after the barriers of the sums:
 * keeping them in registers would leave room for fewer blocks, and so for fewer loads in flight. */
#pragma once
#include "lanes.cuh"
#include "norm_rope_args.h"
#include "norm_rope_config.h"
#include "prelude.cuh"

namespace nh_norm_rope {

constexpr norm_rope_config C = NH_CONFIG;
constexpr bool LAZY = norm_rope_shared_row(&C);

/* Runs of a unit, channels per run, loads of a unit, chunks of a unit (of one axis each), reals per load of a table. */
constexpr int RUNS = C.halves ? 2 : 1, RUN = 2 * C.pairs / RUNS, LOADS = 2 * C.pairs / C.vector,
              CHUNKS = C.pairs / C.table, TABLE_BYTES = 2 * C.table * (int)sizeof(real),
              TABLE_REALS = C.unaligned        ? 1
                            : TABLE_BYTES < 16 ? 2
                                               : 16 / (int)sizeof(real);

/* Indices of a pair's channels in a unit's array. */
NH_DEVICE constexpr int nh_first(int pair) {
    return C.halves ? pair : 2 * pair;
}
NH_DEVICE constexpr int nh_second(int pair) {
    return C.halves ? pair + C.pairs : 2 * pair + 1;
}

struct nh_unit {
    bool there;
    int head;          /* 0 unless a norm is over a whole token */
    int channel[RUNS]; /* where its runs begin in the head */
    struct {
        const real *table; /* NULL: not rotated */
        int axis, step;
    } chunk[CHUNKS];
};

struct nh_item {
    long long batch, at[3];
    int head, end;
};

struct nh_raw {
    nh_vector<C.vector> load[LOADS];
};

NH_DEVICE int nh_lane(void) {
    return LAZY ? threadIdx.x : threadIdx.x % C.group;
}

NH_DEVICE void nh_chunk_set(const nh_norm_rope_args &args, nh_unit &unit, int chunk, int pair) {
    const real *table = 0;
    int axis = 0, step = 0;
    NH_UNROLL for (int a = 0; a < 3; a++) {
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

NH_DEVICE void nh_units_set(const nh_norm_rope_args &args, nh_unit unit[C.units]) {
    const int head_pairs = args.dim / 2, rotated = args.first_pair[3];
    NH_UNROLL for (int j = 0; j < C.units; j++) {
        int pair = (nh_lane() + j * C.group) * C.pairs;
        unit[j].there = C.whole || pair < args.row_pairs;
        unit[j].head = C.norm == NORM_ROPE_TOKEN_NORM ? pair / head_pairs : 0;
        pair -= unit[j].head * head_pairs;
        if (C.halves) {
            unit[j].channel[0] = pair < rotated ? pair : pair + rotated;
            unit[j].channel[RUNS - 1] = pair + (pair < rotated ? rotated : head_pairs);
        } else {
            unit[j].channel[0] = 2 * pair;
        }
        NH_UNROLL for (int k = 0; k < CHUNKS; k++)
            nh_chunk_set(args, unit[j], k, pair + k * C.table);
    }
}

/* The index of channel i of a unit in the weight. */
NH_DEVICE int nh_weight_at(const nh_norm_rope_args &args, const nh_unit &unit, int i) {
    return unit.head * args.dim + unit.channel[i / RUN] + i % RUN;
}

/* Sets weight times scale for a unit's channels. */
NH_DEVICE void nh_factors_set(const nh_norm_rope_args &args, const nh_unit &unit, real factor[2 * C.pairs]) {
    NH_UNROLL for (int i = 0; i < 2 * C.pairs; i++) {
        const int at = nh_weight_at(args, unit, i);
        real weight = 1;
        if (C.weight == NORM_ROPE_STORED_WEIGHT && unit.there) weight = nh_load(((const elem *)args.weight)[at]);
        if (C.weight == NORM_ROPE_REAL_WEIGHT && unit.there) weight = ((const real *)args.weight)[at];
        factor[i] = weight * (real)args.scale;
    }
}

NH_DEVICE long long nh_first_item(void) {
    return LAZY ? blockIdx.x : (long long)blockIdx.x * (C.threads / C.group) + threadIdx.x / C.group;
}

NH_DEVICE long long nh_item_step(void) {
    return (long long)gridDim.x * (C.threads / C.group);
}

NH_DEVICE nh_item nh_item_of(const nh_norm_rope_args &args, long long index) {
    nh_item item;
    item.head = 0;
    item.end = 1;
    if (C.norm != NORM_ROPE_TOKEN_NORM) {
        long long chunk = index;
        if (args.chunks == 1) {
            chunk = 0;
        } else if (C.index32) {
            index = (unsigned)chunk / (unsigned)args.chunks;
            chunk -= index * args.chunks;
        } else {
            index = nh_split(&chunk, args.chunks);
        }
        item.head = (int)chunk * args.heads_each;
        item.end = min(item.head + args.heads_each, args.heads);
    }
    unsigned rest = (unsigned)index;
    NH_UNROLL for (int a = 2; a >= 0; a--) {
        if (C.index32) {
            const unsigned length = (unsigned)args.length[a], quotient = rest / length;
            item.at[a] = rest - quotient * length;
            rest = quotient;
        } else {
            item.at[a] = index;
            index = nh_split(&item.at[a], args.length[a]);
        }
    }
    item.batch = C.index32 ? rest : index;
    return item;
}

/* Cosines and sines of a unit's pairs. */
struct nh_angles {
    real cosine[C.pairs], sine[C.pairs];
};

/* Loads cosines and sines of a unit's pairs for the item's token. */
NH_DEVICE nh_angles nh_angles_of(const nh_unit &unit, const nh_item &item) {
    struct alignas(TABLE_REALS * sizeof(real)) part {
        real at[TABLE_REALS];
    };
    nh_angles angles;
    NH_UNROLL for (int k = 0; k < CHUNKS; k++) {
        const int axis = unit.chunk[k].axis;
        const long long position = axis == 0 ? item.at[0] : axis == 1 ? item.at[1] : item.at[2];
        const real *from = unit.chunk[k].table;
        real both[2 * C.table]; /* without a table, no rotation */
        NH_UNROLL for (int i = 0; i < 2 * C.table; i++)
            both[i] = i % 2 ? 0 : 1;
        if (from) {
            from += position * unit.chunk[k].step;
            NH_UNROLL for (int i = 0; i < 2 * C.table; i += TABLE_REALS) {
                const part loaded = *(const part *)(from + i);
                NH_UNROLL for (int l = 0; l < TABLE_REALS; l++)
                    both[i + l] = loaded.at[l];
            }
        }
        NH_UNROLL for (int i = 0; i < C.table; i++) {
            angles.cosine[k * C.table + i] = both[2 * i];
            angles.sine[k * C.table + i] = both[2 * i + 1];
        }
    }
    return angles;
}

/* What the rows of a token have in common, with angles unless these are read when needed (LAZY). */
struct nh_token {
    nh_angles angles[LAZY ? 1 : C.units];
    nh_item item;
};

NH_DEVICE void nh_token_set(const nh_norm_rope_args &args, const nh_unit unit[C.units], long long index,
                            nh_token &token) {
    token.item = nh_item_of(args, index);
    NH_UNROLL for (int j = 0; j < C.units && !LAZY; j++)
        token.angles[j] = nh_angles_of(unit[j], token.item);
}

NH_DEVICE nh_angles nh_token_angles(const nh_unit unit[C.units], const nh_token &token, int j) {
    return LAZY ? nh_angles_of(unit[j], token.item) : token.angles[LAZY ? 0 : j];
}

/* Weight times scale of all units, unless it is read when needed (LAZY). */
struct nh_factors {
    real of[LAZY ? 1 : C.units][2 * C.pairs];
};

NH_DEVICE void nh_all_factors_set(const nh_norm_rope_args &args, const nh_unit unit[C.units], nh_factors &factors) {
    NH_UNROLL for (int j = 0; j < C.units && !LAZY; j++)
        nh_factors_set(args, unit[j], factors.of[j]);
}

NH_DEVICE void nh_factors_of(const nh_norm_rope_args &args, const nh_unit unit[C.units], const nh_factors &factors,
                             int j, real factor[2 * C.pairs]) {
    if (LAZY) return nh_factors_set(args, unit[j], factor);
    NH_UNROLL for (int i = 0; i < 2 * C.pairs; i++)
        factor[i] = factors.of[LAZY ? 0 : j][i];
}

/* The first of the item's rows in a tensor. */
NH_DEVICE elem *nh_item_row(const nh_cuda_tensor &t, const nh_item &item) {
    return nh_row(t, item.batch, item.at, item.head);
}

NH_DEVICE elem *nh_unit_run(const nh_cuda_tensor &t, elem *row, const nh_unit &unit, int run) {
    return row + (C.norm == NORM_ROPE_TOKEN_NORM ? unit.head * t.head : 0) + unit.channel[run];
}

NH_DEVICE void nh_unit_load(const nh_cuda_tensor &t, elem *row, const nh_unit &unit, bool there, nh_raw &raw) {
    NH_UNROLL for (int i = 0; i < LOADS; i++) {
        NH_UNROLL for (int l = 0; l < C.vector; l++)
            raw.load[i].at[l] = 0;
        const int run = i * C.vector / RUN, at = i * C.vector % RUN;
        if (there) raw.load[i] = *(const nh_vector<C.vector> *)(nh_unit_run(t, row, unit, run) + at);
    }
}

/* Loads the first `rows` of C.rows rows of a tensor; the others are zeros. */
NH_DEVICE void nh_rows_load(const nh_cuda_tensor &t, const nh_unit unit[C.units], elem *row, int rows,
                            nh_raw raw[C.rows][C.units]) {
    NH_UNROLL for (int r = 0; r < C.rows; r++)
        NH_UNROLL for (int j = 0; j < C.units; j++)
            nh_unit_load(t, row + r * t.head, unit[j], unit[j].there && (C.full || r < rows), raw[r][j]);
}

NH_DEVICE void nh_unit_store(const nh_cuda_tensor &t, elem *row, const nh_unit &unit, const real value[2 * C.pairs]) {
    NH_UNROLL for (int i = 0; i < LOADS; i++) {
        const int run = i * C.vector / RUN, at = i * C.vector % RUN;
        nh_store_vector<C.vector>(nh_unit_run(t, row, unit, run) + at, value + i * C.vector);
    }
}

NH_DEVICE real nh_raw_at(const nh_raw &raw, int i) {
    return nh_load(raw.load[i / C.vector].at[i % C.vector]);
}

/* Sums over the lanes of the row, each of which gets the results. */
template <int COUNT, int LANES = C.group> NH_DEVICE void nh_row_sums(real sum[COUNT]) {
    if constexpr (LANES <= NORM_ROPE_WARP) {
        NH_UNROLL for (int s = 0; s < COUNT; s++)
            sum[s] = nh_lanes_sum<LANES>(sum[s], nh_lanes_mask<LANES>());
    } else {
        __shared__ real part[COUNT][LANES / NORM_ROPE_WARP];
        __syncthreads(); /* everyone has read the sums of the row before */
        NH_UNROLL for (int s = 0; s < COUNT; s++) {
            sum[s] = nh_lanes_sum<NORM_ROPE_WARP>(sum[s]);
            if (threadIdx.x % NORM_ROPE_WARP == 0) part[s][threadIdx.x / NORM_ROPE_WARP] = sum[s];
        }
        __syncthreads();
        NH_UNROLL for (int s = 0; s < COUNT; s++) {
            sum[s] = 0;
            for (int w = 0; w < LANES / NORM_ROPE_WARP; w++)
                sum[s] += part[s][w];
        }
    }
}

/* 1 / root mean square. */
NH_DEVICE real nh_norm_of(const nh_norm_rope_args &args, real sum_of_squares) {
    const real mean = sum_of_squares * (real)args.inverse_channels + (real)args.eps;
    return NH_DTYPE == NH_F64 ? (real)rsqrt((double)mean) : (real)rsqrtf((float)mean);
}

} // namespace nh_norm_rope
