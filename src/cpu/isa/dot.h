/* Scores: products of query vectors (queries in the lanes, one channel after the other) with keys packed by channel. Every
 * multiply-add is useful, as each lane is multiplied only with its own keys, from its own first key on. R query vectors share
 * the loads of N consecutive keys; R * N sums stay in registers. */
#ifndef NH_DOT_H
#define NH_DOT_H

#include "geometry.h"
#include "simd.h"

/* MOST_ROWS is the most query vectors of a block. A kernel handles R of them, at most DOT_ROWS, so a larger block goes through
 * a key row twice, by halves. Its gain is that fewer of its key rows are used by only one or two query vectors, and that
 * gradients of keys are read and written less often.
 *
 * R and the most N follow from the registers: R * N sums, R queries or N keys, whichever are fewer (HOLD_KEYS), and one of the
 * others. Keys that must be permuted or masked take one register more, so with FULL_REGISTERS N is one less.
 *
 * An unaligned vector as long as a cache line straddles two lines, and then costs up to three times an aligned load. If few
 * rows share it, all N keys are cut from two vectors by shuffles instead (CUT_KEYS). */
#if NH_VECTOR_REGISTERS == 32 && !(defined(NH_ISA_AVX512) && NH_REAL == 64)
#define DOT_ROWS 4
#if defined(NH_ISA_AVX512)
#define MOST_ROWS 8
#else
#define MOST_ROWS 4
#endif
#define MOST_KEYS(R) ((R) == 4 ? 6 : 8)
#elif defined(NH_ISA_AVX2) && NH_REAL == 32
#define MOST_ROWS 12
#define DOT_ROWS 6
#define MOST_KEYS(R) ((R) >= 5 ? 2 : (R) == 4 ? 3 : (R) == 3 ? 4 : (R) == 2 ? 6 : 8)
#define HOLD_KEYS(R) ((R) >= 4)
#define FULL_REGISTERS(R) ((R) >= 2 && (R) <= 4)
#define HAS_SPLIT_LANES 1
#else /* f64 with AVX2 and AVX-512, too: more kernels make the library larger */
#define MOST_ROWS 3
#define MOST_KEYS(R) ((R) == 3 ? 4 : (R) == 2 ? 5 : 8)
#endif
#if !defined(HOLD_KEYS)
#define HOLD_KEYS(R) false
#define FULL_REGISTERS(R) false
#define HAS_SPLIT_LANES 0
#endif
#if !defined(DOT_ROWS)
#define DOT_ROWS MOST_ROWS
#endif
#if defined(NH_ISA_AVX512)
#define CUT_KEYS(R) ((R) <= 2)
#else
#define CUT_KEYS(R) false
#endif

/* The channels of a product that are summed up in one chain, in registers, because the error of a sum grows with the length of
 * its chain. Adding the chains' sums to the scores takes relatively longer with AVX-512, which has twice the lanes per
 * multiply-add: chains of 16 made forward passes of head dim 64 up to a quarter slower there (one thread of a Xeon,
 * bench/suites/cpu.txt). */
#if defined(NH_ISA_AVX512)
enum { CHAIN_CHANNELS = 32 };
#else
enum { CHAIN_CHANNELS = 16 };
#endif

struct dot_shape;
typedef void dot_fn(real *const *score, int64_t offset, const real *query, const real *key,
                    const struct dot_shape *shape);
typedef dot_fn *const dot_fns[8]; /* by keys less 1 */

/* The arguments that all products of a block with one key row share. */
struct dot_shape {
    dot_fns *border; /* SPLIT: kernels for just these lanes, by rows less 1; NULL: there are none */
    int64_t query_pitch, key_pitch; /* reals from a channel to the next */
    int32_t dim;
    int32_t still; /* SPLIT: key of the lanes that stand still, less that of lane 0 if it moved */
    vint index;    /* PERMUTE: of each lane's key; SPLIT: all bits in the lanes that move */
};

#if HAS_SPLIT_LANES
/* Modes of kernels besides enum nh_lane_mode, for whole rows at a border (enum nh_row_kind) with windows of 5 and 7 keys: in
 * these, the turn of split lanes is a constant. */
enum { LANES_FIRST_5 = NH_LANE_MODES, LANES_LAST_5, LANES_FIRST_7, LANES_LAST_7 };

/* The `turn` of nh_vector for these modes. */
INLINE int border_turn(const int mode) {
    const int beside = mode == LANES_FIRST_5 || mode == LANES_LAST_5 ? 2 : 3;
    return mode == LANES_FIRST_5 || mode == LANES_FIRST_7 ? beside : VL - 1 - beside;
}
#endif

/* Loads, into each lane, key n counted from that lane's first key. */
INLINE vec key_lanes(const int mode, const real *key, const int n, vint index, int64_t still) {
    if (mode == NH_LANES_SAME) return v_set(key[n]);
#if HAS_SPLIT_LANES
    if (mode > NH_LANES_SPLIT) { /* one instruction, which loads, besides the broadcast */
        const vec stand = v_set(key[n + border_turn(mode)]), move = v_load(key + n);
        if (mode == LANES_FIRST_5)
            return __builtin_shufflevector(stand, move, 0, 1, 10, 11, 12, 13, 14, 15);
        if (mode == LANES_LAST_5)
            return __builtin_shufflevector(stand, move, 8, 9, 10, 11, 12, 5, 6, 7);
        if (mode == LANES_FIRST_7)
            return __builtin_shufflevector(stand, move, 0, 1, 2, 11, 12, 13, 14, 15);
        return __builtin_shufflevector(stand, move, 8, 9, 10, 11, 4, 5, 6, 7);
    }
    if (mode == NH_LANES_SPLIT) {
        const vint at_rest = (vint)v_set(key[n + still]);
        KEEP_IN_REGISTER(index); /* else its complement takes a register, too */
        return (vec)((vint)v_load_masked(key + n, index) | (at_rest & ~index));
    }
#endif
    (void)still;
    const vec keys = v_load(key + n);
    return mode == NH_LANES_PERMUTE ? v_permute(keys, index) : keys;
}

/* Adds one channel to the sums, or begins them with it. Either keys or queries are kept in registers, the others are loaded
 * one by one. */
INLINE void dot_channel(const int R, const int N, const int mode, const bool begin,
                        vec sum[DOT_ROWS][8], const real *query, const real *key, vint index,
                        int64_t still) {
    vec value[DOT_ROWS], k[8];
    const bool hold_keys = HOLD_KEYS(R);
#pragma GCC unroll 8
    for (int r = 0; !hold_keys && r < R; r++) {
        value[r] = v_load(query + r * VL);
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
        k[n] = cut ? v_shift_pair(low, high, n) : key_lanes(mode, key, n, index, still);
        if (R > 1) KEEP_IN_REGISTER(k[n]);
#pragma GCC unroll 8
        for (int r = 0; !hold_keys && r < R; r++)
            sum[r][n] = begin ? value[r] * k[n] : sum[r][n] + value[r] * k[n];
    }
#pragma GCC unroll 8
    for (int r = 0; hold_keys && r < R; r++) {
        vec one = v_load(query + r * VL);
        if (N > 1) KEEP_IN_REGISTER(one);
#pragma GCC unroll 8
        for (int n = 0; n < N; n++)
            sum[r][n] = begin ? one * k[n] : sum[r][n] + one * k[n];
    }
}

INLINE void dot_kernel(const int R, const int N, const int mode, real *const *score, int64_t offset,
                       const real *query, const real *key, const struct dot_shape *shape) {
    const int64_t query_pitch = shape->query_pitch, key_pitch = shape->key_pitch;
    const int64_t still = shape->still;
    const int32_t dim = shape->dim;
    const vint index = shape->index;
    for (int32_t from = 0; from < dim; from += CHAIN_CHANNELS) {
        vec sum[DOT_ROWS][8];
        int32_t left = dim - from < CHAIN_CHANNELS ? dim - from : CHAIN_CHANNELS;
        dot_channel(R, N, mode, true, sum, query, key, index, still);
        while (query += query_pitch, key += key_pitch, --left > 0)
            dot_channel(R, N, mode, false, sum, query, key, index, still);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            real *at = score[r] + offset;
#pragma GCC unroll 8
            for (int n = 0; n < N; n++, at += VL)
                v_store(at, from > 0 ? v_load(at) + sum[r][n] : sum[r][n]);
        }
    }
}

#define DOT_NAME(R, N, M) dot_##R##_##N##_##M
#define DOT(R, N, M)                                                                               \
    static void DOT_NAME(R, N, M)(real *const *score, int64_t offset, const real *query,           \
                                  const real *key, const struct dot_shape *shape) {                \
        dot_kernel(R, N, M, score, offset, query, key, shape);                                     \
    }
#if HAS_SPLIT_LANES
#define DOT_MODES(R, N) DOT(R, N, 0) DOT(R, N, 1) DOT(R, N, 2) DOT(R, N, 3)
#define DOT_SPLIT(R, N) DOT_NAME(R, N, 3)
#else
#define DOT_MODES(R, N) DOT(R, N, 0) DOT(R, N, 1) DOT(R, N, 2)
#define DOT_SPLIT(R, N) DOT_NAME(R, N, 2)
#endif
#define DOT_ENTRY(R, N) {DOT_NAME(R, N, 0), DOT_NAME(R, N, 1), DOT_NAME(R, N, 2), DOT_SPLIT(R, N)},
#define DOT_2(F, R) F(R, 1) F(R, 2)
#define DOT_3(F, R) DOT_2(F, R) F(R, 3)
#define DOT_4(F, R) DOT_3(F, R) F(R, 4)
#define DOT_5(F, R) DOT_4(F, R) F(R, 5)
#define DOT_6(F, R) DOT_5(F, R) F(R, 6)
#define DOT_8(F, R) DOT_6(F, R) F(R, 7) F(R, 8)

/* clang-format off */
#if DOT_ROWS == 4
DOT_8(DOT_MODES, 1) DOT_8(DOT_MODES, 2) DOT_8(DOT_MODES, 3) DOT_6(DOT_MODES, 4)
static dot_fn *const dot_table[DOT_ROWS][8][NH_LANE_MODES] = {
    {DOT_8(DOT_ENTRY, 1)}, {DOT_8(DOT_ENTRY, 2)}, {DOT_8(DOT_ENTRY, 3)}, {DOT_6(DOT_ENTRY, 4)}};
#elif DOT_ROWS == 6
DOT_8(DOT_MODES, 1) DOT_6(DOT_MODES, 2) DOT_4(DOT_MODES, 3) DOT_3(DOT_MODES, 4)
DOT_2(DOT_MODES, 5) DOT_2(DOT_MODES, 6)
static dot_fn *const dot_table[DOT_ROWS][8][NH_LANE_MODES] = {
    {DOT_8(DOT_ENTRY, 1)}, {DOT_6(DOT_ENTRY, 2)}, {DOT_4(DOT_ENTRY, 3)}, {DOT_3(DOT_ENTRY, 4)},
    {DOT_2(DOT_ENTRY, 5)}, {DOT_2(DOT_ENTRY, 6)}};
#else
DOT_8(DOT_MODES, 1) DOT_5(DOT_MODES, 2) DOT_4(DOT_MODES, 3)
static dot_fn *const dot_table[DOT_ROWS][8][NH_LANE_MODES] = {
    {DOT_8(DOT_ENTRY, 1)}, {DOT_5(DOT_ENTRY, 2)}, {DOT_4(DOT_ENTRY, 3)}};
#endif
/* clang-format on */

/* The kernels for split lanes of a whole row at a border, or NULL if there are none. */
#if HAS_SPLIT_LANES
/* The kernels for the numbers of rows and keys that dot_span uses with windows of 5 and 7. */
/* clang-format off */
#define BORDER_BOTH(F, M) F(3, 3, M) F(4, 2, M) F(4, 3, M) F(5, 1, M) F(5, 2, M) F(6, 1, M) F(6, 2, M)
#define BORDER_5(F, M) F(1, 5, M) F(2, 5, M) F(3, 2, M) BORDER_BOTH(F, M)
#define BORDER_7(F, M) F(1, 7, M) F(2, 3, M) F(2, 4, M) F(3, 4, M) BORDER_BOTH(F, M)
#define BORDER_ENTRY(R, N, M) [(R) - 1][(N) - 1] = DOT_NAME(R, N, M),
BORDER_5(DOT, LANES_FIRST_5) BORDER_5(DOT, LANES_LAST_5)
BORDER_7(DOT, LANES_FIRST_7) BORDER_7(DOT, LANES_LAST_7)
static dot_fns dot_border[2][2][DOT_ROWS] = {
    {{BORDER_5(BORDER_ENTRY, LANES_FIRST_5)}, {BORDER_5(BORDER_ENTRY, LANES_LAST_5)}},
    {{BORDER_7(BORDER_ENTRY, LANES_FIRST_7)}, {BORDER_7(BORDER_ENTRY, LANES_LAST_7)}}};
/* clang-format on */

static dot_fns *find_border(enum nh_row_kind row, int32_t window) {
    return row >= NH_ROW_FIRST && (window == 5 || window == 7)
               ? dot_border[window == 7][row == NH_ROW_LAST]
               : NULL;
}
#else
static dot_fns *find_border(enum nh_row_kind row, int32_t window) {
    (void)row, (void)window;
    return NULL;
}
#endif

/* dot_span for at most DOT_ROWS rows. */
static void dot_keys(int32_t rows, int32_t count, enum nh_lane_mode mode, real *const *score,
                     const real *query, const real *key, const struct dot_shape *shape) {
    const int32_t most =
        MOST_KEYS(rows) - (mode >= NH_LANES_PERMUTE && !shape->border && FULL_REGISTERS(rows));
    int32_t pieces = 1, done = 0;
    while (pieces * most < count)
        pieces++;
    const int32_t even = pieces == 1 ? count : count / pieces;
    for (int32_t longer = count - even * pieces; done < count; longer--) {
        int32_t size = even + (longer > 0);
        dot_fn *const dot =
            shape->border ? shape->border[rows - 1][size - 1] : dot_table[rows - 1][size - 1][mode];
        dot(score, done * VL, query, key + done, shape);
        done += size;
    }
}

/* Computes score[r][n] = query[r] . key(start + n) for n in [0, count), queries at query[c * query_pitch + r * VL], keys at
 * key[c * key_pitch + n]. */
static void dot_span(int32_t rows, int32_t count, enum nh_lane_mode mode, real *const *score,
                     const real *query, const real *key, const struct dot_shape *shape) {
    _Static_assert(MOST_ROWS <= 2 * DOT_ROWS, "a block is met by halves");
    const int32_t half = MOST_ROWS > DOT_ROWS && rows > DOT_ROWS ? rows / 2 : 0;
    if (half > 0) dot_keys(half, count, mode, score, query, key, shape);
    dot_keys(rows - half, count, mode, score + half, query + half * VL, key, shape);
}

#endif
