/* Scores: products of query vectors (queries in the lanes, one channel after the other) with keys packed by
 * channel. Every multiply-add is useful: lane i meets exactly its own keys, at its own start.
 * R query vectors share the loads of N consecutive keys; R * N sums stay in registers. */
#ifndef NH_DOT_H
#define NH_DOT_H

#include "geometry.h"
#include "simd.h"

/* R and the most N for it, by registers: R * N sums, R queries, one key.
 *
 * A vector that starts at any float straddles two cache lines if it is as long as one, and then costs up to three
 * times an aligned load. Where few rows share it, all N keys are cut from two vectors by shuffles instead. */
#if NH_VECTOR_REGISTERS == 32
#define MOST_ROWS 4
#define MOST_KEYS(R) ((R) == 4 ? 6 : 8)
#else
#define MOST_ROWS 3
#define MOST_KEYS(R) ((R) == 3 ? 4 : (R) == 2 ? 5 : 8)
#endif
#if defined(NH_ISA_AVX512)
#define CUT_KEYS(R) ((R) <= 2)
#else
#define CUT_KEYS(R) false
#endif

/* Channels of a product that are summed up in one chain, in registers: the error of a sum grows with the length of its chain. The
 * sums of the chains are added up in the scores, which takes AVX-512, with twice the lanes per multiply-add, relatively longer: chains
 * of 16 made forward passes of head dim 64 up to a quarter slower there (one thread of a Xeon, bench/suites/cpu.txt). */
#if defined(NH_ISA_AVX512)
enum { CHAIN_CHANNELS = 32 };
#else
enum { CHAIN_CHANNELS = 16 };
#endif

/* Loads key n as each lane meets it. */
INLINE vec key_lanes(const int mode, const real *key, const int n, vint index) {
    if (mode == NH_LANES_SAME) return v_set(key[n]);
    vec lanes = v_load(key + n);
    return mode == NH_LANES_PERMUTE ? v_permute(lanes, index) : lanes;
}

/* Sums channels [from, end). The first chain makes the scores, later ones are added to them. */
INLINE void dot_chain(const int R, const int N, const int mode, real *const *score,
                      const real *const *query, const real *key, int64_t pitch, int32_t from,
                      int32_t end, vint index) {
    vec sum[MOST_ROWS][8];
    const real *q[MOST_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        q[r] = query[r];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++)
            sum[r][n] = (vec){0};
    }
    for (int32_t c = from; c < end; c++) {
        vec value[MOST_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            value[r] = v_load(q[r] + c * VL);
            if (N > 1) KEEP_IN_REGISTER(value[r]);
        }
        const bool cut = CUT_KEYS(R) && mode == NH_LANES_SHIFT && N > 2;
        vec low = {0}, high = {0};
        if (cut) {
            low = v_load(key);
            high = v_load(key + VL);
            KEEP_IN_REGISTER(low);
            KEEP_IN_REGISTER(high);
        }
#pragma GCC unroll 8
        for (int n = 0; n < N; n++) {
            vec k = cut ? v_shift_pair(low, high, n) : key_lanes(mode, key, n, index);
            if (R > 1) KEEP_IN_REGISTER(k);
#pragma GCC unroll 4
            for (int r = 0; r < R; r++)
                sum[r][n] += value[r] * k;
        }
        key += pitch;
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        real *at = score[r];
#pragma GCC unroll 8
        for (int n = 0; n < N; n++, at += VL)
            v_store(at, from > 0 ? v_load(at) + sum[r][n] : sum[r][n]);
    }
}

INLINE void dot_kernel(const int R, const int N, const int mode, real *const *score,
                       const real *const *query, const real *key, int64_t pitch, int32_t dim,
                       vint index) {
    for (int32_t from = 0; from < dim; from += CHAIN_CHANNELS, key += CHAIN_CHANNELS * pitch) {
        const int32_t end = from + CHAIN_CHANNELS < dim ? from + CHAIN_CHANNELS : dim;
        dot_chain(R, N, mode, score, query, key, pitch, from, end, index);
    }
}

typedef void dot_fn(real *const *score, const real *const *query, const real *key, int64_t pitch,
                    int32_t dim, vint index);

#define DOT_NAME(R, N, M) dot_##R##_##N##_##M
#define DOT(R, N, M)                                                                               \
    static void DOT_NAME(R, N, M)(real *const *score, const real *const *query, const real *key,   \
                                  int64_t pitch, int32_t dim, vint index) {                        \
        dot_kernel(R, N, M, score, query, key, pitch, dim, index);                                 \
    }
#define DOT_MODES(R, N) DOT(R, N, 0) DOT(R, N, 1) DOT(R, N, 2)
#define DOT_ENTRY(R, N) {DOT_NAME(R, N, 0), DOT_NAME(R, N, 1), DOT_NAME(R, N, 2)},
#define DOT_4(F, R) F(R, 1) F(R, 2) F(R, 3) F(R, 4)
#define DOT_5(F, R) DOT_4(F, R) F(R, 5)
#define DOT_6(F, R) DOT_5(F, R) F(R, 6)
#define DOT_8(F, R) DOT_6(F, R) F(R, 7) F(R, 8)

/* clang-format off */
#if NH_VECTOR_REGISTERS == 32
DOT_8(DOT_MODES, 1) DOT_8(DOT_MODES, 2) DOT_8(DOT_MODES, 3) DOT_6(DOT_MODES, 4)
static dot_fn *const dot_table[MOST_ROWS][8][NH_LANE_MODES] = {
    {DOT_8(DOT_ENTRY, 1)}, {DOT_8(DOT_ENTRY, 2)}, {DOT_8(DOT_ENTRY, 3)}, {DOT_6(DOT_ENTRY, 4)}};
#else
DOT_8(DOT_MODES, 1) DOT_5(DOT_MODES, 2) DOT_4(DOT_MODES, 3)
static dot_fn *const dot_table[MOST_ROWS][8][NH_LANE_MODES] = {
    {DOT_8(DOT_ENTRY, 1)}, {DOT_5(DOT_ENTRY, 2)}, {DOT_4(DOT_ENTRY, 3)}};
#endif
/* clang-format on */

/* Computes score[r][n] = query[r] . key(start + n) for n in [0, count), keys at key[c * pitch + n]. */
static void dot_span(int32_t rows, int32_t count, enum nh_lane_mode mode, real *const *score,
                     const real *const *query, const real *key, int64_t pitch, int32_t dim,
                     vint index) {
    real *at[MOST_ROWS];
    int32_t pieces = 1, done = 0;
    while (pieces * MOST_KEYS(rows) < count)
        pieces++;
    const int32_t even = pieces == 1 ? count : count / pieces;
    for (int32_t longer = count - even * pieces; done < count; longer--) {
        int32_t size = even + (longer > 0);
        for (int32_t r = 0; r < rows; r++)
            at[r] = score[r] + done * VL;
        dot_table[rows - 1][size - 1][mode](at, query, key + done, pitch, dim, index);
        done += size;
    }
}

#endif
